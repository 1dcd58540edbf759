"""First-fit-decreasing on counts by length: the packs of the classic algorithm without looking at single sequences.

Seen from a pack, first-fit-decreasing takes in one pass over falling lengths whatever still fits. So pack after pack
can be filled from the counts, and one filling is repeated for as long as the counts last.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]


# What one pack holds, as (length, how many) by falling length, and how many packs in a row hold it.
Filling = tuple[list[tuple[int, int]], int]


def decreasing_fillings(counts: npt.NDArray[np.integer[Any]], pack_size: int, most: int | None = None) -> list[Filling]:
    """Return the packs of first-fit-decreasing in order.

    counts: [pack_size + 1] sequences of each length. most: sequences in a pack at most; a full pack is closed.
    """
    present = np.flatnonzero(counts).tolist()
    left = counts.tolist()
    limit = most or pack_size
    found: list[Filling] = []
    while present:
        parts = []
        room, places, end, packs = pack_size, limit, len(present), len(counts) * pack_size * left[present[-1]]
        while room and places:
            end = bisect_right(present, room, 0, end) - 1
            if end < 0:
                break
            length = present[end]
            count = min(left[length], room // length, places)
            parts.append((length, count))
            room -= count * length
            places -= count
            packs = min(packs, left[length] // count)
        for length, count in parts:
            left[length] -= packs * count
            if not left[length]:
                del present[bisect_right(present, length) - 1]
        found.append((parts, packs))
    return found


def limited_fillings(counts: npt.NDArray[np.integer[Any]], pack_size: int, most: int) -> list[Filling]:
    """Return packs of at most `most` sequences, as many in each as can be, where that limit and not room binds.

    The longest sequence opens a pack; each further one is the longest that leaves room for the shortest in every place
    after it. First-fit-decreasing under a limit would fill packs with middle lengths and leave their room empty.
    """
    present = np.flatnonzero(counts).tolist()
    left = counts.tolist()
    found: list[Filling] = []
    while present:
        parts: list[tuple[int, int]] = []
        room, places, end, packs = pack_size, most, len(present), left[present[-1]]
        least = present[0]
        while places and end:
            longest = max(room - (places - 1) * least, least) if parts else present[-1]
            if longest > room:
                break
            end = bisect_right(present, longest, 0, end) - 1
            length = present[end]
            count = min(left[length], places, room // length)
            if length > least:
                count = min(count, max(1, (room - places * least) // (length - least)))
            parts.append((length, count))
            room -= count * length
            places -= count
            packs = min(packs, left[length] // count)
        for length, count in parts:
            left[length] -= packs * count
            if not left[length]:
                del present[bisect_right(present, length) - 1]
        found.append((parts, packs))
    return found


def ids_of_fillings(fillings: list[Filling], pool: dict[int, npt.NDArray[np.int64]], ids: Ids, first: int) -> int:
    """Write the pack of each sequence into `ids` and return the number after the last pack.

    pool: by length, the places in `ids` of the sequences of this length, in the order in which they are taken.
    first: number of the first pack.
    """
    taken = dict.fromkeys(pool, 0)
    for parts, times in fillings:
        packs = np.arange(first, first + times, dtype=np.int32)
        for length, count in parts:
            start = taken[length]
            taken[length] = start + count * times
            ids[pool[length][start : taken[length]]] = np.repeat(packs, count) if count > 1 else packs
        first += times
    return first


def places_by_length(lengths: Ids, places: npt.NDArray[np.int64] | None = None) -> dict[int, npt.NDArray[np.int64]]:
    """Return the places of the sequences of each length, in their order; all places, or the given ones."""
    chosen = lengths if places is None else lengths[places]
    order = sorted_places(chosen)
    counts = np.bincount(chosen)
    present = np.flatnonzero(counts)
    ends = np.cumsum(counts[present]).tolist()
    order = order if places is None else places[order]
    starts = [0, *ends][: len(ends)]
    return {length: order[start:end] for length, start, end in zip(present.tolist(), starts, ends, strict=True)}


def sorted_places(values: Ids) -> npt.NDArray[np.int64]:
    """Return the places of values by rising value, those of equal values in their order."""
    return np.argsort(_narrow(values), kind="stable")


def _narrow(values: Ids) -> npt.NDArray[np.uint16] | Ids:
    """Return values as 16 bits where they fit: numpy then sorts them by radix, in linear time."""
    return values.astype(np.uint16) if int(values.max(initial=0)) < 2**16 else values


def decreasing_ids(lengths: Ids, pack_size: int) -> Ids:
    """Return the packs of first_fit_decreasing: ids [N] int32 in the order in which the packs are opened."""
    return _ids(decreasing_fillings(np.bincount(lengths, minlength=pack_size + 1), pack_size), lengths)


def fewest_ids(lengths: Ids, pack_size: int, most: int | None) -> Ids:
    """Return ids [N] int32 of the fewest packs that filling one after the other gives; most: sequences in a pack."""
    counts = np.bincount(lengths, minlength=pack_size + 1)
    ways = [decreasing_fillings(counts, pack_size, most)]
    if most is not None:
        ways.append(limited_fillings(counts, pack_size, most))
    return _ids(min(ways, key=lambda fillings: sum(times for _, times in fillings)), lengths)


def _ids(fillings: list[Filling], lengths: Ids) -> Ids:
    ids = np.empty(len(lengths), np.int32)
    ids_of_fillings(fillings, places_by_length(lengths), ids, 0)
    return ids
