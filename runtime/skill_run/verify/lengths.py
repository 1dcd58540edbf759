"""Which sequences a parity run packs: a mix that holds the awkward lengths, or the user's own packs made smaller.

A pack is a list of sequences, each {"length": real tokens, "trained": tokens at its end that count in the loss}.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from skill_run.errors import InputError

PACK_SIZE: Final = 64
PACKS: Final = 2
# Packs longer than this are made smaller: the reference computes each sequence alone, on a CPU.
LARGEST_PACK: Final = 512
# Each sequence of a pack is a microbatch of the reference.
MOST_SEQUENCES: Final = 64
_MOST_BYTES: Final = 64 * 2**20
_LONGEST: Final = 2**40
_LENGTH: Final = re.compile(r"[0-9]{1,12}")

Pack = list[dict[str, int]]


@dataclass(frozen=True, slots=True)
class Packs:
    """Packs to compare, with the size each is filled up to and what its sequences are padded to; notes say how made."""

    packs: list[Pack]
    pack_size: int
    pad_seq_to_mult: int
    notes: tuple[str, ...] = ()


def default_packs(multiple: int) -> Packs:
    """Return two packs whose sequences have 1 token, odd lengths, and lengths exactly on the padding grid.

    multiple: tokens that every sequence is padded to a multiple of.
    """
    grid = max(multiple, 2)
    # Room for the 16 grid steps that either list takes.
    size = max(PACK_SIZE, 16 * grid)
    size += -size % multiple
    # In units of the grid: just below, exactly on, and just above a multiple of it.
    first = [1, 5 * grid + 1, 2 * grid, 3 * grid - 1]
    second = [3 * grid + 1, grid, 2 * grid + 1, 4 * grid - 1, 1]
    packs = [_filled(lengths, size, multiple) for lengths in (first, second)]
    return Packs(packs, size, multiple, ("the default mix of lengths: 1, odd ones, and some exactly on the grid",))


def _filled(lengths: Sequence[int], size: int, multiple: int) -> Pack:
    pack: Pack = []
    left = size
    for number, length in enumerate(lengths):
        physical = -(-length // multiple) * multiple
        if physical > left:
            break
        # The first part of a sequence is its prompt, which is not trained.
        pack.append({"length": length, "trained": max(1, length - number * length // 8)})
        left -= physical
    return pack


def packs_of(path: str | Path, multiple: int, *, grid: tuple[int, int] | None = None) -> Packs:
    """Return packs as those in a packed dataset, or drawn from a JSON list or histogram of sequence lengths.

    multiple: tokens that drawn lengths are padded to a multiple of. grid: what boundaries of the data must be multiples
    of, and what those of smaller packs must be: they keep to the one or miss it as the data does the other.
    Raises InputError when the data cannot be read, or when no token in it is trained on.
    """
    path = Path(path)
    if path.suffix == ".json" and path.is_file():
        lengths = _told_lengths(path)
        if lengths:
            return _drawn(lengths, multiple)
    from skill_run.batch.inspect import inspect_batch

    report = inspect_batch(path)
    rows: dict[int, list[Any]] = {}
    for sequence in report.sequences:
        rows.setdefault(sequence.row, []).append(sequence)
    faults = report.at_least("corruption")
    if not rows:
        why = f": {faults[0].message.partition('. ')[0]}" if faults else ""
        raise InputError(f"{path} holds no sequences that a parity run could pack{why}")
    trained = [row for row in rows.values() if any(sequence.trained != 0 for sequence in row)]
    if not trained:
        raise InputError(f"no token in {path} is trained on (its loss_mask is 0), so there is no loss to compare")
    # The fullest rows have the most boundaries.
    chosen = sorted(trained, key=len, reverse=True)[:PACKS]
    packs = _smaller_packs(path.name, [_with_loss(row) for row in chosen], grid or (multiple, multiple))
    if not faults:
        return packs
    found = ", ".join(dict.fromkeys(fault.rule for fault in faults))
    return replace(packs, notes=(*packs.notes, f"skill-run inspect finds faults in it ({found})"))


def _with_loss(row: list[Any]) -> list[Any]:
    """Return at most MOST_SEQUENCES neighbours of a row, among them one that is trained on."""
    first = next(number for number, sequence in enumerate(row) if sequence.trained != 0)
    start = min(first, max(0, len(row) - MOST_SEQUENCES))
    return row[start : start + MOST_SEQUENCES]


def _smaller_packs(name: str, rows: list[list[Any]], grid: tuple[int, int]) -> Packs:
    widest = max(sum(sequence.physical for sequence in row) for row in rows)
    share = min(1.0, LARGEST_PACK / widest)
    packs = [[_smaller(sequence, share, grid) for sequence in row] for row in rows]
    width = max(sum(sequence["length"] for sequence in pack) for pack in packs)
    own, multiple = grid
    notes = [f"{len(packs)} packs of {name} with {sum(map(len, packs))} sequences"]
    if share < 1:
        notes.append(f"lengths scaled by {share:.3f}")
    if share < 1 or own != multiple:
        notes.append(
            f"each keeps its remainder modulo {multiple}"
            if own == multiple
            else f"those on a multiple of {own} are on one of {multiple}, and the others are on none"
        )
    # The file's own boundaries are what is tried, so nothing is padded here.
    return Packs(packs, -(-width // multiple) * multiple, 1, tuple(notes))


def _smaller(sequence: Any, share: float, grid: tuple[int, int]) -> dict[str, int]:
    own, multiple = grid
    length = sequence.physical
    if share < 1 or own != multiple:
        off = sequence.physical % own
        shrunk = round(length * share)
        length = shrunk - shrunk % multiple + (max(1, off * multiple // own) if off and multiple > 1 else 0)
        length = length or multiple
    trained = sequence.trained if sequence.trained is not None else sequence.physical
    counted = round(length * trained / sequence.physical) if sequence.physical else 0
    return {"length": length, "trained": min(length, max(counted, 1 if trained else 0))}


def _told_lengths(path: Path) -> dict[int, int] | None:
    """Return how often a JSON file names each length; None when it is something else."""
    if path.stat().st_size > _MOST_BYTES:
        raise InputError(f"{path} is larger than {_MOST_BYTES >> 20} MiB, which no list of lengths is")
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is no JSON text: {error}") from error
    if isinstance(told, dict) and "lengths" in told:
        told = told["lengths"]
    if isinstance(told, dict) and all(_LENGTH.fullmatch(key) and _is_count(value) for key, value in told.items()):
        counts = {int(key): value for key, value in told.items()}
    elif isinstance(told, list) and all(_is_count(value) for value in told):
        counts = Counter(told)
    else:
        return None
    return {length: times for length, times in counts.items() if length > 0 and times > 0}


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LONGEST


def _drawn(counts: Mapping[int, int], multiple: int) -> Packs:
    """Return packs with lengths drawn as often as they are counted, made smaller where the longest needs it."""
    longest = max(counts)
    share = min(1.0, LARGEST_PACK / 2 / longest)
    size = -(-max(PACK_SIZE, min(LARGEST_PACK, 2 * round(longest * share) + multiple)) // multiple) * multiple
    draw = random.Random(0)
    packs = []
    for _ in range(PACKS):
        picked = draw.choices(list(counts), list(counts.values()), k=MOST_SEQUENCES)
        packs.append(_filled([max(1, round(length * share)) for length in picked], size, multiple))
    notes = [f"lengths drawn from {sum(counts.values())} given ones, padded to a multiple of {multiple}"]
    if share < 1:
        notes.append(f"lengths scaled by {share:.3f}")
    return Packs(packs, size, multiple, tuple(notes))
