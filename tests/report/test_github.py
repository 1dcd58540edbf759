"""Tests of skill_run.report.github."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skill_run.config.model import Location
from skill_run.report.finding import Finding, ValidationReport
from skill_run.report.github import render_github

Check = dict[str, Callable[[str], Any]]


def test_a_finding_becomes_one_workflow_command(
    finding: Callable[..., Finding], report: Callable[..., ValidationReport]
) -> None:
    assert render_github(report(findings=(finding(message="mbs is 4: 50% too, much"),))) == (
        "::error file=conf.yaml,line=12,col=3,"
        "title=error offline-mbs-1%3A micro_batch_size must be 1 with offline packing"
        "::mbs is 4: 50%25 too, much%0Afix: train.micro_batch_size = 1"
        "%0AMegatron-Bridge itself: stops in validate()%0Amore: skill-run explain offline-mbs-1"
    )


def test_severities_choose_the_command_and_rules_not_checked_add_a_notice(
    four_severities: ValidationReport, well_formed: Check
) -> None:
    commands = well_formed["github"](render_github(four_severities))
    assert [name for name, _, _ in commands] == ["error", "error", "warning", "notice", "notice"]
    assert commands[-1][1] == {"title": "Rules not checked"}
    assert commands[-1][2].startswith("3 rules not checked: pass --model DIR")


def test_a_clean_report_prints_nothing(report: Callable[..., ValidationReport]) -> None:
    assert render_github(report()) == ""


@pytest.mark.parametrize(
    ("location", "place"),
    [
        (None, {}),
        (Location(None, 3), {}),
        (Location("a.yaml"), {"file": "a.yaml"}),
        (Location("a.yaml", 3), {"file": "a.yaml", "line": "3"}),
        (Location("a,b:c%.yaml", 3, 4), {"file": "a,b:c%.yaml", "line": "3", "col": "4"}),
    ],
)
def test_the_place_says_only_what_is_known(
    location: Location | None,
    place: dict[str, str],
    finding: Callable[..., Finding],
    report: Callable[..., ValidationReport],
    well_formed: Check,
) -> None:
    text = render_github(report(source="mapping", findings=(finding(location=location),)))
    ((_, properties, _),) = well_formed["github"](text)
    del properties["title"]
    assert properties == place


def test_a_finding_without_a_place_is_shown_at_the_source_file(
    tmp_path: Path, finding: Callable[..., Finding], report: Callable[..., ValidationReport], well_formed: Check
) -> None:
    source = tmp_path / "conf.yaml"
    source.write_text("train: {}\n", "utf-8")
    text = render_github(report(source=str(source), findings=(finding(location=None),)))
    assert well_formed["github"](text)[0][1]["file"] == str(source)


def test_a_value_of_the_input_cannot_start_another_command(
    finding: Callable[..., Finding], report: Callable[..., ValidationReport], well_formed: Check
) -> None:
    hostile = "x\r\n::add-mask::y,line=1::z%0A"
    found = finding(rule=hostile, title=hostile, message=hostile, location=Location(hostile, 2), fix={hostile: hostile})
    ((name, properties, message),) = well_formed["github"](render_github(report(findings=(found,))))
    assert name == "error"
    assert properties["line"] == "2"
    assert message.startswith("x ::add-mask::y,line=1::z%0A\n")
