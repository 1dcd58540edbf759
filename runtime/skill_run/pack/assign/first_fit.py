"""Megatron-Bridge's first fit: each sequence goes to the first pack with room.

Source: first_fit and first_fit_shuffle of data/packing/algorithms.py (0.6.2); the packs are the same since 0.3.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from skill_run.pack.assign.histogram import Ids
from skill_run.pack.assign.lengths import random_of


def first_fit(lengths: Sequence[int], pack_size: int) -> list[int]:
    """Return the pack of each length, in the order given.

    Room of all packs lies in a tree of maxima, as if every pack were open already: the first with room is then the
    first open one, or else the next.
    """
    leaves = 1
    while leaves < len(lengths):
        leaves *= 2
    tree = [pack_size] * (2 * leaves)
    found: list[int] = []
    for length in lengths:
        node = 1
        while node < leaves:
            node *= 2
            if tree[node] < length:
                node += 1
        found.append(node - leaves)
        room = tree[node] - length
        tree[node] = room
        while node > 1:
            room = max(room, tree[node ^ 1])
            node //= 2
            if tree[node] == room:
                break
            tree[node] = room
    return found


def shuffled_first_fit(
    lengths: Ids, pack_size: int, random: np.random.RandomState
) -> tuple[npt.NDArray[np.int32], list[int]]:
    """Return the shuffled lengths and their packs; `random` stands for numpy's global generator upstream."""
    shuffled = np.sort(lengths)
    random.shuffle(shuffled)
    return shuffled, first_fit(shuffled.tolist(), pack_size)


def first_fit_ids(lengths: Ids, pack_size: int, seed: int) -> Ids:
    """Return the packs of first_fit_shuffle after np.random.seed(seed): ids [N] int32."""
    shuffled, packs = shuffled_first_fit(lengths, pack_size, random_of(seed))
    ids = np.empty(len(lengths), np.int32)
    # Upstream's packs hold lengths, not sequences; those of one length are given out in their order.
    ids[np.argsort(lengths, kind="stable")] = np.asarray(packs, np.int32)[np.argsort(shuffled, kind="stable")]
    return ids
