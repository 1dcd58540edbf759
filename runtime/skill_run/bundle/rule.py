"""One rule as data: what a rule file says, before anything is compiled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from skill_run.bridge.release import by_version
from skill_run.config.model import Plain
from skill_run.report.finding import Phase, Severity

# The skill name of a team's own rules.
HOUSE = "house"
COMPUTED_BY = ("config", "batch", "dataset")
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "id": (str,),
    "title": (str,),
    "severity": (str, dict),
    "fires": (dict,),
    "message": (str,),
    # YAML reads a bare 0.6 as a number.
    "bridge": (str, int, float),
    "when": (str, bool),
    "require": (str, bool),
    "computed": (str,),
    "fields": (list,),
    "fix": (dict,),
    "semantic_fix": (bool,),
    "advice": (str,),
    "explanation": (str,),
    "evidence": (list,),
    "fails": (list,),
    "passes": (list,),
}
# What the lists and mappings of a rule hold, where the runtime relies on it.
_INNER_TYPES: Final[Mapping[str, type]] = {
    "severity": str,
    "fires": str,
    "fields": str,
    "evidence": dict,
    "fails": dict,
    "passes": dict,
}


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
    """Build a Rule from the mapping of a rule file; TypeError or LookupError when it has another shape."""
    _check_types(data)
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


def _check_types(data: Mapping[str, Any]) -> None:
    for key, value in data.items():
        if not isinstance(value, _TYPES[key]):
            raise TypeError(f"{key} is of type {type(value).__name__}")
        inner = _INNER_TYPES.get(key)
        if inner is None or isinstance(value, str):
            continue
        items: Iterable[object] = value.values() if isinstance(value, dict) else value  # type: ignore[assignment]
        if not all(isinstance(item, inner) for item in items):
            raise TypeError(f"{key} holds a value that is not of type {inner.__name__}")


def _condition(value: str | bool) -> str:
    """Return a condition as CEL; YAML reads a bare true or false as a truth value."""
    return str(value).lower() if isinstance(value, bool) else value.strip()
