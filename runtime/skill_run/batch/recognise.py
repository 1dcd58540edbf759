"""Tell which packing path and API generation a batch comes from, and normalise its rows.

The same word means different things: `cu_seqlens` is physical in Megatron-Bridge up to 0.5 and logical in Megatron-LM;
`cu_seqlens_q` is logical from 0.6 on. The reason for every decision is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from skill_run.batch.arrays import integers, number_rows
from skill_run.batch.faults import is_sorted
from skill_run.batch.model import Batch, Boundaries, Generation, Ints, Path, Row
from skill_run.errors import InputError

TOKEN_KEYS: Final = ("tokens", "input_ids")
STREAM_KEYS: Final = (*TOKEN_KEYS, "labels", "loss_mask", "position_ids")
BOUNDARY_KEYS: Final = (
    "cu_seqlens",
    "cu_seqlens_unpadded",
    "cu_seqlens_padded",
    "cu_seqlens_q",
    "cu_seqlens_kv",
    "cu_seqlens_q_padded",
    "cu_seqlens_kv_padded",
    "seq_offsets",
)
# Keys that only say something about the batch: the size of token streams that it does not carry.
CLAIM_KEYS: Final = ("tokens_len", "tokens_shape")


def recognise(
    raw: Mapping[str, Any],
    *,
    cp: int | None = None,
    tp: int | None = None,
    sp: bool | None = None,
    bridge: str | None = None,
    micro_batch: bool = False,
) -> Batch:
    """Return the batch with its path, generation and rows.

    raw: arrays by key, as check_mapping returns them. bridge: the release, which decides between Megatron-LM and Bridge
    where both write the same keys. micro_batch: it is known to be what one step gets, not the rows of a DP rank before
    they are split.

    Raises InputError when it is no batch of any known path, or when its arrays have shapes that nothing can be made of.
    """
    path, generation, because, meaning, physical_key, logical_key = _path(raw, bridge)
    batch = Batch(path, generation, because, meaning, [], raw, cp=cp, tp=tp, sp=sp)
    batch.token_key = next((key for key in TOKEN_KEYS if raw.get(key) is not None), "tokens")
    batch.max_key = "max_seqlen_q" if "max_seqlen_q" in raw else "max_seqlen"
    batch.rows = _rows(raw, batch, physical_key, logical_key)
    if (
        generation == "<=0.5"
        and path == "offline_packed"
        and "token_count" in raw
        and raw.get("attention_mask", 0) is None
    ):
        batch.release = "0.5.1"
        batch.because += "; its attention_mask is None, as in 0.5 alone"
    several = len(batch.rows) > 1 and path == "offline_packed" and "token_count" in raw
    batch.before_split = several and not micro_batch
    if batch.before_split:
        batch.notes.append(
            f"{len(batch.rows)} rows of one DP rank, before they are split into micro-batches of one row"
        )
    _tell_rank_part(batch)
    if "seq_offsets" not in raw and path != "padded":
        batch.notes.append("no seq_offsets key: no release of Megatron-Bridge emits one; the boundary arrays are used")
    return batch


_Decision = tuple[Path, Generation, str, str, str | None, str | None]


def _path(raw: Mapping[str, Any], bridge: str | None) -> _Decision:
    given = {key for key in BOUNDARY_KEYS if raw.get(key) is not None}
    if "cu_seqlens_q" in given:
        return _current(raw, given)
    if "cu_seqlens" in given:
        return _legacy(raw, given, bridge)
    if "seq_offsets" in given:
        return "packed", "unknown", "boundaries are given as seq_offsets", "seq_offsets: physical", "seq_offsets", None
    if any(not isinstance(raw.get(key), str | int | float | Mapping | None) for key in STREAM_KEYS):
        because = "no boundary array: every row is one sequence"
        return "padded", "unknown", because, "rows are not packed", None, None
    shown = ", ".join(list(raw)[:8]) or "nothing"
    raise InputError(f"this is no training batch: it has neither token streams nor boundaries (keys: {shown})")


def _current(raw: Mapping[str, Any], given: set[str]) -> _Decision:
    physical = "cu_seqlens_q_padded" if "cu_seqlens_q_padded" in given else "cu_seqlens_q"
    meaning = (
        "cu_seqlens_q: logical (real tokens), cu_seqlens_q_padded: physical (padded)"
        if physical != "cu_seqlens_q"
        else "cu_seqlens_q: logical and physical at once (no alignment padding)"
    )
    has_stream = any(raw.get(key) is not None for key in (*STREAM_KEYS, *CLAIM_KEYS))
    if raw.get("qkv_format") is not None and not has_stream:
        because = "qkv_format and boundaries without tokens: the fields of PackedSeqParams"
        return "packed_seq_params", "unknown", because, meaning, physical, "cu_seqlens_q"
    dimensions = number_rows(raw["cu_seqlens_q"], "cu_seqlens_q")[2]
    masked = raw.get("padding_mask") is not None
    if dimensions == 2:
        if masked:
            because = "two-dimensional cu_seqlens_q with padding_mask: offline packing on main"
            return "offline_packed", "main", because, meaning, physical, "cu_seqlens_q"
        because = "two-dimensional cu_seqlens_q: offline packing of 0.6 or newer"
        return "offline_packed", ">=0.6", because, meaning, physical, "cu_seqlens_q"
    if raw.get("total_tokens") is not None:
        because = "one-dimensional cu_seqlens_q with total_tokens: in-batch packing at collate time, 0.6 or newer"
        return "in_batch_packed", "main" if masked else ">=0.6", because, meaning, physical, "cu_seqlens_q"
    because = "cu_seqlens_q names boundaries of 0.6 or newer; nothing tells offline from in-batch packing"
    return "packed", ">=0.6", because, meaning, physical, "cu_seqlens_q"


def _legacy(raw: Mapping[str, Any], given: set[str], bridge: str | None) -> _Decision:
    rows, _, dimensions = number_rows(raw["cu_seqlens"], "cu_seqlens")
    sentinel = any(row.size and bool(np.any(row == -1)) for row in rows)
    bridge_keys = {"cu_seqlens_argmin", "cu_seqlens_unpadded", "cu_seqlens_unpadded_argmin"} & set(raw)
    marked = sentinel or bool(bridge_keys)
    if "cu_seqlens_padded" in given or not (marked or bridge is not None):
        return _unmarked(raw, given)
    logical = "cu_seqlens_unpadded" if "cu_seqlens_unpadded" in given else None
    meaning = "cu_seqlens: physical (padded)" + (", cu_seqlens_unpadded: logical (real tokens)" if logical else "")
    told = (
        ("with sentinel or argmin" if dimensions == 2 else "with argmin") if marked else f"of Megatron-Bridge {bridge}"
    )
    if dimensions == 2:
        because = f"two-dimensional cu_seqlens {told}: offline packing up to 0.5"
        return "offline_packed", "<=0.5", because, meaning, "cu_seqlens", logical
    because = f"one-dimensional cu_seqlens {told}: in-batch packing up to 0.5"
    return "in_batch_packed", "<=0.5", because, meaning, "cu_seqlens", logical


def _unmarked(raw: Mapping[str, Any], given: set[str]) -> _Decision:
    """`cu_seqlens` without sentinel or argmin: Megatron-LM, or Bridge's in-batch packing before forward_step."""
    if "visual_inputs" in raw:
        because = "one-dimensional cu_seqlens beside visual_inputs: in-batch packing of the VLM step up to 0.5"
        return "in_batch_packed", "<=0.5", because, "cu_seqlens: physical (padded)", "cu_seqlens", None
    because = "cu_seqlens without sentinel or argmin: Megatron-LM --sft"
    if "cu_seqlens_padded" in given:
        meaning = "cu_seqlens: logical (real tokens), cu_seqlens_padded: physical (padded)"
        return "megatron_lm_sft", "megatron-lm", because, meaning, "cu_seqlens_padded", "cu_seqlens"
    meaning = "cu_seqlens: physical, which Megatron-LM also uses as logical"
    return "megatron_lm_sft", "megatron-lm", because, meaning, "cu_seqlens", None


