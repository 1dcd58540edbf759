"""Histogram packing that mixes: every pack gets long and short sequences, in no more packs than first-fit-decreasing.

The number of packs is that of first-fit-decreasing. Sequences are dealt by falling length, always to the packs with
most room left (or least attention work), so that all packs fill up alike. The shortest ones are kept back: they fill
what room is left, to the last token where that is possible. What then finds no place is packed anew together with the
packs that have most room left; with enough of those, that is first-fit-decreasing itself.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from skill_run.pack.assign.histogram import (
    Filling,
    Ids,
    decreasing_fillings,
    ids_of_fillings,
    places_by_length,
    sorted_places,
)

# Shares of all tokens that are kept back to fill room; what fits best differs from data to data.
KEPT_BACK: Final = (0.03, 0.08, 0.2)
# Share of the tokens, in the longest sequences, that are dealt by attention work when packs are balanced.
BY_WORK: Final = 0.75
# Tokens without a place, for each sequence, that are worth no second try: few packs with room take them.
LITTLE: Final = 0.01
_NONE: Final = -1


@dataclass(slots=True)
class _Dealt:
    """Packs while they fill. lengths: [N] by falling length; ids: [N] their packs, -1 for none yet; room: [P] tokens;
    held: [P] sequences."""

    lengths: Ids
    ids: Ids
    room: Ids
    held: Ids

    @property
    def lacking(self) -> npt.NDArray[np.int64]:
        """Places of the sequences that have no pack."""
        return np.flatnonzero(self.ids == _NONE)


def spread_ids(lengths: Ids, pack_size: int, *, max_sequences: int | None, balance: bool) -> Ids:
    """Return the pack of each sequence: ids [N] int32, all used; see the module's text."""
    counts = np.bincount(lengths, minlength=pack_size + 1)
    classic = decreasing_fillings(counts, pack_size)
    packs = sum(filling.packs for filling in classic)
    if max_sequences is not None:
        packs = max(packs, -(-len(lengths) // max_sequences))
    falling = np.repeat(np.arange(pack_size, -1, -1, dtype=np.int32), counts[::-1])
    best: _Dealt | None = None
    for share in KEPT_BACK:
        dealt = _deal(falling, pack_size, packs, share, balance)
        _fill(dealt, max_sequences)
        if best is None or _lost(dealt) < _lost(best):
            best = dealt
        if _lost(best) <= LITTLE * len(lengths):
            break
    assert best is not None
    ids = _pack_rest(best, pack_size, max_sequences)
    result = np.empty(len(lengths), np.int32)
    result[sorted_places(lengths)[::-1]] = ids
    return result


def _lost(dealt: _Dealt) -> int:
    return int(dealt.lengths[dealt.lacking].sum())


def _deal(falling: Ids, pack_size: int, packs: int, share: float, balance: bool) -> _Dealt:
    """Deal all but the shortest sequences, which hold `share` of the tokens."""
    dealt = _Dealt(
        falling, np.full(len(falling), _NONE, np.int32), np.full(packs, pack_size, np.int32), np.zeros(packs, np.int32)
    )
    tokens = np.cumsum(falling, dtype=np.int64)
    total = int(tokens[-1])
    end = int(np.searchsorted(tokens, (1 - share) * total))
    by_work = int(np.searchsorted(tokens, BY_WORK * total)) if balance else 0
    work = np.zeros(packs)
    place = 0
    while place < end:
        longest = int(falling[place])
        if place < by_work:
            chosen = _least_work(dealt.room, work, longest)
            limit = by_work
        else:
            chosen = _most_room(dealt.room, longest)
            limit = end
        if not len(chosen):
            # Too long for every pack: passed over until the next length that fits.
            place = max(place + 1, int(np.searchsorted(-falling, -int(dealt.room.max()))))
            continue
        chosen = chosen[: limit - place]
        taken = falling[place : place + len(chosen)]
        dealt.ids[place : place + len(chosen)] = chosen
        dealt.room[chosen] -= taken
        dealt.held[chosen] += 1
        if place < by_work:
            work[chosen] += taken.astype(np.float64) ** 2
        place += len(chosen)
    return dealt


def _most_room(room: Ids, length: int) -> npt.NDArray[np.int64]:
    """Return the packs whose room is within one sequence of the most, most room first; none when it fits nowhere."""
    top = int(room.max())
    if top < length:
        return np.zeros(0, np.int64)
    chosen = np.flatnonzero(room > max(top - length, length - 1))
    taken = (top - room[chosen]).astype(np.uint16 if top < 2**16 else np.int32)
    return chosen[np.argsort(taken, kind="stable")]


def _least_work(room: Ids, work: npt.NDArray[np.float64], length: int) -> npt.NDArray[np.int64]:
    """Return the packs with room whose work is within one sequence's of the least, least work first."""
    fits = room >= length
    if not fits.any():
        return np.zeros(0, np.int64)
    least = float(work[fits].min())
    chosen = np.flatnonzero(fits & (work <= least + float(length) ** 2))
    return chosen[np.argsort(work[chosen], kind="stable")]


def _fill(dealt: _Dealt, most: int | None) -> None:
    """Fill room from the least to the most with sequences that have no pack, exactly where they allow it."""
    lacking = dealt.lacking
    pool = places_by_length(dealt.lengths, lacking) if len(lacking) else {}
    left = {length: len(places) for length, places in pool.items()}
    present = sorted(left)
    open_packs = dealt.room >= (present[0] if present else 0)
    for room, packs in sorted(places_by_length(dealt.room, np.flatnonzero(open_packs)).items()):
        places = None if most is None else most - int(dealt.held[packs].max())
        done = 0
        while done < len(packs) and present and present[0] <= room:
            parts = _exact_parts(present, left, room, places)
            if not parts:
                break
            times = min(len(packs) - done, *(left[length] // count for length, count in parts))
            group = packs[done : done + times]
            for length, count in parts:
                start = len(pool[length]) - left[length]
                dealt.ids[pool[length][start : start + count * times]] = np.repeat(group, count)
                left[length] -= count * times
                if not left[length]:
                    del present[bisect_right(present, length) - 1]
            dealt.room[group] -= sum(length * count for length, count in parts)
            dealt.held[group] += sum(count for _, count in parts)
            done += times


def _exact_parts(present: list[int], left: dict[int, int], room: int, places: int | None) -> list[tuple[int, int]]:
    """Return (length, how many) that fill the room, the longest first, without a rest that nothing fits if possible."""
    parts: list[tuple[int, int]] = []
    least = present[0]
    end = len(present)
    while room and end and (places is None or places):
        index = bisect_right(present, room, 0, end) - 1
        if index < 0:
            break
        if 0 < room - present[index] < least:
            shorter = bisect_right(present, room - least, 0, index) - 1
            index = shorter if shorter >= 0 else index
        length = present[index]
        count = min(left[length], room // length, room if places is None else places)
        if count > 1 and 0 < room - count * length < least:
            count -= 1
        parts.append((length, count))
        room -= count * length
        places = None if places is None else places - count
        end = index
    return parts


def _pack_rest(dealt: _Dealt, pack_size: int, most: int | None) -> Ids:
    """Give a pack to what has none: packed anew with as few of the packs with most room as will do."""
    lacking = dealt.lacking
    if not len(lacking):
        return dealt.ids
    packs = len(dealt.room)
    roomy = np.argsort(-dealt.room, kind="stable")
    best: tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64], list[Filling]] | None = None
    taken = 0
    while best is None or (best[0] > packs and taken < packs):
        taken = min(max(8, 4 * taken), packs) if best else 0
        opened = np.zeros(packs, np.bool_)
        opened[roomy[:taken]] = True
        places = np.concatenate([np.flatnonzero(opened[dealt.ids] & (dealt.ids != _NONE)), lacking])
        counts = np.bincount(dealt.lengths[places], minlength=pack_size + 1)
        fillings = decreasing_fillings(counts, pack_size, most)
        total = packs - taken + sum(filling.packs for filling in fillings)
        if best is None or total < best[0]:
            best = (total, places, np.flatnonzero(opened), fillings)
    return _renumbered(dealt, *best)


def _renumbered(
    dealt: _Dealt, total: int, places: npt.NDArray[np.int64], opened: npt.NDArray[np.int64], fillings: list[Filling]
) -> Ids:
    """Return the ids after the sequences at `places` were packed anew into the opened packs and, if need be, more."""
    packs = len(dealt.room)
    numbers = np.concatenate([opened, np.arange(packs, max(packs, total))])
    fresh = np.empty(len(dealt.ids), np.int32)
    ids_of_fillings(fillings, places_by_length(dealt.lengths, places), fresh, 0)
    dealt.ids[places] = numbers[fresh[places]]
    used = np.unique(dealt.ids)
    return np.searchsorted(used, dealt.ids).astype(np.int32)
