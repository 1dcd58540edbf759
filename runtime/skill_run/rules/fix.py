"""Apply the fixes of findings until nothing more can be fixed, and write the config back in its own form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from skill_run.config.config import Config
from skill_run.config.model import NOWHERE, Assignment, Plain, Source, State
from skill_run.config.write import write_back
from skill_run.errors import InputError
from skill_run.report.finding import Finding, ValidationReport
from skill_run.rules.evaluate import RuleSet
from skill_run.rules.validate import build_config, report_on

MAX_ROUNDS: Final = 12
_REPLACING_RULES: Final = frozenset({"renamed-field", "unknown-field"})


@dataclass(frozen=True, slots=True)
class Change:
    """One field that a fix changed; `old` is None when it was not set."""

    field: str
    old: Plain
    new: Plain
    rule: str
    semantic: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the change as JSON-ready data."""
        return {"field": self.field, "old": self.old, "new": self.new, "rule": self.rule, "semantic": self.semantic}


@dataclass(frozen=True, slots=True)
class FixResult:
    """The corrected input, what changed, and the reports before and after.

    text: the input in its own form, None when the changes cannot be placed in it (then `note` says so and `changes`
    is the list to apply by hand). left: findings that have a fix which was not applied.
    """

    before: ValidationReport
    after: ValidationReport
    changes: tuple[Change, ...]
    removed: tuple[str, ...]
    text: str | dict[str, Any] | None
    note: str
    left: tuple[Finding, ...]


@dataclass(slots=True)
class _Plan:
    sets: dict[str, Plain] = field(default_factory=dict)
    removes: list[str] = field(default_factory=list)
    changes: dict[str, Change] = field(default_factory=dict)


def fix_config(
    sources: list[Source],
    rules: RuleSet,
    *,
    semantic: bool = False,
    original: Mapping[str, Any] | None = None,
    **settings: Any,
) -> FixResult:
    """Fix what can be fixed.

    sources: as read; semantic: also apply fixes that change what is trained; original: the mapping that was read, when
    the input was one; settings: bridge, recipe, model, world_size, env, te and gpu as in validate_config.
    """
    name = sources[0].name
    config = build_config(sources, **settings)
    # The release was told by the input as it came; the fixed names must not change that.
    settings = {**settings, "bridge": settings.get("bridge") or config.choice.release}
    before = report = report_on(config, rules, name)
    plan = _Plan()
    for _ in range(MAX_ROUNDS):
        # Fixes that change training come last, so that they change no more than the other fixes leave to change.
        if not (_take(report, config, plan, False) or (semantic and _take(report, config, plan, True))):
            break
        config = build_config(_patched(sources, plan), **settings)
        report = report_on(config, rules, name)
    text: str | dict[str, Any] | None
    note = ""
    try:
        # What is read last wins, so that is where a fix belongs: overrides, else the input itself.
        text = write_back(sources[-1], plan.sets, plan.removes, original)
    except InputError as error:
        text, note = None, str(error)
        placed = _placeable(sources[-1], plan, original)
        if placed:
            by_hand = ", ".join(path for path in plan.sets if path not in placed)
            note = f"{note}; left to be changed by hand: {by_hand}"
            plan.sets = {path: plan.sets[path] for path in placed}
            plan.changes = {path: plan.changes[path] for path in placed}
            text = write_back(sources[-1], plan.sets, plan.removes, original)
            report = report_on(build_config(_patched(sources, plan), **settings), rules, name)
    if sources[-1].form == "sbatch" and plan.sets:
        note = "add these overrides to the launch line of the script"
    left = tuple(f for f in report.findings if f.fix and f.severity != "info" and (semantic or not f.fix_is_semantic))
    waiting = tuple(f for f in report.findings if f.fix_is_semantic and not semantic)
    return FixResult(before, report, tuple(plan.changes.values()), tuple(plan.removes), text, note, left + waiting)


def _placeable(source: Source, plan: _Plan, original: Mapping[str, Any] | None) -> list[str]:
    """Return the planned fields that can be written into the input; none when names have to be removed with them."""
    placed: dict[str, Plain] = {}
    for path, value in plan.sets.items() if not plan.removes else ():
        try:
            write_back(source, {**placed, path: value}, [], original)
        except InputError:
            continue
        placed[path] = value
    return list(placed)


def _take(report: ValidationReport, config: Config, plan: _Plan, semantic: bool) -> bool:
    """Add the fixes of one report to the plan; return whether anything new was planned."""
    taken: set[str] = set()
    progress = False
    for finding in report.findings:
        if not finding.fix or finding.severity == "info" or (finding.fix_is_semantic and not semantic):
            continue
        if any(name in taken for name in finding.fix) or _repeats(finding, plan):
            continue
        if finding.rule in _REPLACING_RULES:
            gone = [path for path in finding.fields if path not in plan.removes]
            plan.removes += gone
            progress = progress or bool(gone)
        for path, value in finding.fix.items():
            held = config.get(_canonical(path, config))
            old = held.value if held.state is State.SET else None
            taken.add(path)
            if held.state is State.SET and old == value and type(old) is type(value):
                continue
            first = plan.changes.get(path)
            plan.sets[path] = value
            plan.changes[path] = Change(path, first.old if first else old, value, finding.rule, finding.fix_is_semantic)
            progress = True
    return progress


def _repeats(finding: Finding, plan: _Plan) -> bool:
    """Tell whether a fix was already applied as it is, so that applying it again cannot help."""
    return all(path in plan.sets and plan.sets[path] == value for path, value in finding.fix.items())


def _canonical(path: str, config: Config) -> str:
    from skill_run.bridge.names import to_canonical

    return to_canonical(path, config.release.version, config.dataset_type)


def _patched(sources: list[Source], plan: _Plan) -> list[Source]:
    """Return the sources as they will read once the plan is written back."""
    pending = dict(plan.sets)
    # Backwards, since of several assignments the last one counts and is the one that is written over.
    kept = [replace(source, assignments=_assigned(source, pending, plan.removes)) for source in reversed(sources)]
    fixes = [Assignment(path, value, NOWHERE, "set") for path, value in pending.items()]
    return [*reversed(kept), Source(form="overrides", name="fixes", assignments=fixes)]


def _assigned(source: Source, pending: dict[str, Plain], removes: Sequence[str]) -> list[Assignment]:
    found: list[Assignment] = []
    for assignment in reversed(source.assignments):
        if assignment.path in pending:
            assignment = replace(assignment, value=pending.pop(assignment.path))
        if assignment.path not in removes:
            found.append(assignment)
    return found[::-1]
