"""Hypothesis strategies for valid batches of every path and generation, built as the libraries build them.

Sizes in tokens. A sample is its tokens with the end token last, and the index of its first answer token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from skill_run.batch.context_parallel import closed_form_indices

END = 2
PAD = 0
IGNORED = -100
FIRST_WORD = 10
STATIC_EXTRA = 2

Array = NDArray[Any]


@dataclass(frozen=True)
class Made:
    """A valid batch, what it must be recognised as, and the options to inspect it with."""

    batch: dict[str, Any]
    path: str
    generation: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def copy(self, **changes: Any) -> dict[str, Any]:
        """Return a batch of its own arrays, with some keys replaced; None as a change takes the key out."""
        fresh = {key: value.copy() if isinstance(value, np.ndarray) else value for key, value in self.batch.items()}
        fresh.update(changes)
        return {key: value for key, value in fresh.items() if key not in changes or value is not None}


@dataclass(frozen=True)
class Sample:
    """One sample. words: [L], the end token last; answer: index of the first answer token."""

    words: Array
    answer: int


def ceil_to(value: int, multiple: int) -> int:
    """Return the next multiple."""
    return -(-value // multiple) * multiple


@st.composite
def samples(
    draw: st.DrawFn, least: int = 1, most: int = 5, shortest: int = 4, longest: int = 30, row: int = 0
) -> list[Sample]:
    """Return some samples; neighbours, and the samples of different rows, have no word in common."""
    lengths = draw(st.lists(st.integers(shortest, max(longest, shortest)), min_size=least, max_size=most))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    made = []
    for number, length in enumerate(lengths):
        words = FIRST_WORD + 10 * rng.permutation(length) + number % 7 + 1000 * row
        words[-1] = END
        made.append(Sample(words.astype(np.int64), int(rng.integers(2, length))))
    return made


@dataclass(frozen=True)
class Layout:
    """Parallel sizes and the multiple they ask of every sequence."""

    cp: int
    tp: int
    sp: bool
    multiple: int

    @property
    def options(self) -> dict[str, Any]:
        """The sizes as options of inspect_batch."""
        return {"cp": self.cp, "tp": self.tp, "sp": self.sp}


@st.composite
def layouts(draw: st.DrawFn, context_parallel: bool | None = None) -> Layout:
    """Return parallel sizes with the least common multiple of 2 * CP and, under SP, CP * TP."""
    cp = draw(st.sampled_from([2, 4] if context_parallel else [1] if context_parallel is False else [1, 2, 4]))
    tp = draw(st.sampled_from([1, 2, 4]))
    sp = draw(st.booleans()) and tp > 1
    return Layout(cp, tp, sp, math.lcm(2 * cp if cp > 1 else 1, cp * tp if sp else 1))


def _ramps(lengths: list[int]) -> Array:
    return np.concatenate([np.arange(length) for length in lengths]).astype(np.int64)


def _sums(lengths: list[int]) -> list[int]:
    return [0, *np.cumsum(lengths).tolist()]


def _fill(rows: list[Array], width: int, value: int) -> Array:
    return np.stack([np.concatenate([row, np.full(width - row.size, value, row.dtype)]) for row in rows])


# Offline packing


@dataclass(frozen=True)
class Pack:
    """One offline pack as it is read: streams without filler, physical and logical lengths of its sequences."""

    tokens: Array
    labels: Array
    mask: Array
    physical: list[int]
    logical: list[int]


def read_pack(chosen: list[Sample], multiple: int, release: str) -> Pack:
    """Return a pack as collate_fn of a release reads it from a packed file.

    Stored sequences are padded to the multiple plus one token; 0.3 to 0.5 round the stored length, 0.6 the runtime one.
    """
    tokens, labels, masks, physical, logical = [], [], [], [], []
    for sample in chosen:
        length = sample.words.size
        rounded = length if release < "0.6" else length - 1
        stored = ceil_to(rounded, multiple) + 1 if multiple > 1 else length
        words = np.concatenate([sample.words, np.full(stored - length, END, np.int64)])
        mask = np.arange(stored - 1) >= sample.answer - 1
        mask &= np.arange(stored - 1) < length - 1
        if release != "main":
            mask &= words[:-1] != END
        tokens.append(words[:-1])
        labels.append(words[1:])
        masks.append(mask.astype(np.int64))
        physical.append(stored - 1)
        logical.append(length - 1)
    return Pack(np.concatenate(tokens), np.concatenate(labels), np.concatenate(masks), physical, logical)


def _offline(packs: list[Pack], width: int, aligned: bool, release: str, static: int | None) -> dict[str, Any]:
    """Return the dictionary of a DP rank. static: max_samples_per_bin of the metadata with pad_cu_seqlens."""
    physical, logical = [], []
    for pack in packs:
        places, real = _sums(pack.physical), _sums(pack.logical)
        if places[-1] != width:
            places.append(width)
            real.append(real[-1])
        if static is not None:
            places += [width] * (static + STATIC_EXTRA - len(places))
            real += [real[-1]] * (static + STATIC_EXTRA - len(real))
        physical.append(places)
        logical.append(real)
    longest = np.array([max(np.diff(row)) for row in physical], dtype=np.int32)
    batch: dict[str, Any] = {
        "tokens": _fill([pack.tokens for pack in packs], width, END),
        "labels": _fill([pack.labels for pack in packs], width, END),
        "loss_mask": _fill([pack.mask for pack in packs], width, 0),
        "position_ids": _fill([_ramps(pack.physical) for pack in packs], width, 0),
        "token_count": [int(pack.tokens.size) for pack in packs],
    }
    maximum = np.full(len(packs), width, np.int32) if static is not None else longest[:, None]
    if release < "0.6":
        batch["attention_mask"] = None if release == "0.5.1" else np.ones(len(packs), np.int64)
        batch |= _legacy_boundaries("cu_seqlens", physical) | {"max_seqlen": maximum}
        if aligned:
            batch |= _legacy_boundaries("cu_seqlens_unpadded", logical)
        return batch
    entries = max(len(row) for row in physical)
    places = _repeated(physical, entries)
    real = _repeated(logical, entries) if aligned else places
    batch |= {"attention_mask": None, "max_seqlen_q": maximum, "max_seqlen_kv": maximum}
    batch |= {"cu_seqlens_q": real, "cu_seqlens_kv": real}
    if aligned:
        batch |= {"cu_seqlens_q_padded": places, "cu_seqlens_kv_padded": places}
    if release == "main":
        batch["padding_mask"] = np.stack([_padding(pack, width, aligned) for pack in packs])
    return batch


def _legacy_boundaries(name: str, rows: list[list[int]]) -> dict[str, Any]:
    entries = max(len(row) for row in rows) + 1
    table = np.array([row + [-1] * (entries - len(row)) for row in rows], dtype=np.int32)
    return {name: table, f"{name}_argmin": np.argmin(table, axis=1, keepdims=True)}


def _repeated(rows: list[list[int]], entries: int) -> Array:
    return np.array([row + row[-1:] * (entries - len(row)) for row in rows], dtype=np.int32)


def _padding(pack: Pack, width: int, aligned: bool) -> Array:
    mask = np.zeros(width, dtype=bool)
    mask[sum(pack.physical) :] = True
    if aligned:
        for start, places, real in zip(_sums(pack.physical), pack.physical, pack.logical, strict=False):
            mask[start + real : start + places] = True
    return mask


GENERATIONS = {"0.3.1": "<=0.5", "0.5.1": "<=0.5", "0.6.2": ">=0.6", "main": "main"}
BRIDGES = {"main": "0.7.0.dev0"}


@st.composite
def dp_rank_dicts(
    draw: st.DrawFn,
    release: str | None = None,
    *,
    rows: tuple[int, int] = (2, 3),
    context_parallel: bool | None = None,
    static: bool | None = None,
    least: int = 1,
) -> Made:
    """Return the dictionary of a DP rank with offline packs, before it is split. least: samples in a pack."""
    release = release or draw(st.sampled_from(list(GENERATIONS)))
    layout = draw(layouts(context_parallel))
    if layout.multiple == 1:
        layout = Layout(1, layout.tp, layout.sp, draw(st.sampled_from([1, 1, 4])))
    aligned = layout.multiple > 1
    count = draw(st.integers(*rows))
    if release == "0.3.1" and layout.cp > 1:
        # Rows of different length are cut wrongly there; that is a fault of its own.
        count = 1
    shortest = layout.multiple // 2 + 4
    sizes: dict[str, Any] = {"least": least, "shortest": shortest, "longest": shortest + 20}
    chosen = [draw(samples(row=row, **sizes)) for row in range(count)]
    packs = [read_pack(some, layout.multiple, release) for some in chosen]
    width = max(pack.tokens.size for pack in packs) + draw(st.sampled_from([0, 0, 16]))
    width = ceil_to(width, math.lcm(16, layout.multiple))
    wide = static if static is not None else draw(st.booleans())
    if aligned and release < "0.6":
        # Before 0.6 pad_cu_seqlens lengthens one of two arrays only; that is a fault of its own.
        wide = False
    most = max(len(pack.physical) for pack in packs) if wide else None
    batch = _offline(packs, width, aligned, release, most)
    options = layout.options if aligned and layout.cp > 1 else {"cp": 1, "tp": layout.tp, "sp": False}
    if draw(st.booleans()):
        options = {**options, "bridge": BRIDGES.get(release, release)}
    return Made(batch, "offline_packed", GENERATIONS[release], options)


def split(made: Made, index: int) -> Made:
    """Return one micro-batch of a DP rank's dictionary, as split_batch_into_microbatches cuts it."""
    batch = {
        key: value[index : index + 1] if isinstance(value, np.ndarray | list) else value
        for key, value in made.batch.items()
    }
    return Made(batch, made.path, made.generation, made.options)


