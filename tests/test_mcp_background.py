"""Work of a tool in a thread of its own: started once, found again, its failure told."""

from __future__ import annotations

import threading

import pytest

from skill_run.errors import InputError
from skill_run.mcp_background import KEPT_JOBS, BackgroundJob, BackgroundJobs

SECONDS = 30


def jobs() -> BackgroundJobs[BackgroundJob]:
    return BackgroundJobs("packing", "pack", BackgroundJob)


def test_one_job_runs_at_a_time_and_is_found_by_its_id() -> None:
    held, go = jobs(), threading.Event()
    first = held.start(lambda job: go.wait(SECONDS) and None)
    assert first.running
    assert held.find(first.id) is first
    with pytest.raises(InputError, match=f"packing {first.id} is still running; ask for it with job={first.id}"):
        held.start(lambda job: None)
    go.set()
    assert first.ended.wait(SECONDS)
    assert held.start(lambda job: None).ended.wait(SECONDS)


def test_a_failure_is_kept_as_a_sentence() -> None:
    held = jobs()

    def refuse(job: BackgroundJob) -> None:
        raise InputError("there is no data")

    def crash(job: BackgroundJob) -> None:
        raise ValueError("a fault of ours")

    refused = held.start(refuse)
    assert refused.ended.wait(SECONDS)
    crashed = held.start(crash)
    assert crashed.ended.wait(SECONDS)
    assert (refused.error, crashed.error) == ("there is no data", "internal error (ValueError: a fault of ours)")


def test_only_the_last_jobs_are_kept() -> None:
    held = jobs()
    made = []
    for _ in range(KEPT_JOBS + 1):
        made.append(held.start(lambda job: None))
        assert made[-1].ended.wait(SECONDS)
    assert held.find(made[-1].id) is made[-1]
    with pytest.raises(InputError, match="no such packing in this server"):
        held.find(made[0].id)


def test_progress_is_taken_from_events_of_progress_alone() -> None:
    job = BackgroundJob("pack-1")
    job.take({"event": "progress", "text": "writing packs", "done": 3, "total": 9})
    job.take({"event": "started", "text": "x"})
    assert (job.doing, job.done, job.total) == ("writing packs", 3, 9)
