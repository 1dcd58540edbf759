"""Whole assistants with a scripted model: read the skill, validate a broken config, repair it, validate it again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))
from scripted_models import Call, Service, messages_service, responses_service

Run = Callable[..., subprocess.CompletedProcess[str]]
SKILL = "skill-run:packed-sequences-long-context"
OF_THE_SKILL = "no Megatron-Bridge release compares the pack"
REPAIR = "skill-run validate conf.yaml --bridge 0.6.2 --world-size 8 --fix --write"
ASKED = {"config_path": "conf.yaml", "bridge": "0.6.2", "world_size": 8}
BROKEN = """\
model: {context_parallel_size: 2, seq_length: 4096}
train: {micro_batch_size: 1, global_batch_size: 8}
dataset:
  seq_length: 4096
  enable_offline_packing: true
  # Too small for the context parallel size.
  offline_packing_specs: {packed_sequence_size: 4096, pad_seq_to_mult: 1}
  dataset_kwargs: {pad_to_max_length: true}
"""


@pytest.fixture
def broken(project: Path) -> Path:
    path = project / "conf.yaml"
    path.write_text(BROKEN, "utf-8")
    return path


def check_loop(reports: Sequence[dict[str, Any]], config: Path) -> None:
    """Check what the tool told the model before and after the repair, and what is in the file."""
    first, last = reports
    assert first["summary"]["corruption"] == 1
    assert "offline-pad-multiple-covers-cp" in [finding["rule"] for finding in first["findings"]]
    assert last["summary"]["corruption"] == last["summary"]["error"] == 0
    text = config.read_text("utf-8")
    assert yaml.safe_load(text)["dataset"]["offline_packing_specs"]["pad_seq_to_mult"] == 4
    assert "# Too small for the context parallel size." in text


def sent(service: Service) -> str:
    """Return everything that the assistant sent to the model."""
    return json.dumps(service.requests)


def test_claude_code_reads_the_skill_and_repairs_a_config(run: Run, bundle: Path, broken: Path) -> None:
    assert run("claude", "plugin", "marketplace", "add", str(bundle)).returncode == 0
    assert run("claude", "plugin", "install", "skill-run@skill-run").returncode == 0
    validate = "mcp__plugin_skill-run_skill-run__validate_config"
    steps = [Call("Skill", {"skill": SKILL}), Call(validate, ASKED), Call("Bash", {"command": REPAIR})]
    told: list[str] = []

    def script(results: Sequence[str]) -> Call | str:
        told[:] = results
        return [*steps, Call(validate, ASKED), "done"][len(results)]

    with messages_service(script) as service:
        address = f"http://127.0.0.1:{service.port}"
        allowed = f"Skill,{validate},Bash(skill-run validate:*)"
        options = ["--allowedTools", allowed, "--output-format", "json"]
        done = run(
            "claude", "-p", "check conf.yaml", *options, ANTHROPIC_BASE_URL=address, ANTHROPIC_API_KEY="none-is-needed"
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["result"] == "done"
    assert OF_THE_SKILL in sent(service)
    check_loop([json.loads(told[1]), json.loads(told[3])], broken)


def test_codex_reads_the_skill_and_repairs_a_config(run: Run, bundle: Path, broken: Path, home: Path) -> None:
    assert run("codex", "plugin", "marketplace", "add", str(bundle)).returncode == 0
    assert run("codex", "plugin", "add", "skill-run@skill-run").returncode == 0
    # Its login shell sets the path anew.
    (home / ".bash_profile").write_text(f'export PATH="{Path(sys.executable).parent}:$PATH"\n', "utf-8")
    validate = Call("validate_config", ASKED, "mcp__skill_run")

    def script(results: Sequence[str]) -> Call | str:
        return [validate, Call("exec_command", {"cmd": REPAIR}), validate, "done"][len(results)]

    with responses_service(script) as service:
        _use_service(home / ".codex" / "config.toml", service.port)
        done = run(
            "codex",
            "exec",
            "--json",
            "--skip-git-repo-check",
            "--dangerously-bypass-approvals-and-sandbox",
            f"use ${SKILL} to check conf.yaml",
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert OF_THE_SKILL in sent(service)
    calls = [json.loads(line).get("item", {}) for line in done.stdout.splitlines()]
    reports = [
        item["result"]["structured_content"]
        for item in calls
        if item.get("type") == "mcp_tool_call" and item["status"] == "completed"
    ]
    check_loop(reports, broken)


def _use_service(config: Path, port: int) -> None:
    """Make Codex ask the service; keys of the file's first table must come before its other tables."""
    provider = (
        f'[model_providers.scripted]\nname = "scripted"\nbase_url = "http://127.0.0.1:{port}/v1"\n'
        'wire_api = "responses"\nrequires_openai_auth = false\nsupports_websockets = false\n'
    )
    first = 'model = "scripted"\nmodel_provider = "scripted"\n'
    config.write_text(f"{first}{config.read_text('utf-8')}\n{provider}", "utf-8")
