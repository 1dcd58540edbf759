"""Rows of a packed file from stored samples: tokens, loss masks and starts, many rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from skill_run.pack.assign import Packs
from skill_run.pack.store import Store

ROWS_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive rows.

    tokens: [T]; masks: [T]; row_offsets: [R + 1] into both; starts: [S] first token of each sequence inside its row;
    start_offsets: [R + 1] into `starts`.
    """

    tokens: npt.NDArray[np.int64]
    masks: npt.NDArray[np.int8]
    row_offsets: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    start_offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.row_offsets) - 1


def rows_of(
    store: Store, packs: Packs, stored: npt.NDArray[np.int32], *, padding: int, padding_mask: int
) -> Iterator[Rows]:
    """Yield the rows, ROWS_AT_ONCE at a time.

    stored: [N] stored lengths after alignment padding. padding: token that fills a sample up to it; padding_mask: loss
    mask of that token.
    """
    for first in range(0, len(packs), ROWS_AT_ONCE):
        last = min(first + ROWS_AT_ONCE, len(packs))
        bounds = packs.starts[first : last + 1]
        samples = packs.order[bounds[0] : bounds[-1]]
        lengths = stored[samples].astype(np.int64)
        ends = np.cumsum(lengths)
        begins = ends - lengths
        tokens = np.full(int(ends[-1]) if len(ends) else 0, padding, np.int64)
        masks = np.full(len(tokens), padding_mask, np.int8)
        kept = np.minimum(store.lengths[samples], lengths)
        source, target = _spans(store.offsets[samples], kept), _spans(begins, kept)
        tokens[target] = store.tokens[source]
        masks[target] = store.masks[source]
        start_offsets = bounds - bounds[0]
        row_offsets = np.concatenate([[0], ends])[start_offsets]
        inside = begins - np.repeat(row_offsets[:-1], np.diff(start_offsets))
        yield Rows(tokens, masks, row_offsets, inside, start_offsets)


def _spans(begins: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the places of all tokens of spans, one span behind the other."""
    ends = np.cumsum(lengths)
    places: npt.NDArray[np.int64] = np.repeat(begins - (ends - lengths), lengths)
    places += np.arange(len(places))
    return places
