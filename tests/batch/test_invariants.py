"""Valid batches of every path are clean, and a batch with one broken invariant is named by that invariant's rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from strategies import (
    END,
    IGNORED,
    Array,
    Made,
    dp_rank_dicts,
    in_batch_batches,
    offline_batches,
    packed_seq_params,
    padded_batches,
    physical_row,
    rank_parts,
    split,
    valid_batches,
)

from skill_run import inspect_batch
from skill_run.batch.context_parallel import partition
from skill_run.bundle.load import load_rules

VALID = settings(
    derandomize=True, deadline=None, database=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow]
)
BROKEN = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=12,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
Broken = tuple[dict[str, Any], dict[str, Any]]


def _found(batch: dict[str, Any], options: dict[str, Any]) -> set[str]:
    return {finding.rule for finding in inspect_batch(batch, **options).findings}


def _physical(batch: dict[str, Any]) -> str:
    return next(key for key in ("cu_seqlens_q_padded", "cu_seqlens_q", "cu_seqlens") if key in batch)


def _with(made: Made, key: str, table: Array, **changes: Any) -> dict[str, Any]:
    """Return the batch with another boundary array; keys and queries share theirs."""
    twin = {key.replace("_q", "_kv"): table} if key.startswith("cu_seqlens_q") else {}
    return made.copy(**{key: table, **twin, **changes})


def _aligned(made: Made) -> bool:
    return "cu_seqlens_q_padded" in made.batch or "cu_seqlens_unpadded" in made.batch


def _first_starts_late(made: Made) -> Broken:
    key = _physical(made.batch)
    table = made.batch[key].copy()
    table[..., 0] = 1
    return _with(made, key, table), {}


def _two_exchanged(made: Made) -> Broken:
    key = _physical(made.batch)
    table = made.batch[key].copy()
    table[..., [1, 2]] = table[..., [2, 1]]
    return _with(made, key, table), {}


def _ends(by: int) -> Callable[[Made], Broken]:
    def broken(made: Made) -> Broken:
        key = _physical(made.batch)
        table = made.batch[key].copy()
        table[table == table.max()] += by
        return _with(made, key, table), {}

    return broken


def _sentinel_appended(made: Made) -> Broken:
    changes = {}
    for key, table in made.batch.items():
        if key.startswith("cu_seqlens_"):
            changes[key] = np.concatenate([table, np.full_like(table[..., :1], -1)], axis=-1)
    return made.copy(**changes), {}


def _argmin(by: int) -> Callable[[Made], Broken]:
    def broken(made: Made) -> Broken:
        return made.copy(cu_seqlens_argmin=made.batch["cu_seqlens_argmin"] + by), {}

    return broken


def _no_end_marked(made: Made) -> Broken:
    """Without argmin and without -1 at the end the step takes the leading 0 for the end."""
    changes: dict[str, Any] = {}
    for key in ("cu_seqlens", "cu_seqlens_unpadded"):
        if key in made.batch:
            changes |= {key: physical_row({"cu_seqlens": made.batch[key]})[None], f"{key}_argmin": None}
    return made.copy(**changes), {"bridge": "0.3.1"}


def _padding(made: Made) -> Array:
    """Return alignment gaps and filler: end tokens that predict end tokens, behind the first of each run."""
    tokens, labels = made.batch["tokens"], made.batch["labels"]
    if "padding_mask" in made.batch:
        return np.asarray(made.batch["padding_mask"])
    gap = (tokens == END) & (labels == END)
    gap[..., 0] = False
    gap[..., 1:] &= tokens[..., :-1] == END
    return np.asarray(gap)


def _padding_trained(made: Made) -> Broken:
    places = np.argwhere(_padding(made))
    assume(len(places) > 0)
    mask = made.batch["loss_mask"].copy()
    mask[tuple(places[len(places) // 2])] = 1
    return made.copy(loss_mask=mask), {}


def _labels_unshifted(made: Made) -> Broken:
    assume(made.batch["loss_mask"].sum() > physical_row(made.batch).size)
    return made.copy(labels=made.batch["tokens"].copy()), {}


def _last_positions(made: Made) -> Array:
    assume(not _aligned(made))
    ends = physical_row(made.batch)[1:] - 1
    assume(bool((made.batch["labels"][0, ends] == IGNORED).all()))
    return np.asarray(ends)


def _last_label(value: Callable[[Made, int], int]) -> Callable[[Made], Broken]:
    """Return a change that gives the last position of the first sequence a label, with loss."""

    def broken(made: Made) -> Broken:
        at = int(_last_positions(made)[0])
        # A padded sequence ends in padding, which has no target to lose.
        assume(made.batch["tokens"][0, at] == END)
        labels, mask = made.batch["labels"].copy(), made.batch["loss_mask"].copy()
        labels[0, at], mask[0, at] = value(made, at), 1
        return made.copy(labels=labels, loss_mask=mask), {}

    return broken


def _positions_run_on(made: Made) -> Broken:
    positions = made.batch["position_ids"]
    return made.copy(position_ids=np.broadcast_to(np.arange(positions.shape[-1]), positions.shape)), {}


def _max_too_small(made: Made) -> Broken:
    longest = int(np.diff(physical_row(made.batch)).max())
    names = [key for key in ("max_seqlen", "max_seqlen_q", "max_seqlen_kv") if key in made.batch]
    return made.copy(**{key: np.full_like(made.batch[key], longest - 1) for key in names}), {}


def _int64(made: Made) -> Broken:
    tables = {key: table for key, table in made.batch.items() if key.startswith("cu_seqlens") and "argmin" not in key}
    return made.copy(**{key: table.astype(np.int64) for key, table in tables.items() if table is not None}), {}


def _not_split(made: Made) -> Broken:
    assume(len(made.batch["token_count"]) > 1)
    return {key: value for key, value in made.batch.items() if key != "token_count"}, {"cp": 1, "sp": False}


def _boundary_off_grid(made: Made) -> Broken:
    key = _physical(made.batch)
    table = made.batch[key].copy()
    table[..., 1] -= 1
    return _with(made, key, table, labels=None, loss_mask=None, position_ids=None), {}


def _group(**sizes: Any) -> Callable[[Made], Broken]:
    def broken(made: Made) -> Broken:
        boundaries = physical_row(made.batch)
        # Of an offline pack the whole row has to divide, of a joined row every sequence.
        asked = boundaries[-1:] if made.path == "offline_packed" else boundaries
        assume(bool(np.any(asked % sizes["tp"])))
        return made.copy(), sizes

    return broken


def _one_more_entry(made: Made) -> Broken:
    assume(_aligned(made))
    key = "cu_seqlens_q_padded"
    table = made.batch[key]
    return _with(made, key, np.concatenate([table, table[..., -1:]], axis=-1)), {}


def _more_tokens_than_places(made: Made) -> Broken:
    assume(_aligned(made))
    logical, physical = made.batch["cu_seqlens_q"].copy(), made.batch["cu_seqlens_q_padded"]
    logical[..., 1:] += physical[..., 1:2] - logical[..., 1:2] + 1
    return _with(made, "cu_seqlens_q", logical, padding_mask=None), {}


def _logical_dropped(made: Made) -> Broken:
    """As 0.4 does with Parquet packs. It shows where at least some sequences are visibly filled up."""
    assume("cu_seqlens_unpadded" in made.batch)
    places = np.diff(physical_row(made.batch))
    real = np.diff(physical_row({"cu_seqlens": made.batch["cu_seqlens_unpadded"]}))
    filled = (places - real >= 2)[real > 0]
    assume(filled.any() and 4 * int(filled.sum()) >= filled.size)
    return made.copy(cu_seqlens_unpadded=None, cu_seqlens_unpadded_argmin=None), {}


def _stage_without(made: Made) -> Broken:
    return {"pp0": made.batch, "pp1": dict.fromkeys(made.batch), "pp2": made.copy()}, {}


def _ragged_rows_cut(made: Made) -> Broken:
    row = min(range(len(made.batch["token_count"])), key=lambda index: made.batch["cu_seqlens_argmin"][index, 0])
    chosen = split(made, row)
    table = chosen.batch["cu_seqlens"][0]
    assume(int((table == -1).sum()) >= 2)
    assume(not partition(table, chosen.batch["tokens"].shape[1], made.options["cp"]).whole)
    return chosen.batch, {"bridge": "0.4.2"}


def _row_again(made: Made) -> Broken:
    assume(made.batch["loss_mask"][0].any())
    twice = {
        key: np.stack([value[0], value[0]]) if isinstance(value, np.ndarray) else value[:1] * 2 if value else value
        for key, value in made.batch.items()
    }
    return twice, {"cp": 1, "sp": False}


def _kv_moved(name: str) -> Callable[[Made], Broken]:
    def broken(made: Made) -> Broken:
        assume(name in made.batch)
        table = made.batch[name].copy()
        table[..., 1] -= 1
        return made.copy(**{name: table}), {}

    return broken


def _empty_inside(made: Made) -> Broken:
    changes = {}
    for key, table in made.batch.items():
        if key.startswith("cu_seqlens_"):
            changes[key] = np.concatenate([table[..., :2], table[..., 1:]], axis=-1)
    return made.copy(**changes), {}


def _value(key: str, make: Callable[[Any], Any]) -> Callable[[Made], Broken]:
    def broken(made: Made) -> Broken:
        return made.copy(**{key: make(made.batch.get(key))}), {}

    return broken


def _first_weight(value: float) -> Callable[[Any], Any]:
    def changed(mask: Array) -> Array:
        fresh = mask.astype(np.float32)
        fresh[..., 0] = value
        return fresh

    return changed


def _physical_in_both(made: Made) -> Broken:
    assume(_aligned(made))
    assume(bool(np.any(np.diff(made.batch["cu_seqlens_q_padded"]) > np.diff(made.batch["cu_seqlens_q"]))))
    lengths = np.diff(made.batch["cu_seqlens_q"])
    gaps = np.diff(made.batch["cu_seqlens_q_padded"]) - lengths
    # The filler is padding from end to end, which is allowed.
    assume(bool(np.any((gaps > 0) & (lengths > 0))))
    return _with(made, "cu_seqlens_q", made.batch["cu_seqlens_q_padded"]), {}


def _loss_on_one_rank(made: Made) -> Broken:
    mask = np.zeros_like(made.batch["loss_mask"])
    mask[..., 0] = 1
    settings_beside = {"calculate_per_token_loss": False}
    return made.copy(loss_mask=mask, labels=None, settings=settings_beside), {}


def _cut_by_halves(made: Made) -> Broken:
    width = made.batch["position_ids"].shape[1]
    return made.copy(position_ids=np.arange(1, width + 1)[None]), {}


def _row_cut_short(made: Made) -> Broken:
    streams = {key: made.batch[key][:, :-1] for key in ("tokens", "labels", "loss_mask", "position_ids")}
    return made.copy(**streams, attention_mask=None, input_ids=None), {"cp": 2, "tp": 1, "sp": False}


def _config(**wrong: Any) -> Callable[[Made], Broken]:
    def broken(made: Made) -> Broken:
        right = {"model.calculate_per_token_loss": True, "ddp.average_in_collective": False}
        return made.copy(), {"config": {**right, **{key.replace("__", "."): value for key, value in wrong.items()}}}

    return broken


@dataclass(frozen=True)
class Case:
    """One way to break one invariant. also: rules that this change cannot help to break as well."""

    name: str
    rule: str
    batches: st.SearchStrategy[Made]
    breaks: Callable[[Made], Broken]
    also: frozenset[str] = frozenset()


START = "batch-boundaries-start-at-zero"
DECREASE = "batch-boundaries-do-not-decrease"
ROW_END = "batch-boundaries-end-at-row-end"
SENTINEL = "batch-boundaries-hold-no-sentinel"
ARGMIN = "batch-argmin-counts-entries"
PADDING = "batch-loss-on-padding"
NEXT = "batch-labels-are-next-tokens"
MATCHES = "batch-logical-matches-physical"
FITS = "batch-logical-fits-physical"
GRID = "batch-boundaries-cover-cp"
SHARED = "batch-row-fits-sequence-parallel"
LONGEST = "batch-max-seqlen-covers-longest"
RESTART = "batch-positions-restart"
FILLER = "batch-filler-row"
NO_LOSS = "batch-rank-without-loss"
KV = "batch-kv-boundaries-equal-q"

new_rows = in_batch_batches("0.6.2", context_parallel=False)
new_packs = offline_batches("0.6.2")
old_packs = offline_batches("0.3.1", least=2, static=False)
cut_packs = offline_batches("0.6.2", context_parallel=True, least=2)
some_packs = offline_batches(least=2)

CASES = [
    # FORMATS counts the invariants; the first number is its own.
    Case("1 the first boundary is 1", START, new_rows, _first_starts_late, frozenset({FITS, SHARED})),
    Case("2 two boundaries exchanged", DECREASE, in_batch_batches("0.6.2", least=3), _two_exchanged),
    Case("3 the last boundary is too low", ROW_END, new_rows, _ends(-1), frozenset({FITS, SHARED, PADDING})),
    Case("3 the last boundary is too high", ROW_END, new_rows, _ends(4), frozenset({LONGEST, SHARED})),
    Case("4 a sentinel under a new name", SENTINEL, new_packs, _sentinel_appended),
    Case(
        "4 a sentinel in PackedSeqParams",
        SENTINEL,
        packed_seq_params().map(lambda made: _without_none(made)),
        _sentinel_appended,
    ),
    Case("4 argmin keeps a sentinel", SENTINEL, old_packs, _argmin(1), frozenset({ARGMIN, MATCHES})),
    Case("5 argmin drops a sequence", ARGMIN, old_packs, _argmin(-1), frozenset({ROW_END, MATCHES, PADDING})),
    Case("5 neither argmin nor sentinel", ARGMIN, old_packs, _no_end_marked),
    Case("6 loss on padding", PADDING, offline_batches(context_parallel=True), _padding_trained),
    Case("6 loss on padding of main", PADDING, offline_batches("main"), _padding_trained),
    Case("7 labels not shifted", NEXT, some_packs, _labels_unshifted),
    Case(
        "7 the last label is the next sequence's first token",
        "batch-labels-cross-boundary",
        in_batch_batches("main", context_parallel=False),
        _last_label(lambda made, at: int(made.batch["tokens"][0, at + 1])),
    ),
    Case(
        "7 the last token is cut off",
        "batch-last-token-dropped",
        in_batch_batches("0.3.1", context_parallel=False),
        _last_label(lambda made, at: 0),
    ),
    Case("8 positions run on", RESTART, some_packs, _positions_run_on),
    Case("8 positions run on in a joined row", RESTART, in_batch_batches(), _positions_run_on),
    Case("9 max_seqlen too small", LONGEST, offline_batches(), _max_too_small),
    Case("9 max_seqlen too small in a joined row", LONGEST, in_batch_batches(), _max_too_small),
    Case("10 64-bit boundaries", "batch-boundaries-are-int32", offline_batches(), _int64),
    Case("10 64-bit boundaries of a joined row", "batch-boundaries-are-int32", in_batch_batches(), _int64),
    Case("11 two rows in a micro-batch", "batch-one-row-per-micro-batch", dp_rank_dicts(), _not_split),
    Case("12 a boundary off the grid", GRID, cut_packs, _boundary_off_grid, frozenset({FITS, LONGEST})),
    Case("13 a row that TP cannot share", SHARED, new_packs, _group(cp=1, tp=3, sp=True)),
    Case("13 sequences that TP cannot share", SHARED, in_batch_batches(), _group(cp=1, tp=5, sp=True)),
    Case("14 one entry more", MATCHES, cut_packs, _one_more_entry),
    Case("14 more tokens than places", FITS, cut_packs, _more_tokens_than_places),
    Case(
        "15 logical boundaries dropped",
        "batch-logical-boundaries-missing",
        offline_batches("0.5.1", context_parallel=True),
        _logical_dropped,
    ),
    Case("16 a stage without boundaries", "batch-metadata-on-every-stage", some_packs, _stage_without),
    Case(
        "17 ragged rows cut by 0.4",
        "batch-sentinels-reach-the-cut",
        dp_rank_dicts("0.5.1", rows=(2, 4), context_parallel=True),
        _ragged_rows_cut,
    ),
    Case("18 a row twice with loss", "batch-filler-row-trained", dp_rank_dicts("0.3.1"), _row_again),
    Case("18 a row twice with loss in 0.5", "batch-filler-row-trained", dp_rank_dicts("0.5.1"), _row_again),
    Case("20 other boundaries for keys", KV, new_packs, _kv_moved("cu_seqlens_kv")),
    Case("20 other padded boundaries for keys", KV, cut_packs, _kv_moved("cu_seqlens_kv_padded")),
    Case(
        "21 total_tokens of another row",
        "batch-total-tokens-match",
        in_batch_batches("0.6.2"),
        _value("total_tokens", lambda value: value + 1),
    ),
    Case(
        "21 a hybrid model without total_tokens",
        "batch-hybrid-needs-total-tokens",
        packed_seq_params(),
        _value("model", lambda _: {"hybrid": True}),
    ),
    Case(
        "22 an empty sequence inside", "batch-empty-sequence-inside", offline_batches("0.6.2", least=2), _empty_inside
    ),
    Case(
        "24 mean loss with CP",
        "batch-cp-loss-settings",
        cut_packs,
        _config(model__calculate_per_token_loss=False),
        frozenset({NO_LOSS}),
    ),
    Case("24 averaging with CP", "batch-cp-loss-settings", cut_packs, _config(ddp__average_in_collective=True)),
    Case(
        "25 nothing trained in a joined row",
        "batch-no-supervision",
        in_batch_batches(),
        _value("loss_mask", np.zeros_like),
    ),
    Case(
        "25 nothing trained in ordinary rows",
        "batch-no-supervision",
        padded_batches(),
        _value("loss_mask", np.zeros_like),
    ),
    Case("25 nothing trained in a pack", FILLER, offline_batches(), _value("loss_mask", np.zeros_like)),
    Case("NaN weight", "batch-loss-mask-finite", offline_batches(), _value("loss_mask", _first_weight(np.nan))),
    Case("negative weight", "batch-loss-mask-finite", in_batch_batches(), _value("loss_mask", _first_weight(-1))),
    Case(
        "loss on a label of -100",
        "batch-loss-on-ignored-label",
        in_batch_batches(),
        _value("loss_mask", _first_weight(1)),
    ),
    Case(
        "a stream cut short",
        "batch-shapes-agree",
        offline_batches("0.6.2"),
        _value("loss_mask", lambda mask: mask[:, :-1]),
        frozenset({FILLER}),
    ),
    Case(
        "physical numbers in both arrays",
        "batch-padding-mask-agrees",
        offline_batches("main", context_parallel=True),
        _physical_in_both,
    ),
    Case(
        "a mask beside boundaries",
        "batch-attention-mask-with-packing",
        offline_batches("0.6.2"),
        _value("attention_mask", lambda _: np.ones(1)),
    ),
    Case("a rank without loss", NO_LOSS, cut_packs, _loss_on_one_rank),
    Case("a part of another cut", "batch-part-is-no-ranks-cut", rank_parts(), _cut_by_halves),
    Case("an ordinary row off the grid", "batch-row-cannot-be-cut", padded_batches(), _row_cut_short),
]
# Broken in other tests: by ranks (test_ranks), by an example of the rule file (test_inspect), or just below.
ELSEWHERE = {
    "batch-ranks-agree",
    "batch-static-boundaries-length",
    "batch-answer-mask-misplaced",
    "batch-prompt-is-trained",
    "batch-boundaries-name-sequences",
    "batch-sequences-are-the-samples",
    "batch-mostly-padding",
    "batch-moe-needs-padding-mask",
}


def _without_none(made: Made) -> Made:
    batch = {key: value for key, value in made.batch.items() if value is not None}
    return Made(batch, made.path, made.generation, made.options)


@VALID
@given(valid_batches())
def test_a_valid_batch_has_no_finding_above_information(made: Made) -> None:
    report = inspect_batch(made.batch, **made.options)
    assert [(finding.rule, finding.message) for finding in report.at_least("warning")] == []


@VALID
@given(valid_batches(), st.sampled_from([None, True, False]), st.booleans())
def test_a_valid_batch_stays_clean_whatever_is_known_of_the_loss(made: Made, per_token: Any, experts: bool) -> None:
    beside = {"settings": {"calculate_per_token_loss": per_token}, "model": {"num_moe_experts": 8 if experts else None}}
    rules = {item.rule for item in inspect_batch({**made.batch, **beside}, **made.options).at_least("warning")}
    allowed = {"batch-rank-without-loss"} if per_token is False else set()
    assert rules <= allowed | ({"batch-moe-needs-padding-mask"} if experts else set())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@BROKEN
@given(st.data())
def test_a_broken_invariant_is_named_by_its_rule(case: Case, data: st.DataObject) -> None:
    made = data.draw(case.batches)
    assert case.rule not in _found(made.batch, dict(made.options)) - {FILLER}
    batch, options = case.breaks(made)
    found = _found(batch, {**made.options, **options})
    assert case.rule in found
    assert found - {case.rule, FILLER} <= case.also


@BROKEN
@given(offline_batches("0.6.2", static=True), st.integers(1, 3))
def test_19_static_boundaries_have_the_length_of_the_metadata(made: Made, fewer: int) -> None:
    entries = made.batch["cu_seqlens_q"].shape[1]
    for most, clean in ((entries - 2, True), (entries - 2 - fewer, False)):
        assume(most > 0)
        beside = {"metadata": [{"max_samples_per_bin": 1}, {"max_samples_per_bin": most}]}
        found = _found(made.copy(**beside), dict(made.options)) - {FILLER}
        assert found == (set() if clean else {"batch-static-boundaries-length"})


@BROKEN
@given(dp_rank_dicts("0.3.1", static=True))
def test_19_static_boundaries_of_one_length_are_asked_of_every_row_up_to_0_5(made: Made) -> None:
    assume("cu_seqlens_unpadded" not in made.batch)
    assert "batch-static-boundaries-length" not in _found(made.batch, dict(made.options))
    table = np.concatenate([made.batch["cu_seqlens"], np.full_like(made.batch["cu_seqlens"][:, :1], -1)], axis=1)
    argmin = made.batch["cu_seqlens_argmin"].copy()
    table[-1, argmin[-1, 0]] = table[-1].max()
    argmin[-1] += 1
    found = _found(made.copy(cu_seqlens=table, cu_seqlens_argmin=argmin), dict(made.options))
    assert "batch-static-boundaries-length" in found


def test_every_rule_of_batches_is_broken_here_or_elsewhere() -> None:
    rules = {rule.id for rule in load_rules() if rule.computed == "batch"}
    broken = {case.rule for case in CASES}
    assert broken | ELSEWHERE == rules
    assert not broken & ELSEWHERE
