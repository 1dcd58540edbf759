"""One real Slurm of two nodes for all tests of this folder."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from skill_run.jobs.model import Job, Plan, new_id
from skill_run.jobs.service import Jobs


def load_local_slurm() -> Any:
    spec = importlib.util.spec_from_file_location("local_slurm", Path(__file__).with_name("local_slurm.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """A running cluster; the tests are skipped, with the reason, where none can be had."""
    module = load_local_slurm()
    try:
        running = module.LocalSlurm(nodes=2).__enter__()
    except module.CannotStartError as error:
        pytest.skip(f"no local Slurm: {error}")
    yield running
    running.__exit__(None, None, None)
    left = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit() and belongs(entry, running)]
    assert left == []


def belongs(entry: Path, running: Any) -> bool:
    try:
        return str(running.folder).encode() in (entry / "environ").read_bytes() and int(entry.name) != os.getpid()
    except OSError:
        return False


@pytest.fixture
def jobs(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    """Jobs of a new state folder, on the cluster."""
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    return Jobs(tmp_path / "state")


@pytest.fixture
def make_job(jobs: Jobs) -> Callable[..., Job]:
    """Return a function that makes a job, not started, of an sbatch script and options."""

    def make(script: str, *options: str, **fields: Any) -> Job:
        job_id = new_id()
        given = {"name": "a job", "folder": str(jobs.new_folder(job_id)), **fields}
        text = "#!/bin/bash\n" + script
        command = ("sbatch", "--output=job.log", "--open-mode=append", *options, "job.sbatch")
        return jobs.create(Plan(id=job_id, engine="slurm", command=command, files={"job.sbatch": text}, **given))

    return make
