"""One rule as data: what a rule file says, before anything is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from skill_run.bridge.release import by_version
from skill_run.config.model import Plain
from skill_run.report.finding import Phase, Severity

# The skill name of a team's own rules.
HOUSE = "house"
COMPUTED_BY = ("config", "batch", "dataset")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule file. Expressions are CEL; `fix` maps canonical fields to a literal or, when text, to a CEL expression.

    computed: "" for a CEL rule, else the part of the runtime that finds it (then `when` and `require` are empty).
    """

    id: str
    skill: str
    file: str
    title: str
    severity: str | Mapping[str, str]
    fires: Mapping[str, str]
    message: str
    bridge: str = "*"
    when: str = "true"
    require: str = ""
    computed: str = ""
    fields: tuple[str, ...] = ()
    fix: Mapping[str, Plain] = field(default_factory=dict)
    semantic_fix: bool = False
    advice: str = ""
    explanation: str = ""
    evidence: tuple[Mapping[str, str], ...] = ()
    fails: tuple[Mapping[str, Any], ...] = ()
    passes: tuple[Mapping[str, Any], ...] = ()

    @property
    def violation(self) -> str:
        """The CEL expression that is true exactly when the rule is broken."""
        return f"({self.when}) && !({self.require})"

    def severity_for(self, version: str) -> Severity:
        """Return the severity for a Bridge version."""
        if isinstance(self.severity, str):
            return self.severity  # type: ignore[return-value]
        return by_version(self.severity, version) or "info"

    def fires_for(self, version: str) -> Phase:
        """Return the phase in which upstream of that version notices."""
        return by_version(self.fires, version) or "never"


def rule_from_data(data: Mapping[str, Any], skill: str, file: str) -> Rule:
    """Build a Rule from the mapping of a rule file that is known to have the right shape."""
    return Rule(
        id=data["id"],
        skill=skill,
        file=file,
        title=data["title"],
        severity=data["severity"],
        fires=data["fires"],
        message=" ".join(str(data["message"]).split()),
        bridge=str(data.get("bridge", "*")),
        when=_condition(data.get("when", True)),
        require=_condition(data.get("require", "")),
        computed=data.get("computed", ""),
        fields=tuple(data.get("fields", ())),
        fix=data.get("fix", {}),
        semantic_fix=bool(data.get("semantic_fix", False)),
        advice=" ".join(str(data.get("advice", "")).split()),
        explanation=" ".join(str(data.get("explanation", "")).split()),
        evidence=tuple(data.get("evidence", ())),
        fails=tuple(data.get("fails", ())),
        passes=tuple(data.get("passes", ())),
    )


def _condition(value: str | bool) -> str:
    """Return a condition as CEL; YAML reads a bare true or false as a truth value."""
    return str(value).lower() if isinstance(value, bool) else value.strip()
