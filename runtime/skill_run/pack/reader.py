"""A packed dataset as chunks of columns: numpy offsets and values, never one Python object per row or token.

A packed row is the concatenation of whole stored sequences; a stored sequence has one token more than it has at run
time, where inputs lose its last token and labels its first. R rows, S sequences of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from skill_run.batch.model import Ints
from skill_run.errors import InputError

INPUT_IDS: Final = "input_ids"
LOSS_MASK: Final = "loss_mask"
STARTS: Final = "seq_start_id"
COLUMNS: Final = (INPUT_IDS, LOSS_MASK, STARTS)
# Far above any real pack; what claims more is refused before memory is taken for it.
MAX_ROW_TOKENS: Final = 2**24
CHUNK_TOKENS: Final = 2**21
CHUNK_ROWS: Final = 4096

Kind = Literal["parquet", "arrow", "npy", "json"]


@dataclass(frozen=True, slots=True)
class Column:
    """A list column of a chunk: row r holds values[offsets[r]:offsets[r + 1]].

    offsets: [R + 1], from 0; values: None where only the lengths of the lists are known.
    """

    offsets: Ints
    values: NDArray[Any] | None

    @property
    def lengths(self) -> Ints:
        """Length of each row's list [R]."""
        return np.diff(self.offsets)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows of one file. columns: those that could be read; faults: why another one could not."""

    file: str
    first_row: int
    rows: int
    columns: Mapping[str, Column]
    faults: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Facts:
    """A packed dataset told by lengths only, as a report may state it, in tokens.

    pack_size: packed_sequence_size; stored_lengths: samples before packing; pack_lengths: tokens of each pack at run
    time; rows: mappings with seq_start_id and input_ids or input_ids_len.
    """

    pack_size: int | None = None
    stored_lengths: Ints | None = None
    pack_lengths: Ints | None = None
    rows: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Dataset:
    """A packed dataset that was found but not read yet. facts: what a JSON file said, for the kind json."""

    kind: Kind
    files: tuple[Path, ...]
    facts: Facts | None = None


def read_chunks(dataset: Dataset) -> Iterator[Chunk]:
    """Yield the rows of a dataset in order, in chunks of about CHUNK_TOKENS tokens.

    Raises InputError when a file cannot be read, MissingError when it needs a package that is not installed.
    """
    if dataset.kind == "json":
        from skill_run.pack.facts import fact_chunks

        yield from fact_chunks(dataset)
        return
    for path in dataset.files:
        if dataset.kind == "parquet":
            from skill_run.pack.arrow import read_parquet

            yield from read_parquet(path)
        elif dataset.kind == "arrow":
            from skill_run.pack.arrow import read_arrow

            yield from read_arrow(path)
        else:
            from skill_run.pack.npy import read_packed_npy

            yield from read_packed_npy(path)


def column_of(lists: list[NDArray[Any]]) -> Column:
    """Return the lists of some rows as one column."""
    offsets = np.zeros(len(lists) + 1, dtype=np.int64)
    np.cumsum([item.size for item in lists], out=offsets[1:])
    return Column(offsets, np.concatenate(lists) if lists else np.empty(0, dtype=np.int64))


def check_row_length(tokens: int, where: str) -> None:
    """Raise InputError when a row claims more tokens than any pack can have."""
    if tokens > MAX_ROW_TOKENS:
        raise InputError(f"{where} claims {tokens} tokens in one row; no pack has more than {MAX_ROW_TOKENS}")
