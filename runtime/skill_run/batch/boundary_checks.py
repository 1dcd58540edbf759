"""What must hold of the boundary arrays themselves: where they start and end, their entries, dtype and companions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from skill_run.batch.arrays import integers, number_rows
from skill_run.batch.faults import (
    Fault,
    Settings,
    check,
    first,
    in_row,
    is_sorted,
    is_whole,
    padding_positions,
    separate_logical,
    tables,
)
from skill_run.batch.model import Batch, Boundaries, Ints, Row

# A sequence that fills less than this share of its slots, with at least this many slots wasted, is worth a warning.
_THIN_SHARE = 8
_THIN_WASTE = 8
# A static boundary array holds the leading 0 and a last entry for the filler beside one entry per sequence.
_STATIC_EXTRA = 2


@check
def streams_have_one_length(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """Token streams of one row have one length."""
    for row in batch.rows:
        streams = {
            batch.token_key: row.tokens,
            "labels": row.labels,
            "loss_mask": row.loss_mask,
            "position_ids": row.position_ids,
            "padding_mask": row.padding_mask,
        }
        sizes = {key: item.size for key, item in streams.items() if item is not None}
        if len(set(sizes.values())) > 1:
            told = ", ".join(f"{key} {size}" for key, size in sizes.items())
            message = f"The streams differ in length{in_row(batch, row)}: {told}."
            yield Fault("batch-shapes-agree", message, tuple(sizes), row.index)


@check
def boundaries_are_int32(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """Boundary arrays are int32; with plain (sbhd) rows nobody reads them."""
    layout = batch.raw.get("qkv_format")
    if isinstance(layout, str) and layout == "sbhd":
        return
    seen: set[str] = set()
    for row in batch.rows:
        for table in (*tables(row), *row.kv):
            if table.dtype not in (None, "int32") and table.key not in seen:
                seen.add(table.key)
                message = f"{table.key} is {table.dtype}; Transformer Engine accepts int32 only and stops in attention."
                yield Fault("batch-boundaries-are-int32", message, (table.key,))


@check
def one_row_per_micro_batch(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """A packed micro-batch is one row; a DP rank's dictionary before splitting may hold several."""
    packed = batch.path in ("offline_packed", "in_batch_packed", "packed")
    if packed and len(batch.rows) > 1 and not batch.before_split:
        keys = tuple(table.key for table in tables(batch.rows[0]))
        message = (
            f"The micro-batch holds {len(batch.rows)} packed rows, but a step takes one: attention gets a single list "
            "of boundaries."
        )
        yield Fault("batch-one-row-per-micro-batch", message, (batch.token_key, *keys))


