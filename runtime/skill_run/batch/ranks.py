"""The same batch as several ranks hold it: every stage needs the boundaries, and the parts must make up the whole."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skill_run.batch.checks import Fault, run_checks
from skill_run.batch.context_parallel import Partition, can_cut, partition, reassemble
from skill_run.batch.faults import is_sound
from skill_run.batch.model import Batch, Ints, Row
from skill_run.batch.recognise import BOUNDARY_KEYS, STREAM_KEYS
from skill_run.errors import InputError

if TYPE_CHECKING:
    from skill_run.batch.inspect import InspectionReport, Run

_CP_IN_NAME = re.compile(r"cp_?(?:rank_?)?(\d{1,5})(?!\d)")
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class _Held:
    """What one rank holds.

    cp_rank: None when neither the capture nor the rank's name tells; group: data parallel rank and number of the
    micro-batch by the capture. Only ranks of one group hold the same batch.
    """

    rank: str
    batch: Batch
    run: Run
    cp_rank: int | None
    group: tuple[int | None, int | None]

    @property
    def boundaries(self) -> tuple[int, ...]:
        """The physical boundaries of the first row, empty when the rank has none."""
        table = self.batch.rows[0].physical
        return () if table is None else tuple(table.trimmed.tolist())


def inspect_ranks(ranks: dict[str, dict[str, Any]], name: str, run: Run) -> InspectionReport:
    """Inspect per-rank batches: agreement of the boundaries, and reassembly of context parallel parts.

    ranks: batch by rank name; a capture file's wrapping is taken off. Ranks of one data parallel group are compared.
    A rank without any array is a stage that got no batch. When one of the ranks holds the whole row, the parts are
    compared with it.
    """
    from skill_run.batch.inspect import InspectionReport, findings_of, preview_of, release_of, sequences_of

    held, missing = _hold(ranks, run)
    if not held:
        raise InputError(f"{name}: none of the {len(ranks)} ranks holds a batch")
    packed = [item for item in held if item.boundaries]
    wholes = [item for item in packed if not item.batch.per_rank and item.batch.rows[0].tokens is not None]
    shown = next(iter(wholes or packed or held))
    faults: list[Fault] = []
    notes: list[str] = []
    cut: Partition | None = None
    if packed:
        table = packed[0].batch.rows[0].physical
        label = table.key if table is not None else "cu_seqlens_q"
        faults += [_without(rank, label) for rank in [*missing, *(item.rank for item in held if not item.boundaries)]]
        for group in _groups(held):
            faults += _disagreeing(group, label)
            found, told, group_cut = _compare(group)
            faults += found
            notes += told
            cut = cut or group_cut
    faults += _own_faults(held, faults)
    bridge, remarks = release_of(shown.batch, shown.run)
    row = shown.batch.rows[0]
    return InspectionReport(
        source=name,
        path="ranks",
        generation=shown.batch.generation,
        because=f"{len(ranks)} ranks hold it; {shown.batch.because}",
        meaning=shown.batch.meaning,
        tokens=row.total,
        rows=len(ranks),
        sequences=tuple(sequences_of(shown.batch, row)),
        findings=findings_of(faults, bridge, shown.batch.generation),
        cp=cut or preview_of(shown.batch, bridge),
        notes=(*shown.batch.notes, *remarks, *dict.fromkeys(notes)),
        batch=shown.batch,
    )


def _hold(ranks: dict[str, dict[str, Any]], run: Run) -> tuple[list[_Held], list[str]]:
    """Return what the ranks hold, and the names of ranks without any batch."""
    from skill_run.batch.inspect import recognised, unwrapped

    held: list[_Held] = []
    missing: list[str] = []
    for rank, raw in ranks.items():
        inner, told = unwrapped(dict(raw), run)
        if all(inner.get(key) is None for key in (*BOUNDARY_KEYS, *STREAM_KEYS)):
            missing.append(rank)
            continue
        batch, completed = recognised(inner, told)
        in_name = _CP_IN_NAME.search(rank.lower())
        cp_rank = told.cp_rank if told.cp_rank is not None else int(in_name.group(1)) if in_name else None
        held.append(_Held(rank, batch, completed, cp_rank, (told.dp_rank, told.number)))
    return held, missing


def _groups(held: list[_Held]) -> list[list[_Held]]:
    """Return the ranks that hold one batch together."""
    found: dict[tuple[int | None, int | None], list[_Held]] = defaultdict(list)
    for item in held:
        found[item.group].append(item)
    return list(found.values())


def _own_faults(held: list[_Held], known: list[Fault]) -> Iterator[Fault]:
    """Yield what is wrong with each rank's own batch, each sentence once."""
    seen = {(fault.rule, fault.message) for fault in known}
    for item in held:
        for fault in run_checks(item.batch, item.run.settings):
            if (fault.rule, fault.message) not in seen:
                seen.add((fault.rule, fault.message))
                yield fault


