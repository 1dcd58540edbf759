"""What only a Slurm with accounting shows; everything else is in tests/slurm, against a real one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from skill_run.jobs.folder import STOP, write_record
from skill_run.jobs.model import Job, State
from skill_run.jobs.service import Jobs

MakeJob = Callable[..., Job]


@pytest.fixture
def accounting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that sets what sacct prints about a job that squeue no longer knows."""
    place = tmp_path / "bin"
    place.mkdir()

    def say(line: str) -> None:
        for name, printed in (("squeue", ""), ("sacct", line)):
            (place / name).write_text(f"#!/bin/sh\nprintf '%s\\n' '{printed}'\n")
            (place / name).chmod(0o755)

    monkeypatch.setenv("PATH", str(place))
    return say


@pytest.mark.parametrize(
    ("line", "state", "code", "reason"),
    [
        ("COMPLETED|0:0|2026-01-01T00:00:00|2026-01-01T01:00:00", State.SUCCEEDED, 0, ""),
        ("FAILED|3:0|2026-01-01T00:00:00|2026-01-01T01:00:00", State.FAILED, 3, "Slurm: FAILED"),
        ("CANCELLED by 1000|0:15|2026-01-01T00:00:00|2026-01-01T01:00:00", State.STOPPED, 143, "Slurm: CANCELLED"),
        ("TIMEOUT|0:0|2026-01-01T00:00:00|2026-01-01T01:00:00", State.FAILED, 0, "Slurm: TIMEOUT"),
        ("OUT_OF_MEMORY|0:125|2026-01-01T00:00:00|Unknown", State.FAILED, 253, "Slurm: OUT_OF_MEMORY"),
        ("", State.LOST, None, "Slurm no longer knows job 7, and the job left no record of its end"),
        ("no|sense", State.LOST, None, "Slurm no longer knows job 7, and the job left no record of its end"),
    ],
)
def test_a_job_that_slurm_has_forgotten_is_told_by_the_accounting(
    jobs: Jobs,
    make_job: MakeJob,
    accounting: Callable[[str], None],
    line: str,
    state: State,
    code: int | None,
    reason: str,
) -> None:
    accounting(line)
    job = make_job("sbatch", "job.sbatch", engine="slurm")
    jobs.store.change(job, state=State.RUNNING, engine_id={"job": "7", "cluster": None})
    found = jobs.get(job.id)
    assert (found.state, found.exit_code, found.reason) == (state, code, reason)


def test_a_job_that_saved_and_left_after_a_stop_is_stopped_by_the_accounting_too(
    jobs: Jobs, make_job: MakeJob, accounting: Callable[[str], None]
) -> None:
    accounting("COMPLETED|0:0|2026-01-01T00:00:00|2026-01-01T01:00:00")
    job = make_job("sbatch", "job.sbatch", engine="slurm")
    write_record(Path(job.plan.folder) / STOP, {"asked": "2026-01-01T00:30:00+00:00", "firm_after_seconds": 60})
    jobs.store.change(job, state=State.RUNNING, engine_id={"job": "7", "cluster": None})
    found = jobs.get(job.id)
    assert (found.state, found.exit_code, found.ended) == (State.STOPPED, 0, "2026-01-01T01:00:00+00:00")
