"""How context parallelism cuts a packed (THD) row: Transformer Engine's partition index, in numpy.

Sizes in tokens. Source: transformer_engine/common/fused_attn/context_parallel.cu (binary_search,
thd_partition_indices_kernel) and its host checks in pytorch/csrc/extensions/attention.cpp. The kernel form reproduces
what the kernel computes on malformed boundaries too, since its own device assert is compiled out of release builds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from skill_run.errors import InputError

Ints = NDArray[np.int64]
# Longer rows and larger groups than any run has; a preview holds a dozen arrays of this many numbers.
MAX_TOKENS: Final = 2**23
MAX_SIZE: Final = 1024


def can_cut(tokens: int, size: int) -> bool:
    """Tell whether a row can be cut for a group at all, and is small enough to preview."""
    return 0 < tokens <= MAX_TOKENS and 2 <= size <= MAX_SIZE and tokens % (2 * size) == 0


def _divide(values: Ints, divisor: int) -> Ints:
    """Divide as C does: towards zero."""
    return np.asarray(np.sign(values) * (np.abs(values) // divisor), dtype=np.int64)


def kernel_indices(boundaries: Ints, tokens: int, size: int, rank: int) -> Ints:
    """Return the token indices [tokens / size] that a rank takes from a row, in its order.

    boundaries: physical boundaries [sequences + 1] as they reach the kernel, well formed or not. Raises InputError for
    what the host code itself refuses: fewer than two boundaries, a rank outside the group, tokens not a multiple of
    2 * size.
    """
    cu = np.asarray(boundaries, dtype=np.int64).reshape(-1)
    if cu.size < 2:
        raise InputError("a row needs at least two boundaries to be cut for context parallelism")
    if not 0 <= rank < size:
        raise InputError(f"rank {rank} is outside a context parallel group of {size}")
    if tokens <= 0 or tokens % (2 * size):
        raise InputError(
            f"{tokens} tokens cannot be cut for context parallel size {size}: not a multiple of {2 * size}"
        )
    starts = _divide(cu, size)
    t = np.arange(tokens // size, dtype=np.int64)
    left = np.ones_like(t)
    right = np.full_like(t, cu.size - 1)
    # The kernel's own binary search: on boundaries that are not sorted it lands where the kernel lands.
    while bool(np.any(left < right)):
        middle = (left + right) // 2
        open_ = left < right
        lower = starts[middle] <= t
        left = np.where(open_ & lower, middle + 1, left)
        right = np.where(open_ & ~lower, middle, right)
    sequence = left - 1
    length = starts[sequence + 1] - starts[sequence]
    offset = t - starts[sequence]
    half = _divide(length, 2)
    jump = np.where(offset < half, rank, 2 * (size - 1) - rank)
    return np.asarray(offset + starts[sequence] * size + half * jump, dtype=np.int64)


def closed_form_indices(boundaries: Ints, size: int, rank: int) -> Ints:
    """Return the same indices by definition: chunks `rank` and `2*size-1-rank` of every sequence.

    Valid for boundaries that are multiples of 2 * size only.
    """
    cu = np.asarray(boundaries, dtype=np.int64).reshape(-1)
    parts: list[Ints] = []
    for start, end in pairwise(cu):
        chunk = (end - start) // (2 * size)
        for number in (rank, 2 * size - 1 - rank):
            parts.append(np.arange(start + number * chunk, start + (number + 1) * chunk, dtype=np.int64))
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def row_indices(tokens: int, size: int, rank: int) -> Ints:
    """Return the indices a rank takes from an ordinary (not packed) row: one zigzag over the whole row."""
    return closed_form_indices(np.array([0, tokens], dtype=np.int64), size, rank)


@dataclass(frozen=True, slots=True)
class Partition:
    """How a row is cut over the ranks.

    indices: per rank; duplicated: tokens that more than one position holds; lost: tokens that no rank holds;
    outside: positions that point outside the row; work: attention pairs per rank (causal, within sequences);
    trained: tokens with loss per rank, None without a loss mask.
    """

    size: int
    indices: tuple[Ints, ...]
    duplicated: Ints
    lost: Ints
    outside: int
    work: tuple[int, ...]
    trained: tuple[int, ...] | None

    @property
    def imbalance(self) -> float:
        """The busiest rank's work over the mean."""
        mean = sum(self.work) / len(self.work)
        return max(self.work) / mean if mean else 1.0

    @property
    def whole(self) -> bool:
        """Every token is held exactly once."""
        return not (self.duplicated.size or self.lost.size or self.outside)

    def to_dict(self, limit: int = 64) -> dict[str, Any]:
        """Return the partition as JSON-ready data; index lists are cut at `limit`."""
        return {
            "size": self.size,
            "whole": self.whole,
            "duplicated": int(self.duplicated.size),
            "lost": int(self.lost.size),
            "outside": self.outside,
            "duplicated_tokens": self.duplicated[:limit].tolist(),
            "lost_tokens": self.lost[:limit].tolist(),
            "work": list(self.work),
            "imbalance": round(self.imbalance, 4),
            "ranks": [
                {
                    "rank": rank,
                    "tokens": int(indices.size),
                    "trained": None if self.trained is None else self.trained[rank],
                    "indices": indices[:limit].tolist(),
                }
                for rank, indices in enumerate(self.indices)
            ],
        }


