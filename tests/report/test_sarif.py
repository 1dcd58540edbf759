"""Tests of skill_run.report.sarif."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skill_run.config.model import Location
from skill_run.report.finding import Finding, ValidationReport
from skill_run.report.sarif import render_sarif

Check = dict[str, Callable[[str], Any]]


def test_a_report_becomes_one_run_with_its_rules_and_results(
    four_severities: ValidationReport, well_formed: Check
) -> None:
    run = well_formed["sarif"](render_sarif(four_severities))
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == [f.rule for f in four_severities.findings]
    assert [result["level"] for result in run["results"]] == ["error", "error", "warning", "note"]
    assert [result["properties"]["severity"] for result in run["results"]] == ["error", "corruption", "warning", "info"]
    assert run["properties"]["summary"] == four_severities.summary


def test_a_rule_with_two_findings_is_described_once(
    finding: Callable[..., Finding], report: Callable[..., ValidationReport], well_formed: Check
) -> None:
    run = well_formed["sarif"](render_sarif(report(findings=(finding(), finding(rule="other"), finding()))))
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["offline-mbs-1", "other"]
    assert [result["ruleIndex"] for result in run["results"]] == [0, 1, 0]


def test_the_rule_has_a_pascal_case_name_and_no_help_uri_without_docs(
    finding: Callable[..., Finding], report: Callable[..., ValidationReport], well_formed: Check
) -> None:
    run = well_formed["sarif"](render_sarif(report(findings=(finding(), finding(rule="Same")))))
    first, second = run["tool"]["driver"]["rules"]
    assert first["name"] == "OfflineMbs1"
    assert "helpUri" not in first
    assert "name" not in second


@pytest.mark.parametrize(
    ("docs", "uri"),
    [
        ("https://example.org/a b#c", "https://example.org/a%20b#c"),
        ("docs/rules.md", None),
        ("javascript:alert(1)", None),
    ],
)
def test_only_a_web_address_becomes_the_help_uri(
    docs: str,
    uri: str | None,
    finding: Callable[..., Finding],
    report: Callable[..., ValidationReport],
    well_formed: Check,
) -> None:
    run = well_formed["sarif"](render_sarif(report(findings=(finding(docs=docs),))))
    assert run["tool"]["driver"]["rules"][0].get("helpUri") == uri


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        (None, []),
        (Location(None, 3, 4), []),
        (Location("a.yaml"), [{"artifactLocation": {"uri": "a.yaml", "uriBaseId": "%SRCROOT%"}}]),
        (
            Location("a.yaml", 3),
            [{"artifactLocation": {"uri": "a.yaml", "uriBaseId": "%SRCROOT%"}, "region": {"startLine": 3}}],
        ),
        (
            Location("a.yaml", 3, 4),
            [
                {
                    "artifactLocation": {"uri": "a.yaml", "uriBaseId": "%SRCROOT%"},
                    "region": {"startLine": 3, "startColumn": 4},
                }
            ],
        ),
    ],
)
def test_places_say_only_what_is_known(
    location: Location | None,
    expected: list[dict[str, Any]],
    finding: Callable[..., Finding],
    report: Callable[..., ValidationReport],
    well_formed: Check,
) -> None:
    run = well_formed["sarif"](render_sarif(report(source="mapping", findings=(finding(location=location),))))
    assert [place["physicalLocation"] for place in run["results"][0]["locations"]] == expected


@pytest.mark.parametrize(
    ("file", "uri"),
    [
        ("conf/a b.yaml", "conf/a%20b.yaml"),
        ("./conf/../a.yaml", "a.yaml"),
        ("../up.yaml", "../up.yaml"),
        ("50%.yaml", "50%25.yaml"),
        ("a:b.yaml", "a%3Ab.yaml"),
        ("caf\u00e9.yaml", "caf%C3%A9.yaml"),
        ("bad\udc80.yaml", "bad%5Cudc80.yaml"),
        ("/repo/conf/a.yaml", "conf/a.yaml"),
        ("/else where/a.yaml", "file:///else%20where/a.yaml"),
    ],
)
def test_files_become_encoded_uris_relative_to_the_root(
    file: str,
    uri: str,
    finding: Callable[..., Finding],
    report: Callable[..., ValidationReport],
    well_formed: Check,
) -> None:
    text = render_sarif(report(findings=(finding(location=Location(file)),)), root=Path("/repo"))
    artifact = well_formed["sarif"](text)["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert artifact["uri"] == uri
    assert ("uriBaseId" in artifact) is not uri.startswith("file:")


def fingerprints(run: Any) -> list[str]:
    return [value for result in run["results"] for value in result["partialFingerprints"].values()]


def test_fingerprints_survive_moved_lines_and_changed_values(
    finding: Callable[..., Finding], report: Callable[..., ValidationReport], well_formed: Check
) -> None:
    before = finding()
    after = finding(location=Location("conf.yaml", 99), message="micro_batch_size is 8.", fix={})
    runs = [well_formed["sarif"](render_sarif(report(findings=(item,)))) for item in (before, after)]
    assert fingerprints(runs[0]) == fingerprints(runs[1])


def test_fingerprints_differ_by_rule_file_field_and_occurrence(
    finding: Callable[..., Finding], report: Callable[..., ValidationReport], well_formed: Check
) -> None:
    usual = finding()
    others = (
        finding(rule="other"),
        finding(fields=("train.global_batch_size",)),
        finding(location=Location("other.yaml")),
    )
    twice = well_formed["sarif"](render_sarif(report(findings=(usual, usual))))
    alone = [well_formed["sarif"](render_sarif(report(findings=(item,)))) for item in others]
    found = [*fingerprints(twice), *(fingerprint for run in alone for fingerprint in fingerprints(run))]
    assert len(set(found)) == len(found) == 5


def test_the_fix_is_in_the_message_and_in_strict_properties(
    finding: Callable[..., Finding], report: Callable[..., ValidationReport], well_formed: Check
) -> None:
    found = finding(fix={"optimizer.lr": math.nan}, fix_is_semantic=True)
    (result,) = well_formed["sarif"](render_sarif(report(findings=(found,))))["results"]
    assert 'fix: optimizer.lr = "NaN" (changes training)' in result["message"]["text"]
    assert result["properties"]["fix"] == {"optimizer.lr": "NaN"}
    assert result["properties"]["fix_is_semantic"] is True


def test_a_message_cannot_hold_a_link(
    finding: Callable[..., Finding], report: Callable[..., ValidationReport], well_formed: Check
) -> None:
    found = finding(message="see [this](https://evil.example)")
    (result,) = well_formed["sarif"](render_sarif(report(findings=(found,))))["results"]
    assert "](" not in result["message"]["text"]


def test_rules_not_checked_become_a_notification(four_severities: ValidationReport, well_formed: Check) -> None:
    (invocation,) = well_formed["sarif"](render_sarif(four_severities))["invocations"]
    texts = [note["message"]["text"] for note in invocation["toolExecutionNotifications"]]
    assert len(texts) == 2
    assert texts[1].startswith("3 rules not checked: pass --model DIR (2 rules)")
