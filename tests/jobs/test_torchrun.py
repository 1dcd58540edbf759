"""The real torchrun with two ranks, on the worker's torch."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from skill_run.jobs.model import Job, State, Variable
from skill_run.jobs.service import Jobs
from skill_run.worker.environments import Worker

RANK = """\
import os, signal, sys, time
import torch
import torch.distributed as dist

asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
with open(f"up{rank}", "w") as stream:
    stream.write(str(os.getpid()))
while True:
    said = torch.tensor([len(asked)])
    dist.all_reduce(said)
    if said.item():
        break
    time.sleep(0.02)
with open(f"saved{rank}", "w") as stream:
    stream.write(str(len(asked)))
dist.destroy_process_group()
"""


@pytest.fixture
def running(jobs: Jobs, make_job: Callable[..., Job], core_worker: Worker) -> tuple[Job, list[int]]:
    """A running job and the pids of its two ranks."""
    words = (*core_worker.command, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "rank.py")
    job = make_job(*words, files={"rank.py": RANK}, world_size=2, environment={"OMP_NUM_THREADS": Variable("1")})
    places = [Path(job.plan.folder) / f"up{rank}" for rank in range(2)]
    for place in places:
        os.mkfifo(place)
    job = jobs.start(job.id)
    return job, [int(place.read_text()) for place in places]


def test_a_stop_lets_both_ranks_save_once_and_torchrun_end_clean(jobs: Jobs, running: tuple[Job, list[int]]) -> None:
    job, _ = running
    jobs.stop(job.id)
    done = jobs.wait(job.id, seconds=60)
    assert (done.state, done.exit_code, done.reason) == (State.STOPPED, 0, "stopped (exit code 0)")
    assert [(Path(job.plan.folder) / f"saved{rank}").read_text() for rank in range(2)] == ["1", "1"]


def test_a_rank_that_is_killed_is_named_and_nothing_is_left(
    jobs: Jobs, running: tuple[Job, list[int]], processes_of: Callable[[Job], list[int]]
) -> None:
    job, pids = running
    os.kill(pids[1], signal.SIGKILL)
    done = jobs.wait(job.id, seconds=60)
    assert (done.state, done.exit_code) == (State.FAILED, 1)
    found = jobs.diagnose(job.id)
    assert found is not None
    assert (found.signature, found.rank) == ("exit-signal-9", 1)
    assert processes_of(job) == []
