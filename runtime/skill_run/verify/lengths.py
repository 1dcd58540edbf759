"""Which sequences a parity run packs: a mix that holds the awkward lengths, or the user's own packs made smaller.

A pack is a list of sequences, each {"length": real tokens, "trained": tokens at its end that count in the loss}.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from skill_run.errors import InputError

PACK_SIZE: Final = 64
PACKS: Final = 2
# Packs longer than this are made smaller: the reference computes each sequence alone, on a CPU.
LARGEST_PACK: Final = 512

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


def packs_of(path: str | Path, multiple: int) -> Packs:
    """Return packs as those in a packed dataset, or drawn from a JSON list or histogram of sequence lengths.

    multiple: tokens that a boundary must be a multiple of, which what is made smaller keeps or misses as the data does.
    Raises InputError when the data cannot be read.
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
    if not rows:
        raise InputError(f"{path} holds no sequences that a parity run could pack")
    # The fullest rows have the most boundaries.
    chosen = sorted(rows.values(), key=len, reverse=True)[:PACKS]
    widest = max(sum(sequence.physical for sequence in row) for row in chosen)
    share = min(1.0, LARGEST_PACK / widest)
    packs = [[_smaller(sequence, share, multiple) for sequence in row] for row in chosen]
    width = max(sum(sequence["length"] for sequence in pack) for pack in packs)
    size = -(-width // multiple) * multiple
    notes = [f"{len(packs)} packs of {path.name} with {sum(map(len, packs))} sequences"]
    if share < 1:
        notes.append(f"lengths scaled by {share:.3f}; each keeps its remainder modulo {multiple}")
    # The file's own boundaries are what is tried, so nothing is padded here.
    return Packs(packs, size, 1, tuple(notes))


def _smaller(sequence: Any, share: float, multiple: int) -> dict[str, int]:
    length = sequence.physical
    if share < 1:
        shrunk = round(length * share)
        length = max(shrunk - shrunk % multiple, 0) + sequence.physical % multiple or multiple
    trained = sequence.trained if sequence.trained is not None else sequence.physical
    counted = round(length * trained / sequence.physical) if sequence.physical else 0
    return {"length": length, "trained": min(length, max(counted, 1 if trained else 0))}


def _told_lengths(path: Path) -> list[int] | None:
    """Return lengths that a JSON file lists or counts; None when it is something else."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is no JSON text: {error}") from error
    if isinstance(told, dict) and "lengths" in told:
        told = told["lengths"]
    if isinstance(told, dict) and told and all(str(key).isdigit() and _count(value) for key, value in told.items()):
        return [int(key) for key, count in told.items() for _ in range(min(count, 1000)) if int(key) > 0]
    if isinstance(told, list) and told and all(_count(value) for value in told):
        return [int(value) for value in told if value > 0]
    return None


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _drawn(lengths: list[int], multiple: int) -> Packs:
    """Return packs with lengths drawn from a list, made smaller where the longest needs it."""
    longest = max(lengths)
    share = min(1.0, LARGEST_PACK / 2 / longest)
    size = -(-max(PACK_SIZE, min(LARGEST_PACK, 2 * round(longest * share) + multiple)) // multiple) * multiple
    draw = random.Random(0)
    packs = []
    for _ in range(PACKS):
        picked = [max(1, round(draw.choice(lengths) * share)) for _ in range(64)]
        packs.append(_filled(picked, size, multiple))
    notes = [f"lengths drawn from {len(lengths)} given ones, padded to a multiple of {multiple}"]
    if share < 1:
        notes.append(f"lengths scaled by {share:.3f}")
    return Packs(packs, size, multiple, tuple(notes))
