"""The packing guide is true: its configs are judged as it says, and its commands run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from skill_run.cli import cli
from skill_run.rules.validate import bundle_rules, judge

GUIDE = (Path(__file__).parents[2] / "docs" / "training" / "packed-sequences.md").read_text("utf-8")
CONFIG = re.compile(r"^```yaml\n# bridge (\S+?)(?:, finds ([^\n]*))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^ *skill-run (validate (?:--).*)$", re.MULTILINE)
GPUS = 16

CONFIGS = CONFIG.findall(GUIDE)
COMMANDS = COMMAND.findall(GUIDE)


def test_every_config_of_the_guide_names_its_release() -> None:
    assert len(CONFIGS) == GUIDE.count("```yaml") == 3


@pytest.mark.parametrize(("bridge", "finds", "text"), CONFIGS)
def test_a_config_of_the_guide_has_exactly_the_faults_it_names(bridge: str, finds: str, text: str) -> None:
    report = judge(text, rules=bundle_rules(), bridge=bridge, world_size=GPUS, form="yaml")
    assert {finding.rule for finding in report.at_least("corruption")} == set(finds.split())


def test_the_faulty_config_still_passes_upstream_once_only_the_error_is_fixed() -> None:
    bridge, _, text = next(config for config in CONFIGS if config[1])
    repaired = text.replace("model:\n", "model:\n  calculate_per_token_loss: true\n")
    report = judge(repaired, rules=bundle_rules(), bridge=bridge, world_size=GPUS, form="yaml")
    early = ("construct", "validate")
    assert [finding.rule for finding in report.at_least("corruption")] == ["offline-pad-multiple-covers-cp"]
    assert not [finding for finding in report.findings if finding.severity == "error" and finding.fires in early]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_complete_command_of_the_guide_runs(command: str) -> None:
    result = CliRunner().invoke(cli, shlex.split(command), standalone_mode=False)
    assert result.exception is None
    assert result.return_value in (0, 1)


def test_the_guide_has_complete_commands() -> None:
    assert len(COMMANDS) == 2
