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
    fewest_ids,
    ids_of_fillings,
    places_by_length,
    sorted_places,
)

# Shares of all tokens that are kept back to fill room, in the order in which they are tried. A large one leaves no
# room, and a small one few sequences in each pack, which a limit on them asks for.
KEPT_BACK: Final = (0.2, 0.3, 0.1)
KEPT_BACK_UNDER_A_LIMIT: Final = (0.03, 0.1, 0.2)
# Share of the tokens, in the longest sequences, that are dealt by attention work when packs are balanced.
BY_WORK: Final = 0.75
# More packs, as a share, that balanced work may take: with a little room everywhere, work can be evened out.
FOR_BALANCE: Final = 0.005
# Most packs that are packed anew, as a share of all; beyond it another share is kept back.
ANEW: Final = 1 / 16
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
    packs = sum(times for _, times in classic)
    if max_sequences is not None:
        packs = max(packs, -(-len(lengths) // max_sequences))
    ids, found = _spread(counts, pack_size, packs, balance, max_sequences)
    if found > packs and balance:
        packs += int(packs * FOR_BALANCE)
        ids, found = _spread(counts, pack_size, packs, balance, max_sequences)
    if found > packs:
        fewest = fewest_ids(lengths, pack_size, max_sequences)
        if int(fewest.max()) + 1 < found:
            return fewest
    result = np.empty(len(lengths), np.int32)
    result[sorted_places(lengths)[::-1]] = ids
    return result


def _spread(
    counts: npt.NDArray[np.int64], pack_size: int, packs: int, balance: bool, most: int | None
) -> tuple[Ids, int]:
    """Return ids by falling length and the number of packs, of the share kept back that takes fewest."""
    best: tuple[Ids, int] | None = None
    for share in KEPT_BACK if most is None else KEPT_BACK_UNDER_A_LIMIT:
        dealt = _deal(counts, pack_size, packs, share, balance, most)
        _fill(dealt, most)
        found = _pack_rest(dealt, pack_size, most)
        if best is None or found[1] < best[1]:
            best = found
        if best[1] <= packs:
            break
    assert best is not None
    return best


def _deal(
    counts: npt.NDArray[np.int64], pack_size: int, packs: int, share: float, balance: bool, most: int | None
) -> _Dealt:
    """Deal all but the shortest sequences, which hold `share` of the tokens."""
    falling = np.repeat(np.arange(pack_size, -1, -1, dtype=np.int32), counts[::-1])
    dealt = _Dealt(
        falling, np.full(len(falling), _NONE, np.int32), np.full(packs, pack_size, np.int32), np.zeros(packs, np.int32)
    )
    end = _longest_with(counts, 1 - share)
    by_work = _longest_with(counts, BY_WORK) if balance else 0
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
        if most is not None:
            # A pack with as many sequences as are allowed has no room any more.
            dealt.room[chosen[dealt.held[chosen] >= most]] = 0
        if place < by_work:
            work[chosen] += taken.astype(np.float64) ** 2
        place += len(chosen)
    return dealt


def _longest_with(counts: npt.NDArray[np.int64], share: float) -> int:
    """Return how many of the longest sequences hold about this share of all tokens."""
    tokens = np.cumsum((counts * np.arange(len(counts)))[::-1])
    lengths = int(np.searchsorted(tokens, share * tokens[-1]))
    before = int(counts[::-1][:lengths].sum())
    length = len(counts) - 1 - lengths
    missing = share * float(tokens[-1]) - float(tokens[lengths - 1] if lengths else 0)
    return before + int(missing / max(length, 1))


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


def _pack_rest(dealt: _Dealt, pack_size: int, most: int | None) -> tuple[Ids, int]:
    """Give a pack to what has none: packed anew with as few of the packs with most room as will do.

    Returns the ids and the number of packs, which is higher than before when some found no room.
    """
    lacking = dealt.lacking
    packs = len(dealt.room)
    if not len(lacking):
        return _renumbered(dealt.ids, packs)
    roomy = np.argsort(-dealt.room, kind="stable")
    best: tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64], list[Filling]] | None = None
    for taken in _growing(packs):
        opened = np.zeros(packs, np.bool_)
        opened[roomy[:taken]] = True
        places = np.concatenate([np.flatnonzero(opened[dealt.ids] & (dealt.ids != _NONE)), lacking])
        counts = np.bincount(dealt.lengths[places], minlength=pack_size + 1)
        fillings = decreasing_fillings(counts, pack_size, most)
        total = packs - taken + sum(times for _, times in fillings)
        if best is None or total < best[0]:
            best = (total, places, np.flatnonzero(opened), fillings)
        if total <= packs:
            break
    assert best is not None
    total, places, opened_packs, fillings = best
    numbers = np.concatenate([opened_packs, np.arange(packs, max(packs, total))])
    fresh = np.empty(len(dealt.ids), np.int32)
    ids_of_fillings(fillings, places_by_length(dealt.lengths, places), fresh, 0)
    dealt.ids[places] = numbers[fresh[places]]
    return _renumbered(dealt.ids, max(packs, total))


def _growing(packs: int) -> list[int]:
    """Return how many packs to open in turn: none, a few, more, up to a share of all (all of a few hundred)."""
    limit = max(int(packs * ANEW), min(packs, 256))
    found = [0]
    while found[-1] < limit:
        found.append(min(max(8, 4 * found[-1]), limit))
    return found


def _renumbered(ids: Ids, packs: int) -> tuple[Ids, int]:
    """Return the ids without gaps, and the number of packs in use."""
    used = np.bincount(ids, minlength=packs) > 0
    if used.all():
        return ids, packs
    return (np.cumsum(used) - 1)[ids].astype(np.int32), int(used.sum())
