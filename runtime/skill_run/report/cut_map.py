"""What a picture of context parallelism shows: which tokens of a row each rank holds, sequence by sequence."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from skill_run.report.pack_map import MapRow, coarse, union

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from skill_run.batch.context_parallel import Partition

    Ints = NDArray[np.int64]

_SEQUENCES: Final = 12
_PARTS: Final = 64
_BEFORE: Final = 2


@dataclass(frozen=True, slots=True)
class CutPart:
    """Neighbouring tokens that a rank holds. owner: index into the row's sequences, None if they belong to none."""

    start: int
    end: int
    owner: int | None

    def label(self, row: MapRow, size: int, rank: int) -> str:
        """Say which tokens these are, and which chunks of their sequence."""
        said = f"rank {rank}: tokens {self.start} to {self.end - 1}"
        if self.owner is None:
            return said
        first, length = int(row.starts[self.owner]), int(row.ends[self.owner] - row.starts[self.owner])
        said += f", sequence {row.numbers[self.owner]}"
        chunk, rest = divmod(length, 2 * size)
        if not rest:
            low, high = (self.start - first) // chunk, (self.end - first - 1) // chunk
            chunks = f"chunk {low}" if low == high else f"chunks {low} to {high}"
            said += f", {chunks} of {2 * size}"
        return said


def cut_window(cut: Partition, row: MapRow) -> tuple[int, int]:
    """Return the part of the row to draw: a few sequences, from shortly before the first fault if there is one."""
    import numpy as np

    faults = np.concatenate([cut.duplicated, cut.lost])
    shown = max(_BEFORE, min(_SEQUENCES, _PARTS // cut.size))
    edges = np.unique(row.starts)
    first = 0
    if faults.size:
        first = max(0, int(np.searchsorted(edges, faults.min(), side="right")) - _BEFORE)
    start = int(edges[first]) if first else 0
    end = int(edges[first + shown]) if first + shown < edges.size else row.total
    return start, end


def rank_parts(indices: Ints, row: MapRow, window: tuple[int, int], limit: int) -> list[CutPart]:
    """Return what a rank holds inside the window: about `limit` parts at most, cut where a sequence begins.

    indices: the rank's tokens of the row, in any order.
    """
    import numpy as np

    start, end = window
    runs = coarse(token_runs(indices[(indices >= start) & (indices < end)]), window, limit, any_token=True)
    found = []
    for first, last in runs.tolist():
        inner = row.starts[(row.starts > first) & (row.starts < last)]
        found += [CutPart(*part, _owner(row, part[0])) for part in pairwise([first, *np.unique(inner).tolist(), last])]
    return found


def token_runs(indices: Ints) -> Ints:
    """Return token indices as runs."""
    import numpy as np

    kept = np.unique(indices)
    return union(np.stack([kept, kept + 1], axis=1))


def _owner(row: MapRow, token: int) -> int | None:
    import numpy as np

    inside = np.flatnonzero((row.starts <= token) & (token < row.ends))
    return int(inside[0]) if inside.size else None
