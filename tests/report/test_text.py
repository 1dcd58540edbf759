"""Tests of skill_run.report.text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from skill_run.config.model import NOWHERE, Location
from skill_run.report.finding import BridgeChoice, Finding, NotChecked, ValidationReport
from skill_run.report.text import render_text

COLOR = re.compile(r"\x1b\[[0-9;]*m")


def test_a_report_reads_as_header_findings_verdict_and_totals(four_severities: ValidationReport) -> None:
    assert (
        render_text(four_severities, width=76)
        == """\
Checked conf.yaml: Megatron-Bridge 0.6.2 (--bridge asks for it); 16 GPUs;
  base: dataclass defaults of 0.6.2

error offline-mbs-1: micro_batch_size must be 1 with offline packing
  at conf.yaml:12:3
  micro_batch_size is 4, but one pack is already a whole micro-batch.
  fix: train.micro_batch_size = 1
  Megatron-Bridge itself: stops in validate()
  more: skill-run explain offline-mbs-1

corruption pad-covers-cp: pads cover CP
  at conf.yaml:12:3
  micro_batch_size is 4, but one pack is already a whole micro-batch.
  fix: train.micro_batch_size = 1
  Megatron-Bridge itself: never notices
  more: skill-run explain pad-covers-cp

warning slow-layout: slow layout
  micro_batch_size is 4, but one pack is already a whole micro-batch.
  fix: train.micro_batch_size = 1
  Megatron-Bridge itself: notices only in setup (process groups, model
  build)
  more: skill-run explain slow-layout

info sp-is-reset: upstream resets SP

The real ConfigContainer.validate() of 0.6.2 would raise an error.
3 rules not checked: pass --model DIR (2 rules), --world-size N (1 rule);
  --verbose lists them.
