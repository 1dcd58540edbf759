"""`skill-run rehearse` as a real process: exit codes, what goes where, and one sentence for each fault."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from skill_run.worker.environments import RECORD, Worker

RECIPE = "llama32_1b_sft_1gpu_h100_bf16_config"
# What the one who runs the tests may have set.
UNSET = ("SKILL_RUN_WORKER", "PYTHONPATH")


@pytest.fixture
def no_workers(tmp_path: Path) -> Path:
    return tmp_path / "none"


@pytest.fixture
def workers(bridge_worker: Worker, tmp_path: Path) -> Path:
    """A folder with the worker that has Megatron-Bridge."""
    folder = tmp_path / "workers" / bridge_worker.name
    folder.mkdir(parents=True)
    (folder / RECORD).write_text(json.dumps(bridge_worker.to_dict()), encoding="utf-8")
    return folder.parent


@pytest.fixture
def claimed(tmp_path: Path) -> Path:
    """A folder with a worker whose interpreter is never started, for what is refused before."""
    folder = tmp_path / "claimed" / "cpu-0.6.2"
    folder.mkdir(parents=True)
    record = {"command": ["/nowhere/python"], "versions": {"megatron-bridge": "0.6.2"}, "built": True}
    (folder / RECORD).write_text(json.dumps(record), encoding="utf-8")
    return folder.parent


def run(workers: Path, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key not in UNSET}
    environment["SKILL_RUN_WORKERS"] = str(workers)
    return subprocess.run(
        [sys.executable, "-m", "skill_run.cli", "rehearse", *arguments],
        env=environment,
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_worker_the_way_to_one_is_told_with_exit_code_3(no_workers: Path) -> None:
    done = run(no_workers, "--recipe", RECIPE)
    assert done.returncode == 3
    assert done.stderr.startswith("skill-run: no worker with Megatron-Bridge is set up; skill-run worker setup")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere.yaml"], "nowhere.yaml is not there: no such config file"),
        ([], "nothing to validate"),
        (["--recipe", RECIPE, "--data", "nowhere"], "nowhere is not there: --data takes a folder with training.jsonl"),
        (["--recipe", RECIPE, "--data", ""], "--data is empty"),
        (["--recipe", RECIPE, "--data", "."], "has no training.jsonl"),
        (["--recipe", RECIPE, "--tokenizer", "."], "holds no tokenizer"),
        (["--recipe", RECIPE, "--iters", "0"], "the number of steps must be from 1 to"),
        (["--recipe", RECIPE, "--pack", "8"], "the longest pack must have from 64 to"),
        (["--recipe", RECIPE, "--worker", "other"], "there is no worker 'other'"),
        (["--recipe", "llama99_sft_config"], "has no recipe llama99_sft_config"),
        (["--recipe", "gemma2_2b_sft_1gpu_h100_bf16_config"], "give its folder with --model DIR"),
    ],
)
def test_wrong_input_is_one_sentence_with_exit_code_2(
    claimed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    done = run(claimed, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("option", "file"),
    [("--data", "training.jsonl"), ("--tokenizer", "tokenizer.json"), ("--model", "config.json")],
)
def test_a_report_never_replaces_what_is_read(claimed: Path, tmp_path: Path, option: str, file: str) -> None:
    path = tmp_path / file
    path.write_text("{}", "utf-8")
    done = run(claimed, "--recipe", RECIPE, option, str(tmp_path), "-o", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"({path}); name another file" in done.stderr
    assert path.read_text("utf-8") == "{}"


def test_a_worker_that_cannot_be_started_is_exit_code_3(claimed: Path) -> None:
    done = run(claimed, "--recipe", RECIPE)
    assert done.returncode == 3
    assert "worker cpu-0.6.2 cannot be started" in done.stderr


def test_a_malformed_line_is_named_by_its_number(workers: Path, tmp_path: Path) -> None:
    (tmp_path / "training.jsonl").write_text('{"input": "a", "output": "b"}\n{"input"\n', encoding="utf-8")
    done = run(workers, "--recipe", RECIPE, "--data", str(tmp_path))
    assert done.returncode == 2
    assert "training.jsonl line 2 is no JSON" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_rehearsal_from_standard_input_is_json_for_programs_and_text_for_people(
    workers: Path, tmp_path: Path
) -> None:
    config = f"recipe: {RECIPE}\ntrain:\n  train_iters: 20\n"
    out = tmp_path / "report.json"
    done = run(workers, "-", "--iters", "1", "--pack", "256", "--format", "json", "-o", str(out), given=config)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    report = json.loads(out.read_text("utf-8"))
    assert report["passed"] is True
    assert report["failed_stage"] is None
    assert [stage["stage"] for stage in report["stages"]][-1] == "resume"
    assert {change["kind"] for change in report["changes"]} >= {"size", "cpu", "precision", "run", "offline"}
    assert report["batch"]["path"] == "offline_packed"
    assert report["limits"]