def _without(rank: str, key: str) -> Fault:
    message = f"Rank {rank} got no boundaries: its layers let every sample attend to the samples before it."
    return Fault("batch-metadata-on-every-stage", message, (f"{rank}.{key}",))


def _disagreeing(group: list[_Held], key: str) -> Iterator[Fault]:
    packed = [item for item in group if item.boundaries]
    for item in packed[1:]:
        if item.boundaries != packed[0].boundaries:
            message = f"Rank {item.rank} holds other boundaries than rank {packed[0].rank}; all need the same."
            yield Fault("batch-ranks-agree", message, (f"{item.rank}.{key}",))


def _compare(group: list[_Held]) -> tuple[list[Fault], list[str], Partition | None]:
    """Put context parallel parts together and compare them with the cut they should be, and with the whole row.

    Return faults, notes, and the cut.
    """
    parts = [item for item in group if item.batch.per_rank]
    wholes = [item for item in group if not item.batch.per_rank]
    faults = list(_unequal(wholes))
    if len(parts) < 2:
        return faults, [], None
    row, size = parts[0].batch.rows[0], parts[0].batch.cp
    if row.physical is None or row.total is None or size is None or not (is_sound(row) and can_cut(row.total, size)):
        return faults, [], None
    by_rank = _by_cp_rank(parts, size)
    if by_rank is None:
        return (
            faults,
            [f"{len(parts)} parts of context parallel size {size} are given: they are not put together"],
            None,
        )
    faults += [fault for members in by_rank for fault in _unequal(members)]
    cut = partition(row.physical.trimmed, row.total, size)
    for key in STREAM_KEYS:
        arrays = [array for members in by_rank if (array := _stream(members, key)) is not None]
        if len(arrays) == size and all(array.size * size == row.total for array in arrays):
            faults += _misfits(key, reassemble(arrays, cut.indices), row, _stream(wholes, key))
    return faults, [], cut


def _by_cp_rank(parts: list[_Held], size: int) -> list[list[_Held]] | None:
    """Return the parts by context parallel rank (tensor and pipeline ranks share one), None when some are not there."""
    if all(item.cp_rank is not None for item in parts):
        found = [[item for item in parts if item.cp_rank == rank] for rank in range(size)]
        return found if all(found) else None
    if len(parts) != size:
        return None
    return [[item] for item in sorted(parts, key=lambda item: [int(number) for number in _NUMBER.findall(item.rank)])]


def _unequal(members: list[_Held]) -> Iterator[Fault]:
    for key in STREAM_KEYS:
        there = [(item, array) for item in members if (array := _stream([item], key)) is not None]
        for item, array in there[1:]:
            if not np.array_equal(array, there[0][1]):
                message = (
                    f"Ranks {there[0][0].rank} and {item.rank} hold the same tokens of the row, but their {key} differ."
                )
                yield Fault("batch-ranks-agree", message, (f"{item.rank}.{key}",))


def _misfits(key: str, full: NDArray[Any], row: Row, whole: NDArray[Any] | None) -> Iterator[Fault]:
    """Compare a stream put together from its parts with the whole row, or position ids with the boundaries."""
    assert row.physical is not None
    if whole is not None and whole.size == full.size:
        wrong = np.flatnonzero(whole != full)
        if wrong.size:
            message = (
                f"Put together, the ranks' {key} differ from the whole row at {wrong.size} tokens, the first at "
                f"{int(wrong[0])}: tokens were duplicated and lost when the row was cut."
            )
            yield Fault("batch-ranks-agree", message, (key,))
    elif key == "position_ids" and not _ramps(full, row.physical.trimmed):
        message = (
            "Put together, the ranks' position_ids do not count up inside the sequences: the row was not cut by these "
            "boundaries, so tokens were duplicated and lost."
        )
        yield Fault("batch-ranks-agree", message, (key,))


def _stream(members: list[_Held], key: str) -> NDArray[Any] | None:
    """Return a stream from the first rank that has it; only some pipeline stages hold tokens, or labels."""
    for item in members:
        value = item.batch.raw.get(key)
        if value is not None and not (isinstance(value, np.ndarray) and value.ndim > 2):
            return np.asarray(value).reshape(-1)
    return None


def _ramps(positions: NDArray[Any], edges: Ints) -> bool:
    """Tell whether positions count from 0 in every sequence; the last one may be filler with 0 throughout."""
    starts = edges[:-1][np.diff(edges) > 0]
    ramp = np.arange(positions.size, dtype=np.int64)
    ramp -= starts[np.searchsorted(starts, ramp, side="right") - 1]
    tail = int(starts[-1])
    right = positions == ramp
    right[tail:] |= positions[tail:] == 0
    return bool(right.all())
