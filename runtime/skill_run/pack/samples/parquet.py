"""Samples in Parquet: one row group at a time, with the columns that JSON lines have as keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from skill_run.errors import InputError, MissingError
from skill_run.pack.samples.convert import Row
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
