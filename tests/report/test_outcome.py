"""Tests of skill_run.report.outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from skill_run.batch.inspect import inspect_batch
from skill_run.report.finding import ValidationReport
from skill_run.report.outcome import of_inspection, of_validation


def test_a_validation_keeps_its_verdict_and_what_was_not_checked(four_severities: ValidationReport) -> None:
    outcome = of_validation(four_severities)
    assert outcome.command == "skill-run validate"
    assert outcome.remarks == ("The real ConfigContainer.validate() of 0.6.2 would raise an error.",)
    assert outcome.unchecked.startswith("3 rules not checked")
    assert outcome.findings == four_severities.findings
    assert outcome.properties["summary"] == four_severities.summary


def test_an_inspection_says_what_was_recognised_and_why(pack: Callable[..., dict[str, Any]]) -> None:
    outcome = of_inspection(inspect_batch(pack([8, 8])))
    assert outcome.command == "skill-run inspect"
    assert outcome.totals == "no findings"
    assert outcome.facts["path"] == "offline_packed"
    assert outcome.facts["tokens"] == "16"
    assert outcome.remarks[0].startswith("offline_packed, >=0.6: two-dimensional cu_seqlens_q")
    assert outcome.unchecked == ""
