"""Packed rows out of Parquet and Arrow files, a few row groups in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from skill_run.errors import InputError, MissingError
from skill_run.pack.reader import (
    CHUNK_ROWS,
    CHUNK_TOKENS,
    COLUMNS,
    INPUT_IDS,
    LOSS_MASK,
    Chunk,
    Column,
    check_row_length,
)
from skill_run.report.safe import clip, flow

_BUFFER_BYTES: Final = 2**20
# A row group of more values than this must be made of real bytes, not of a few that expand.
_FREE_VALUES: Final = 2**27
_VALUES_PER_BYTE: Final = 8
_REASON_LENGTH: Final = 160


def _pyarrow(path: Path) -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise MissingError(
            f"{path} needs pyarrow to be read, which is not installed: pip install 'skill-run[parquet]'"
        ) from error
    return pyarrow


@contextmanager
def _readable(path: Path, form: str, pyarrow: Any) -> Iterator[None]:
    """Turn what pyarrow raises into one sentence."""
    try:
        yield
    except (pyarrow.ArrowException, OSError, ValueError, EOFError) as error:
        reason = clip(flow(str(error)), _REASON_LENGTH)
        raise InputError(f"{path} cannot be read as {form} (truncated or damaged?): {reason}") from error
    except MemoryError as error:
        raise InputError(f"{path} claims more data than memory holds") from error


def read_parquet(path: Path) -> Iterator[Chunk]:
    """Yield the rows of one Parquet file; the next part is decoded while the caller looks at this one.

    Raises InputError for what is no Parquet file or claims impossible sizes, MissingError without pyarrow.
    """
    pyarrow = _pyarrow(path)
    from pyarrow import parquet

    with _readable(path, "Parquet", pyarrow):
        file = parquet.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
    with file:
        with _readable(path, "Parquet", pyarrow):
            faults = schema_faults(file.schema_arrow, pyarrow)
            rows = int(file.metadata.num_rows)
            names = [name for name in COLUMNS if name not in faults]
            size = _batch_rows(path, file.metadata, names)
        if not names:
            yield Chunk(path.name, 0, rows, {}, faults)
            return
        batches = file.iter_batches(batch_size=size, columns=names)
        yield from _chunks(path, "Parquet", pyarrow, batches, names, faults)


def _batch_rows(path: Path, metadata: Any, names: list[str]) -> int:
    """Return how many rows to decode at once; InputError when the footer claims what the file cannot hold."""
    widest = 1.0
    for group in (metadata.row_group(index) for index in range(metadata.num_row_groups)):
        if group.num_rows < 0 or (group.num_rows == 0 and group.total_byte_size > _BUFFER_BYTES):
            raise InputError(f"{path} has a row group of {group.num_rows} rows that claims data")
        chunks = [group.column(index) for index in range(group.num_columns)]
        values = dict.fromkeys(names, 0)
        packed = dict(values)
        for chunk in chunks:
            name = str(chunk.path_in_schema).partition(".")[0]
            if name in values:
                values[name] += int(chunk.num_values)
                packed[name] += int(chunk.total_compressed_size)
        for name, count in values.items():
            check_row_length(count // max(group.num_rows, 1), f"{path}, column {name},")
            # A mask of long runs shrinks to nearly no bytes; it can be no longer than the tokens it belongs to.
            paid = packed[name] * _VALUES_PER_BYTE
            if name == LOSS_MASK and INPUT_IDS in values:
                paid = max(paid, values[INPUT_IDS])
            if count < 0 or count > max(_FREE_VALUES, paid):
                raise InputError(f"{path} claims {count} values of {name} in {packed[name]} bytes, so it is not read")
            widest = max(widest, count / max(group.num_rows, 1))
    return int(min(CHUNK_ROWS, max(1.0, CHUNK_TOKENS / widest)))


def read_arrow(path: Path) -> Iterator[Chunk]:
    """Yield the rows of one Arrow IPC file or stream; errors as those of read_parquet."""
    pyarrow = _pyarrow(path)
    with _readable(path, "Arrow", pyarrow):
        schema, batches = _open_arrow(path, pyarrow)
        faults = schema_faults(schema, pyarrow)
    names = [name for name in COLUMNS if name not in faults]
    if not names:
        with _readable(path, "Arrow", pyarrow):
            rows = sum(int(batch.num_rows) for batch in batches)
        yield Chunk(path.name, 0, rows, {}, faults)
        return
    yield from _chunks(path, "Arrow", pyarrow, _pieces(batches, names), names, faults)


def _open_arrow(path: Path, pyarrow: Any) -> tuple[Any, Iterator[Any]]:
    """Return schema and record batches of the file form, or else of the stream form, which has no footer."""
    source = pyarrow.memory_map(str(path))
    try:
        reader = pyarrow.ipc.open_file(source)
    except pyarrow.ArrowInvalid:
        source.seek(0)
        stream = pyarrow.ipc.open_stream(source)
        return stream.schema, iter(stream)
    return reader.schema, (reader.get_batch(index) for index in range(reader.num_record_batches))


def _pieces(batches: Iterator[Any], names: list[str]) -> Iterator[Any]:
    """Cut record batches into pieces of a chunk's size; buffers that do not hold what they claim are refused first."""
    for batch in batches:
        part = batch.select(names)
        part.validate(full=True)
        widest = max([len(part.column(name).values) / max(part.num_rows, 1) for name in names] or [1.0])
        step = int(min(CHUNK_ROWS, max(1.0, CHUNK_TOKENS / max(widest, 1.0))))
        for start in range(0, part.num_rows, step):
            yield part.slice(start, step)


