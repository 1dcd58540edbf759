"""`validate --ask-upstream`: the config at hand in the worker's own Megatron-Bridge, beside our verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skill_run.errors import EXIT_FINDINGS, EXIT_MISSING
from skill_run.rules.validate import build_config, bundle_rules, judge_sources, read_sources
from skill_run.worker.environments import FOLDER_ENVIRONMENT, WORKER_ENVIRONMENT, Worker
from skill_run.worker.oracle import UpstreamAnswer, ask_upstream

PARTIAL: dict[str, Any] = {
    "model": {"context_parallel_size": 2, "calculate_per_token_loss": False},
    "dataset": {
        "enable_offline_packing": True,
        "offline_packing_specs": {"packed_sequence_size": 4096, "pad_seq_to_mult": 4},
    },
    "train": {"micro_batch_size": 1},
}


def _ask(worker: Worker, source: Mapping[str, Any] | None, **settings: Any) -> UpstreamAnswer:
    sources = read_sources(source, bridge=settings.get("bridge"), recipe=settings.get("recipe"))
    report = judge_sources(sources, bundle_rules(), **settings)
    return ask_upstream(sources, build_config(sources, **settings), report, worker=worker)


def test_a_partial_config_is_filled_up_and_the_real_code_says_what_our_rule_says(bridge_worker: Worker) -> None:
    answer = _ask(bridge_worker, PARTIAL, bridge="0.6.2", world_size=8)
    assert (answer.outcome, answer.ours, answer.agrees) == ("raises", "raises", True)
    assert answer.message == "When finetuning with CP>1, calculate_per_token_loss must be True"
    assert answer.where.startswith("bridge/training/config.py:")
    assert "train.global_batch_size = 4" in answer.assumed


def test_a_recipe_that_upstream_ships_passes_in_both_verdicts(bridge_worker: Worker) -> None:
    answer = _ask(bridge_worker, None, recipe="llama32_1b_sft_config", bridge="0.6.2", world_size=8, env={})
    assert (answer.outcome, answer.agrees) == ("passes", True), answer.message
    assert answer.changed


def test_a_config_of_another_release_is_not_asked_and_the_answer_says_so() -> None:
    worker = Worker("cpu", ("/no/such/python",), {"megatron-bridge": "0.6.2"})
    answer = _ask(worker, PARTIAL, bridge="0.4.2", world_size=8)
    assert (answer.outcome, answer.agrees) == ("not-asked", None)
    assert "0.6.2" in answer.note
    assert "0.4.2" in answer.note


def test_a_config_whose_start_is_not_known_is_not_asked() -> None:
    worker = Worker("cpu", ("/no/such/python",), {"megatron-bridge": "0.6.2"})
    answer = _ask(worker, {"model": {"context_parallel_size": 2}}, recipe="no_such_recipe_config", bridge="0.6.2")
    assert answer.outcome == "not-asked"
    assert answer.note


def test_the_command_shows_both_verdicts_and_exits_by_its_own_findings(bridge_worker: Worker, tmp_path: Path) -> None:
    (tmp_path / bridge_worker.name).mkdir()
    (tmp_path / bridge_worker.name / "worker.json").write_text(json.dumps(bridge_worker.to_dict()))
    config = tmp_path / "config.json"
    config.write_text(json.dumps(PARTIAL))
    arguments = ["validate", str(config), "--bridge", "0.6.2", "-n", "8", "--ask-upstream", "--format", "json"]
    done = _run(arguments, tmp_path)
    assert done.returncode == EXIT_FINDINGS
    report = json.loads(done.stdout)
    assert report["upstream_validate"] == "raises"
    assert report["upstream"]["outcome"] == "raises"
    assert report["upstream"]["agrees"] is True


def test_without_a_worker_the_command_says_how_to_get_one(tmp_path: Path) -> None:
    done = _run(["validate", "train.micro_batch_size=1", "--ask-upstream"], tmp_path)
    assert done.returncode == EXIT_MISSING
    assert "skill-run worker setup cpu-0.6.2" in done.stderr


def _run(arguments: list[str], workers: Path) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != WORKER_ENVIRONMENT}
    return subprocess.run(
        [sys.executable, "-m", "skill_run.cli", *arguments],
        env={**kept, FOLDER_ENVIRONMENT: str(workers)},
        capture_output=True,
        text=True,
        check=False,
    )