@st.composite
def offline_batches(draw: st.DrawFn, release: str | None = None, **how: Any) -> Made:
    """Return a micro-batch with one offline pack."""
    made = draw(dp_rank_dicts(release, rows=(1, 3), **how))
    return split(made, draw(st.integers(0, len(made.batch["token_count"]) - 1)))


# In-batch packing


def _in_batch_streams(chosen: list[Sample], multiple: int) -> tuple[dict[str, Array], list[int], list[int]]:
    """Return streams [T] of joined samples, each padded to the multiple, with their logical and physical lengths."""
    logical = [sample.words.size for sample in chosen]
    physical = [ceil_to(length, multiple) for length in logical]
    tokens, labels, mask = [], [], []
    for sample, places in zip(chosen, physical, strict=True):
        target = np.concatenate([sample.words[1:], [IGNORED]])
        target[: sample.answer - 1] = IGNORED
        gap = places - sample.words.size
        tokens.append(np.concatenate([sample.words, np.full(gap, PAD, np.int64)]))
        labels.append(np.concatenate([target, np.full(gap, IGNORED, np.int64)]))
        mask.append(labels[-1] != IGNORED)
    streams = {
        "tokens": np.concatenate(tokens),
        "labels": np.concatenate(labels),
        "loss_mask": np.concatenate(mask).astype(np.float32),
        "position_ids": _ramps(physical),
    }
    return streams, logical, physical


