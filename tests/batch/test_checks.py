"""What the checks say and on which conventions they stay silent; the rule files hold an example of each fault."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import Made, valid_batches

import skill_run.batch
from skill_run import inspect_batch
from skill_run.batch.inspect import MAX_PER_RULE, InspectionReport
from skill_run.bundle.load import load_rules
from skill_run.errors import InputError

EXAMPLES = settings(
    derandomize=True, deadline=None, database=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)
BATCH_RULES = {rule.id for rule in load_rules() if rule.computed == "batch"}


def _rules(batch: dict[str, Any], **options: Any) -> set[str]:
    return {finding.rule for finding in inspect_batch(batch, **options).findings}


def _message(batch: dict[str, Any], rule: str, **options: Any) -> str:
    return next(finding.message for finding in inspect_batch(batch, **options).findings if finding.rule == rule)


CONVENTIONS: dict[str, dict[str, Any]] = {
    "the last label of an offline sequence is a token that the row does not hold": {
        "tokens": [[5, 6, 7, 8]],
        "labels": [[6, 2, 8, 2]],
        "loss_mask": [[0, 1, 0, 1]],
        "cu_seqlens_q": [[0, 2, 4]],
        "token_count": [4],
    },
    "it may be the next sequence's first token where one token ends and starts samples": {
        "tokens": [[2, 6, 2, 8, 2, 9]],
        "labels": [[6, 2, 8, 2, 9, 2]],
        "loss_mask": [[0, 1, 0, 1, 0, 1]],
        "cu_seqlens_q": [[0, 2, 4, 6]],
        "token_count": [6],
    },
    "the tail filler has position 0 throughout": {
        "tokens": [[5, 6, 7, 2, 2, 2]],
        "position_ids": [[0, 1, 2, 0, 0, 0]],
        "loss_mask": [[0, 1, 1, 0, 0, 0]],
        "cu_seqlens": [[0, 3, 6, -1]],
        "cu_seqlens_argmin": [[3]],
        "token_count": [3],
    },
    "boundaries repeat their last value": {"tokens_len": 8, "cu_seqlens_q": [0, 4, 8, 8, 8]},
    "a longer max_seqlen is harmless": {"tokens_len": 8, "cu_seqlens_q": [0, 4, 8], "max_seqlen_q": 4096},
    "positions count on through alignment padding": {
        "tokens_len": 8,
        "position_ids": [0, 1, 2, 3, 0, 1, 2, 3],
        "cu_seqlens_q": [0, 3, 7],
        "cu_seqlens_q_padded": [0, 4, 8],
        "total_tokens": 8,
    },
    "positions may be 0 at alignment padding": {
        "tokens_len": 8,
        "position_ids": [0, 1, 2, 0, 0, 1, 2, 0],
        "cu_seqlens_q": [0, 3, 7],
        "cu_seqlens_q_padded": [0, 4, 8],
        "total_tokens": 8,
    },
    "a segment that is padding from end to end is the filler": {
        "tokens_len": 8,
        "cu_seqlens_q": [0, 5, 8],
        "padding_mask": [0, 0, 0, 0, 0, 1, 1, 1],
    },
    "Megatron-LM labels run over boundaries and are masked there": {
        "tokens": [5, 6, 7, 8],
        "labels": [6, 7, 8, 9],
        "loss_mask": [1.0, 0.0, 1.0, 1.0],
        "position_ids": [0, 1, 0, 1],
        "cu_seqlens": [0, 2, 4, 4, 4],
    },
    "0.3 and 0.4 have a marker of ones as attention mask": {
        "tokens_len": 8,
        "cu_seqlens": [[0, 8, -1]],
        "attention_mask": [1],
    },
    "plain rows of hybrid context parallelism have 64-bit boundaries that nobody reads": {
        "qkv_format": "sbhd",
        "cu_seqlens_q": np.array([0, 8]),
    },
    "offline packs get total_tokens in the step": {
        "tokens_len": 8,
        "cu_seqlens_q": [[0, 8]],
        "model": {"hybrid": True},
    },
}


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_a_convention_that_looks_wrong_but_is_right_is_not_flagged(convention: str) -> None:
    assert _rules(CONVENTIONS[convention]) == set()


def test_messages_name_the_row_only_where_there_are_several() -> None:
    one = {"tokens_len": 8, "cu_seqlens_q": [[0, 4]], "token_count": [8]}
    two = {"tokens_shape": [2, 8], "cu_seqlens_q": [[0, 8], [0, 4]], "token_count": [8, 8]}
    rule = "batch-boundaries-end-at-row-end"
    assert "ends at 4, but the row has 8 tokens: the rest" in _message(one, rule)
    assert "ends at 4, but the row has 8 tokens in row 1: the rest" in _message(two, rule)


def test_a_fault_of_many_rows_is_told_a_few_times_with_the_number_left_out() -> None:
    rows = 50
    batch = {"tokens_shape": [rows, 8], "cu_seqlens_q": [[0, 4]] * rows, "token_count": [8] * rows}
    found = [item for item in inspect_batch(batch).findings if item.rule == "batch-boundaries-end-at-row-end"]
    assert len(found) == MAX_PER_RULE
    assert f"{rows - MAX_PER_RULE} more rows have the same fault." in found[-1].message


@pytest.mark.parametrize(
    ("labels", "said"),
    [([5, 6, 7, 8], "not shifted by one"), ([6, 7, 9, 4], "labels and tokens do not belong together")],
)
def test_labels_that_are_not_shifted_are_told_from_single_wrong_ones(labels: list[int], said: str) -> None:
    batch = {"tokens": [5, 6, 7, 8], "labels": labels, "cu_seqlens_q": [0, 4]}
    assert said in _message(batch, "batch-labels-are-next-tokens")


def test_labels_that_are_shifted_twice_are_not_the_next_tokens() -> None:
    batch = {"tokens": [5, 6, 7, 8, 9], "labels": [7, 8, 9, -100, -100], "cu_seqlens_q": [0, 5]}
    assert _rules(batch) == {"batch-labels-are-next-tokens"}


def test_the_boundaries_are_blamed_when_the_positions_are_sound_by_themselves() -> None:
    moved = {"tokens_len": 8, "cu_seqlens_q": [0, 3, 8], "position_ids": [0, 1, 2, 3, 0, 1, 2, 3]}
    plain = {"tokens_len": 8, "cu_seqlens_q": [0, 3, 8], "position_ids": [0, 1, 2, 3, 4, 5, 6, 7]}
    for batch, fields in ((moved, ("cu_seqlens_q", "position_ids")), (plain, ("position_ids", "cu_seqlens_q"))):
        (finding,) = inspect_batch(batch).findings
        assert (finding.rule, finding.fields) == ("batch-positions-restart", fields)


def test_a_release_that_trains_padding_is_named() -> None:
    batch = {
        "tokens": [[5, 6, 2, 2]],
        "loss_mask": [[1, 1, 1, 1]],
        "cu_seqlens_q": [[0, 2]],
        "cu_seqlens_q_padded": [[0, 4]],
        "padding_mask": [[False, False, True, True]],
        "token_count": [4],
    }
    assert "main no longer zeroes the loss" in _message(batch, "batch-loss-on-padding")


def test_a_dropped_token_of_id_0_is_told_from_other_cut_off_tokens() -> None:
    batch = {
        "tokens": [5, 6, 7, 8],
        "labels": [6, 0, 8, -100],
        "loss_mask": [1, 1, 1, 0],
        "cu_seqlens": [0, 2, 4],
        "cu_seqlens_argmin": 3,
    }
    rule = "batch-last-token-dropped"
    assert "0.3 takes a token of id 0" in _message(batch, rule)
    assert "0.3 takes a token of id 0" not in _message({**batch, "labels": [6, 9, 8, -100]}, rule)


def test_filler_of_an_offline_pack_counts_as_padding_for_experts() -> None:
    batch = {"tokens": [[5, 6, 2, 2]], "cu_seqlens_q": [[0, 2, 4]], "token_count": [2], "model": {"num_moe_experts": 8}}
    assert "2 padding tokens reach the router" in _message(batch, "batch-moe-needs-padding-mask")


def test_the_multiple_that_sequences_need_covers_sequence_parallelism() -> None:
    batch = {"tokens_len": 12, "cu_seqlens_q": [0, 6, 12]}
    assert "a multiple of 8." in _message(batch, "batch-boundaries-cover-cp", cp=2, tp=4, sp=True)
    assert "a multiple of 4." in _message(batch, "batch-boundaries-cover-cp", cp=2, tp=4, sp=False)


@pytest.mark.parametrize("mask", [[0.0, math.nan, 1.0, 1.0], [0.0, math.inf, 1.0, 1.0], [0, -1, 1, 1]])
def test_weights_that_are_no_weights_are_named_with_their_place(mask: list[float]) -> None:
    message = _message({"tokens": [5, 6, 7, 8], "loss_mask": mask, "cu_seqlens_q": [0, 4]}, "batch-loss-mask-finite")
    assert "at token 1" in message


def test_boundaries_of_another_dtype_are_named_by_the_json_forms_that_tell_it_too() -> None:
    for told in ({"dtypes": {"cu_seqlens_q": "torch.int64"}}, {"cu_seqlens_q_dtype": "int64"}):
        assert _rules({"tokens_len": 8, "cu_seqlens_q": [0, 8], **told}) == {"batch-boundaries-are-int32"}


STRANGE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers(-4, 40), max_size=8),
    st.lists(st.lists(st.integers(-4, 40), max_size=6), max_size=3),
    st.lists(st.floats(), max_size=6),
    st.lists(st.one_of(st.none(), st.text(max_size=2)), max_size=3),
    st.sampled_from(
        [
            np.zeros(0),
            np.zeros((0, 4), np.int32),
            np.zeros((2, 2, 2)),
            np.array(7),
            np.array([[0, 4, 8]], np.int32),
            np.array([True, False]),
            np.array([0, 2**62], np.int64),
            np.array([math.nan, 1.0]),
            np.array([-1, -1], np.int8),
            np.array([object()], dtype=object),
        ]
    ),
    st.dictionaries(
        st.sampled_from(["num_moe_experts", "hybrid", "CP", "cp_size", "x"]), st.integers(-2, 9), max_size=3
    ),
)
KEYS = st.sampled_from(
    [
        *(
            "tokens",
            "input_ids",
            "labels",
            "loss_mask",
            "position_ids",
            "padding_mask",
            "attention_mask",
            "token_count",
        ),
        *("cu_seqlens", "cu_seqlens_argmin", "cu_seqlens_unpadded", "cu_seqlens_unpadded_argmin", "cu_seqlens_padded"),
        *("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded", "max_seqlen", "max_seqlen_q"),
        *(
            "total_tokens",
            "tokens_len",
            "tokens_shape",
            "qkv_format",
            "seq_offsets",
            "metadata",
            "parallel",
            "settings",
        ),
        *("model", "batch", "info", "answer_ranges_local", "roles", "role_lengths", "visual_inputs", "dtypes", "other"),
    ]
)


def _judge(batch: dict[str, Any], **options: Any) -> InspectionReport | InputError:
    try:
        return inspect_batch(batch, **options)
    except InputError as error:
        return error


@EXAMPLES
@given(st.dictionaries(KEYS, STRANGE, max_size=8), st.sampled_from([None, 2, 4, 1000]))
def test_any_mapping_gives_a_report_or_one_sentence(batch: dict[str, Any], cp: int | None) -> None:
    found = _judge(batch, cp=cp, tp=2, sp=True)
    if isinstance(found, InspectionReport):
        assert {finding.rule for finding in found.findings} <= BATCH_RULES
    else:
        assert "\n" not in str(found)


@EXAMPLES
@given(valid_batches(), KEYS, STRANGE)
def test_any_one_key_replaced_gives_a_report_or_one_sentence(made: Made, key: str, value: Any) -> None:
    found = _judge({**made.batch, key: value}, **made.options)
    if isinstance(found, InspectionReport):
        json.dumps(found.to_dict())
    else:
        assert "\n" not in str(found)


@pytest.mark.parametrize("claimed", [10**8, 10**12, 2**62])
def test_a_claimed_size_costs_no_memory(claimed: int) -> None:
    batch = {"tokens_len": claimed, "cu_seqlens_q": [0, claimed // 2, claimed], "cu_seqlens_q_padded": [0, 1, claimed]}
    report = inspect_batch(batch, cp=2)
    assert report.tokens == claimed
    assert report.cp is None


def test_every_rule_that_a_check_names_has_its_file_and_the_other_way_round() -> None:
    folder = Path(skill_run.batch.__path__[0])
    named = {
        name for path in folder.glob("*.py") for name in re.findall(r'Fault\(\s*"(batch-[a-z0-9-]+)"', path.read_text())
    }
    assert named == BATCH_RULES
