"""What must hold of the token streams beside the boundaries: loss mask, labels and position ids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from skill_run.batch.faults import (
    Fault,
    Settings,
    check,
    filler_start,
    first,
    has_loss,
    in_row,
    is_sorted,
    is_whole,
    padding_positions,
    separate_logical,
)
from skill_run.batch.model import Batch, Ints, Row
from skill_run.report.wording import count

IGNORED_LABEL: Final = -100


@check
def loss_mask_is_finite(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """The loss mask holds finite weights that are not negative."""
    for row in batch.rows:
        mask = row.loss_mask
        if mask is None or mask.dtype.kind == "b":
            continue
        bad = np.asarray(mask < 0)
        if mask.dtype.kind == "f":
            bad |= ~np.isfinite(mask)
        if bad.any():
            at = first(bad)
            message = (
                f"loss_mask holds {mask[at]} at token {at}{in_row(batch, row)}; the loss is the sum of loss times mask."
            )
            yield Fault("batch-loss-mask-finite", message, ("loss_mask",), row.index)


@check
def padding_is_not_trained(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """The loss mask is 0 on alignment padding and filler."""
    for row in batch.rows:
        if row.loss_mask is None:
            continue
        padding = padding_positions(batch, row)
        if padding is None or row.loss_mask.size != padding.size:
            continue
        trained = padding & has_loss(row.loss_mask)
        if trained.any():
            message = (
                f"loss_mask is not 0 on {count(int(trained.sum()), 'padding token')}{in_row(batch, row)}, the first at "
                f"{first(trained)}: the model is trained to predict padding."
            )
            if batch.generation == "main":
                message += " main no longer zeroes the loss where the token is the end token."
            yield Fault("batch-loss-on-padding", message, ("loss_mask",), row.index)


@check
def ignored_labels_carry_no_loss(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """Where the label is -100 the loss mask is 0: the step multiplies by the mask and never looks for -100."""
    for row in batch.rows:
        if row.labels is None or row.loss_mask is None or row.labels.size != row.loss_mask.size:
            continue
        wrong = np.asarray(row.labels < 0) & has_loss(row.loss_mask)
        if wrong.any():
            at = first(wrong)
            message = (
                f"The label at token {at}{in_row(batch, row)} is {int(row.labels[at])}, but loss_mask is not 0 there "
                f"({count(int(wrong.sum()), 'such token')}): the loss of a label that is no token is counted."
            )
            yield Fault("batch-loss-on-ignored-label", message, ("loss_mask", "labels"), row.index)


@check
def padding_mask_agrees(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """Where a padding mask marks the end of a sequence, logical boundaries must leave it out."""
    for row in batch.rows:
        logical, physical = row.logical or row.physical, row.physical
        if row.padding_mask is None or logical is None or physical is None or not is_whole(batch, row):
            continue
        if logical.trimmed.size != physical.trimmed.size or row.padding_mask.size != row.total:
            continue
        if not is_sorted(logical):
            continue
        sums = np.concatenate([[0], np.cumsum(row.padding_mask.astype(bool))])
        starts = physical.trimmed[:-1]
        marked = sums[np.clip(starts + logical.lengths, 0, row.total)] - sums[starts]
        partly = (marked > 0) & (marked < logical.lengths)
        if partly.any():
            at = first(partly)
            message = (
                f"{logical.key} counts {int(logical.lengths[at])} real tokens in sequence {at}{in_row(batch, row)}, "
                f"but padding_mask marks {int(marked[at])} of them as padding: the boundaries hold physical numbers."
            )
            yield Fault("batch-padding-mask-agrees", message, (logical.key, "padding_mask"), row.index)


@check
def labels_are_the_next_tokens(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """Inside a sequence a trained label is the next token; at its end it is not the next sequence's first token."""
    for row in batch.rows:
        if row.tokens is None or row.labels is None or row.physical is None or not is_whole(batch, row):
            continue
        if row.tokens.size != row.labels.size or row.tokens.size != row.total or row.tokens.size < 2:
            continue
        trained = _trained(row.labels, row.loss_mask)
        padding = padding_positions(batch, row)
        if padding is not None:
            trained &= ~padding
        follows = np.asarray(row.labels[:-1] == row.tokens[1:])
        ends = _last_positions(row)
        inside = trained[:-1].copy()
        inside[ends[ends < inside.size]] = False
        wrong = inside & ~follows
        if wrong.any():
            off, of = int(wrong.sum()), int(inside.sum())
            what = "the labels are not shifted by one" if 2 * off > of else "labels and tokens do not belong together"
            message = (
                f"{off} of {of} trained labels{in_row(batch, row)} are not the next token, the first at "
                f"{first(wrong)}: {what}."
            )
            yield Fault("batch-labels-are-next-tokens", message, ("labels",), row.index)
        if batch.path == "in_batch_packed":
            yield from _cut_off_tokens(batch, row, trained, follows, ends)
        yield from _crossings(batch, row, trained, follows)