def _rows(raw: Mapping[str, Any], batch: Batch, physical: str | None, logical: str | None) -> list[Row]:
    streams = {key: _stream(raw, key) for key in ("labels", "loss_mask", "position_ids", "padding_mask")}
    streams["tokens"] = _stream(raw, batch.token_key)
    twins = _twins(raw, physical, logical)
    tables = {key: _boundaries(raw, key) for key in (physical, logical, *twins) if key is not None}
    count = max([len(rows) for rows in (*streams.values(), *tables.values()) if rows is not None] or [1])
    if not count:
        raise InputError("the batch has no rows: its arrays are empty")
    claimed = _claimed(raw)
    maxima = _per_row(raw, batch.max_key, count)
    counts = _per_row(raw, "token_count", count) if count == _length(raw.get("token_count")) else [None] * count
    rows: list[Row] = []
    for index in range(count):
        picked = {key: _pick(found, index) for key, found in streams.items()}
        lengths = [item.shape[-1] for key in ("tokens", *streams) if (item := picked[key]) is not None]
        total = int(lengths[0]) if lengths else claimed
        rows.append(
            Row(
                index=index,
                total=total,
                tokens=picked["tokens"],
                labels=picked["labels"],
                loss_mask=picked["loss_mask"],
                position_ids=picked["position_ids"],
                padding_mask=picked["padding_mask"],
                physical=_pick(tables.get(physical or ""), index),
                logical=_pick(tables.get(logical or ""), index),
                kv=tuple(table for key in twins if (table := _pick(tables[key], index)) is not None),
                max_seqlen=maxima[index],
                token_count=counts[index],
            )
        )
    return rows