def partition(boundaries: Ints | None, tokens: int, size: int, loss_mask: NDArray[Any] | None = None) -> Partition:
    """Cut a row for a context parallel group and say what each rank gets.

    boundaries: physical, exactly as the kernel would get them; None for an ordinary row. loss_mask: [tokens].
    """
    if tokens > MAX_TOKENS:
        raise InputError(f"a row of {tokens} tokens is too long to preview; at most {MAX_TOKENS} are cut")
    if not 1 <= size <= MAX_SIZE:
        raise InputError(f"a context parallel group of {size} cannot be previewed; at most {MAX_SIZE} ranks are")
    indices = tuple(
        row_indices(tokens, size, rank) if boundaries is None else kernel_indices(boundaries, tokens, size, rank)
        for rank in range(size)
    )
    everything = np.concatenate(indices)
    inside = everything[(everything >= 0) & (everything < tokens)]
    counts = np.bincount(inside, minlength=tokens)
    cost = _cost(boundaries, tokens)
    held = [index[(index >= 0) & (index < tokens)] for index in indices]
    trained = None
    if loss_mask is not None and loss_mask.size == tokens:
        weights = np.nan_to_num(np.asarray(loss_mask, dtype=np.float64)) > 0
        trained = tuple(int(weights[index].sum()) for index in held)
    return Partition(
        size=size,
        indices=indices,
        duplicated=np.flatnonzero(counts > 1),
        lost=np.flatnonzero(counts == 0),
        outside=int(everything.size - inside.size),
        work=tuple(int(cost[index].sum()) for index in held),
        trained=trained,
    )


def _cost(boundaries: Ints | None, tokens: int) -> Ints:
    """Return the keys each token attends to: its position within its sequence plus one."""
    position = np.arange(tokens, dtype=np.int64)
    if boundaries is None:
        return position + 1
    starts = np.unique(boundaries[(boundaries >= 0) & (boundaries < tokens)])
    if starts.size == 0 or starts[0] != 0:
        starts = np.concatenate([np.zeros(1, dtype=np.int64), starts])
    return np.asarray(position - starts[np.searchsorted(starts, position, side="right") - 1] + 1, dtype=np.int64)


def reassemble(parts: Sequence[NDArray[Any]], indices: Sequence[Ints]) -> NDArray[Any]:
    """Return the full row from per-rank parts [tokens / size]; the inverse of taking `row[indices[rank]]`."""
    full = np.zeros(sum(part.size for part in parts), dtype=parts[0].dtype)
    for part, index in zip(parts, indices, strict=True):
        inside = (index >= 0) & (index < full.size)
        full[index[inside]] = part.reshape(-1)[inside]
    return full
