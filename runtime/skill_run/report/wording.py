"""The sentences about findings that all forms share, each on one printable line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from skill_run.config.hf import MODEL_FIELDS
from skill_run.report.finding import SEVERITIES, Finding, NotChecked, Phase, Severity, ValidationReport
from skill_run.report.safe import VALUE_LIMIT, clip, flow, printable, show_value

_WHERE: dict[Phase, str] = {
    "construct": "while the config is built",
    "validate": "in validate()",
    "setup": "only in setup (process groups, model build)",
    "data": "only when the dataset is built",
    "forward": "only at the first forward",
}

_MODEL = "--model DIR"
_OPTIONS = {"world_size": "--world-size N", "te": "--te VERSION", "gpu": "--gpu TYPE", "model": _MODEL}
_OPTION_PREFIXES = {"env.": "--env NAME=VALUE", "hf.": _MODEL}
_FIELDS = "fields"
_NAMED_FIELDS = 3


def short(text: str) -> str:
    """Return a name or a path as one printable, bounded piece."""
    return printable(clip(text, VALUE_LIMIT))


def count(number: int, noun: str) -> str:
    """Return `1 rule`, `2 rules`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def fixes(finding: Finding) -> list[str]:
    """Return one `field = value` line for each field that the fix sets."""
    mark = " (changes training)" if finding.fix_is_semantic else ""
    return [f"{short(name)} = {show_value(value)}{mark}" for name, value in finding.fix.items()]


def upstream_notice(finding: Finding) -> str:
    """Say where Megatron-Bridge itself notices the problem."""
    if finding.fires == "never":
        return "Megatron-Bridge itself: never notices"
    verb = "stops" if finding.severity == "error" else "notices"
    return f"Megatron-Bridge itself: {verb} {_WHERE[finding.fires]}"


def explain_command(finding: Finding) -> str:
    """Return the command that shows the reasons behind the rule."""
    return short(finding.docs) if finding.docs.startswith("skill-run ") else f"skill-run explain {short(finding.rule)}"


def details(finding: Finding) -> list[str]:
    """Return the body of a finding: message, fix, where upstream notices, where to read more."""
    return [
        flow(finding.message),
        *(f"fix: {line}" for line in fixes(finding)),
        upstream_notice(finding),
        f"more: {explain_command(finding)}",
    ]


def upstream_verdict(report: ValidationReport) -> str:
    """Say what the real `validate()` would do with the input."""
    real = f"The real ConfigContainer.validate() of {short(report.bridge.version)}"
    if report.upstream_validate == "raises":
        return f"{real} would raise an error."
    if report.upstream_validate == "passes":
        return f"{real} would pass."
    return f"Whether it passes cannot be told: {real[0].lower()}{real[1:]} depends on values that are not known."


def totals(report: ValidationReport) -> str:
    """Return the counts of findings and rules in one line."""
    checked = f"{count(report.rules_checked, 'rule')} checked, {len(report.not_checked)} not checked"
    return f"{counts(report.findings)}; {checked}"


def counts(findings: Iterable[Finding]) -> str:
    """Return `1 error, 2 warnings`, or `no findings`."""
    found = Counter(finding.severity for finding in findings)
    parts = [_severity_count(severity, found[severity]) for severity in SEVERITIES if found[severity]]
    return ", ".join(parts) or "no findings"


def not_checked_summary(report: ValidationReport) -> str:
    """Say how many rules were not checked and what would decide them, most useful first; empty if all were."""
    if not report.not_checked:
        return ""
    groups: dict[tuple[str, ...], list[NotChecked]] = {}
    for entry in report.not_checked:
        groups.setdefault(_inputs(entry), []).append(entry)
    ranked = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    ways = [f"{_way(inputs, entries)} ({count(len(entries), 'rule')})" for inputs, entries in ranked]
    return f"{count(len(report.not_checked), 'rule')} not checked: pass {', '.join(ways)}"


def needs(entry: NotChecked) -> str:
    """Return the inputs that one rule lacks."""
    return ", ".join(short(need) for need in entry.needs) or "other values"


def _severity_count(severity: Severity, number: int) -> str:
    return count(number, severity) if severity in ("error", "warning") else f"{number} {severity}"


def _option(need: str) -> str | None:
    if need in MODEL_FIELDS:
        return _MODEL
    for prefix, option in _OPTION_PREFIXES.items():
        if need.startswith(prefix):
            return option
    return _OPTIONS.get(need)


def _inputs(entry: NotChecked) -> tuple[str, ...]:
    """Return the options that decide the rule, then `_FIELDS` if values of fields are missing too."""
    options = {_option(need) for need in entry.needs}
    named = sorted(option for option in options if option is not None)
    return (*named, _FIELDS) if None in options or not named else tuple(named)


def _way(inputs: tuple[str, ...], entries: list[NotChecked]) -> str:
    return " and ".join(_missing_fields(entries) if name == _FIELDS else name for name in inputs)


def _missing_fields(entries: list[NotChecked]) -> str:
    uses = Counter(need for entry in entries for need in entry.needs if _option(need) is None)
    if not uses:
        return "other values"
    names = [short(name) for name, _ in sorted(uses.items(), key=lambda item: (-item[1], item[0]))[:_NAMED_FIELDS]]
    rest = len(uses) - len(names)
    return f"values for {', '.join(names)}" + (f" and {count(rest, 'other field')}" if rest else "")
