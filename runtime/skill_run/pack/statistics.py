"""Figures of a packed dataset, gathered chunk by chunk."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from skill_run.batch.model import Ints
from skill_run.pack.layout import Layout


@dataclass(slots=True)
class Statistics:
    """Figures so far; lengths are those at run time, in tokens. Only sound rows count, except in `rows`.

    alignment: greatest common divisor of all lengths; widths: rows by their tokens; by_pack: packs by their number of
    sequences; by_size: sequences by the bits of their length; padding: None until it can be told.
    """

    rows: int = 0
    sound_rows: int = 0
    sequences: int = 0
    empty: int = 0
    tokens: int = 0
    trained: int | None = None
    untrained_rows: int = 0
    untrained_sequences: int = 0
    padding: int | None = None
    alignment: int = 0
    longest: int = 0
    shortest: int | None = None
    widest_row: int = 0
    narrowest_row: int | None = None
    by_pack: Counter[int] = field(default_factory=Counter)
    by_size: Counter[int] = field(default_factory=Counter)

    def add(self, layout: Layout) -> None:
        """Count the sequences of a chunk."""
        self.add_lengths(layout.runtime)
        self.add_rows(layout.row_runtime)
        self.by_pack += _counted(layout.counts[layout.sound])
        known = layout.trained >= 0
        if known.any():
            trained = layout.trained[known]
            self.trained = (self.trained or 0) + int(trained.sum())
            self.untrained_sequences += int(((trained == 0) & (layout.stored[known] > 1)).sum())

    def add_lengths(self, lengths: Ints) -> None:
        """Count sequences by their lengths."""
        if not lengths.size:
            return
        some = lengths[lengths > 0]
        self.sequences += lengths.size
        self.empty += lengths.size - some.size
        self.longest = max(self.longest, int(lengths.max()))
        shortest = int(lengths.min())
        self.shortest = shortest if self.shortest is None else min(self.shortest, shortest)
        self.alignment = math.gcd(self.alignment, int(np.gcd.reduce(some)) if some.size else 0)
        self.by_size += _counted(np.frexp(lengths.astype(np.float64))[1].astype(np.int64))

    def add_rows(self, widths: Ints) -> None:
        """Count packs by their tokens."""
        if not widths.size:
            return
        self.sound_rows += widths.size
        self.tokens += int(widths.sum())
        self.widest_row = max(self.widest_row, int(widths.max()))
        narrowest = int(widths.min())
        self.narrowest_row = narrowest if self.narrowest_row is None else min(self.narrowest_row, narrowest)

    def fill(self, pack_size: int | None) -> float | None:
        """Share of the packs' tokens that hold sequences, 0 to 1."""
        if not pack_size or not self.sound_rows:
            return None
        return self.tokens / (self.sound_rows * pack_size)

    def figures(self, pack_size: int | None) -> dict[str, Any]:
        """Return the figures by name, JSON-ready; what is not known is left out."""
        fill = self.fill(pack_size)
        found: dict[str, Any] = {
            "rows": self.rows or None,
            "sequences": self.sequences or None,
            "pack_size": pack_size,
            "fill": None if fill is None else round(fill, 4),
            "lowest_fill": round(self.narrowest_row / pack_size, 4)
            if pack_size and self.narrowest_row is not None
            else None,
            "padding_share": None if self.padding is None or not self.tokens else round(self.padding / self.tokens, 4),
            "trained_tokens": self.trained,
            "rows_without_supervision": None if self.trained is None else self.untrained_rows,
            "sequences_without_supervision": None if self.trained is None else self.untrained_sequences,
            "alignment": self.alignment or None,
            "empty_sequences": self.empty if self.sequences else None,
        }
        found = {key: value for key, value in found.items() if value is not None}
        if self.by_pack:
            found["sequences_per_pack"] = spread(self.by_pack)
        if self.sequences:
            found["sequence_length"] = {"min": self.shortest, "max": self.longest}
            found["length_histogram"] = {_range(bits): self.by_size[bits] for bits in sorted(self.by_size)}
        return found


def _counted(values: Ints) -> Counter[int]:
    found, counts = np.unique(values, return_counts=True)
    return Counter(dict(zip(found.tolist(), counts.tolist(), strict=True)))


def spread(counts: Counter[int]) -> dict[str, int]:
    """Return smallest, median (the lower one of two) and largest of counted values."""
    left = (counts.total() + 1) // 2
    ordered = sorted(counts)
    for median in ordered:
        left -= counts[median]
        if left <= 0:
            break
    return {"min": ordered[0], "median": median, "max": ordered[-1]}


def _range(bits: int) -> str:
    """Return the lengths of so many bits as a range."""
    return str(bits) if bits < 2 else f"{2 ** (bits - 1)}-{2**bits - 1}"
