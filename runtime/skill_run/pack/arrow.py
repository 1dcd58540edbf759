"""Packed rows out of Parquet and Arrow files, a few row groups in memory at a time."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from skill_run.errors import InputError, MissingError
from skill_run.pack.footer import RowGroup, read_row_groups
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
_ARROW_MAGIC: Final = b"ARROW1"
_STREAM_END: Final = b"\xff\xff\xff\xff\0\0\0\0"
# Numbers of fields in Arrow's Message and RecordBatch tables.
_HEADER_FIELD: Final = 2
_COMPRESSION_FIELD: Final = 3


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

    groups = read_row_groups(path)
    with _readable(path, "Parquet", pyarrow):
        file = parquet.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
    with file:
        with _readable(path, "Parquet", pyarrow):
            faults = schema_faults(file.schema_arrow, pyarrow)
            rows = int(file.metadata.num_rows)
            names = [name for name in COLUMNS if name not in faults]
            size = _batch_rows(path, groups, names)
        if not names:
            yield Chunk(path.name, 0, rows, {}, faults)
            return
        batches = file.iter_batches(batch_size=size, columns=names)
        yield from _chunks(path, "Parquet", pyarrow, batches, names, faults)


def _batch_rows(path: Path, groups: list[RowGroup], names: list[str]) -> int:
    """Return how many rows to decode at once; InputError when the footer claims what the file cannot hold."""
    widest = 1.0
    for group in groups:
        for name in names:
            count, packed = group.values.get(name, 0), group.compressed.get(name, 0)
            if count < 0 or packed < 0 or group.rows < 0 or (count and not group.rows):
                raise InputError(f"{path} claims {count} values of {name} in {group.rows} rows, so it is not read")
            check_row_length(count // max(group.rows, 1), f"{path}, column {name},")
            # A mask of long runs shrinks to nearly no bytes; it can be no longer than the tokens it belongs to.
            paid = packed * _VALUES_PER_BYTE
            if name == LOSS_MASK:
                paid = max(paid, group.values.get(INPUT_IDS, 0))
            if count > max(_FREE_VALUES, paid):
                raise InputError(f"{path} claims {count} values of {name} in {packed} bytes, so it is not read")
            widest = max(widest, count / max(group.rows, 1))
    return int(min(CHUNK_ROWS, max(1.0, CHUNK_TOKENS / widest)))


def read_arrow(path: Path) -> Iterator[Chunk]:
    """Yield the rows of one uncompressed Arrow IPC file or stream; errors as those of read_parquet."""
    pyarrow = _pyarrow(path)
    with _readable(path, "Arrow", pyarrow):
        source = pyarrow.memory_map(str(path))
        # A file is a stream after its magic; its index at the end is not needed, and could lead elsewhere.
        framed = source.read(len(_ARROW_MAGIC)) == _ARROW_MAGIC
        start, end = (8, _ARROW_MAGIC) if framed else (0, _STREAM_END)
        source.seek(max(0, source.size() - len(end)))
        if source.read() != end:
            raise InputError(f"{path} cannot be read as Arrow: its end is missing, so it is truncated or another form")
        source.seek(start)
        if any(_is_compressed(message) for message in pyarrow.ipc.MessageReader.open_stream(source)):
            raise InputError(
                f"{path} is compressed Arrow, which may unpack to any size; write it uncompressed or as Parquet"
            )
        source.seek(start)
        schema = pyarrow.ipc.open_stream(source).schema
        faults = schema_faults(schema, pyarrow)
        names = [name for name in COLUMNS if name not in faults]
        wanted = [schema.names.index(name) for name in names]
        source.seek(start)
        batches = iter(
            pyarrow.ipc.open_stream(source, options=pyarrow.ipc.IpcReadOptions(included_fields=wanted or [0]))
        )
        if not names:
            rows = sum(int(batch.num_rows) for batch in batches)
    if not names:
        yield Chunk(path.name, 0, rows, {}, faults)
        return
    yield from _chunks(path, "Arrow", pyarrow, _pieces(batches, names), names, faults)


def _is_compressed(message: Any) -> bool:
    """Tell whether a record batch is compressed, which its flatbuffer says: Message.header.compression is there."""
    if message.type != "record batch":
        return False
    data = message.metadata.to_pybytes()

    def place(table: int, field: int) -> int:
        fields = table - int(struct.unpack_from("<i", data, table)[0])
        size = struct.unpack_from("<H", data, fields)[0]
        offset = struct.unpack_from("<H", data, fields + 4 + 2 * field)[0] if 4 + 2 * field < size else 0
        return table + int(offset) if offset else 0

    try:
        header = place(struct.unpack_from("<I", data, 0)[0], _HEADER_FIELD)
        return bool(place(header + struct.unpack_from("<I", data, header)[0], _COMPRESSION_FIELD))
    except struct.error as error:
        raise ValueError("a record batch has a damaged header") from error


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
