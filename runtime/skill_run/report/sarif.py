"""The report as SARIF 2.1.0, for code scanning services and editors."""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

from skill_run import __version__
from skill_run.config.model import Location
from skill_run.report.finding import Finding, Severity, ValidationReport
from skill_run.report.outcome import Outcome, of_validation
from skill_run.report.place import place_of
from skill_run.report.safe import encodable, flow, strict
from skill_run.report.wording import details, explain_command

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"
_VERSION = "2.1.0"
_FINGERPRINT = "skillRunRuleAndFields/v1"

_LEVELS: dict[Severity, str] = {"error": "error", "corruption": "error", "warning": "warning", "info": "note"}


def render_sarif(report: ValidationReport, *, root: Path | None = None) -> str:
    """Return a SARIF log with one run, as strict JSON in ASCII.

    root: the folder that URIs are relative to (default: the current one); a file outside it keeps an absolute URI.
    """
    return sarif_log(of_validation(report), root=root)


def sarif_log(outcome: Outcome, *, root: Path | None) -> str:
    """Return a SARIF log as `render_sarif` does, whatever the report is about."""
    base = root or Path.cwd()
    rules = _rules(outcome)
    log = {"$schema": _SCHEMA, "version": _VERSION, "runs": [_run(outcome, rules, base)]}
    return json.dumps(strict(log), indent=2, allow_nan=False)


def _run(outcome: Outcome, rules: dict[str, dict[str, Any]], root: Path) -> dict[str, Any]:
    indices = {rule: index for index, rule in enumerate(rules)}
    seen: Counter[str] = Counter()
    results = []
    for finding in outcome.findings:
        locations = _locations(place_of(finding, outcome), root)
        key = _identity(finding, locations)
        results.append(
            {
                **_result(finding, indices[finding.rule]),
                "locations": locations,
                "partialFingerprints": {_FINGERPRINT: _fingerprint(key, seen[key])},
            }
        )
        seen[key] += 1
    return {
        "tool": {"driver": {"name": "skill-run", "version": __version__, "rules": list(rules.values())}},
        "columnKind": "unicodeCodePoints",
        "invocations": [_invocation(outcome)],
        "results": results,
        "properties": outcome.properties,
    }


def _rules(outcome: Outcome) -> dict[str, dict[str, Any]]:
    """Describe each rule once, in the order of its first finding."""
    rules: dict[str, dict[str, Any]] = {}
    for finding in outcome.findings:
        if finding.rule not in rules:
            rules[finding.rule] = _rule(finding)
    return rules


def _rule(finding: Finding) -> dict[str, Any]:
    title = flow(finding.title)
    more = f"{title}. For the reasons run: {explain_command(finding)}"
    rule: dict[str, Any] = {
        "id": finding.rule,
        "shortDescription": {"text": title},
        "fullDescription": {"text": more},
        "help": {"text": more},
        "defaultConfiguration": {"level": _LEVELS[finding.severity]},
        "properties": {"severity": finding.severity, "tags": [finding.skill] if finding.skill else []},
    }
    name = "".join(part[:1].upper() + part[1:] for part in finding.rule.split("-"))
    if name != finding.rule:  # SARIF wants no name that only repeats the id
        rule["name"] = name
    if finding.docs.startswith(("https://", "http://")):
        rule["helpUri"] = quote(encodable(finding.docs), safe="/:?#@!$&'()*+,;=%~")
    return rule


def _result(finding: Finding, rule_index: int) -> dict[str, Any]:
    return {
        "ruleId": finding.rule,
        "ruleIndex": rule_index,
        "level": _LEVELS[finding.severity],
        "message": {"text": _unlinked("\n".join(details(finding)))},
        "properties": {
            "severity": finding.severity,
            "fields": list(finding.fields),
            "fix": dict(finding.fix),
            "fix_is_semantic": finding.fix_is_semantic,
            "fires": finding.fires,
            "evidence": [dict(item) for item in finding.evidence],
            "docs": finding.docs,
        },
    }


def _invocation(outcome: Outcome) -> dict[str, Any]:
    notes = [*outcome.remarks, *filter(None, [outcome.unchecked])]
    notifications = [{"level": "note", "message": {"text": _unlinked(note)}} for note in notes]
    return {"executionSuccessful": True, "toolExecutionNotifications": notifications}


def _locations(where: Location | None, root: Path) -> list[dict[str, Any]]:
    if where is None or not where.file:
        return []
    physical: dict[str, Any] = {"artifactLocation": _artifact(where.file, root)}
    if where.line is not None:
        region = {"startLine": where.line}
        if where.column is not None:
            region["startColumn"] = where.column
        physical["region"] = region
    return [{"physicalLocation": physical}]


def _artifact(file: str, root: Path) -> dict[str, str]:
    path = Path(encodable(file))
    if path.is_absolute():
        if not path.is_relative_to(root):
            absolute = path.as_posix()
            return {"uri": f"file://{'' if absolute.startswith('/') else '/'}{quote(absolute, safe='/:')}"}
        path = path.relative_to(root)
    return {"uri": quote(posixpath.normpath(path.as_posix())), "uriBaseId": "%SRCROOT%"}


def _identity(finding: Finding, locations: list[dict[str, Any]]) -> str:
    """Return what stays the same when lines move and values change."""
    files = [location["physicalLocation"]["artifactLocation"]["uri"] for location in locations]
    return json.dumps([finding.rule, files, sorted(finding.fields)])


def _fingerprint(identity: str, occurrence: int) -> str:
    return hashlib.sha256(f"{identity}{occurrence}".encode()).hexdigest()


def _unlinked(text: str) -> str:
    """Return `text` without SARIF's embedded links `[text](target)`: a value from the input must not become one."""
    return text.replace("](", "] (")
