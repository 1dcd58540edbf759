"""Samples in Parquet: one row group at a time, with the columns that JSON lines have as keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from skill_run.errors import InputError, MissingError
from skill_run.pack.samples.convert import Row
from skill_run.pack.samples.token_columns import Column
from skill_run.pack.samples.tokens import IDS, LABELS, LOSS, START
from skill_run.report.safe import clip, flow

# Uncompressed bytes of one row group that are held at a time.
_MOST_GROUP: Final = 2**30
_PACKED: Final = "seq_start_id"


def count_row_groups(path: Path) -> int:
    """Return the number of row groups; raises InputError for what is no Parquet file of samples."""
    file = _open(path)
    if _PACKED in file.schema_arrow.names:
        raise InputError(f"{path} is packed already: it has a column {_PACKED}")
    for group in range(file.metadata.num_row_groups):
        if file.metadata.row_group(group).total_byte_size > _MOST_GROUP:
            raise InputError(f"row group {group} of {path} is larger than 1 GiB; write it with smaller row groups")
    return int(file.metadata.num_row_groups)


def read_first_row(path: Path) -> Row | None:
    """Return the first row, None when there is none."""
    file = _open(path)
    for group in range(file.metadata.num_row_groups):
        if file.metadata.row_group(group).num_rows:
            return dict(_group(path, file, group).slice(0, 1).to_pylist()[0])
    return None


def read_rows(path: Path, group: int) -> list[Row]:
    """Return the rows of one row group as mappings."""
    return list(_group(path, _open(path), group).to_pylist())


def read_columns(path: Path, group: int) -> dict[str, Column] | None:
    """Return the token columns of one row group; None when one has nulls or values that are no whole numbers."""
    table = _group(path, _open(path), group)
    found = {}
    for name in (IDS, LOSS, START, LABELS):
        if name in table.column_names:
            column = _column(table.column(name).combine_chunks())
            if column is None:
                return None
            found[name] = column
    return found if IDS in found else None


def _column(array: Any) -> Column | None:
    import pyarrow

    kind = array.type
    if array.null_count:
        return None
    starts = None
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
        starts = array.offsets.to_numpy().astype(np.int64)
        starts, array = starts - starts[0], array.flatten()
        if array.null_count:
            return None
    if pyarrow.types.is_boolean(array.type):
        array = array.cast(pyarrow.uint8())
    return Column(array.to_numpy(), starts) if pyarrow.types.is_integer(array.type) else None


def _open(path: Path) -> Any:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingError(
            f"{path} needs pyarrow to be read, which is not installed: pip install 'skill-run[parquet]'"
        ) from error
    try:
        return parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as Parquet: {clip(flow(str(error)), 160)}") from error


def _group(path: Path, file: Any, group: int) -> Any:
    import pyarrow

    try:
        return file.read_row_group(group, use_threads=False)
    except (pyarrow.ArrowException, OSError, ValueError, MemoryError) as error:
        raise InputError(f"{path} cannot be read as Parquet: {clip(flow(str(error)), 160)}") from error
