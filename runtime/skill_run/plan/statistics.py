"""Figures of one pack size: fill, padding, sequences per pack, steps, and how uneven the packs' attention is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from skill_run.plan.balance import Spread, spread_of
from skill_run.plan.cutting import Cut
from skill_run.plan.lengths import Ints

Floats = NDArray[np.float64]
# Entries of cu_seqlens beside one for each sequence: the leading 0 and the tail filler's end.
CU_SEQLENS_EXTRA: Final = 2


@dataclass(frozen=True, slots=True)
class PackStatistics:
    """Packs of one size. Tokens are those at run time; shares are of the packs' token slots, 0 to 1.

    scale: how many times more packs the whole data make than those that were assigned, 1.0 when all were.
    attention: mean over the packs of the sum of squared lengths. mean_length: token-weighted, sum l^2 / sum l.
    alignment_work: share of it that alignment padding adds, which is all that context parallel ranks lose: each gets
    two of a sample's 2 CP aligned chunks, a near and a far one, so that their work is equal. spread, balanced: how
    uneven the sum is over packs, by default and with balance=True.
    """

    packs: int
    fill: float
    alignment_padding: float
    tail_padding: float
    sequences_mean: float
    sequences_max: int
    scale: float
    attention: float
    mean_length: float
    alignment_work: float
    spread: Spread
    balanced: Spread | None

    @property
    def cu_seqlens(self) -> int:
        """Return the entries that pad_cu_seqlens gives every cu_seqlens array, as CUDA graphs need it."""
        return self.sequences_max + CU_SEQLENS_EXTRA

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON-ready data."""
        return {
            "packs": self.packs,
            "fill": round(self.fill, 5),
            "alignment_padding": round(self.alignment_padding, 5),
            "tail_padding": round(self.tail_padding, 5),
            "sequences_per_pack": {"mean": round(self.sequences_mean, 2), "max": self.sequences_max},
            "cu_seqlens_length": self.cu_seqlens,
            "sampled": self.scale > 1,
            "token_weighted_mean_length": round(self.mean_length, 1),
            "alignment_work": round(self.alignment_work, 5),
            "attention_spread": self.spread.to_dict(),
            "attention_spread_balanced": self.balanced.to_dict() if self.balanced is not None else None,
        }


def pack_statistics(
    cut: Cut,
    pack_size: int,
    *,
    max_sequences: int | None = None,
    scale: float = 1.0,
    data_parallel: int = 1,
    rows_per_step: int = 1,
    seed: int = 0,
) -> PackStatistics:
    """Assign the samples to packs and return their figures.

    cut: samples that fit the pack size, at least one. scale: how many times more samples the whole data have.
    data_parallel, rows_per_step: over how many ranks the packs of a step are dealt, and how many there are.
    """
    from skill_run.pack import assign_packs

    physical = np.repeat(cut.physical, cut.counts)
    logical = np.repeat(cut.logical, cut.counts)
    ids = assign_packs(physical, pack_size, max_sequences=max_sequences, seed=seed)
    even = assign_packs(physical, pack_size, max_sequences=max_sequences, seed=seed, balance=True)
    sequences, squares = _per_pack(ids, physical)
    slots = sequences.size * pack_size
    real, aligned = int(logical.sum()), int(physical.sum())
    dealt = {"data_parallel": data_parallel, "rows_per_step": rows_per_step, "seed": seed}
    return PackStatistics(
        packs=round(sequences.size * scale),
        fill=real / slots,
        alignment_padding=(aligned - real) / slots,
        tail_padding=(slots - aligned) / slots,
        sequences_mean=physical.size / sequences.size,
        sequences_max=int(sequences.max()),
        scale=scale,
        attention=float(squares.mean()),
        mean_length=float(squares.sum() / aligned),
        alignment_work=1 - float((logical.astype(np.float64) ** 2).sum() / squares.sum()),
        spread=spread_of(squares, **dealt),
        balanced=spread_of(_per_pack(even, physical)[1], **dealt),
    )


def _per_pack(ids: NDArray[Any], lengths: Ints) -> tuple[Ints, Floats]:
    """Return sequences and the sum of squared lengths of each pack."""
    squares = np.bincount(ids, weights=lengths.astype(np.float64) ** 2)
    return np.bincount(ids).astype(np.int64), squares.astype(np.float64)