@st.composite
def in_batch_batches(draw: st.DrawFn, release: str | None = None, *, least: int = 2, **how: Any) -> Made:
    """Return an in-batch packed row of a release: 0.3.1 (as the VLM step of 0.3 to 0.5 makes it), 0.6.2 or main."""
    release = release or draw(st.sampled_from(["0.3.1", "0.6.2", "main"]))
    layout = draw(layouts(**how))
    shortest = layout.multiple // 2 + 4
    chosen = draw(samples(least=least, shortest=shortest, longest=shortest + 20))
    streams, logical, physical = _in_batch_streams(chosen, layout.multiple)
    batch: dict[str, Any] = {key: value[None] for key, value in streams.items()}
    batch["attention_mask"] = None
    longest = np.array(max(physical), np.int32)
    places, real = np.array(_sums(physical), np.int32), np.array(_sums(logical), np.int32)
    if release < "0.6":
        batch |= {"cu_seqlens": places, "max_seqlen": longest, "visual_inputs": None}
        if draw(st.booleans()):
            batch["cu_seqlens_argmin"] = np.array(places.size)
        return Made(batch, "in_batch_packed", "<=0.5", layout.options)
    batch["input_ids"] = batch["tokens"]
    batch |= {"cu_seqlens_q": real, "cu_seqlens_kv": real, "max_seqlen_q": longest, "max_seqlen_kv": longest}
    if layout.multiple > 1 if release == "0.6.2" else logical != physical:
        batch |= {"cu_seqlens_q_padded": places, "cu_seqlens_kv_padded": places}
    batch |= {"total_tokens": int(places[-1]), "token_count": logical, "metadata": [{} for _ in logical]}
    generation = ">=0.6"
    if release == "main" and draw(st.booleans()):
        batch["padding_mask"] = (batch["tokens"] == PAD) & (batch["labels"] == IGNORED)
        generation = "main"
    return Made(batch, "in_batch_packed", generation, layout.options)


