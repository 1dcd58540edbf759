from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from strategies import Made, physical_row, valid_batches

import skill_run
from skill_run.batch.checks import Fault
from skill_run.batch.inspect import findings_of, inspect_batch
from skill_run.bundle.check import judge_example
from skill_run.bundle.load import load_rules
from skill_run.bundle.rule import Rule
from skill_run.errors import InputError

EXAMPLES = settings(
    derandomize=True, deadline=None, database=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
BATCH_RULES = [rule for rule in load_rules() if rule.computed == "batch"]
SENTINELS = "batch-sentinels-reach-the-cut"
RAGGED = {"tokens_len": 128, "cu_seqlens": [[0, 36, 84, 120, 128, -1, -1]], "cu_seqlens_argmin": [[5]]}


def _rules(batch: dict[str, Any], **options: Any) -> set[str]:
    return {finding.rule for finding in inspect_batch(batch, **options).findings}


@pytest.mark.parametrize("rule", BATCH_RULES, ids=lambda rule: rule.id)
def test_the_examples_in_a_rule_file_are_judged_as_it_says(rule: Rule) -> None:
    assert [judge_example(rule, example) for example in rule.fails] == ["fails"] * len(rule.fails)
    assert [judge_example(rule, example) for example in rule.passes] == ["passes"] * len(rule.passes)


@pytest.mark.parametrize("rule", BATCH_RULES, ids=lambda rule: rule.id)
def test_silent_faults_never_fire_upstream_and_stops_do(rule: Rule) -> None:
    for version in ("0.3.1", "0.4.2", "0.5.1", "0.6.2", "0.7.0.dev0"):
        severity, fires = rule.severity_for(version), rule.fires_for(version)
        assert (fires != "never") == (severity == "error"), version


@EXAMPLES
@given(valid_batches())
def test_sequences_lie_end_to_end_in_their_rows(made: Made) -> None:
    report = inspect_batch(made.batch, **made.options)
    for row in {sequence.row for sequence in report.sequences}:
        members = [sequence for sequence in report.sequences if sequence.row == row]
        assert all(sequence.logical <= sequence.physical for sequence in members)
        assert members[0].start == 0
        for before, after in pairwise(members):
            assert after.start == before.start + before.physical


@EXAMPLES
@given(valid_batches())
def test_the_report_as_data_is_json(made: Made) -> None:
    report = inspect_batch(made.batch, **made.options)
    data = json.loads(json.dumps(report.to_dict()))
    keys = "source path generation because meaning tokens sequences summary findings cp notes"
    assert list(data) == keys.split()
    assert data["summary"]["error"] == 0
    assert data["summary"]["rows"] == report.rows


@EXAMPLES
@given(valid_batches())
def test_the_batch_that_is_given_is_left_as_it_was(made: Made) -> None:
    before = made.copy()
    inspect_batch(made.batch, **made.options)
    for key, value in made.batch.items():
        assert np.array_equal(value, before[key]) if isinstance(value, np.ndarray) else value == before[key]


def test_sequences_tell_logical_and_physical_lengths_and_trained_tokens() -> None:
    batch = {
        "loss_mask": [0, 1, 1, 0, 0, 0, 1, 0],
        "cu_seqlens_q": [0, 3, 6],
        "cu_seqlens_q_padded": [0, 4, 8],
        "total_tokens": 8,
    }
    report = inspect_batch(batch)
    assert [sequence.to_dict() for sequence in report.sequences] == [
        {"row": 0, "start": 0, "logical": 3, "physical": 4, "trained": 2},
        {"row": 0, "start": 4, "logical": 3, "physical": 4, "trained": 1},
    ]
    assert report.summary["fill"] == 0.75
    assert report.summary["trained_tokens"] == 3
    assert report.summary["sequences"] == 2


def test_findings_carry_what_the_rule_says_worst_first() -> None:
    batch = {"tokens_shape": [1, 16], "cu_seqlens_q": [0, 8, 8, 12], "attention_mask": [1]}
    report = inspect_batch(batch)
    assert [item.severity for item in report.findings] == ["error", "corruption", "warning"]
    finding = report.findings[0]
    assert finding.rule == "batch-attention-mask-with-packing"
    assert finding.title == "A packed batch has no attention mask"
    assert finding.message.endswith("Set attention_mask to None; the boundaries say what attends to what.")
    assert (finding.fires, finding.skill) == ("forward", "packed-sequences-long-context")
    assert finding.evidence
    assert finding.docs == "skill-run explain batch-attention-mask-with-packing"


@pytest.mark.parametrize(
    ("bridge", "named"), [(None, True), ("0.3.1", True), ("v0.4.2", True), ("0.5.1", False), ("main", False)]
)
def test_a_fault_of_some_releases_is_left_out_for_others(bridge: str | None, named: bool) -> None:
    assert (SENTINELS in _rules(RAGGED, cp=2, bridge=bridge)) == named


def test_without_a_release_the_message_names_those_that_have_the_fault() -> None:
    (finding,) = inspect_batch(RAGGED, cp=2).findings
    assert "Megatron-Bridge 0.3 and 0.4" in finding.message
    assert "From 0.5.1 on" in finding.message
    assert any("cut as 0.5.1 and newer cut" in note for note in inspect_batch(RAGGED, cp=2).notes)
    assert not any("newer cut" in note for note in inspect_batch(RAGGED, cp=2, bridge="0.4.2").notes)


def test_a_batch_that_only_one_release_writes_is_judged_by_it() -> None:
    own = {**RAGGED, "attention_mask": None, "token_count": [128]}
    assert SENTINELS not in _rules(own, cp=2)
    assert SENTINELS in _rules(own, cp=2, bridge="0.4.2")


def test_a_release_that_does_not_write_these_keys_is_told() -> None:
    report = inspect_batch({"tokens_len": 8, "cu_seqlens_q": [[0, 8]]}, bridge="0.4.2")
    assert any("not what Megatron-Bridge 0.4.2 writes" in note for note in report.notes)
    assert not any("writes" in note for note in inspect_batch(RAGGED, bridge="0.4.2").notes)


def test_a_release_that_the_config_only_implies_gives_way_to_the_batch() -> None:
    newer = {"dataset.enable_offline_packing": True, "model.context_parallel_size": 2}
    rules = _rules(RAGGED, config={**newer, "model.calculate_per_token_loss": True})
    assert SENTINELS in rules


def test_the_config_gives_sizes_and_loss_settings() -> None:
    batch = {"tokens_len": 24, "cu_seqlens_q": [[0, 8, 24]]}
    config = {"model.context_parallel_size": 2, "model.tensor_model_parallel_size": 8, "model.sequence_parallel": True}
    report = inspect_batch(batch, config=config)
    assert {item.rule for item in report.findings} == {"batch-row-fits-sequence-parallel", "batch-cp-loss-settings"}
    assert report.cp is not None
    assert report.cp.size == 2
    assert _rules(batch, config=config, cp=1, tp=1) == set()


def test_fsdp_switches_average_in_collective_off_by_itself() -> None:
    batch = {"tokens_len": 16, "cu_seqlens_q": [[0, 8, 16]]}
    config = {
        "model.context_parallel_size": 2,
        "model.calculate_per_token_loss": True,
        "ddp.average_in_collective": True,
    }
    assert _rules(batch, config=config) == {"batch-cp-loss-settings"}
    assert _rules(batch, config={**config, "ddp.use_megatron_fsdp": True}) == set()


def test_a_config_file_is_read_in_any_form(tmp_path: Path) -> None:
    file = tmp_path / "conf.yaml"
    file.write_text("model:\n  context_parallel_size: 2\n  calculate_per_token_loss: true\n", "utf-8")
    report = inspect_batch({"tokens_len": 16, "cu_seqlens_q": [[0, 6, 16]]}, config=file)
    assert {item.rule for item in report.findings} == {"batch-boundaries-cover-cp"}


@pytest.mark.parametrize(
    "told",
    [
        {"parallel": {"CP": 2}},
        {"batch": True, "info": {"cp_size": 2, "cp": 1}},
        {"batch": True, "parallel": {"cp": 2}},
        {"batch": True, "form": "batch", "naming": "v0.5-", "parallel": {"CP": 2, "TP": 1, "SP": False}},
    ],
)
def test_sizes_may_stand_beside_the_batch(told: dict[str, Any]) -> None:
    batch: dict[str, Any] = {"tokens_len": 16, "cu_seqlens_q": [0, 6, 16]}
    source = {**told, "batch": batch} if told.get("batch") else {**batch, **told}
    assert _rules(source) == {"batch-boundaries-cover-cp"}


def test_what_is_asked_for_goes_before_what_stands_beside_the_batch() -> None:
    batch = {"tokens_len": 16, "cu_seqlens_q": [0, 6, 16], "parallel": {"CP": 2}}
    assert _rules(batch, cp=1) == set()


def test_a_captured_micro_batch_of_two_rows_is_no_dictionary_of_a_rank() -> None:
    batch = {"tokens": [[5, 6], [7, 8]], "cu_seqlens_q": [[0, 2], [0, 2]], "token_count": [2, 2]}
    assert _rules(batch) == set()
    assert _rules({"batch": batch, "info": {"form": "micro_batch"}}) == {"batch-one-row-per-micro-batch"}


@pytest.mark.parametrize("size", [0, -1, 2**20, 2.0, "2", True])
def test_sizes_that_are_no_group_sizes_are_refused(size: Any) -> None:
    with pytest.raises(InputError, match="context parallel size must be a whole number"):
        inspect_batch(RAGGED, cp=size)
    with pytest.raises(InputError, match="the cp size beside the batch"):
        inspect_batch({**RAGGED, "parallel": {"CP": size}})


def test_a_version_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="is not a Megatron-Bridge version"):
        inspect_batch(RAGGED, bridge="new")


