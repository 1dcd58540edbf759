"""The checks of `skill-run verify`, each with a verdict and a sentence."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from skill_run.bundle.locate import bundle_root
from skill_run.errors import MissingError, SkillRunError


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check: its name, whether it passed, a sentence with its figures, and its time in seconds."""

    name: str
    passed: bool
    detail: str
    seconds: float
    skipped: bool = False

    @property
    def mark(self) -> str:
        """The word that a line of text starts with."""
        return "skip" if self.skipped else "ok  " if self.passed else "FAIL"

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-ready data."""
        return {
            "name": self.name,
            "passed": self.passed,
            "skipped": self.skipped,
            "detail": self.detail,
            "seconds": round(self.seconds, 3),
        }


Check = Callable[[], tuple[bool, str]]


def check_cards() -> tuple[bool, str]:
    """Every card obeys its schema, and its constraints are the rules of its skill."""
    from skill_run.bundle.card import check_cards as faults_of_cards

    faults, count = faults_of_cards(bundle_root())
    return not faults, faults[0] if faults else f"{count} cards obey their schema and name their rules"


def check_rules() -> tuple[bool, str]:
    """Every rule obeys its schema, compiles, and judges its own examples right."""
    from skill_run.bundle.check import check_rule_files
    from skill_run.bundle.load import load_rules

    faults = check_rule_files(bundle_root())
    rules = load_rules()
    examples = sum(len(rule.fails) + len(rule.passes) for rule in rules)
    return not faults, faults[0] if faults else f"{len(rules)} rules compile; {examples} examples come out right"


def check_skills() -> tuple[bool, str]:
    """Every config that a skill's card promises an outcome for has that outcome."""
    from skill_run.bundle.card import load_card
    from skill_run.rules.validate import bundle_rules, judge

    wrong: list[str] = []
    count = 0
    for path in sorted(bundle_root().glob("skills/*/card.yaml")):
        for promise in load_card(path).get("verify", []):
            count += 1
            config = promise["config"] if isinstance(promise["config"], dict) else path.parent / promise["config"]
            options = {key: promise[key] for key in ("recipe", "world_size", "te", "gpu", "env") if key in promise}
            report = judge(config, rules=bundle_rules(), bridge=promise["bridge"], **options)
            expected = set(promise["expect"])
            found = {finding.rule for finding in report.findings}
            bad = {finding.rule for finding in report.at_least("corruption")}
            if not expected <= found or not bad <= expected:
                wrong.append(f"{path.parent.name}: {promise['title']}")
    return not wrong, wrong[0] if wrong else f"{count} configs have the outcome their skill's card promises"


def check_recorded() -> tuple[bool, str]:
    """The verdict on upstream's validate() equals what the real one was recorded to do."""
    from skill_run.rules.validate import bundle_rules, judge
    from skill_run.verify.recorded import shipped_cases

    wrong: list[str] = []
    cases = shipped_cases()
    for case in cases:
        report = judge(case.config, rules=bundle_rules(), bridge=case.version, world_size=case.world_size)
        if report.upstream_validate != ("raises" if case.raises else "passes"):
            wrong.append(case.id)
    share = 1 - len(wrong) / len(cases)
    told = f"{len(cases) - len(wrong)} of {len(cases)} recorded outcomes of the real validate() agree"
    return share >= 0.995, told + (f"; not: {', '.join(wrong[:5])}" if wrong else "")


def check_end_to_end() -> tuple[bool, str]:
    """One real config, as YAML text, is found faulty, fixed, and clean of errors and corruption afterwards."""
    from skill_run.rules.fix import fix_config
    from skill_run.rules.validate import bundle_rules, read_sources, validate_config
    from skill_run.verify.recorded import shipped_cases

    case = next(
        case for case in shipped_cases() if case.version == "0.6.2" and _packed(case.config) and not case.raises
    )
    broken = json.loads(json.dumps(case.config))
    broken["model"]["context_parallel_size"] = 2
    broken["model"]["calculate_per_token_loss"] = False
    broken["dataset"]["offline_packing_specs"]["pad_seq_to_mult"] = 1
    text = yaml.safe_dump(broken, sort_keys=False)
    sources = read_sources(text, bridge="0.6.2")
    fixed = fix_config(sources, bundle_rules(), bridge="0.6.2", world_size=case.world_size * 2)
    assert isinstance(fixed.text, str)
    again = validate_config(fixed.text, bridge="0.6.2", world_size=case.world_size * 2)
    bad = len(fixed.before.at_least("corruption"))
    left = len(again.at_least("corruption"))
    found = (
        f"a real config of {len(sources[0].assignments)} fields: {bad} faults found, {len(fixed.changes)} fields fixed"
    )
    return bad >= 2 and left == 0, f"{found}, {left} faults left"


def _packed(config: dict[str, Any]) -> bool:
    dataset = config["dataset"]
    return bool(dataset.get("enable_offline_packing")) and isinstance(dataset.get("offline_packing_specs"), dict)


CHECKS: dict[str, Check] = {
    "cards": check_cards,
    "rules": check_rules,
    "skills": check_skills,
    "recorded upstream outcomes": check_recorded,
    "end to end": check_end_to_end,
}


def check_parity(worker: str | None, on_event: Callable[[Mapping[str, Any]], None] | None) -> tuple[bool, str]:
    """Packed training with CP 2 computes what unpacked training computes, and faults put in on purpose are caught."""
    from skill_run.verify.parity import ParityOptions, prove_parity

    report = prove_parity(ParityOptions(worker=worker), on_event=on_event)
    worst = max((layout.get("gradient_error") or 0.0 for layout in report.layouts), default=0.0)
    caught = sum(1 for control in report.controls if control["caught"] and control["right_diagnosis"])
    core = report.result.get("environment", {}).get("versions", {}).get("megatron-core", "?")
    detail = (
        f"on Megatron-Core {core}, packed CP 2 equals unpacked CP 1 in {len(report.layouts)} layouts (gradient error "
        f"at most {worst:.0e}); {caught} of {len(report.controls)} faults put in on purpose are caught"
    )
    return report.passed, detail if report.passed else f"{detail}; skill-run verify --parity shows every figure"


def run_checks(
    *,
    parity: bool = True,
    worker: str | None = None,
    on_event: Callable[[Mapping[str, Any]], None] | None = None,
) -> Iterator[CheckResult]:
    """Run every check and yield its result as it is known; a fault of the bundle is a failed check, not an error.

    parity: also compare packed with unpacked training in a worker, called `worker` or the best one; the check is
    skipped where no worker is set up and none is named. on_event: called with the worker's progress events.
    """
    for name, check in CHECKS.items():
        yield result_of(name, check)
    if not parity:
        return
    yield result_of("parity", lambda: check_parity(worker, on_event), skippable=worker is None)


def result_of(name: str, check: Check, *, skippable: bool = False) -> CheckResult:
    """Run a check and time it; an error that a user can understand is a failed check, a missing part may skip it."""
    start = time.perf_counter()
    skipped = False
    try:
        passed, detail = check()
    except MissingError as error:
        if not skippable:
            raise
        passed, detail, skipped = True, str(error), True
    except SkillRunError as error:
        passed, detail = False, str(error)
    return CheckResult(name, passed, detail, time.perf_counter() - start, skipped)
