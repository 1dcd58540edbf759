"""Packed rows out of a legacy `.npy` file, which is a pickled list of dicts."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from skill_run.errors import InputError
from skill_run.pack.reader import CHUNK_ROWS, CHUNK_TOKENS, COLUMNS, INPUT_IDS, LOSS_MASK, Chunk, column_of
from skill_run.pack.unpickle import Machine, Row
from skill_run.report.safe import clip, flow

MAGIC: Final = b"\x93NUMPY"


def read_npy_header(stream: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, Fortran order and number type of an array file; InputError when it has no sound header."""
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        version = np.lib.format.read_magic(stream)
        if version not in readers:
            raise InputError(f"{name} is an array file of version {version}; numpy writes numbers in version 1 or 2")
        shape, order, dtype = readers[version](stream)
    except InputError:
        raise
    except (ValueError, EOFError, OverflowError, MemoryError, RecursionError, TypeError, SyntaxError) as error:
        raise InputError(f"{name} is no array file that numpy wrote: {clip(flow(str(error)), 120)}") from error
    if not all(0 <= size < 2**63 for size in shape):
        raise InputError(f"{name} claims the shape {clip(str(shape), 60)}, which no array has")
    return shape, order, dtype


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