1 error, 1 corruption, 1 warning, 1 info; 63 rules checked, 3 not checked"""
    )


def test_what_is_only_good_to_know_is_one_line_until_verbose_asks_for_more(four_severities: ValidationReport) -> None:
    assert "explain sp-is-reset" not in render_text(four_severities)
    assert "explain sp-is-reset" in render_text(four_severities, verbose=True)


def test_a_clean_report_has_four_lines(report: Callable[..., ValidationReport]) -> None:
    assert render_text(report(), width=200).split("\n") == [
        "Checked conf.yaml: Megatron-Bridge 0.6.2 (--bridge asks for it); 16 GPUs; base: dataclass defaults of 0.6.2",
        "",
        "The real ConfigContainer.validate() of 0.6.2 would pass.",
        "no findings; 63 rules checked, 0 not checked",
    ]


def test_the_header_tells_when_another_releases_data_was_used(report: Callable[..., ValidationReport]) -> None:
    text = render_text(report(bridge=BridgeChoice("0.6.1", "0.6.2", "asked"), world_size=None), width=200)
    assert "Megatron-Bridge 0.6.1, judged by the data of 0.6.2 (asked); number of GPUs not known;" in text


def test_findings_come_worst_first_even_if_the_report_is_not_sorted(
    finding: Callable[..., Finding], report: Callable[..., ValidationReport]
) -> None:
    found = [finding(severity=severity) for severity in ("info", "warning", "error", "corruption")]
    lines = render_text(report(findings=tuple(found))).split("\n")
    heads = [line.split()[0] for line in lines if "offline-mbs-1: micro" in line]
    assert heads == ["error", "corruption", "warning", "info"]


def test_verbose_adds_background_and_lists_rules_not_checked(four_severities: ValidationReport) -> None:
    text = render_text(four_severities, width=200, verbose=True)
    assert "  fields: train.micro_batch_size\n  skill: sequence-packing\n" in text
    assert "  evidence: bridge: 0.6.2, file: training/config.py, says: asserts it\n" in text
    assert "\n  error heads-per-tp: heads divide by TP (needs model.num_attention_heads)\n" in text
    assert "--verbose" not in text


@pytest.mark.parametrize("width", [1, 20, 80, 1000])
@pytest.mark.parametrize("verbose", [False, True])
def test_colours_change_nothing_but_colours(width: int, verbose: bool, four_severities: ValidationReport) -> None:
    plain = render_text(four_severities, width=width, verbose=verbose)
    colored = render_text(four_severities, color=True, width=width, verbose=verbose)
    assert COLOR.search(colored)
    assert COLOR.sub("", colored) == plain


def test_lines_keep_to_the_width_unless_one_piece_is_longer(four_severities: ValidationReport) -> None:
    lines = render_text(four_severities, width=50).split("\n")
    assert all(len(line) <= 50 or line.startswith("1 error, ") for line in lines)


def test_our_own_text_is_ascii(four_severities: ValidationReport) -> None:
    assert render_text(four_severities, verbose=True).isascii()


@pytest.mark.parametrize(("location", "shown"), [(None, False), (NOWHERE, False), (Location(None, 7), True)])
def test_an_unknown_place_is_left_out(
    location: Location | None, shown: bool, finding: Callable[..., Finding], report: Callable[..., ValidationReport]
) -> None:
    text = render_text(report(findings=(finding(location=location),)))
    assert ("\n  at " in text) is shown


@pytest.mark.parametrize("field", ["title", "message", "rule", "skill", "docs"])
@pytest.mark.parametrize("color", [False, True])
def test_terminal_escapes_of_the_input_are_shown_not_sent(
    field: str, color: bool, finding: Callable[..., Finding], report: Callable[..., ValidationReport]
) -> None:
    hostile = "\x1b]0;owned\x07\x1b[2J\x9b1m"
    text = render_text(report(findings=(finding(**{field: hostile}),)), color=color, verbose=True)
    assert "\\x1b]0;owned\\x07\\x1b[2J\\x9b1m" in COLOR.sub("", text)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", COLOR.sub("", text))


def test_a_newline_in_a_message_cannot_forge_a_line(
    finding: Callable[..., Finding], report: Callable[..., ValidationReport]
) -> None:
    forged = "no findings; 63 rules checked, 0 not checked"
    changes: dict[str, Any] = dict.fromkeys(("title", "message", "rule", "skill"), f"x\n{forged}")
    changes["fix"] = {f"a\n{forged}": f"b\n{forged}"}
    changes["location"] = Location(f"f\n{forged}", 1)
    entry = NotChecked("r", f"t\n{forged}", (f"n\n{forged}",))
    text = render_text(report(findings=(finding(**changes),), not_checked=(entry,)), width=1000, verbose=True)
    assert forged not in text.split("\n")


@pytest.mark.parametrize("command", ["::add-mask::secret", "##[error]x", "##vso[task.setvariable]x"])
@pytest.mark.parametrize("width", [10, 1000])
def test_a_ci_runner_finds_no_command_in_the_text(
    command: str, width: int, finding: Callable[..., Finding], report: Callable[..., ValidationReport]
) -> None:
    found = finding(title=command, message=f"{command} {command}", location=Location(command))
    for line in render_text(report(source=command, findings=(found,)), width=width).split("\n"):
        assert not line.strip().startswith("::")
        assert "##[" not in line
        assert "##vso[" not in line


def test_a_path_with_spaces_is_never_broken(
    finding: Callable[..., Finding], report: Callable[..., ValidationReport]
) -> None:
    text = render_text(report(findings=(finding(location=Location("my  long conf.yaml", 1)),)), width=10)
    assert "\n  at\n  my  long conf.yaml:1\n" in text


def test_a_huge_message_is_clipped(finding: Callable[..., Finding], report: Callable[..., ValidationReport]) -> None:
    text = render_text(report(findings=(finding(message="word " * 1_000_000, fix={"a.b": "x" * 1_000_000}),)))
    assert len(text) < 6000
    assert "more characters)" in text
