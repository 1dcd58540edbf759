"""Public bug reports as small batches: the right verdict, rule and field for each.

All of them come out right. Where a reporter points at a place rather than at a key ("row 0", "tokens (rows)"), the
field here is the key that tells it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skill_run import inspect_batch
from skill_run.batch.inspect import InspectionReport

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "bug_reports.json").read_text("utf-8"))
_BESIDE = ("parallel", "settings", "model")


def _verdict(report: InspectionReport) -> str:
    """Error stands for everything that spoils a run, silently or not."""
    if report.at_least("corruption"):
        return "error"
    return "warning" if report.at_least("warning") else "ok"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_public_bug_report_gets_the_right_verdict(case: dict[str, Any]) -> None:
    assert _verdict(inspect_batch(case["batch"])) == case["verdict"], case["title"]


@pytest.mark.parametrize("case", [case for case in CASES if case["rule"]], ids=lambda case: case["id"])
def test_a_public_bug_report_is_pinned_to_its_rule_and_first_field(case: dict[str, Any]) -> None:
    found = {(finding.rule, finding.fields[0]) for finding in inspect_batch(case["batch"]).findings}
    assert (case["rule"], case["field"]) in found


@pytest.mark.parametrize("case", [case for case in CASES if case["verdict"] == "ok"], ids=lambda case: case["id"])
def test_what_was_reported_but_is_right_has_no_finding_at_all(case: dict[str, Any]) -> None:
    assert inspect_batch(case["batch"]).findings == ()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_the_batch_may_lie_inside_its_report(case: dict[str, Any]) -> None:
    batch = dict(case["batch"])
    beside = {key: batch.pop(key) for key in _BESIDE if key in batch}
    inside = {**beside, **batch} if "batches_by_rank" in batch else {"form": "batch", **beside, "batch": batch}
    assert inspect_batch(inside).findings == inspect_batch(case["batch"]).findings
