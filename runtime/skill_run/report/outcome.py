"""What the forms for other programs (SARIF, GitHub, JUnit) show of a report, whatever it is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from skill_run.report.finding import Finding, NotChecked, ValidationReport
from skill_run.report.wording import counts, not_checked_summary, totals, upstream_verdict

if TYPE_CHECKING:
    from skill_run.batch.inspect import InspectionReport


@dataclass(frozen=True, slots=True)
class Outcome:
    """A report without its kind.

    command: what was run; facts: the input in a few words by name; properties: facts on the whole, JSON-ready; totals:
    the counts in one line; remarks: sentences on the whole; unchecked: what would decide the rules that were not
    checked, empty if all were.
    """

    command: str
    source: str
    findings: tuple[Finding, ...]
    totals: str
    facts: dict[str, str]
    properties: dict[str, Any]
    remarks: tuple[str, ...] = ()
    not_checked: tuple[NotChecked, ...] = ()
    unchecked: str = ""


def of_validation(report: ValidationReport) -> Outcome:
    """Return what the forms show of a checked config."""
    return Outcome(
        command="skill-run validate",
        source=report.source,
        findings=report.findings,
        totals=totals(report),
        facts={
            "source": report.source,
            "bridge": report.bridge.version,
            "world_size": "" if report.world_size is None else str(report.world_size),
            "base": report.base,
            "rules_checked": str(report.rules_checked),
        },
        properties={
            "bridge": report.bridge.to_dict(),
            "world_size": report.world_size,
            "base": report.base,
            "summary": report.summary,
            "upstream_validate": report.upstream_validate,
            "rules_checked": report.rules_checked,
        },
        remarks=(upstream_verdict(report),),
        not_checked=report.not_checked,
        unchecked=not_checked_summary(report),
    )


def of_inspection(report: InspectionReport) -> Outcome:
    """Return what the forms show of an inspected batch or dataset."""
    return Outcome(
        command="skill-run inspect",
        source=report.source,
        findings=report.findings,
        totals=counts(report.findings),
        facts={
            "source": report.source,
            "path": report.path,
            "generation": report.generation,
            "because": report.because,
            "meaning": report.meaning,
            "tokens": "" if report.tokens is None else str(report.tokens),
            "rows": str(report.rows),
        },
        properties={
            "path": report.path,
            "generation": report.generation,
            "meaning": report.meaning,
            "tokens": report.tokens,
            "summary": report.summary,
        },
        remarks=(f"{report.path}, {report.generation}: {report.because}", report.meaning, *report.notes),
    )
