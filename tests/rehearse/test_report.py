from __future__ import annotations

from typing import Any

import pytest

from skill_run.rehearse.report import RehearsalReport, render_rehearsal
from skill_run.rules.validate import validate_config

IMPORTED = {
    "stage": "import",
    "status": "ok",
    "seconds": 6.0,
    "megatron_bridge": "0.6.2",
    "megatron_core": "0.19.2",
}
FAILED = {
    "stage": "validate",
    "status": "failed",
    "seconds": 0.1,
    "message": "AssertionError: lengths\nmust match",
    "place": "megatron/bridge/training/config.py:1505",
    "detail": "Traceback (most recent call last): ...",
}
CHANGE = {"field": "model.num_layers", "old": 32, "new": 2, "kind": "size", "why": "few seconds on a CPU"}


def report(*stages: dict[str, Any], problems: tuple[str, ...] = ()) -> RehearsalReport:
    result = {"changes": [CHANGE], "layout": None, "problems": list(problems), "data": None}
    rules = validate_config({"train.micro_batch_size": 1}, bridge="0.6.2")
    return RehearsalReport("a.yaml", "cpu-0.6.2", rules, result, stages=stages, seconds=7.0)


def test_a_failed_stage_is_told_in_upstreams_words_with_the_place_and_no_traceback() -> None:
    text = render_rehearsal(report(IMPORTED, FAILED), width=200)
    assert "FAIL validate: AssertionError: lengths must match (megatron/bridge/training/config.py:1505)" in text
    assert "Traceback" not in text
    assert text.splitlines()[-1] == "failed at validate after 7 s"


def test_the_traceback_is_kept_for_programs_and_bounded() -> None:
    told = report(IMPORTED, {**FAILED, "detail": "x" * 100_000}).to_dict()
    assert told["failed_stage"] == "validate"
    assert 0 < len(told["stages"][1]["log"]) < 10_000
    assert "detail" not in told["stages"][1]


def test_what_would_stop_the_real_run_is_no_success() -> None:
    assert report(IMPORTED).passed
    found = report(IMPORTED, problems=("the data fill 1 pack",))
    assert not found.passed
    assert "FAIL at full size: the data fill 1 pack" in render_rehearsal(found)


@pytest.mark.parametrize(("verbose", "expected"), [(True, True), (False, False)])
def test_reasons_of_all_changes_are_listed_on_request(verbose: bool, expected: bool) -> None:
    found = report(IMPORTED)
    found.result["changes"].append({**CHANGE, "field": "model.fp8", "kind": "cpu", "why": "a kernel"})
    assert ("(a kernel)" in render_rehearsal(found, verbose=verbose)) is expected
