"""What every check shares: the fault it yields, what is known of the run, the register, and questions about rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skill_run.batch.arrays import MAX_ELEMENTS
from skill_run.batch.model import Batch, Boundaries, Row


@dataclass(frozen=True, slots=True)
class Settings:
    """What is known of the run beside the batch; None is not known.

    per_token_loss, average_in_collective: the loss settings; configured: they come from a config, not from a note in
    the batch; static_boundaries: pad_cu_seqlens; samples_per_pack: max_samples_per_bin of the packing metadata.
    """

    per_token_loss: bool | None = None
    average_in_collective: bool | None = None
    configured: bool = False
    experts: bool | None = None
    hybrid: bool | None = None
    static_boundaries: bool | None = None
    samples_per_pack: int | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """One broken invariant. fields: keys of the batch, the one to change first."""

    rule: str
    message: str
    fields: tuple[str, ...]
    row: int | None = None


Check = Callable[[Batch, Settings], Iterator[Fault]]
CHECKS: list[Check] = []


def check(function: Check) -> Check:
    """Register a check; they run in the order of the modules and of each file."""
    CHECKS.append(function)
    return function


def tables(row: Row) -> list[Boundaries]:
    """Return the boundary arrays of a row, physical first, each once."""
    found = [row.physical, row.logical]
    return [
        table
        for index, table in enumerate(found)
        if table is not None and all(other is None or other.key != table.key for other in found[:index])
    ]


def in_row(batch: Batch, row: Row) -> str:
    """Return the clause that names the row, empty in a batch of one row."""
    return f" in row {row.index}" if len(batch.rows) > 1 else ""


def is_sorted(table: Boundaries | None) -> bool:
    """Tell whether boundaries name at least one sequence and never go down."""
    return table is not None and table.trimmed.size >= 2 and bool(np.all(np.diff(table.trimmed) >= 0))


def is_sound(row: Row) -> bool:
    """Tell whether later checks can rely on the physical boundaries: sorted, from 0, inside the row."""
    table = row.physical
    return (
        table is not None
        and row.total is not None
        and row.total <= MAX_ELEMENTS
        and is_sorted(table)
        and int(table.trimmed[0]) == 0
        and int(table.trimmed[-1]) <= row.total
    )


def is_whole(batch: Batch, row: Row) -> bool:
    """Tell whether the token streams are the whole row, so that they can be compared with its boundaries."""
    return is_sound(row) and not batch.per_rank


def separate_logical(row: Row) -> tuple[Boundaries, Boundaries] | None:
    """Return logical and physical boundaries when they are two sound arrays over the same sequences."""
    logical, physical = row.logical, row.physical
    if logical is None or physical is None or logical.key == physical.key:
        return None
    if not (is_sorted(logical) and is_sorted(physical)) or logical.trimmed.size != physical.trimmed.size:
        return None
    return logical, physical


def filler_start(batch: Batch, row: Row) -> int | None:
    """Return where an offline pack's tail filler starts, None when the batch does not tell."""
    if batch.path != "offline_packed" or row.token_count is None or row.total is None:
        return None
    return row.token_count if 0 <= row.token_count <= row.total else None


def padding_positions(batch: Batch, row: Row) -> NDArray[np.bool_] | None:
    """Return which positions of a row are alignment padding or filler [T]; None when nothing tells."""
    if not is_whole(batch, row) or row.total is None or row.physical is None:
        return None
    mask = np.zeros(row.total, dtype=bool)
    told = False
    pair = separate_logical(row)
    if pair is not None:
        logical, physical = pair
        ends = physical.trimmed[:-1] + np.minimum(logical.lengths, physical.lengths)
        edges = np.zeros(row.total + 1, dtype=np.int64)
        np.add.at(edges, ends, 1)
        np.add.at(edges, physical.trimmed[1:], -1)
        mask |= np.cumsum(edges[:-1]) > 0
        told = True
    filler = filler_start(batch, row)
    end = int(row.physical.trimmed[-1])
    for start in (filler, end if end < row.total else None):
        if start is not None:
            mask[start:] = True
            told = True
    if row.padding_mask is not None and row.padding_mask.size == row.total:
        mask |= row.padding_mask.astype(bool)
        told = True
    return mask if told else None


def has_loss(mask: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which positions carry loss; NaN counts as none."""
    if mask.dtype.kind == "f":
        return np.asarray(np.nan_to_num(mask, nan=0.0) > 0)
    return np.asarray(mask > 0) if mask.dtype.kind != "b" else np.asarray(mask)


def first(mask: NDArray[np.bool_]) -> int:
    """Return the first true position of a mask that has one."""
    return int(np.argmax(mask))
