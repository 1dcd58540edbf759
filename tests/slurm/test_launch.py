"""A launch through a real Slurm: a packed training with context parallelism 2, one rank on each of two nodes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skill_run.jobs.model import Job, State
from skill_run.jobs.service import Jobs
from skill_run.launch.options import LaunchOptions
from skill_run.launch.places import saved_step
from skill_run.launch.plan import Inputs, make_preview
from skill_run.rules.validate import read_sources
from skill_run.verify.evidence import verify_job
from skill_run.worker.environments import Worker

RECIPE = "llama32_1b_sft_1gpu_h100_bf16_config"
OVERRIDES = (
    "model.context_parallel_size=2",
    "model.calculate_per_token_loss=true",
    "ddp.average_in_collective=false",
    "dataset.offline_packing_specs.pad_seq_to_mult=4",
)
MakeLaunch = Callable[..., Job]


@pytest.fixture
def launch(jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bridge_worker: Worker) -> MakeLaunch:
    """Return a function that previews a launch on two nodes and starts it."""
    monkeypatch.setenv("SKILL_RUN_STATE", str(tmp_path / "state"))
    folder = tmp_path / "workers" / bridge_worker.name
    folder.mkdir(parents=True)
    (folder / "worker.json").write_text(json.dumps(bridge_worker.to_dict()), "utf-8")
    monkeypatch.setenv("SKILL_RUN_WORKERS", str(tmp_path / "workers"))

    def start(**options: Any) -> Job:
        sources = read_sources(None, recipe=RECIPE, overrides=OVERRIDES)
        given = LaunchOptions(engine="slurm", device="cpu", nodes=2, time="00:10:00", **options)
        job = jobs.create(make_preview(Inputs(sources, recipe=RECIPE), given).plan)
        return jobs.start(job.id)

    return start


@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
def test_a_two_node_training_is_followed_to_its_end_and_verified(jobs: Jobs, launch: MakeLaunch, launcher: str) -> None:
    done = jobs.wait(launch(iters=3, launcher=launcher).id, seconds=500)
    log = (Path(done.plan.folder) / "job.log").read_text("utf-8")
    assert (done.state, done.exit_code) == (State.SUCCEEDED, 0), log[-3000:]
    assert done.plan.extra["arithmetic"][0] == "2 ranks = 2 nodes x 1, on CPUs"
    assert [(result.name, result.detail) for result in verify_job(done.id, jobs=jobs) if not result.passed] == []


def test_before_the_time_limit_a_checkpoint_is_saved_and_the_requeued_job_goes_on_from_it(
    jobs: Jobs, launch: MakeLaunch
) -> None:
    job = launch(iters=1000, requeue=True, capture=0)
    folder = Path(job.plan.folder)
    assert job.engine_id is not None
    number = str(job.engine_id["job"])
    while not jobs.wait(job.id, seconds=1.0).metrics:
        assert jobs.get(job.id).state in (State.QUEUED, State.RUNNING), (folder / "job.log").read_text("utf-8")[-3000:]
    # What Slurm itself sends the batch script before the limit.
    subprocess.run(["scancel", "--batch", "--signal=USR1", number], check=True)
    while (saved := saved_step(str(folder / "checkpoints"))) is None:
        jobs.wait(job.id, seconds=1.0)
    while _steps(folder)[-1] <= saved:
        assert jobs.wait(job.id, seconds=1.0).state in (State.QUEUED, State.RUNNING)
    assert saved + 1 in _steps(folder)
    assert _steps(folder).count(saved + 1) == 1
    jobs.stop(job.id, firm_after_seconds=120)
    assert jobs.wait(job.id, seconds=180).state is State.STOPPED


def _steps(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text("ascii").splitlines()]
