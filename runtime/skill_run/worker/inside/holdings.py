"""Which tokens of each sequence a set of context-parallel ranks holds, in what order, and which see each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from skill_run.worker.inside.partition import Partition, refuse_uneven, thd_partition_indices


@dataclass(frozen=True, slots=True)
class Cut:
    """A pack's physical boundaries [S + 1], its tail included, and the ranks that it is cut for.

    device: where what follows from it is needed; partition: the index function by which the ranks hold their tokens.
    """

    boundaries: tuple[int, ...]
    cp_size: int
    device: str = "cpu"
    partition: Partition = thd_partition_indices

    @classmethod
    def of(cls, boundaries: Sequence[int], tokens: int, cp_size: int, device: str, partition: Partition) -> Cut:
        """Return the cut of a pack of `tokens`; those after the last boundary are a sequence of their own.

        Raises RefusedError for a length that 2*CP does not divide.
        """
        at = list(boundaries)
        if at[-1] < tokens:
            at.append(tokens)
        if cp_size > 1 and partition is thd_partition_indices:
            refuse_uneven(at, cp_size)
        return cls(tuple(at), cp_size, device, partition)


@dataclass(frozen=True, slots=True)
class Holding:
    """Tokens that some ranks hold together, sequence by sequence and by position in each.

    order: the place of each of them in the ranks' concatenated order, None when it is the same; inverse: the way back;
    sizes: tokens of each sequence; positions: for each sequence, where its tokens stand in it.
    """

    order: Any
    inverse: Any
    sizes: tuple[int, ...]
    positions: tuple[Any, ...]

    def arrange(self, x_T: Any) -> list[Any]:
        """Return one tensor for each sequence from one in the ranks' order."""
        ordered = x_T if self.order is None else x_T.index_select(0, self.order)
        return list(ordered.split(self.sizes))

    def restore(self, parts: Sequence[Any]) -> Any:
        """Return one tensor in the ranks' order from one for each sequence."""
        joined = torch.cat(list(parts))
        return joined if self.inverse is None else joined.index_select(0, self.inverse)


@lru_cache(maxsize=64)
def holding(cut: Cut, ranks: tuple[int, ...]) -> Holding:
    """Return what the given ranks hold; with all of them, every sequence is complete and in order."""
    held = _tokens_held(cut, ranks)
    at = torch.tensor(cut.boundaries)
    # The last one of equal boundaries: an empty sequence holds no token.
    sequence = (torch.searchsorted(at, held, right=True) - 1).clamp(0, len(cut.boundaries) - 2)
    position = held - at[sequence]
    order = torch.argsort(sequence * (cut.boundaries[-1] + 1) + position, stable=True)
    sizes = tuple(torch.bincount(sequence, minlength=len(cut.boundaries) - 1).tolist())
    positions = tuple(position[order].split(sizes))
    if torch.equal(order, torch.arange(order.numel())):
        return Holding(None, None, sizes, positions)
    return Holding(order.to(cut.device), torch.argsort(order).to(cut.device), sizes, positions)


def _tokens_held(cut: Cut, ranks: tuple[int, ...]) -> Any:
    total = cut.boundaries[-1]
    if cut.cp_size == 1:
        return torch.arange(total)
    cu_seqlens = torch.tensor(cut.boundaries, dtype=torch.int32)
    return torch.cat([cut.partition(cu_seqlens, total, cut.cp_size, rank).long() for rank in ranks])


@lru_cache(maxsize=64)
def masks(
    cut: Cut, query_ranks: tuple[int, ...], key_ranks: tuple[int, ...], causal: bool, window: tuple[int, int] | None
) -> tuple[Any, ...]:
    """Return for each sequence which keys each query sees, bool [queries, keys], or None for a plain triangle.

    window: positions that are seen to the left and to the right, -1 for all; right is bounded by causality.
    """
    queries, keys = holding(cut, query_ranks), holding(cut, key_ranks)
    plain = causal and window is None and query_ranks == key_ranks and len(query_ranks) == cut.cp_size
    return tuple(
        None if plain else _visible(q[:, None], k[None], causal, window).to(cut.device)
        for q, k in zip(queries.positions, keys.positions, strict=True)
    )


def _visible(query: Any, key: Any, causal: bool, window: tuple[int, int] | None) -> Any:
    seen = key <= query if causal else torch.ones(query.size(0), key.size(1), dtype=torch.bool)
    if window is not None:
        left, right = window
        if left >= 0:
            seen = seen & (key >= query - left)
        if right >= 0:
            seen = seen & (key <= query + right)
    return seen
