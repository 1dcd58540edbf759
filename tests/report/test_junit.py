"""Tests of skill_run.report.junit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from skill_run.config.model import Location
from skill_run.report.finding import Finding, Severity, ValidationReport
from skill_run.report.junit import render_junit

Check = dict[str, Callable[[str], Any]]


def test_each_finding_is_a_test_case_beside_skipped_rules_and_a_summary(
    four_severities: ValidationReport, well_formed: Check
) -> None:
    suite = well_formed["junit"](render_junit(four_severities))
    assert [case.attrib["classname"] for case in suite.findall("testcase")] == [
        "offline-mbs-1",
        "pad-covers-cp",
        "slow-layout",
        "sp-is-reset",
        "enough-gpus",
        "heads-per-tp",
        "groups-per-tp",
        "skill-run validate",
    ]
    assert suite.find("testcase/skipped").attrib == {"message": "not checked: needs world_size"}
    assert suite.findtext("testcase[@name='summary']/system-out").startswith("1 error, 1 corruption")


@pytest.mark.parametrize(("level", "failures"), [("error", 1), ("corruption", 2), ("warning", 3), ("info", 4)])
def test_findings_at_the_level_or_worse_fail(
    level: Severity, failures: int, four_severities: ValidationReport, well_formed: Check
) -> None:
    suite = well_formed["junit"](render_junit(four_severities, level=level))
    failed = [case.find("failure").attrib["type"] for case in suite.findall("testcase[failure]")]
    assert failed == ["error", "corruption", "warning", "info"][:failures]


def test_a_finding_below_the_level_passes_with_its_text_as_output(
    four_severities: ValidationReport, well_formed: Check
) -> None:
    suite = well_formed["junit"](render_junit(four_severities))
    output = suite.findtext("testcase[@classname='slow-layout']/system-out")
    assert output.startswith("warning: micro_batch_size is 4")


def test_a_clean_report_is_one_passed_test(report: Callable[..., ValidationReport], well_formed: Check) -> None:
    suite = well_formed["junit"](render_junit(report()))
    assert suite.attrib["tests"] == "1"
    assert suite.attrib["failures"] == "0"


def test_the_failure_tells_place_message_fix_and_where_to_read_more(
    finding: Callable[..., Finding], report: Callable[..., ValidationReport], well_formed: Check
) -> None:
    suite = well_formed["junit"](render_junit(report(findings=(finding(),))))
    case = suite.find("testcase")
    assert case.attrib["file"] == "conf.yaml"
    assert case.attrib["line"] == "12"
    assert case.findtext("failure") == (
        "at conf.yaml:12:3\n"
        "micro_batch_size is 4, but one pack is already a whole micro-batch.\n"
        "fix: train.micro_batch_size = 1\n"
        "Megatron-Bridge itself: stops in validate()\n"
        "more: skill-run explain offline-mbs-1"
    )


def test_markup_is_escaped_and_characters_xml_forbids_are_dropped(
    finding: Callable[..., Finding], report: Callable[..., ValidationReport], well_formed: Check
) -> None:
    hostile = "]]><a b='\"'>&amp;\x00\x1b\ufffe\ud800\x85\u00e9</failure>"
    found = finding(rule=hostile, title=hostile, message=hostile, location=Location(hostile, 1))
    case = well_formed["junit"](render_junit(report(findings=(found,)))).find("testcase")
    kept = "]]><a b='\"'>&amp;\x85\u00e9</failure>"
    assert case.attrib["name"] == case.attrib["classname"] == case.attrib["file"] == kept
    assert case.find("failure").attrib["message"] == kept