def _trained(labels: NDArray[Any], loss_mask: NDArray[Any] | None) -> NDArray[np.bool_]:
    trained = np.asarray(labels >= 0)
    return trained & has_loss(loss_mask) if loss_mask is not None and loss_mask.size == trained.size else trained


def _last_positions(row: Row) -> Ints:
    """Return the position of the last real token of every sequence."""
    assert row.physical is not None
    assert row.total is not None
    pair = separate_logical(row)
    lengths = np.minimum(pair[0].lengths, pair[1].lengths) if pair is not None else row.physical.lengths
    ends = row.physical.trimmed[:-1] + lengths - 1
    return np.asarray(np.unique(ends[(ends >= 0) & (lengths > 0) & (ends < row.total)]), dtype=np.int64)


def _crossings(batch: Batch, row: Row, trained: NDArray[np.bool_], follows: NDArray[np.bool_]) -> Iterator[Fault]:
    assert row.physical is not None
    assert row.tokens is not None
    inner = np.unique(row.physical.trimmed[1:-1])
    inner = inner[(inner > 0) & (inner < row.tokens.size)]
    filler = filler_start(batch, row)
    if filler is not None:
        inner = inner[inner < filler]
    if not inner.size:
        return
    crossing = trained[inner - 1] & follows[inner - 1]
    crossed = int(crossing.sum())
    # The last label of a packed sample is its own last token, which the row does not hold. It may equal the next
    # sample's first token by chance, and always does where one token both ends and starts a sample.
    cut = batch.path == "offline_packed" or (batch.path == "packed" and inner.size > 1)
    kinds = np.unique(row.tokens[inner[crossing]]).size
    if crossed and (not cut or (crossing.all() and kinds > 1)):
        at = int(inner[first(crossing)]) - 1
        message = (
            f"The last label of a sequence, at token {at}{in_row(batch, row)}, is the first token of the next "
            f"sequence, and it is trained ({crossed} of {inner.size} boundaries)."
        )
        yield Fault("batch-labels-cross-boundary", message, ("labels", "loss_mask"), row.index)


def _cut_off_tokens(
    batch: Batch, row: Row, trained: NDArray[np.bool_], follows: NDArray[np.bool_], ends: Ints
) -> Iterator[Fault]:
    """In-batch packing never trains the last position of a sequence; a label there is a token that was cut off."""
    assert row.labels is not None
    next_matches = np.concatenate([follows, [False]])
    lost = ends[trained[ends] & ~next_matches[ends]]
    if lost.size:
        at = int(lost[0])
        label = int(row.labels[at])
        message = (
            f"The last position of a sequence, token {at}{in_row(batch, row)}, is trained on {label}, a token that the "
            "sequence does not hold: its last token was cut off."
        )
        if label == 0:
            message += " 0.3 takes a token of id 0 at the end for padding; so do 0.4 and 0.5 without an attention_mask."
        yield Fault("batch-last-token-dropped", message, ("labels", batch.token_key), row.index)


