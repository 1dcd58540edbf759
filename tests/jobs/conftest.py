"""Jobs that are small real commands, in a state folder of their own, and a look at what they leave running."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from skill_run.jobs.local import _orphans
from skill_run.jobs.model import ENDED, Job, Plan, State, new_id
from skill_run.jobs.service import Jobs

MakeJob = Callable[..., Job]


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    """The jobs of a new state folder; what still runs at the end is stopped, and nothing may be left."""
    made = Jobs(tmp_path / "state")
    yield made
    for job in made.list(limit=None):
        # A note tells of one that only pretends to run elsewhere, a starter of one that never really began.
        if job.state not in (State.QUEUED, State.RUNNING) or job.note or "starter" in (job.engine_id or {}):
            continue
        made.stop(job.id, firm_after_seconds=0)
        assert made.wait(job.id, seconds=30).state in ENDED


@pytest.fixture
def make_job(jobs: Jobs) -> MakeJob:
    """Return a function that makes a job, not started, of a command and of other fields of a plan."""

    def make(*command: str, **fields: Any) -> Job:
        job_id = fields.pop("id", None) or new_id()
        folder = str(jobs.new_folder(job_id))
        plan = Plan(
            **{"name": "a job", "engine": "local", "folder": folder, **fields, "id": job_id, "command": command}
        )
        return jobs.create(plan)

    return make


@pytest.fixture
def start_python(jobs: Jobs, make_job: MakeJob) -> Callable[..., Job]:
    """Return a function that starts a job of some lines of Python and waits until the job says that it is ready."""

    def start(code: str, **fields: Any) -> Job:
        job = make_job(sys.executable, "-uc", code, **fields)
        ready = Path(job.plan.folder) / "ready"
        os.mkfifo(ready)
        job = jobs.start(job.id)
        with ready.open() as stream:
            stream.read()
        return job

    return start


@pytest.fixture
def processes_of() -> Callable[[Job], list[int]]:
    """Return a function that lists what was started for a job and still runs, whoever its parent is now."""
    return lambda job: list(_orphans(job.id))
