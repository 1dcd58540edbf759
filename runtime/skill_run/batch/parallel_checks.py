"""What context, tensor and sequence parallelism ask of a batch, and what the cut makes of it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from skill_run.batch.context_parallel import can_cut, kernel_indices, partition
from skill_run.batch.faults import Fault, Settings, check, in_row, is_sound
from skill_run.batch.model import Batch


@check
def boundaries_cover_context_parallel(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """With CP every physical boundary is a multiple of 2 * CP, with SP of CP * TP too."""
    cp = batch.cp or 1
    tp = (batch.tp or 1) if batch.sp else 1
    multiple = math.lcm(2 * cp if cp > 1 else 1, cp * tp if tp > 1 else 1)
    for row in batch.rows:
        table = row.physical
        if table is None or table.trimmed.size < 2 or np.any(table.trimmed < 0):
            continue
        off = table.trimmed[table.trimmed % (2 * cp) != 0] if cp > 1 else table.trimmed[:0]
        unshared = table.trimmed[table.trimmed % multiple != 0]
        if off.size:
            message = (
                f"{table.key} holds {int(off[0])}{in_row(batch, row)}, no multiple of 2 * CP = {2 * cp} "
                f"({off.size} such boundaries): tokens are silently duplicated and lost when the row is cut. "
                f"Sequences need a multiple of {multiple}."
            )
            yield Fault("batch-boundaries-cover-cp", message, (table.key,), row.index)
        elif tp > 1 and batch.path != "offline_packed" and unshared.size:
            message = (
                f"{table.key} holds {int(unshared[0])}{in_row(batch, row)}; with CP {cp}, TP {tp} and sequence "
                f"parallelism sequences are padded to {multiple}."
            )
            yield Fault("batch-row-fits-sequence-parallel", message, (table.key,), row.index)
        elif tp > 1 and row.total is not None and row.total % (cp * tp):
            message = f"The row has {row.total} tokens{in_row(batch, row)}, no multiple of CP * TP = {cp * tp} ranks."
            yield Fault("batch-row-fits-sequence-parallel", message, (batch.token_key, table.key), row.index)


@check
def padded_rows_can_be_cut(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """An ordinary row is cut as a whole: its length must be a multiple of 2 * CP."""
    cp = batch.cp or 1
    total = batch.rows[0].total
    if batch.path == "padded" and cp > 1 and total is not None and total % (2 * cp):
        message = f"Rows of {total} tokens cannot be cut for CP {cp}: not a multiple of {2 * cp}."
        yield Fault("batch-row-cannot-be-cut", message, (batch.token_key,))


@check
def sentinels_do_not_reach_the_cut(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """0.3 and 0.4 cut for CP by the untrimmed array: one sentinel is harmless, more are not."""
    cp = batch.cp or 1
    if batch.generation != "<=0.5" or batch.path != "offline_packed" or cp <= 1:
        return
    for row in batch.rows:
        table = row.physical
        if table is None or row.total is None or not can_cut(row.total, cp):
            continue
        sentinels = int(np.sum(table.raw == -1))
        if sentinels < 2:
            continue
        cut = partition(table.raw, row.total, cp)
        if not cut.whole:
            message = (
                f"{table.key} ends in {sentinels} sentinels{in_row(batch, row)}. Megatron-Bridge 0.3 and 0.4 cut for "
                f"context parallelism without trimming them: {cut.duplicated.size} tokens are used twice and "
                f"{cut.lost.size} are lost. From 0.5.1 on they are trimmed first."
            )
            yield Fault("batch-sentinels-reach-the-cut", message, (table.key,), row.index)


@check
def part_is_a_ranks_cut(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """One rank's part holds the tokens that the boundaries give to some rank; its position ids tell which."""
    cp = batch.cp or 1
    if not batch.per_rank or batch.path not in ("offline_packed", "in_batch_packed", "packed"):
        return
    for row in batch.rows:
        positions, table = row.position_ids, row.physical
        if positions is None or table is None or row.total is None or not is_sound(row) or not can_cut(row.total, cp):
            continue
        if positions.size * cp != row.total or np.any(table.trimmed % (2 * cp)):
            continue
        starts = table.trimmed[:-1][table.lengths > 0]
        ramp = np.arange(row.total, dtype=np.int64)
        ramp -= starts[np.searchsorted(starts, ramp, side="right") - 1]
        tail = int(starts[-1])
        for rank in range(cp):
            indices = kernel_indices(table.trimmed, row.total, cp, rank)
            if np.all((positions == ramp[indices]) | ((indices >= tail) & (positions == 0))):
                break
        else:
            message = (
                f"position_ids of this part{in_row(batch, row)} are not those that {table.key} gives to any of the "
                f"{cp} context parallel ranks: the row was cut by other boundaries, so tokens are used twice and lost."
            )
            yield Fault("batch-part-is-no-ranks-cut", message, ("position_ids", table.key), row.index)


@check
def every_rank_has_loss(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """Without per-token loss, a CP rank whose tokens are all masked takes a mean over nothing."""
    cp = batch.cp or 1
    if cp <= 1 or batch.per_rank or settings.per_token_loss is not False:
        return
    for row in batch.rows:
        if row.loss_mask is None or row.total is None or not can_cut(row.total, cp):
            continue
        boundaries = row.physical.trimmed if row.physical is not None and is_sound(row) else None
        trained = partition(boundaries, row.total, cp, row.loss_mask).trained
        if trained is not None and any(trained) and not all(trained):
            message = (
                f"Context parallel rank {trained.index(0)} gets no trained token{in_row(batch, row)}, and without "
                "calculate_per_token_loss each rank takes the mean of its own tokens: that rank has none to divide by."
            )
            yield Fault("batch-rank-without-loss", message, ("loss_mask",), row.index)


@check
def loss_is_counted_per_token(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """Finetuning with CP needs calculate_per_token_loss, and average_in_collective off."""
    if (batch.cp or 1) <= 1 or not settings.configured or batch.path not in ("offline_packed", "in_batch_packed"):
        return
    wrong: list[str] = []
    if settings.per_token_loss is False:
        wrong.append("model.calculate_per_token_loss")
    if settings.average_in_collective:
        wrong.append("ddp.average_in_collective")
    if wrong:
        told = " and ".join(f"{name} is {'true' if name.startswith('ddp') else 'false'}" for name in wrong)
        message = f"The config runs context parallel size {batch.cp}, but {told}."
        yield Fault("batch-cp-loss-settings", message, tuple(wrong))