@check
def positions_restart(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """position_ids count from 0 in every sequence; the tail filler of an offline pack is all 0, padding may be."""
    for row in batch.rows:
        positions, table = row.position_ids, row.physical
        if positions is None or table is None or not is_whole(batch, row) or positions.size != row.total:
            continue
        allowed, expected = _positions(batch, row, positions)
        if allowed.all():
            continue
        at = first(~allowed)
        message = (
            f"position_ids is {int(positions[at])} at token {at}{in_row(batch, row)}, where {table.key} says "
            f"{int(expected[at])}: positions must restart where a sequence starts, and nowhere else."
        )
        # Positions that count from 0 in several runs are sound by themselves; then the boundaries are off.
        starts = positions == 0
        counts = positions[1:] == positions[:-1] + 1
        runs = bool(starts[0]) and int(starts.sum()) > 1 and bool(np.all(counts | starts[1:]))
        fields = (table.key, "position_ids") if runs else ("position_ids", table.key)
        yield Fault("batch-positions-restart", message, fields, row.index)


def _positions(batch: Batch, row: Row, positions: NDArray[Any]) -> tuple[NDArray[np.bool_], Ints]:
    """Return which positions are as they may be, and the ramps that they should follow."""
    assert row.physical is not None
    table = row.physical
    starts = table.trimmed[:-1][table.lengths > 0]
    expected = np.arange(positions.size, dtype=np.int64)
    if starts.size:
        expected = expected - starts[np.searchsorted(starts, expected, side="right") - 1]
    allowed = np.asarray(positions == expected)
    padding = padding_positions(batch, row)
    if padding is not None:
        allowed |= padding & (positions == 0)
    tail = int(starts[-1]) if starts.size and filler_start(batch, row) is None else positions.size
    allowed[tail:] |= positions[tail:] == 0
    allowed[int(table.trimmed[-1]) :] = True
    return allowed, np.asarray(expected, dtype=np.int64)


@check
def something_is_trained(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """A row trains at least one token; an offline batch may hold filler rows that train none."""
    for row in batch.rows:
        if row.loss_mask is None or row.loss_mask.size == 0 or batch.per_rank or has_loss(row.loss_mask).any():
            continue
        if batch.path == "offline_packed":
            message = (
                f"No token is trained{in_row(batch, row)}: a row that fills up the global batch, or a pack that lost "
                "its supervision."
            )
            yield Fault("batch-filler-row", message, ("loss_mask",), row.index)
        else:
            message = f"No token is trained{in_row(batch, row)}: every supervised token was masked or cut off."
            yield Fault("batch-no-supervision", message, ("loss_mask",), row.index)


@check
def rows_are_not_repeated(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """Rows that fill up the last batch are copies of a row and train nothing; up to 0.5 they may train again."""
    if batch.path != "offline_packed" or batch.generation != "<=0.5" or len(batch.rows) < 2:
        return
    seen: dict[bytes, int] = {}
    for row in batch.rows:
        if row.tokens is None or row.loss_mask is None or not has_loss(row.loss_mask).any():
            continue
        earlier = seen.setdefault(row.tokens.tobytes(), row.index)
        if earlier != row.index:
            message = (
                f"Row {row.index} is row {earlier} again, and both are trained. With max_train_samples, 0.3 to 0.5 "
                "fill up the last global batch with copies of the last pack and leave their loss on."
            )
            yield Fault("batch-filler-row-trained", message, ("loss_mask", batch.token_key), row.index)


def _ranges(value: Any) -> list[tuple[int, int]] | None:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, list) or not all(isinstance(item, list | tuple) and len(item) == 2 for item in value):
        return None
    if not all(isinstance(edge, int) and not isinstance(edge, bool) for item in value for edge in item):
        return None
    return [(int(item[0]), int(item[1])) for item in value]


@check
def answers_are_what_is_trained(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """Where the batch brings each sample's own answer range, the mask must cover exactly those tokens."""
    ranges = _ranges(batch.raw.get("answer_ranges_local"))
    row = batch.rows[0]
    if ranges is None or row.loss_mask is None or row.physical is None:
        return
    expected = np.zeros(row.loss_mask.size, dtype=bool)
    for start, (begin, stop) in zip(row.physical.trimmed[:-1].tolist(), ranges, strict=False):
        expected[max(0, start + begin) : max(0, start + stop)] = True
    wrong = expected != has_loss(row.loss_mask)
    if wrong.any():
        message = (
            f"loss_mask differs from the samples' answer ranges at {count(int(wrong.sum()), 'token')}, the first at "
            f"{first(wrong)}: each range moves by the lengths of the samples before it."
        )
        yield Fault("batch-answer-mask-misplaced", message, ("loss_mask",))


@check
def prompts_are_not_trained(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """Where the batch brings the roles of a conversation, only the assistant's tokens are trained."""
    roles, lengths = batch.raw.get("roles"), batch.raw.get("role_lengths")
    row = batch.rows[0]
    if not isinstance(roles, list) or not isinstance(lengths, list) or row.loss_mask is None:
        return
    if len(roles) != len(lengths) or not all(isinstance(length, int) and length >= 0 for length in lengths):
        return
    mask = has_loss(row.loss_mask)
    at = wrong = 0
    for role, length in zip(roles, lengths, strict=True):
        wrong += int(mask[at : at + length].sum()) if role != "assistant" else 0
        at += length
    if wrong:
        message = f"loss_mask is not 0 on {count(wrong, 'token')} of other roles than the assistant."
        yield Fault("batch-prompt-is-trained", message, ("loss_mask",))
