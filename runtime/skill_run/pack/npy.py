"""Packed rows out of a legacy `.npy` file, which is a pickled list of dicts."""

from __future__ import annotations

import ast
import mmap
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final, TypeGuard

import numpy as np
from numpy.typing import NDArray

from skill_run.errors import InputError
from skill_run.pack.reader import CHUNK_ROWS, CHUNK_TOKENS, COLUMNS, INPUT_IDS, LOSS_MASK, Chunk, column_of
from skill_run.pack.unpickle import Machine, Row

MAGIC: Final = b"\x93NUMPY"
_LENGTHS: Final = {b"\x01\x00": "<H", b"\x02\x00": "<I"}
_HEADER_BYTES: Final = 10_000
_KIND: Final = re.compile(r"[<>|=]?(?:b1|[iu][1248]|f[248]|c8|c16|O8?|[US]\d{1,6})")


def read_npy_header(stream: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, Fortran order and number type of an array file; InputError when it has no sound header.

    numpy's own reader lets many kinds of exceptions and a warning through, so the header is read here.
    """
    start = stream.read(len(MAGIC) + 2)
    if not start.startswith(MAGIC) or start[len(MAGIC) :] not in _LENGTHS:
        raise InputError(f"{name} is no array file of version 1 or 2 that numpy wrote")
    form = _LENGTHS[start[len(MAGIC) :]]
    field = stream.read(struct.calcsize(form))
    length = struct.unpack(form, field)[0] if len(field) == struct.calcsize(form) else 0
    text = stream.read(length) if length <= _HEADER_BYTES else b""
    try:
        header = ast.literal_eval(text.decode("latin-1").strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        header = None
    shape, order, kind = (_entry(header, key) for key in ("shape", "fortran_order", "descr"))
    if len(text) != length or not _is_shape(shape) or not isinstance(order, bool) or not isinstance(kind, str):
        raise InputError(f"{name} is no array file of numbers that numpy wrote: its header is not sound")
    if not _KIND.fullmatch(kind):
        raise InputError(f"{name} holds values of type {kind!r:.40}; numbers are needed")
    return shape, order, np.dtype(kind)


def _entry(header: Any, key: str) -> Any:
    return header.get(key) if isinstance(header, dict) else None


def _is_shape(value: Any) -> TypeGuard[tuple[int, ...]]:
    return isinstance(value, tuple) and all(type(size) is int and 0 <= size < 2**63 for size in value)


def read_packed_npy(path: Path) -> Iterator[Chunk]:
    """Yield the rows of one packed `.npy`, in memory that does not grow with the file.

    Raises InputError when it is none, is truncated, or is a pickle that asks for anything a packed file does not hold.
    """
    with path.open("rb") as stream:
        shape, _, dtype = read_npy_header(stream, str(path))
        start = stream.tell()
        if not dtype.hasobject:
            raise InputError(
                f"{path} holds one array of {dtype} values; a packed dataset has rows with {', '.join(COLUMNS)}"
            )
        if len(shape) != 1 or shape[0] == 0:
            raise InputError(f"{path} holds an array of shape {shape}, not a list of at least one packed row")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            machine = Machine(data, start, str(path))
            yield from _chunks(path, machine)
    if machine.emitted != shape[0]:
        raise InputError(f"{path} says it has {shape[0]} rows but holds {machine.emitted}")


def _chunks(path: Path, machine: Machine) -> Iterator[Chunk]:
    """Gather rows that have the same usable columns."""
    rows: list[Row] = []
    faults: dict[str, str] = {}
    done = tokens = 0
    for row in machine.rows():
        broken = row_faults(row)
        if rows and (broken != faults or tokens >= CHUNK_TOKENS or len(rows) == CHUNK_ROWS):
            yield _chunk(path, done, rows, faults)
            done += len(rows)
            rows, tokens = [], 0
        faults = broken
        rows.append({name: row[name] for name in COLUMNS if name in row})
        ids = row.get(INPUT_IDS)
        tokens += ids.size if isinstance(ids, np.ndarray) else 0
    if rows:
        yield _chunk(path, done, rows, faults)


def row_faults(row: Row) -> dict[str, str]:
    """Return why required columns of a row cannot be used, by name."""
    found: dict[str, str] = {}
    for name in COLUMNS:
        value = row.get(name)
        if value is None:
            found[name] = "is missing"
        elif isinstance(value, str):
            found[name] = f"holds {value}, not a list of numbers"
        elif value.dtype.kind not in ("biuf" if name == LOSS_MASK else "iu") and value.size:
            found[name] = f"holds {value.dtype}, not whole numbers"
    return found


def _chunk(path: Path, first: int, rows: list[Row], faults: dict[str, str]) -> Chunk:
    columns = {}
    for name in COLUMNS:
        if name not in faults:
            lists: list[NDArray[Any]] = [value for row in rows if isinstance(value := row[name], np.ndarray)]
            columns[name] = column_of(lists)
    return Chunk(path.name, first, len(rows), columns, faults)