@check
def boundaries_start_at_zero(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """The first boundary is 0."""
    for row in batch.rows:
        for table in tables(row):
            if table.trimmed.size and int(table.trimmed[0]) > 0:
                message = (
                    f"{table.key} starts at {int(table.trimmed[0])}{in_row(batch, row)}; "
                    "the tokens before it belong to no sequence."
                )
                yield Fault("batch-boundaries-start-at-zero", message, (table.key,), row.index)


@check
def boundaries_name_sequences(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """A boundary array names at least one sequence."""
    for row in batch.rows:
        for table in tables(row):
            if table.trimmed.size < 2:
                count = "no entry" if table.trimmed.size == 0 else "one entry"
                message = f"{table.key} has {count} that can be used{in_row(batch, row)}; one sequence needs two."
                yield Fault("batch-boundaries-name-sequences", message, (table.key,), row.index)


@check
def boundaries_do_not_decrease(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """Boundaries never go down and are not negative."""
    for row in batch.rows:
        for table in tables(row):
            values = table.trimmed
            if np.any(values < -1) or np.any(table.raw < -1):
                lowest = int(min(table.raw.min(), values.min(initial=0)))
                message = f"{table.key} holds {lowest}{in_row(batch, row)}, which is no place in a row."
                yield Fault("batch-boundaries-do-not-decrease", message, (table.key,), row.index)
            elif np.any(np.diff(values) < 0) and not np.any(values == -1):
                at = first(np.diff(values) < 0)
                message = (
                    f"{table.key} goes down from {int(values[at])} to {int(values[at + 1])} at entry {at + 1}"
                    f"{in_row(batch, row)}, so a sequence has a negative length."
                )
                yield Fault("batch-boundaries-do-not-decrease", message, (table.key,), row.index)


@check
def boundaries_end_at_row_end(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """The last physical boundary is the row's length."""
    for row in batch.rows:
        table = row.physical
        if table is None or row.total is None or not is_sorted(table):
            continue
        end = int(table.trimmed[-1])
        if end != row.total:
            what = "the rest belongs to no sequence" if end < row.total else "the last sequence runs past the row"
            message = f"{table.key} ends at {end}, but the row has {row.total} tokens{in_row(batch, row)}: {what}."
            yield Fault("batch-boundaries-end-at-row-end", message, (table.key, batch.token_key), row.index)


@check
def boundaries_hold_no_sentinel(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """No -1 is left where the step does not trim: in 0.6 names, or inside what argmin keeps."""
    for row in batch.rows:
        for table in tables(row):
            untrimmed = _never_trimmed(batch, table)
            if np.any((table.raw if untrimmed else table.trimmed) == -1):
                why = "nothing trims these names" if untrimmed else f"{table.argmin_key} keeps it"
                message = (
                    f"{table.key} holds the sentinel -1{in_row(batch, row)}, and {why}, "
                    "so it reaches the kernel as a boundary."
                )
                yield Fault("batch-boundaries-hold-no-sentinel", message, (table.key,), row.index)


def _never_trimmed(batch: Batch, table: Boundaries) -> bool:
    return table.key.startswith("cu_seqlens_q") or batch.path in ("packed_seq_params", "megatron_lm_sft")


@check
def argmin_counts_entries(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """Up to 0.5 argmin is the number of valid entries; without it and without a sentinel the step cuts to nothing."""
    if batch.generation != "<=0.5":
        return
    for row in batch.rows:
        for table in tables(row):
            sentinels = np.flatnonzero(table.raw < 0)
            valid = int(sentinels[0]) if sentinels.size else table.raw.size
            key = f"{table.key}_argmin"
            if table.argmin is None and not sentinels.size and batch.path == "offline_packed":
                message = (
                    f"{table.key} has neither {key} nor a -1 at its end{in_row(batch, row)}: the step cuts it at the "
                    "smallest entry, which is the leading 0, and loses every boundary."
                )
                yield Fault("batch-argmin-counts-entries", message, (key, table.key), row.index)
            elif table.argmin is not None and table.argmin != valid:
                lost = "sequences at the end are dropped" if table.argmin < valid else "a sentinel stays as a boundary"
                message = (
                    f"{key} is {table.argmin}, but {table.key} has {valid} valid entries{in_row(batch, row)}: {lost}."
                )
                yield Fault("batch-argmin-counts-entries", message, (key, table.key), row.index)


@check
def max_seqlen_covers_longest(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """max_seqlen is at least the longest physical sequence; larger is harmless."""
    for row in batch.rows:
        if row.max_seqlen is None or row.physical is None or not is_sorted(row.physical):
            continue
        longest = int(row.physical.lengths.max())
        if row.max_seqlen < longest:
            message = (
                f"{batch.max_key} is {row.max_seqlen}, but the longest sequence takes {longest} tokens"
                f"{in_row(batch, row)}: the position table and the attention launch are too small."
            )
            yield Fault("batch-max-seqlen-covers-longest", message, (batch.max_key,), row.index)


@check
def logical_matches_physical(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """Logical and physical boundaries name the same sequences."""
    for row in batch.rows:
        logical, physical = row.logical, row.physical
        if logical is None or physical is None or logical.trimmed.size == physical.trimmed.size:
            continue
        message = (
            f"{logical.key} has {logical.trimmed.size} entries and {physical.key} {physical.trimmed.size}"
            f"{in_row(batch, row)}: attention counts the sequences in the first and finds their places in the second."
        )
        if batch.generation == "<=0.5" and _static(batch, settings) is not False:
            message += " Up to 0.5.1 pad_cu_seqlens lengthens cu_seqlens alone."
        yield Fault("batch-logical-matches-physical", message, (logical.key, physical.key), row.index)


@check
def logical_fits_physical(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """No sequence has more real tokens than places."""
    for row in batch.rows:
        pair = separate_logical(row)
        if pair is None:
            continue
        logical, physical = pair
        over = logical.lengths > physical.lengths
        if over.any():
            at = first(over)
            message = (
                f"Sequence {at} has {int(logical.lengths[at])} real tokens by {logical.key}, but only "
                f"{int(physical.lengths[at])} places by {physical.key}{in_row(batch, row)}."
            )
            yield Fault("batch-logical-fits-physical", message, (logical.key, physical.key), row.index)


@check
def logical_boundaries_are_there(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """An offline batch that is visibly padded per sequence must say where the real tokens end (0.4 forgot to)."""
    if batch.path != "offline_packed" or batch.generation != "<=0.5":
        return
    for row in batch.rows:
        if row.logical is not None or row.physical is None or not is_whole(batch, row):
            continue
        multiple = _alignment(row)
        if multiple > 1:
            message = (
                f"Every sequence ends on a multiple of {multiple} and is filled up to it{in_row(batch, row)}, but "
                "cu_seqlens_unpadded is missing: attention treats the filling as part of the sequence. 0.4 drops it "
                "when it reads Parquet packs."
            )
            yield Fault("batch-logical-boundaries-missing", message, ("cu_seqlens_unpadded",), row.index)


def _alignment(row: Row) -> int:
    """Return the multiple that the sequences of a row are filled up to, 1 when nothing shows that they are.

    With alignment every sequence ends in the untrained end token: its own, or filling. Without it the end token is cut
    off as the last label, so that the last position is a trained one.
    """
    assert row.physical is not None
    ends = _sequence_ends(row)
    multiple = int(np.gcd.reduce(ends)) if ends.size else 1
    if multiple < 2 or row.tokens is None or row.loss_mask is None:
        return 1
    if row.tokens.size != row.total or row.loss_mask.size != row.total:
        return 1
    ends = ends[ends >= 2]
    last, before = row.tokens[ends - 1], row.tokens[ends - 2]
    untrained = row.loss_mask[ends - 1] == 0
    filled = untrained & (row.loss_mask[ends - 2] == 0) & (last == before)
    alike = bool(ends.size) and bool(untrained.all()) and np.unique(last).size == 1
    return multiple if alike and filled.any() and 4 * int(filled.sum()) >= ends.size else 1


def _sequence_ends(row: Row) -> Ints:
    """Return where the real sequences end; the filler after token_count, or after the last one, is left out."""
    assert row.physical is not None
    assert row.total is not None
    ends = np.unique(row.physical.trimmed[1:])
    limit = row.token_count if row.token_count is not None else row.total - 1
    return np.asarray(ends[(ends > 0) & (ends <= limit)], dtype=np.int64)


@check
def static_boundaries_have_one_length(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """With pad_cu_seqlens every boundary array has max_samples_per_bin + 2 entries."""
    if batch.path != "offline_packed" or not _static(batch, settings):
        return
    wanted = None if settings.samples_per_pack is None else settings.samples_per_pack + _STATIC_EXTRA
    for row in batch.rows:
        table = row.physical
        if table is None or table.trimmed.size < 2:
            continue
        entries = table.trimmed.size
        wanted = wanted or entries
        if entries != wanted:
            told = (
                f"max_samples_per_bin {settings.samples_per_pack} asks for {wanted}"
                if settings.samples_per_pack is not None
                else f"the rows before it have {wanted}"
            )
            message = (
                f"{table.key} has {entries} entries{in_row(batch, row)}, but {told}: with pad_cu_seqlens every pack "
                "needs the same number, or a captured graph replays with the wrong shape."
            )
            yield Fault("batch-static-boundaries-length", message, (table.key,), row.index)


def _static(batch: Batch, settings: Settings) -> bool | None:
    """Tell whether pad_cu_seqlens made this batch; its max_seqlen has one dimension less then. None when unknown."""
    if settings.static_boundaries is not None:
        return settings.static_boundaries
    value = batch.raw.get(batch.max_key)
    if not isinstance(value, np.ndarray):
        return None
    return number_rows(value, batch.max_key)[2] == 1


@check
def kv_equals_q(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """Self attention has one set of boundaries."""
    for row in batch.rows:
        queries = {table.key: table for table in tables(row)}
        for kv in row.kv:
            table = queries.get(kv.key.replace("_kv", "_q"))
            if table is not None and not np.array_equal(table.raw, kv.raw):
                message = f"{kv.key} differs from {table.key}{in_row(batch, row)}; in self attention they are the same."
                yield Fault("batch-kv-boundaries-equal-q", message, (kv.key, table.key), row.index)


@check
def empty_sequences_only_at_the_tail(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """A boundary may repeat at the end only."""
    for row in batch.rows:
        table = row.physical
        if table is None or not is_sorted(table):
            continue
        used = np.flatnonzero(table.lengths > 0)
        empty = np.flatnonzero(table.lengths == 0)
        if used.size and empty.size and int(empty[0]) < int(used[-1]):
            message = (
                f"Sequence {int(empty[0])} is empty{in_row(batch, row)}: {table.key} repeats "
                f"{int(table.trimmed[empty[0]])} before the end."
            )
            yield Fault("batch-empty-sequence-inside", message, (table.key,), row.index)


@check
def sequences_are_not_mostly_padding(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """A sequence should fill a fair share of its slots."""
    for row in batch.rows:
        pair = separate_logical(row)
        if pair is None:
            continue
        real, slots = pair[0].lengths, pair[1].lengths
        thin = (real > 0) & (real <= slots // _THIN_SHARE) & (slots - real >= _THIN_WASTE)
        if thin.any():
            at = first(thin)
            message = (
                f"Sequence {at} has {int(real[at])} real tokens in {int(slots[at])} slots{in_row(batch, row)} "
                f"({int(thin.sum())} such): the rest is padding."
            )
            yield Fault("batch-mostly-padding", message, (pair[1].key,), row.index)


@check
def sequences_are_the_samples(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """Where the lengths of the samples stand beside the boundaries, every sample has its sequence, and all of it."""
    row = batch.rows[0]
    names = ("sample_lengths", "row_lengths", *(("token_count",) if batch.path == "in_batch_packed" else ()))
    key = next((name for name in names if isinstance(batch.raw.get(name), list)), None)
    table = row.logical or row.physical
    if key is None or table is None or not is_sorted(table) or len(batch.rows) > 1:
        return
    places = (row.physical or table).trimmed
    if (
        places.size < 2
        or int(places[0]) != 0
        or int(places[-1]) != (row.total if row.total is not None else places[-1])
    ):
        return
    told = integers(number_rows(batch.raw[key], key)[0][0], key)
    real = table.lengths[table.lengths > 0]
    if told.size != real.size:
        message = f"{key} tells {told.size} samples, but {table.key} has {real.size} sequences."
    elif np.any(wrong := told != real if row.logical is not None else told > real):
        at = first(wrong)
        message = (
            f"Sample {at} has {int(told[at])} tokens by {key}, but its sequence has {int(real[at])} by {table.key}."
        )
    else:
        return
    yield Fault("batch-sequences-are-the-samples", message, (table.key, key))


@check
def total_tokens_match(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """total_tokens is the row's length, and hybrid models need it; the step adds it to offline packs itself."""
    value = batch.raw.get("total_tokens")
    if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "iu":
        value = int(value.reshape(-1)[0])
    row = batch.rows[0]
    whole = row.total is not None and row.tokens is not None
    if isinstance(value, int) and whole and value != row.total and len(batch.rows) == 1:
        message = (
            f"total_tokens is {value}, but the row has {row.total} tokens: "
            "the sequence index of state-space layers is wrong."
        )
        yield Fault("batch-total-tokens-match", message, ("total_tokens",))
    new = batch.generation in (">=0.6", "main") or batch.path == "packed_seq_params"
    if value is None and settings.hybrid and new and row.physical is not None and batch.path != "offline_packed":
        message = (
            "The model has state-space layers, but total_tokens is missing, so no sequence index can be built and the "
            "state runs on from one sample into the next."
        )
        yield Fault("batch-hybrid-needs-total-tokens", message, ("total_tokens",))


@check
def packed_batches_have_no_attention_mask(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """From 0.6 on a packed batch has no attention mask; the boundaries are the mask."""
    mask = batch.raw.get("attention_mask")
    if mask is None or batch.generation not in (">=0.6", "main") or batch.path in ("padded", "packed_seq_params"):
        return
    message = "attention_mask is given beside boundaries; a packed batch has None there."
    yield Fault("batch-attention-mask-with-packing", message, ("attention_mask",))


@check
def experts_see_no_padding(batch: Batch, settings: Settings) -> Iterator[Fault]:
    """A mixture of experts counts padding as tokens unless the batch brings a padding mask."""
    if not settings.experts or batch.raw.get("padding_mask") is not None:
        return
    for row in batch.rows:
        padding = padding_positions(batch, row)
        pair = separate_logical(row)
        gap = int(padding.sum()) if padding is not None else 0
        if padding is None and pair is not None:
            gap = int(pair[1].trimmed[-1]) - int(pair[0].trimmed[-1])
        if gap > 0:
            message = (
                f"{gap} padding tokens reach the router{in_row(batch, row)} and count in its balancing; "
                "padding_mask would leave them out."
            )
            yield Fault("batch-moe-needs-padding-mask", message, ("padding_mask",), row.index)