# Rows that are not packed


@st.composite
def padded_batches(draw: st.DrawFn) -> Made:
    """Return ordinary rows: of the SFT data sets (filled with the end token), or of the Hugging Face path (0.6)."""
    layout = draw(layouts())
    chosen = draw(samples())
    width = ceil_to(max(sample.words.size for sample in chosen), math.lcm(16, layout.multiple))
    positions = np.tile(np.arange(width), (len(chosen), 1))
    if draw(st.booleans()):
        masks = [(np.arange(sample.words.size - 1) >= sample.answer - 1).astype(np.int64) for sample in chosen]
        batch: dict[str, Any] = {
            "tokens": _fill([sample.words[:-1] for sample in chosen], width, END),
            "labels": _fill([sample.words[1:] for sample in chosen], width, END),
            "loss_mask": _fill(masks, width, 0),
            "position_ids": positions,
            "context_lengths": np.array([sample.answer for sample in chosen]),
            "metadata": [{} for _ in chosen],
            "token_count": [sample.words.size for sample in chosen],
            "attention_mask": None,
        }
        return Made(batch, "padded", "unknown", layout.options)
    streams = [_in_batch_streams([sample], 1)[0] for sample in chosen]
    tokens = _fill([row["tokens"] for row in streams], width, PAD)
    batch = {
        "input_ids": tokens,
        "tokens": tokens,
        "labels": _fill([row["labels"] for row in streams], width, IGNORED),
        "loss_mask": _fill([row["loss_mask"] for row in streams], width, 0),
        "position_ids": positions,
        "attention_mask": (tokens != PAD).astype(np.int64),
        "metadata": [{} for _ in chosen],
        "token_count": [sample.words.size for sample in chosen],
    }
    return Made(batch, "padded", "unknown", layout.options)


# Megatron-LM


@st.composite
def megatron_batches(draw: st.DrawFn, **how: Any) -> Made:
    """Return a batch of Megatron-LM --sft: one sample, the collated rows, or those laid end to end.

    Labels are shifted over the whole pack; the tail filler belongs to the last conversation.
    """
    layout = draw(layouts(**how))
    multiple = 2 * layout.cp if layout.cp > 1 else 1
    rows = draw(st.integers(1, 2))
    chosen = [draw(samples(shortest=6, longest=20)) for _ in range(rows)]
    lengths = [[ceil_to(sample.words.size, multiple) for sample in some] for some in chosen]
    width = ceil_to(max(sum(row) for row in lengths) + 8, math.lcm(16, multiple, layout.cp * layout.tp))
    packs = [_megatron_pack(some, row, width) for some, row in zip(chosen, lengths, strict=True)]
    options = {**layout.options, "sp": False}
    form = draw(st.sampled_from(["sample", "collated", "flat"]))
    batch = {key: np.stack([pack[key] for pack in packs]) for key in packs[0]}
    if form == "sample":
        batch = {key: value[0] for key, value in batch.items()}
    elif form == "flat":
        table = batch.pop("cu_seqlens")
        streams = {key: value.reshape(1, -1) for key, value in batch.items() if key != "max_seqlen"}
        cut = [row[: int(np.argmax(row == width)) + 1] for row in table]
        joined = np.concatenate([cut[0], *(row[1:] + index * width for index, row in enumerate(cut) if index)])
        batch = {**streams, "cu_seqlens": joined[None].astype(np.int32), "max_seqlen": batch["max_seqlen"].max()[None]}
    return Made(batch, "megatron_lm_sft", "megatron-lm", options)


def _megatron_pack(chosen: list[Sample], lengths: list[int], width: int) -> dict[str, Array]:
    words = np.full(width + 1, PAD, np.int64)
    target = np.full(width + 1, IGNORED, np.int64)
    for start, sample in zip(_sums(lengths), chosen, strict=False):
        stop = start + sample.words.size
        words[start:stop] = sample.words
        target[start + sample.answer : stop] = sample.words[sample.answer :]
    places = [*_sums(lengths)[:-1], width]
    repeated = np.array(places + [width] * (width + 1 - len(places)), np.int32)
    labels = target[1:]
    return {
        "tokens": words[:-1],
        "labels": labels,
        "loss_mask": (labels != IGNORED).astype(np.float32),
        "position_ids": _ramps(np.diff(places).tolist()),
        "cu_seqlens": repeated,
        "max_seqlen": np.array(max(np.diff(places)), np.int32),
    }


