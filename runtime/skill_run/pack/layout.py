"""The rows of a chunk as sequences: where each starts, how long it is, how many of its tokens are trained.

R rows, S sequences of the chunk. A *stored* length counts the extra token of a sequence; its length at run time is one
less.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from skill_run.batch.model import Ints
from skill_run.pack.reader import INPUT_IDS, LOSS_MASK, STARTS, Chunk, Column

# Alignment adds fewer tokens than its multiple; looking further back for padding would only cost time.
_MAX_PADDING: Final = 4096
_FAR: Final = 2**30


@dataclass(frozen=True)
class Layout:
    """Sequences of a chunk whose input_ids and seq_start_id are usable.

    tokens [R]: stored tokens; counts [R]: sequences; row [S]: a sequence's row; starts, stored [S]: its first token in
    the row, and its stored length, which is below 1 where the starts are wrong.
    """

    chunk: Chunk
    tokens: Ints
    counts: Ints
    row: Ints
    starts: Ints
    stored: Ints

    @cached_property
    def sound(self) -> NDArray[np.bool_]:
        """Rows whose starts begin at 0 and cut the row into sequences of at least one token [R]."""
        bad = np.bincount(self.row[self.stored < 1], minlength=self.tokens.size) > 0
        return np.asarray((self.counts > 0) & (self.first_starts == 0) & ~bad)

    @cached_property
    def first_starts(self) -> Ints:
        """First start of each row, -1 where there is none [R]."""
        found = np.full(self.tokens.size, -1, dtype=np.int64)
        offsets = self.chunk.columns[STARTS].offsets[:-1]
        some = self.counts > 0
        found[some] = self.starts[offsets[some]]
        return found

    @cached_property
    def kept(self) -> NDArray[np.bool_]:
        """Sequences of sound rows [S]."""
        return np.asarray(self.sound[self.row])

    @cached_property
    def runtime(self) -> Ints:
        """Length at run time of the sequences of sound rows."""
        return self.stored[self.kept] - 1

    @cached_property
    def row_runtime(self) -> Ints:
        """Tokens at run time of the sound rows."""
        return (self.tokens - self.counts)[self.sound]

    @cached_property
    def masked(self) -> NDArray[np.bool_]:
        """Sound rows that have a loss mask of the right length [R]."""
        mask = self.chunk.columns.get(LOSS_MASK)
        if mask is None:
            return np.zeros(self.tokens.size, dtype=bool)
        return np.asarray(self.sound & (mask.lengths == self.tokens))

    @cached_property
    def trained(self) -> Ints:
        """Trained tokens of each sequence, its last one left out as at run time; -1 where that cannot be told [S]."""
        found = np.full(self.stored.size, -1, dtype=np.int64)
        chosen = self.masked[self.row]
        mask = self.chunk.columns.get(LOSS_MASK)
        if mask is not None and chosen.any():
            first = (mask.offsets[:-1][self.row] + self.starts)[chosen]
            found[chosen] = _sums(mask, first, first + self.stored[chosen] - 1)
        return found

    def place(self, sequence: int) -> str:
        """Say which sequence of which row it is."""
        row = int(self.row[sequence])
        return f"row {self.chunk.first_row + row}, sequence {sequence - int(self.chunk.columns[STARTS].offsets[row])}"

    def last_tokens(self) -> NDArray[Any] | None:
        """Return the last stored token of each sequence of sound rows; None when only lengths are known."""
        ids = self.chunk.columns[INPUT_IDS]
        if ids.values is None:
            return None
        return np.asarray(ids.values[(ids.offsets[:-1][self.row] + self.starts + self.stored - 1)[self.kept]])

    def padding(self, end_token: int) -> Ints:
        """Return how many tokens repeat the end token after the first one at the end of each sequence [S].

        0 for sequences of unsound rows, and where a sequence ends in another token.
        """
        found = np.zeros(self.stored.size, dtype=np.int64)
        ids = self.chunk.columns[INPUT_IDS]
        if ids.values is None:
            return found
        last = ids.offsets[:-1][self.row] + self.starts + self.stored - 1
        left = np.flatnonzero(self.kept)
        left = left[ids.values[last[left]] == end_token]
        for back in range(1, _MAX_PADDING):
            left = left[self.stored[left] > back]
            left = left[ids.values[last[left] - back] == end_token]
            if not left.size:
                break
            found[left] = back
        return found

    def trained_padding(self, padding: Ints) -> Ints:
        """Return how many padding tokens of each sequence have loss, before end-of-sequence inputs are masked [S]."""
        found = np.zeros(self.stored.size, dtype=np.int64)
        mask = self.chunk.columns.get(LOSS_MASK)
        chosen = self.masked[self.row] & (padding > 0)
        if mask is not None and chosen.any():
            end = (mask.offsets[:-1][self.row] + self.starts + self.stored - 1)[chosen]
            found[chosen] = _sums(mask, end - padding[chosen], end)
        return found


def lay_out(chunk: Chunk) -> Layout | None:
    """Return the sequences of a chunk, None when a column that tells them cannot be used."""
    ids, column = chunk.columns.get(INPUT_IDS), chunk.columns.get(STARTS)
    if ids is None or column is None or column.values is None:
        return None
    tokens, counts = ids.lengths, column.lengths
    row = np.repeat(np.arange(tokens.size, dtype=np.int64), counts)
    # A start beyond the row is wrong wherever it lies, so clipping it keeps sums in range and loses nothing.
    starts = np.clip(column.values, -_FAR if column.values.dtype.kind == "i" else 0, _FAR).astype(np.int64)
    ends = np.empty_like(starts)
    ends[:-1] = starts[1:]
    some = counts > 0
    ends[column.offsets[1:][some] - 1] = tokens[some]
    return Layout(chunk, tokens, counts, row, starts, ends - starts)


def _sums(mask: Column, first: Ints, last: Ints) -> Ints:
    """Return how many mask values in [first, last) are above 0, for ranges in order that do not overlap."""
    values = mask.values
    assert values is not None
    if values.dtype == np.bool_:
        values = values.view(np.int8)
    elif values.dtype.itemsize > 1 or int(values.max(initial=0)) > 1 or int(values.min(initial=0)) < 0:
        values = (values > 0).view(np.int8)
    edges = np.stack([first, last], axis=1).reshape(-1)
    sums = np.add.reduceat(values, edges, dtype=np.int32)[::2].astype(np.int64)
    return np.where(last > first, sums, 0)
