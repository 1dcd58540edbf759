"""Judge a Config by a set of rules: findings, and what could not be decided."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from skill_run.bridge.names import is_free_form
from skill_run.bridge.release import matches
from skill_run.bundle.rule import HOUSE, Rule
from skill_run.config.config import Config
from skill_run.config.model import NOWHERE, Location, Plain, Remark, State
from skill_run.config.typing import INT64
from skill_run.errors import BundleError, InputError
from skill_run.report.finding import SEVERITIES, Finding, NotChecked, UpstreamVerdict
from skill_run.rules.derived import DERIVED, Facts, NeedsValue
from skill_run.rules.environment import INPUTS, build_environment, compile_expression, kind_of, variables_in

_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
_UNKNOWN = "UNKNOWN: No value with name"


class RuleSet:
    """Compiled rules that share one CEL environment; build once, evaluate many configs."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        self.by_id = {rule.id: rule for rule in rules}
        checked = [rule for rule in rules if not rule.computed]
        expressions = [text for rule in rules for text in expressions_of(rule)]
        self.environment = build_environment(expressions)
        self.compiled = {rule.id: compile_expression(self.environment, rule.violation) for rule in checked}
        self.variables = tuple(dict.fromkeys(name for text in expressions for name in variables_in(text)))
        self._extra: dict[str, Any] = {}

    def compiled_extra(self, expression: str) -> Any:
        """Return a compiled message or fix expression."""
        if expression not in self._extra:
            self._extra[expression] = compile_expression(self.environment, expression)
        return self._extra[expression]


def expressions_of(rule: Rule) -> list[str]:
    """Return every CEL expression of a rule: the condition, the fixes and the message's placeholders."""
    found = [] if rule.computed else [rule.when, rule.require]
    found += [value for value in rule.fix.values() if isinstance(value, str)]
    if not rule.computed:
        found += [text for text in _PLACEHOLDER.findall(rule.message + rule.advice) if not text.startswith("name:")]
    return found