@st.composite
def balanced_batches(draw: st.DrawFn) -> Made:
    """Return a micro-batch of Megatron-LM's dp_balanced scheduler, with all streams 0 at padding."""
    layout = draw(layouts())
    shortest = layout.multiple // 2 + 4
    chosen = draw(samples(least=2, shortest=shortest, longest=shortest + 20))
    streams, logical, physical = _in_batch_streams(chosen, layout.multiple)
    padding = (streams["tokens"] == PAD) & (streams["labels"] == IGNORED)
    batch: dict[str, Any] = {key: np.where(padding, 0, value).astype(value.dtype) for key, value in streams.items()}
    batch |= {
        "cu_seqlens": np.array(_sums(logical), np.int32),
        "cu_seqlens_padded": np.array(_sums(physical), np.int32),
        "max_seqlen": np.array([max(physical)], np.int32),
        "padding_mask": padding,
    }
    return Made(batch, "megatron_lm_sft", "megatron-lm", layout.options)


# After get_batch


_STREAMS = ("tokens", "labels", "loss_mask", "position_ids")
_NOT_FETCHED = ("token_count", "attention_mask", "padding_mask", "metadata")


def physical_row(batch: Mapping[str, Any]) -> Array:
    """Return the physical boundaries that the cut uses, trimmed."""
    for key in ("cu_seqlens_q_padded", "cu_seqlens_q", "cu_seqlens"):
        if key in batch:
            row = np.asarray(batch[key]).reshape(-1)
            return row[row >= 0]
    raise AssertionError("the batch is not packed")


def part_of(made: Made, rank: int) -> Made:
    """Return what one context parallel rank holds after get_batch: cut streams and whole boundaries."""
    indices = closed_form_indices(physical_row(made.batch), made.options["cp"], rank)
    batch = {
        key: value[:, indices] if key in _STREAMS else value
        for key, value in made.batch.items()
        if key not in _NOT_FETCHED
    }
    batch["attention_mask"] = None
    options = dict(made.options)
    if "cu_seqlens" in batch and made.batch["attention_mask"] is None:
        # The part no longer shows that it is one of 0.5.
        options["bridge"] = "0.5.1"
    return Made(batch, made.path, made.generation.replace("main", ">=0.6"), options)


@st.composite
def rank_parts(draw: st.DrawFn, release: str | None = None) -> Made:
    """Return the part of one context parallel rank."""
    made = draw(offline_batches(release, context_parallel=True))
    return part_of(made, draw(st.integers(0, made.options["cp"] - 1)))


@st.composite
def stage_parts(draw: st.DrawFn) -> Made:
    """Return what the first or the last pipeline stage holds of a part."""
    made = draw(rank_parts())
    kept = draw(st.sampled_from([("tokens", "position_ids"), ("labels", "loss_mask")]))
    batch = {key: None if key in _STREAMS and key not in kept else value for key, value in made.batch.items()}
    return Made(batch, made.path, made.generation, made.options)


@st.composite
def packed_seq_params(draw: st.DrawFn) -> Made:
    """Return the fields of PackedSeqParams."""
    made = draw(offline_batches("0.6.2"))
    fields: dict[str, Any] = {"qkv_format": "thd", "total_tokens": None}
    for name in ("q", "kv"):
        fields[f"cu_seqlens_{name}"] = made.batch[f"cu_seqlens_{name}"][0]
        padded = made.batch.get(f"cu_seqlens_{name}_padded")
        fields[f"cu_seqlens_{name}_padded"] = None if padded is None else padded[0]
        fields[f"max_seqlen_{name}"] = int(made.batch[f"max_seqlen_{name}"].reshape(-1)[0])
    options = {key: value for key, value in made.options.items() if key != "bridge"}
    return Made(fields, "packed_seq_params", "unknown", options)


def valid_batches() -> st.SearchStrategy[Made]:
    """Return valid batches of every path and generation."""
    return st.one_of(
        offline_batches(),
        dp_rank_dicts(),
        in_batch_batches(),
        padded_batches(),
        megatron_batches(),
        balanced_batches(),
        rank_parts(),
        stage_parts(),
        packed_seq_params(),
    )