def schema_faults(schema: Any, pyarrow: Any) -> dict[str, str]:
    """Return why required columns cannot be used, by name."""
    types = pyarrow.types
    found: dict[str, str] = {}
    for name in COLUMNS:
        count = schema.names.count(name)
        if count != 1:
            found[name] = "is missing" if count == 0 else f"is there {count} times"
            continue
        kind = schema.field(name).type
        if not (types.is_list(kind) or types.is_large_list(kind)):
            found[name] = f"is {clip(flow(str(kind)), 60)}, not a list of numbers"
            continue
        item = kind.value_type
        numbers = types.is_integer(item) or (name == LOSS_MASK and (types.is_boolean(item) or types.is_floating(item)))
        if not numbers:
            found[name] = f"holds {clip(flow(str(item)), 60)}, not whole numbers"
    return found


def _chunks(
    path: Path, form: str, pyarrow: Any, batches: Iterator[Any], names: list[str], faults: dict[str, str]
) -> Iterator[Chunk]:
    row = 0
    with ThreadPoolExecutor(max_workers=1) as pool:
        pending = pool.submit(next, batches, None)
        while True:
            with _readable(path, form, pyarrow):
                batch = pending.result()
                if batch is None:
                    return
                pending = pool.submit(next, batches, None)
                chunk = _chunk(path, batch, row, names, faults)
            yield chunk
            row += chunk.rows


def _chunk(path: Path, batch: Any, row: int, names: list[str], faults: dict[str, str]) -> Chunk:
    columns: dict[str, Column] = {}
    broken = dict(faults)
    for name in names:
        array = batch.column(name)
        offsets = np.asarray(array.offsets.to_numpy(), dtype=np.int64)
        if array.null_count or array.values.null_count:
            broken[name] = "holds null"
            continue
        first, last = int(offsets[0]), int(offsets[-1])
        check_row_length(int(np.diff(offsets).max(initial=0)), f"{path}, column {name},")
        values = array.values.slice(first, last - first).to_numpy(zero_copy_only=False)
        columns[name] = Column(offsets - first, _plain(values))
    return Chunk(path.name, row, int(batch.num_rows), columns, broken)


def _plain(values: NDArray[Any]) -> NDArray[Any]:
    """Return values as numpy counts with them natively; numbers beyond 63 bits cannot be tokens."""
    return np.minimum(values, 2**63 - 1).astype(np.int64) if values.dtype == np.uint64 else values
