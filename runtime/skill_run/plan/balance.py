"""How uneven attention work is across packs, and what data-parallel ranks wait for each other because of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

# Steps that are dealt out to measure the wait; more change nothing in the digits shown.
_MOST_STEPS: Final = 512


@dataclass(frozen=True, slots=True)
class Spread:
    """The sum of squared lengths over packs, in tokens squared.

    wait: share of attention time that data-parallel ranks idle in a step because the slowest has more work; None
    where the data do not fill one step. packs: how many packs the assignment made.
    """

    packs: int
    p50: float
    p99: float
    most: float
    wait: float | None

    @property
    def ratio(self) -> float:
        """Return p99 / p50."""
        return self.p99 / self.p50

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON-ready data."""
        return {
            "packs": self.packs,
            "p50": round(self.p50),
            "p99": round(self.p99),
            "max": round(self.most),
            "p99_over_p50": round(self.ratio, 3),
            "wait": None if self.wait is None else round(self.wait, 4),
        }


def spread_of(squares: NDArray[np.float64], *, data_parallel: int = 1, rows_per_step: int = 1, seed: int = 0) -> Spread:
    """Return the spread of the packs' sums, dealt in the order that a seed shuffles them into."""
    p50, p99 = np.quantile(squares, [0.5, 0.99])
    return Spread(
        int(squares.size),
        float(p50),
        float(p99),
        float(squares.max()),
        _wait(squares, data_parallel, rows_per_step, seed),
    )


def _wait(squares: NDArray[np.float64], ranks: int, rows: int, seed: int) -> float | None:
    """Return (slowest rank - mean rank) / slowest rank over whole steps, each rank taking rows / ranks packs."""
    steps = min(squares.size // rows, _MOST_STEPS)
    if steps == 0:
        return None
    dealt = np.random.default_rng(seed).permutation(squares)[: steps * rows].reshape(steps, ranks, rows // ranks)
    work = dealt.sum(axis=2)
    slowest = float(work.max(axis=1).sum())
    return 1 - float(work.mean(axis=1).sum()) / slowest
