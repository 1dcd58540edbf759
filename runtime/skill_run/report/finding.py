"""The result of a validation, as plain dataclasses; `to_dict` is the stable JSON form (docs/reference/report.md)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from skill_run.config.model import Location, Plain

Severity = Literal["error", "corruption", "warning", "info"]
Phase = Literal["construct", "validate", "setup", "data", "forward", "never"]
UpstreamVerdict = Literal["raises", "passes", "unknown"]

SEVERITIES: tuple[Severity, ...] = ("error", "corruption", "warning", "info")
PHASES: tuple[Phase, ...] = ("construct", "validate", "setup", "data", "forward", "never")


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem. `fields` and `fix` use the names of the user's release; `fires` is where upstream notices it."""

    rule: str
    severity: Severity
    title: str
    message: str
    fields: tuple[str, ...]
    fires: Phase
    skill: str = ""
    location: Location | None = None
    fix: dict[str, Plain] = field(default_factory=dict)
    fix_is_semantic: bool = False
    evidence: tuple[dict[str, str], ...] = ()
    docs: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as JSON-ready data."""
        where = self.location
        return {
            "rule": self.rule,
            "severity": self.severity,
            "title": self.title,
            "message": self.message,
            "fields": list(self.fields),
            "location": None if where is None else {"file": where.file, "line": where.line, "column": where.column},
            "fix": dict(self.fix),
            "fix_is_semantic": self.fix_is_semantic,
            "fires": self.fires,
            "skill": self.skill,
            "evidence": [dict(item) for item in self.evidence],
            "docs": self.docs,
        }


@dataclass(frozen=True, slots=True)
class NotChecked:
    """A rule that could not be decided, and what it lacks: field names, `world_size`, `env.NAME`, `te`, `gpu`."""

    rule: str
    title: str
    needs: tuple[str, ...]
    severity: Severity = "error"

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as JSON-ready data."""
        return {"rule": self.rule, "title": self.title, "severity": self.severity, "needs": list(self.needs)}


@dataclass(frozen=True, slots=True)
class BridgeChoice:
    """Which Megatron-Bridge release the input was judged by.

    version: as asked or inferred; release: the recorded one whose data was used; because: a clause that says why.
    """

    version: str
    release: str
    because: str

    def to_dict(self) -> dict[str, str]:
        """Return the choice as JSON-ready data."""
        return {"version": self.version, "release": self.release, "because": self.because}


@dataclass(frozen=True, slots=True)
class ValidationReport:
    """Everything one `validate_config` call found. Findings are ordered by severity, then by place in the input."""

    source: str
    bridge: BridgeChoice
    world_size: int | None
    base: str
    upstream_validate: UpstreamVerdict
    findings: tuple[Finding, ...]
    not_checked: tuple[NotChecked, ...]
    rules_checked: int = 0
    # What the real validate() said, where it was asked (`validate --ask-upstream`).
    upstream: dict[str, Any] | None = None

    @property
    def summary(self) -> dict[str, int]:
        """Count the findings by severity, and the rules that were not checked."""
        counts = Counter(finding.severity for finding in self.findings)
        return {**{severity: counts[severity] for severity in SEVERITIES}, "not_checked": len(self.not_checked)}

    def at_least(self, severity: Severity) -> list[Finding]:
        """Return the findings that are as bad as `severity` or worse."""
        limit = SEVERITIES.index(severity)
        return [finding for finding in self.findings if SEVERITIES.index(finding.severity) <= limit]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready data; the keys are a contract."""
        return {
            "source": self.source,
            "bridge": self.bridge.to_dict(),
            "world_size": self.world_size,
            "base": self.base,
            "summary": self.summary,
            "upstream_validate": self.upstream_validate,
            "findings": [finding.to_dict() for finding in self.findings],
            "not_checked": [entry.to_dict() for entry in self.not_checked],
            "rules_checked": self.rules_checked,
            **({} if self.upstream is None else {"upstream": self.upstream}),
        }
