"""Refuse to launch what breaks or corrupts a run, unless somebody accepts it by name."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from typing import Final

from skill_run.errors import EXIT_FINDINGS, InputError, SkillRunError
from skill_run.jobs.model import Allowance, now
from skill_run.report.finding import Finding, Severity, ValidationReport

LEVEL: Final[Severity] = "corruption"


class RefusedLaunch(SkillRunError):
    """Findings stand against the launch; `report` has them all."""

    exit_code = EXIT_FINDINGS

    def __init__(self, sentence: str, report: ValidationReport) -> None:
        super().__init__(sentence)
        self.report = report


def allowances(report: ValidationReport, allow: Sequence[str]) -> tuple[Allowance, ...]:
    """Return who accepts which findings now.

    Raises RefusedLaunch when an error or a corruption is left, InputError for a rule that found nothing.
    """
    bad = report.at_least(LEVEL)
    found = {finding.rule for finding in bad}
    for rule in allow:
        if rule not in found:
            listed = ", ".join(sorted(found)) or "none"
            raise InputError(
                f"--allow {rule[:80]}: this rule does not stand against the launch; those that do: {listed}"
            )
    left = [finding for finding in bad if finding.rule not in allow]
    if left:
        raise RefusedLaunch(_sentence(left), report)
    by, at = _user(), now()
    return tuple(Allowance(rule, by, at) for rule in sorted(set(allow)))


def _sentence(left: Sequence[Finding]) -> str:
    rules = ", ".join(dict.fromkeys(finding.rule for finding in left))
    first = left[0]
    fixable = all(finding.fix and not finding.fix_is_semantic for finding in left)
    hint = "--fix sets what it needs" if fixable else "correct the config (skill-run validate shows how)"
    return (
        f"the launch is refused: {len(left)} finding{'s' if len(left) > 1 else ''} would break or corrupt the run "
        f"({rules}); {first.rule}: {first.message} {hint[0].upper()}{hint[1:]}; --allow RULE takes the responsibility."
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"
