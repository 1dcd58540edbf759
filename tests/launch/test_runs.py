"""Real runs: a packed fine-tuning with context parallelism 2 on the CPU worker, by command line and by MCP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

import skill_run
from skill_run.jobs.model import Job, State
from skill_run.jobs.service import Jobs
from skill_run.launch.options import LaunchOptions
from skill_run.launch.places import saved_step
from skill_run.launch.plan import Inputs, make_preview
from skill_run.rules.validate import read_sources
from skill_run.verify.evidence import verify_job
from skill_run.worker.environments import Worker

from .conftest import CONFIG, RECIPE

PACKAGES = str(Path(skill_run.__file__).parents[1])
CONFIG_ONE_TP = CONFIG.replace("  tensor_model_parallel_size: 2\n  sequence_parallel: true\n", "")
CHECKS = ["job", "captured batches", "alignment", "tokens", "loss"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, bridge_worker: Worker) -> Iterator[Path]:
    """A folder with the config, and a state folder that the processes of these tests share."""
    folder = tmp_path_factory.mktemp("launch")
    (folder / "config.yaml").write_text(CONFIG_ONE_TP, "utf-8")
    workers = folder / "workers" / bridge_worker.name
    workers.mkdir(parents=True)
    (workers / "worker.json").write_text(json.dumps(bridge_worker.to_dict()), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKILL_RUN_STATE", str(folder / "state"))
        patch.setenv("SKILL_RUN_WORKERS", str(folder / "workers"))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [PACKAGES, os.environ.get("PYTHONPATH")])))
        yield folder


def skill_run_says(home: Path, *words: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "skill_run.cli", *words]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=600, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_command_line_shows_a_plan_runs_it_to_the_end_and_verifies_it(home: Path) -> None:
    words = ("launch", "config.yaml", "--recipe", RECIPE, "--cpu", "--iters", "4", "--yes", "--follow")
    code, said = skill_run_says(home, *words)
    assert code == 0, said
    assert [line.split(":")[0] for line in said.splitlines() if line.startswith("step ")] == [
        f"step {number}" for number in range(1, 5)
    ]
    job = Jobs().list()[0]
    assert job.state is State.SUCCEEDED
    code, said = skill_run_says(home, "verify", "--job", job.id, "--format", "json")
    told = json.loads(said)
    assert (code, told["passed"]) == (0, True), said
    assert [check["name"] for check in told["checks"]] == CHECKS
    assert "those of its captured batches" in told["checks"][3]["detail"]
    _a_fault_in_the_evidence_is_found(job)


def _a_fault_in_the_evidence_is_found(job: Job) -> None:
    """Spoil what the run wrote down, one thing at a time; the batches are away, as reading them takes long."""
    folder = Path(job.plan.folder)
    (folder / "capture").rename(folder / "captured")
    lines = (folder / "metrics.jsonl").read_text("ascii").splitlines()
    first, last = json.loads(lines[0]), json.loads(lines[-1])
    assert first["tokens"] < first["padded_tokens"]
    spoilt = {
        "tokens": [json.dumps({**first, "tokens": first["padded_tokens"] + 1}), *lines[1:]],
        "job": lines[:-1],
        "loss": [*lines[:-1], json.dumps({**last, "loss": float("nan")})],
    }
    for check, text in spoilt.items():
        (folder / "metrics.jsonl").write_text("\n".join(text) + "\n", "ascii")
        bad = [result.name for result in verify_job(job.id) if not result.passed]
        assert set(bad) == {"captured batches", check}
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n", "ascii")
    evidence = json.loads((folder / "evidence.json").read_text("ascii"))
    (folder / "evidence.json").write_text(json.dumps({**evidence, "pad_seq_to_mult": 2}), "ascii")
    bad = [result.name for result in verify_job(job.id) if not result.passed]
    assert bad == ["captured batches", "alignment"]


@pytest.mark.anyio
async def test_an_assistant_previews_confirms_and_follows_a_job_over_mcp(home: Path) -> None:
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "skill_run.mcp_server", "--root", str(home)], env=dict(os.environ)
    )
    steps: list[str] = []

    async def heard(done: float, total: float | None, text: str | None) -> None:
        steps.append(text or "")

    async with Client(server) as client:

        async def call(tool: str, **arguments: Any) -> dict[str, Any]:
            answer = await client.call_tool(tool, arguments, progress_callback=heard)
            assert not answer.is_error, answer.content
            assert answer.structured_content is not None
            return dict(answer.structured_content)

        async def refused(tool: str, **arguments: Any) -> str:
            answer = await client.call_tool(tool, arguments)
            assert answer.is_error
            return str(answer.content[0].text)  # type: ignore[union-attr]

        asked = {"config_path": "config.yaml", "recipe": RECIPE, "cpu": True, "iters": 3, "launcher": "torchrun"}
        preview = await call("launch_training", **asked)
        assert preview["state"] == "previewed"
        assert "validating the config" in steps
        assert any("torch.distributed.run" in command for command in preview["commands"])
        token = preview["confirm_token"]
        assert "preview again" in await refused("launch_training", confirm_token=token, iters=5)
        assert "does not belong" in await refused("launch_training", confirm_token=token[:-1] + "x")
        assert (await call("get_job", job=preview["job"]))["state"] == "previewed"
        started = await call("launch_training", confirm_token=token)
        assert started["state"] in ("queued", "running")
        assert "was started before" in await refused("launch_training", confirm_token=token)
        while (job := await call("get_job", job=preview["job"], wait_seconds=60, log_lines=5))["state"] == "running":
            pass
        assert (job["state"], job["exit_code"]) == ("succeeded", 0), job
        assert job["metrics"]["step"] == 3
        assert len(job["log"]) == 5
        assert any("loss" in text for text in steps)
        listed = await call("list_jobs", states=["succeeded"])
        assert preview["job"] in [entry["job"] for entry in listed["jobs"]]
    assert all(result.passed for result in verify_job(preview["job"]))


def test_a_stopped_job_saves_a_checkpoint_from_which_its_retry_goes_on(home: Path, bridge_worker: Worker) -> None:
    sources = read_sources(home / "config.yaml", recipe=RECIPE)
    options = LaunchOptions(device="cpu", iters=1000, capture=1)
    jobs = Jobs()
    job = jobs.create(make_preview(Inputs(sources, recipe=RECIPE), options).plan)
    first = _stopped_after_a_step(jobs, job)
    saved = saved_step(f"{first.plan.folder}/checkpoints")
    assert saved is not None
    assert saved >= 1
    second = _stopped_after_a_step(jobs, jobs.retry(job.id))
    lines = (Path(second.plan.folder) / "metrics.jsonl").read_text("ascii").splitlines()
    assert json.loads(lines[0])["step"] == saved + 1


def _stopped_after_a_step(jobs: Jobs, job: Job) -> Job:
    """Start a job, stop it when it has told a step, and return it ended."""
    jobs.start(job.id)
    while not (found := jobs.wait(job.id, seconds=0.5)).metrics:
        assert found.state in (State.QUEUED, State.RUNNING), found.reason
    jobs.stop(job.id, firm_after_seconds=120)
    ended = jobs.wait(job.id, seconds=180)
    assert ended.state is State.STOPPED, (ended.state, ended.reason)
    assert "by force" not in ended.reason
    return ended
