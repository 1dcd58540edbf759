"""Recorded outcomes: how a recording is read, and what the shipped one holds."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from typing import Any

import pytest

from skill_run.bridge.release import known_releases
from skill_run.report.finding import ValidationReport
from skill_run.rules.validate import bundle_rules, judge
from skill_run.verify.recorded import RecordedCase, read_cases, shipped_cases

BASE = {
    "model/_target_": "x.GPTModelProvider",
    "model/context_parallel_size": 1,
    "dataset/seq_length": 4096,
    "peft/dim": 8,
    "peft/alpha": 16,
    "mixed_precision": "bf16_mixed",
}


def read(*cases: dict[str, Any], version: str = "0.6.2") -> list[RecordedCase]:
    recording = {
        version: {"base": BASE, "cases": [{"id": "one", "world_size": 8, "set": {}, **case} for case in cases]}
    }
    return list(read_cases(gzip.compress(json.dumps(recording).encode())))


def test_a_case_without_differences_is_the_base_as_a_tree() -> None:
    (case,) = read({})
    assert case.config == {
        "model": {"_target_": "x.GPTModelProvider", "context_parallel_size": 1},
        "dataset": {"seq_length": 4096},
        "peft": {"dim": 8, "alpha": 16},
        "mixed_precision": "bf16_mixed",
    }
    assert (case.id, case.version, case.world_size, case.raises, case.message) == ("one", "0.6.2", 8, None, "")


def test_a_case_changes_and_adds_leaves() -> None:
    (case,) = read({"set": {"model/context_parallel_size": 2, "dataset/specs/pad": None}})
    assert case.config["model"]["context_parallel_size"] == 2
    assert case.config["dataset"] == {"seq_length": 4096, "specs": {"pad": None}}


def test_a_case_drops_a_leaf_or_everything_below_a_name() -> None:
    (case,) = read({"drop": ["dataset/seq_length", "peft/"], "set": {"peft": None}})
    assert "dataset" not in case.config
    assert case.config["peft"] is None


def test_a_leaf_that_only_begins_like_a_dropped_one_stays() -> None:
    (case,) = read({"drop": ["peft/d"]})
    assert case.config["peft"] == {"dim": 8, "alpha": 16}


def test_what_upstream_raised_is_kept() -> None:
    (case,) = read({"raises": "AssertionError", "message": "no", "where": "validate"})
    assert (case.raises, case.message, case.where) == ("AssertionError", "no", "validate")


def test_cases_do_not_share_their_trees() -> None:
    first, second = read({}, {})
    first.config["model"]["context_parallel_size"] = 99
    assert second.config["model"]["context_parallel_size"] == 1


CASES = shipped_cases()


def test_the_shipped_cases_have_their_own_ids_and_both_outcomes() -> None:
    assert len({case.id for case in CASES}) == len(CASES) >= 50
    outcomes = Counter(case.raises is not None for case in CASES)
    assert min(outcomes[True], outcomes[False]) >= 20


def test_the_shipped_cases_are_full_configs_of_recorded_releases() -> None:
    assert {case.version for case in CASES} <= set(known_releases())
    assert len({case.version for case in CASES}) >= 3
    for case in CASES:
        assert {"model", "train", "dataset", "checkpoint"} <= set(case.config), case.id


def judged(case: RecordedCase) -> ValidationReport:
    return judge(case.config, rules=bundle_rules(), bridge=case.version, world_size=case.world_size)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_verdict_on_validate_is_what_the_real_one_did(case: RecordedCase) -> None:
    assert judged(case).upstream_validate == ("raises" if case.raises else "passes")


def test_judging_a_case_leaves_its_config_as_it_is() -> None:
    before = json.dumps(CASES[0].config)
    judged(CASES[0])
    assert json.dumps(CASES[0].config) == before