class Evaluation:
    """One config judged by one rule set."""

    def __init__(self, config: Config, rules: RuleSet) -> None:
        self.config = config
        self.rules = rules
        self.facts = Facts(config)
        self.lacking: dict[str, tuple[str, ...]] = {}
        self.data = self._bind()
        self.activation = rules.environment.Activation(self.data)

    def run(self) -> tuple[list[Finding], list[NotChecked], int]:
        """Return the findings, the undecided rules and the number of rules that apply to this version."""
        findings = [self._from_remark(remark) for remark in self.config.remarks if remark.rule in self.rules.by_id]
        undecided: list[NotChecked] = []
        applied = 0
        for rule in self.rules.rules:
            if rule.computed or not matches(rule.bridge, self.config.version):
                continue
            applied += 1
            outcome = self._result(self.rules.compiled[rule.id], rule).value()
            if outcome is True:
                findings.append(self._finding(rule))
            elif outcome is not False:
                undecided.append(self._undecided(rule, str(outcome)))
        findings.sort(key=order)
        return findings, undecided, applied

    def _result(self, compiled: Any, rule: Rule) -> Any:
        """Evaluate an expression of a rule; BundleError when it takes more steps than CEL allows."""
        try:
            return compiled.eval(self.activation)
        except RuntimeError as error:
            reason = str(error).split("\n", 1)[0].removeprefix("INTERNAL: ").removesuffix(" [INTERNAL]")
            raise BundleError(f"{rule.file}:1: the rule '{rule.id}' cannot be evaluated: {reason}") from error

    def _bind(self) -> dict[str, Plain]:
        data: dict[str, Plain] = {}
        for name in self.rules.variables:
            try:
                value = self._lookup(name)
            except NeedsValue as lacking:
                self.lacking[name] = lacking.needs
                continue
            if value is not None:
                data[name] = self._passable(name, value)
            else:
                self.lacking[name] = (name,)
        return data

    def _passable(self, name: str, value: Plain) -> Plain:
        """Return a value that CEL can hold; InputError for text that is not Unicode and for numbers above 63 bits."""
        for item in value if isinstance(value, list) else (value,):
            if isinstance(item, int) and abs(item) > INT64:
                told = f"{self._need_name(name)} comes to a number of {item.bit_length()} bits"
                raise InputError(f"the sizes of this config are out of range: {told}")
            if isinstance(item, str) and not item.isascii() and _is_broken(item):
                held = self.config.values.get(name)
                where = f"{held.location}: " if held is not None and held.location.file is not None else ""
                raise InputError(f"{where}{self._need_name(name)} holds {item[:40]!r}, which is not valid Unicode text")
        return value

    def _lookup(self, name: str) -> Plain:
        config = self.config
        if name in DERIVED:
            return self.facts.derived(name)
        if name in INPUTS:
            found = getattr(config, name)
            if found is None:
                raise NeedsValue(name)
            return found  # type: ignore[no-any-return]
        section, _, rest = name.partition(".")
        if section == "given" and rest in INPUTS:
            return getattr(config, rest) is not None
        if section == "given" and not rest.startswith("env."):
            return self.facts.given(rest)
        if section == "env" or rest.startswith("env."):
            held = (config.env or {}).get(rest.removeprefix("env."))
            if held is None and not config.env_complete:
                raise NeedsValue(name.removeprefix("given."))
            return held is not None if section == "given" else held
        if name == "dataset.type":
            if config.dataset_type is None:
                raise NeedsValue(name)
            return config.dataset_type
        if name == "mixed_precision":
            found = self.facts.value(name)
            return found if isinstance(found, str) else None
        value = self.facts.value(name)
        return _fitted(value, kind_of(name) or "any")

    def _undecided(self, rule: Rule, outcome: str) -> NotChecked:
        needs: dict[str, None] = {}
        for name in variables_in(rule.violation):
            for need in self.lacking.get(name, ()):
                if self._is_null(need) and outcome.startswith(_UNKNOWN) and f'"{name}"' not in outcome:
                    continue
                needs[self._need_name(need)] = None
        version = self.config.version
        listed = tuple(needs) or (outcome.split(": ", 1)[-1],)
        return NotChecked(rule.id, rule.title, listed, rule.severity_for(version))

    def _is_null(self, need: str) -> bool:
        if need in INPUTS or need == "model" or need.startswith("env."):
            return False
        return self.config.get(need).state is not State.UNKNOWN

    def _need_name(self, need: str) -> str:
        if need in INPUTS or need.startswith("env.") or need == "model":
            return need
        if need.startswith("hf."):
            return "model"
        return self.config.written(need)

    def _finding(self, rule: Rule) -> Finding:
        version = self.config.version
        fix = self._fix(rule)
        fields = self._fields(rule)
        return Finding(
            rule=rule.id,
            severity=rule.severity_for(version),
            title=rule.title,
            message=self._fill(" ".join(part for part in (rule.message, rule.advice) if part), rule),
            fields=tuple(dict.fromkeys(self.config.written(name) for name in fields)),
            fires=rule.fires_for(version),
            skill=rule.skill,
            location=self._location(fields) or self._location(variables_in(rule.when)),
            fix=fix,
            fix_is_semantic=rule.semantic_fix and bool(fix),
            evidence=_evidence(rule, version),
            docs=explain_command(rule),
        )

    def _fields(self, rule: Rule) -> list[str]:
        if rule.fields:
            return list(rule.fields)
        named = [*rule.fix, *(n.removeprefix("given.") for n in variables_in(rule.require) if n not in DERIVED)]
        if not named:
            named = [n.removeprefix("given.") for n in variables_in(rule.when) if n not in DERIVED]
        return list(dict.fromkeys(named))

    def _location(self, fields: Iterable[str]) -> Location | None:
        for name in fields:
            held = self.config.values.get(name)
            if held is not None and held.location != NOWHERE:
                return held.location
        return None

    def _fix(self, rule: Rule) -> dict[str, Plain]:
        found: dict[str, Plain] = {}
        for name, value in rule.fix.items():
            if isinstance(value, str):
                result = self._result(self.rules.compiled_extra(value), rule)
                if result.type().name() == "ERROR":
                    return {}
                value = result.plain_value()
                if not _is_plain(value):
                    raise BundleError(
                        f"{rule.file}:1: the fix of {name} gives {result.type().name()[:60]}, which no config can hold"
                    )
            if self._can_be_set(name):
                found[self.config.written(name)] = value
        return found

    def _can_be_set(self, name: str) -> bool:
        """Tell whether the user's release has the field, so that a fix may name it."""
        written = self.config.written(name)
        section = written.partition(".")[0]
        known = self.config.release.field(written, self.config.dataset_type) is not None
        return known or written == section or section in ("comm_overlap", "peft") or is_free_form(written)

    def _fill(self, text: str, rule: Rule) -> str:
        """Return a message of a rule with its placeholders replaced by values."""

        def replace(match: re.Match[str]) -> str:
            expression = match.group(1)
            if expression.startswith("name:"):
                return self.config.written(expression.removeprefix("name:").strip())
            if expression in self.data:
                return _shown(self.data[expression])
            if expression in self.lacking:
                return "null" if self._null_everywhere(expression) else "unset"
            result = self._result(self.rules.compiled_extra(expression), rule)
            held = result.plain_value()
            return "unknown" if result.type().name() == "ERROR" else _shown(held)

        return _PLACEHOLDER.sub(replace, text)

    def _null_everywhere(self, name: str) -> bool:
        return all(need != "model" and self._is_null(need) for need in self.lacking[name])

    def _from_remark(self, remark: Remark) -> Finding:
        rule = self.rules.by_id[remark.rule]
        version = self.config.version
        return Finding(
            rule=rule.id,
            severity=rule.severity_for(version),
            title=rule.title,
            message=remark.message,
            fields=remark.fields,
            fires=remark.fires or rule.fires_for(version),  # type: ignore[arg-type]
            skill=rule.skill,
            location=remark.location if remark.location != NOWHERE else None,
            fix=dict(remark.fix),
            fix_is_semantic=rule.semantic_fix and bool(remark.fix),
            evidence=_evidence(rule, version),
            docs=explain_command(rule),
        )