def _twins(raw: Mapping[str, Any], *names: str | None) -> tuple[str, ...]:
    """Return the boundary arrays of the keys that stand beside those of the queries."""
    asked = (name.replace("_q", "_kv") for name in dict.fromkeys(names) if name is not None and "_q" in name)
    return tuple(name for name in asked if raw.get(name) is not None)


def _pick(found: list[Any] | None, index: int) -> Any:
    return found[index] if found is not None and index < len(found) else None


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list | tuple) else -1


def _stream(raw: Mapping[str, Any], key: str) -> list[NDArray[Any]] | None:
    """Return a token stream as rows [T]; None when it is absent or has another meaning (three-axis position ids)."""
    value = raw.get(key)
    if value is None or isinstance(value, str | dict):
        return None
    if isinstance(value, np.ndarray) and value.ndim > 2:
        return None
    return number_rows(value, key)[0]


def _claimed(raw: Mapping[str, Any]) -> int | None:
    """Return the row length that a batch claims without carrying tokens."""
    shape = raw.get("tokens_shape")
    claims = (
        raw.get("tokens_len"),
        shape[-1] if isinstance(shape, list | tuple) and shape else None,
        raw.get("total_tokens"),
    )
    return next(
        (int(item) for item in claims if isinstance(item, int) and item >= 0 and not isinstance(item, bool)), None
    )


def _per_row(raw: Mapping[str, Any], key: str, count: int) -> list[int | None]:
    value = raw.get(key)
    if value is None or isinstance(value, str | dict):
        return [None] * count
    numbers = (number for row in number_rows(value, key)[0] for number in integers(row, key).reshape(-1))
    flat: list[int | None] = [int(number) for number in islice(numbers, max(count, 2))]
    if len(flat) == 1:
        return flat * count
    return [flat[index] if index < len(flat) else None for index in range(count)]


def _boundaries(raw: Mapping[str, Any], key: str) -> list[Boundaries]:
    rows, dtype, _ = number_rows(raw[key], key)
    dtype = dtype or _told_dtype(raw, key)
    argmin_key = f"{key}_argmin"
    marks = _per_row(raw, argmin_key, len(rows)) if raw.get(argmin_key) is not None else [None] * len(rows)
    found = []
    for row, argmin in zip(rows, marks, strict=True):
        values = integers(row, key).reshape(-1)
        found.append(
            Boundaries(key, values, _trimmed(values, argmin), dtype, argmin, argmin_key if argmin is not None else None)
        )
    return found


def _told_dtype(raw: Mapping[str, Any], key: str) -> str | None:
    """Return the dtype that a batch of plain lists names for an array: `dtypes: {key: int64}` or `key_dtype: int64`."""
    table = raw.get("dtypes")
    told = table.get(key) if isinstance(table, dict) else raw.get(f"{key}_dtype")
    return told.removeprefix("torch.") if isinstance(told, str) else None


def _trimmed(values: Ints, argmin: int | None) -> Ints:
    if argmin is not None and 0 < argmin <= values.size:
        return values[:argmin]
    sentinels = np.flatnonzero(values == -1)
    return values[: int(sentinels[0])] if sentinels.size else values


def _tell_rank_part(batch: Batch) -> None:
    """Tell whether the token streams are one rank's part: the boundaries still end where the whole row ends."""
    for row in batch.rows:
        streams = (row.tokens, row.labels, row.loss_mask, row.position_ids)
        if (
            row.physical is None
            or not row.total
            or not is_sorted(row.physical)
            or all(item is None for item in streams)
        ):
            continue
        end = int(row.physical.trimmed[-1])
        ratio = end // row.total
        if ratio >= 2 and end == ratio * row.total and batch.cp in (None, ratio):
            batch.per_rank = True
            batch.cp = ratio
            row.total = end
    if batch.per_rank:
        batch.because += f"; the boundaries end at {batch.cp} times the tokens: one rank's part after slicing"
