"""Tests of skill_run.report.place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from skill_run.config.model import NOWHERE, Location
from skill_run.report.finding import Finding, ValidationReport
from skill_run.report.place import place_of


def test_a_finding_with_a_file_keeps_its_place(
    finding: Callable[..., Finding], report: Callable[..., ValidationReport]
) -> None:
    assert place_of(finding(), report()) == Location("conf.yaml", 12, 3)


@pytest.mark.parametrize("location", [None, NOWHERE])
def test_a_finding_without_a_place_is_shown_at_the_source_file(
    location: Location | None,
    tmp_path: Path,
    finding: Callable[..., Finding],
    report: Callable[..., ValidationReport],
) -> None:
    source = tmp_path / "conf.yaml"
    source.write_text("train: {}\n", "utf-8")
    assert place_of(finding(location=location), report(source=str(source))) == Location(str(source))


@pytest.mark.parametrize("source", ["mapping", "nul\0", "\ud800", "x" * 10_000, "", "."])
def test_a_source_that_is_no_file_gives_no_place(
    source: str, finding: Callable[..., Finding], report: Callable[..., ValidationReport]
) -> None:
    assert place_of(finding(location=None), report(source=source)) is None