def test_the_preview_is_cut_for_the_first_row() -> None:
    report = inspect_batch(
        {"tokens_shape": [2, 8], "cu_seqlens_q": [[0, 4, 8], [0, 8, 8]], "token_count": [8, 8]}, cp=2
    )
    assert report.cp is not None
    assert [index.tolist() for index in report.cp.indices] == [[0, 3, 4, 7], [1, 2, 5, 6]]


@EXAMPLES
@given(valid_batches())
def test_the_preview_of_a_valid_batch_holds_every_token_once(made: Made) -> None:
    report = inspect_batch(made.batch, **made.options)
    if (report.batch is None) or (report.batch.cp or 1) < 2 or report.path == "packed_seq_params":
        return
    assert report.cp is not None
    assert report.cp.whole


def test_the_api_is_the_same_function() -> None:
    assert skill_run.inspect_batch is inspect_batch


def test_faults_found_elsewhere_are_worded_by_their_rules_too() -> None:
    (finding,) = findings_of([Fault("batch-filler-row", "Row 3 trains nothing.", ("loss_mask",), 3)])
    assert finding.severity == "info"
    assert finding.message.startswith("Row 3 trains nothing. Expected in the last global batch")


def test_a_row_as_the_cut_sees_it_is_trimmed() -> None:
    assert physical_row({"cu_seqlens": np.array([[0, 8, -1]])}).tolist() == [0, 8]