def upstream_verdict(
    findings: Iterable[Finding], undecided: Iterable[NotChecked], rules: RuleSet, config: Config
) -> UpstreamVerdict:
    """Tell what the real ConfigContainer.validate() (with construction before it) would do.

    A rule that only lacks environment variables makes the verdict unknown when it fails with all of them unset.
    """
    early = ("construct", "validate")
    if any(finding.severity == "error" and finding.fires in early for finding in findings):
        return "raises"
    version = config.version
    wait_for_env: set[str] = set()
    for entry in undecided:
        rule = rules.by_id[entry.rule]
        if rule.fires_for(version) not in early or rule.severity_for(version) != "error":
            continue
        if not all(need.startswith("env.") for need in entry.needs):
            return "unknown"
        wait_for_env.add(rule.id)
    if wait_for_env and not config.env_complete:
        unset, _, _ = Evaluation(replace(config, env_complete=True), rules).run()
        if any(finding.rule in wait_for_env for finding in unset):
            return "unknown"
    return "unknown" if config.unknown_prefixes or config.base == "unknown" else "passes"


def explain_command(rule: Rule) -> str:
    """Return the command that explains a rule; a house rule needs its folder."""
    folder = f" --rules {PurePath(rule.file).parent}" if rule.skill == HOUSE else ""
    return f"skill-run explain {rule.id}{folder}"


def order(finding: Finding) -> tuple[int, str, int, str]:
    """Return what findings are sorted by: severity, then place, then rule."""
    where = finding.location
    return (
        SEVERITIES.index(finding.severity),
        (where.file or "") if where else "~",
        (where.line or where.column or 0) if where else 0,
        finding.rule,
    )


def _evidence(rule: Rule, version: str) -> tuple[dict[str, str], ...]:
    """Return the evidence entries for the user's version first; all of them when none is for it."""
    entries = [{key: str(value) for key, value in item.items()} for item in rule.evidence]
    own = [item for item in entries if item.get("bridge") == version]
    return tuple(own or entries)


def _fitted(value: Plain, kind: str) -> Plain:
    """Return a value in the form its CEL type wants, None when a loosely typed field holds something else."""
    if value is None:
        return None
    if kind == "strs":
        items = value if isinstance(value, list) else [value]
        return [str(item) for item in items if not isinstance(item, dict)]
    if kind == "float":
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    wanted: Mapping[str, type] = {"int": int, "bool": bool, "str": str, "dtype": str, "ints": list}
    expected = wanted.get(kind)
    if expected is None:
        return value
    if not isinstance(value, expected) or (kind == "int" and isinstance(value, bool)):
        return None
    return value


def _is_plain(value: object) -> bool:
    """Tell whether a value that CEL gave can stand in a config: no type, time, duration or bytes."""
    if isinstance(value, list):
        return all(_is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    return value is None or isinstance(value, str | int | float)


def _is_broken(text: str) -> bool:
    """Tell whether text holds half of a surrogate pair, which a wrongly decoded byte leaves behind."""
    return any("\ud800" <= char <= "\udfff" for char in text)


def _shown(value: Plain) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, list):
        return "[" + ", ".join(_shown(item) for item in value) + "]"
    text = str(value)
    return text if len(text) <= 200 else text[:197] + "..."
