"""The report as JUnit XML: findings are failed tests, rules that were not checked are skipped ones."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from skill_run.config.model import Location
from skill_run.report.finding import SEVERITIES, Finding, NotChecked, Severity, ValidationReport
from skill_run.report.outcome import Outcome, of_validation
from skill_run.report.place import place_of
from skill_run.report.wording import details, needs

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render_junit(report: ValidationReport, *, level: Severity = "corruption") -> str:
    """Return JUnit XML in ASCII.

    level: findings as bad as this or worse fail; the others pass, with their text as output. Characters that XML 1.0
    forbids are dropped. One more test case, which passes, holds the totals, so a clean report is not an empty suite.
    """
    return junit_suite(of_validation(report), level=level)


def junit_suite(outcome: Outcome, *, level: Severity) -> str:
    """Return JUnit XML as `render_junit` does, whatever the report is about."""
    failing = SEVERITIES[: SEVERITIES.index(level) + 1]
    totals_of = {
        "tests": str(len(outcome.findings) + len(outcome.not_checked) + 1),
        "failures": str(sum(finding.severity in failing for finding in outcome.findings)),
        "errors": "0",
    }
    root = ElementTree.Element("testsuites", {"name": outcome.command, **totals_of})
    skipped = str(len(outcome.not_checked))
    suite = _child(root, "testsuite", name=outcome.command, **totals_of, skipped=skipped, time="0")
    _add_properties(suite, outcome)
    for finding in outcome.findings:
        _add_finding(suite, finding, place_of(finding, outcome), fails=finding.severity in failing)
    for entry in outcome.not_checked:
        _add_skipped(suite, entry)
    summary = _child(suite, "testcase", classname=outcome.command, name="summary", time="0")
    _child(summary, "system-out").text = _clean("\n".join([outcome.totals, *outcome.remarks]))
    ElementTree.indent(root)
    xml: bytes = ElementTree.tostring(root, encoding="us-ascii", xml_declaration=True)
    return xml.decode("ascii")


def _add_properties(suite: ElementTree.Element, outcome: Outcome) -> None:
    properties = _child(suite, "properties")
    for name, value in outcome.facts.items():
        _child(properties, "property", name=name, value=value)


def _add_finding(suite: ElementTree.Element, finding: Finding, where: Location | None, *, fails: bool) -> None:
    case = _child(suite, "testcase", classname=finding.rule, name=finding.title, time="0", **_place(where))
    body = _clean("\n".join([f"at {where}", *details(finding)] if where else details(finding)))
    if fails:
        _child(case, "failure", type=finding.severity, message=finding.message).text = body
    else:
        _child(case, "system-out").text = f"{finding.severity}: {body}"


def _add_skipped(suite: ElementTree.Element, entry: NotChecked) -> None:
    case = _child(suite, "testcase", classname=entry.rule, name=entry.title, time="0")
    _child(case, "skipped", message=f"not checked: needs {needs(entry)}")


def _place(where: Location | None) -> dict[str, str]:
    if where is None or not where.file:
        return {}
    return {"file": where.file} if where.line is None else {"file": where.file, "line": str(where.line)}


def _child(parent: ElementTree.Element, tag: str, **attributes: str) -> ElementTree.Element:
    return ElementTree.SubElement(parent, tag, {name: _clean(value) for name, value in attributes.items()})


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("", text)
