"""Public bug reports as small configs and command lines: the right verdict, rule and field for each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skill_run.report.finding import ValidationReport
from skill_run.rules.validate import bundle_rules, judge

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "bug_reports.json").read_text("utf-8"))


def _report(case: dict[str, Any]) -> ValidationReport:
    command = case.get("command")
    return judge(
        command if command is not None else case["config"],
        rules=bundle_rules(),
        bridge=case.get("bridge"),
        world_size=case.get("world_size"),
        form="command" if command is not None else None,
    )


def _verdict(report: ValidationReport) -> str:
    """Error stands for everything that spoils a run, silently or not."""
    if report.at_least("corruption"):
        return "error"
    return "warning" if report.at_least("warning") else "ok"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_public_bug_report_gets_the_right_verdict(case: dict[str, Any]) -> None:
    assert _verdict(_report(case)) == case["verdict"], case["title"]


@pytest.mark.parametrize("case", [case for case in CASES if case["findings"]], ids=lambda case: case["id"])
def test_a_public_bug_report_is_pinned_to_its_rule_and_field(case: dict[str, Any]) -> None:
    found = {(finding.rule, field) for finding in _report(case).findings for field in finding.fields}
    assert {tuple(pair) for pair in case["findings"]} <= found
