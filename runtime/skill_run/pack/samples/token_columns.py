"""Tokenised Parquet rows as whole columns: the usual case, in which nothing is wrong, without a step for each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from skill_run.pack.samples.flat import Flat
from skill_run.pack.samples.sample import BadSampleError
from skill_run.pack.samples.tokens import IDS, LABELS, LOSS, START, check_ids

_IGNORED: Final = -100

Integers = NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class Column:
    """Values of all rows one behind the other, and where each row begins and ends: starts [N + 1]; None: one a row."""

    values: Integers
    starts: NDArray[np.int64] | None

    @property
    def size(self) -> int:
        """Number of rows."""
        return int(self.values.size if self.starts is None else self.starts.size - 1)


def flat_columns(columns: dict[str, Column], lines: NDArray[np.int64], limit: int | None) -> Flat | None:
    """Return the rows as samples with the numbers of their lines.

    None when any row needs a closer look: `tokens.token_sample` finds out what is wrong with it.
    """
    ids = columns[IDS]
    if ids.starts is None or ids.values.dtype.kind not in "iu":
        return None
    try:
        check_ids(ids.values, limit)
    except BadSampleError:
        return None
    lengths = np.diff(ids.starts)
    key = next((key for key in (LOSS, START, LABELS) if key in columns), None)
    masks = None if key is None else _masks(key, columns[key], ids.values, ids.starts, lengths)
    if masks is None:
        return None
    return Flat(
        ids.values.astype(np.int32),
        masks,
        lengths,
        lines,
        np.zeros(lengths.size, dtype=np.int64),
        np.full(lengths.size, key == START),
    )


def _masks(
    key: str, column: Column, ids: Integers, starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.uint8] | None:
    values = column.values
    if key == START:
        if column.starts is not None or values.dtype.kind not in "iu" or ((values < 0) | (values > lengths)).any():
            return None
        place = np.arange(ids.size) - np.repeat(starts[:-1], lengths)
        return (place >= np.repeat(values.astype(np.int64) - 1, lengths)).astype(np.uint8)
    if column.starts is None or not np.array_equal(np.diff(column.starts), lengths):
        return None
    if key == LABELS:
        trained = values != _IGNORED
        if values.dtype.kind not in "iu" or (values[trained] != ids[trained]).any():
            return None
    else:
        trained = values == 1
        if values.dtype.kind not in "biu" or ((values != 0) & ~trained).any():
            return None
    moved = np.zeros(ids.size, dtype=np.uint8)
    moved[:-1] = trained[1:]
    moved[starts[1:][lengths > 0] - 1] = 0
    return moved
