"""The engine against a real Slurm with two nodes."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from skill_run.errors import InputError, MissingError
from skill_run.jobs.engine import find_engine
from skill_run.jobs.folder import ENGINE, EXIT, write_record
from skill_run.jobs.model import Job, State, Variable
from skill_run.jobs.service import Jobs
from skill_run.jobs.store import FILE

MakeJob = Callable[..., Job]
RUNNING = frozenset({State.RUNNING, State.FAILED, State.SUCCEEDED, State.STOPPED})
# Tells that it is up, then waits; says what it got.
WAITS = "trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.1; done\n"
HOSTILE = 'it\'s "odd"\n$(touch pwned) `touch pwned` ;touch pwned; \u00fc JobState=COMPLETED'


def slurm(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def number_of(job: Job) -> str:
    assert job.engine_id is not None
    return str(job.engine_id["job"])


def started(jobs: Jobs, job: Job, fifo: str = "up") -> Job:
    """Start a job and return when its script writes into a pipe, so that it has begun for certain."""
    pipe = Path(job.plan.folder) / fifo
    os.mkfifo(pipe)
    jobs.start(job.id)
    pipe.read_text()
    return jobs.wait(job.id, seconds=60, states=RUNNING)


def log_of(job: Job) -> str:
    return (Path(job.plan.folder) / "job.log").read_text()


def test_a_job_on_two_nodes_is_followed_to_its_end(jobs: Jobs, make_job: MakeJob) -> None:
    script = "srun --label sh -c 'echo \"$SLURM_PROCID of $SLURM_NTASKS on $SLURMD_NODENAME: $GREETING\"'\n"
    job = make_job(script, "--nodes=2", "--ntasks-per-node=1", environment={"GREETING": Variable("hello", "test")})
    assert jobs.start(job.id).state in {State.QUEUED, State.RUNNING, State.SUCCEEDED}
    done = jobs.wait(job.id, seconds=60)
    assert (done.state, done.exit_code, done.reason) == (State.SUCCEEDED, 0, "")
    assert sorted(log_of(job).splitlines()) == ["0: 0 of 2 on n1: hello", "1: 1 of 2 on n2: hello"]
    assert done.started is not None
    assert done.ended is not None
    assert done.created[:19] <= done.started[:19] <= done.ended[:19]


def test_an_exit_code_is_told_with_slurms_reason(jobs: Jobs, make_job: MakeJob) -> None:
    job = make_job("exit 17\n", "--job-name=" + HOSTILE, name=HOSTILE)
    jobs.start(job.id)
    done = jobs.wait(job.id, seconds=60)
    assert (done.state, done.exit_code, done.reason) == (State.FAILED, 17, "Slurm: FAILED (NonZeroExitCode)")
    assert done.name == HOSTILE
    assert not list(Path(job.plan.folder).rglob("pwned"))


def test_a_folder_with_any_name_runs_and_nothing_of_it_is_executed(
    jobs: Jobs, make_job: MakeJob, tmp_path: Path
) -> None:
    folder = tmp_path / HOSTILE.replace("\n", " ")
    job = make_job("pwd\n", folder=str(folder))
    jobs.start(job.id)
    assert jobs.wait(job.id, seconds=60).state is State.SUCCEEDED
    assert (folder / "job.log").read_text() == f"{folder}\n"
    assert not list(tmp_path.rglob("pwned"))


def test_a_refusal_is_told_in_slurms_own_words(jobs: Jobs, make_job: MakeJob) -> None:
    job = make_job("true\n", "--partition=nope")
    with pytest.raises(InputError, match="invalid partition specified: nope"):
        jobs.start(job.id)
    found = jobs.get(job.id)
    assert found.state is State.FAILED
    assert "Batch job submission failed: Invalid partition name specified" in found.reason


def test_a_machine_without_slurm_is_told(jobs: Jobs, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job("true\n")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingError, match="sbatch is not on PATH"):
        jobs.start(job.id)


def test_a_stop_lets_the_ranks_save(jobs: Jobs, make_job: MakeJob) -> None:
    script = f"trap 'echo script got it' TERM\nsrun sh -c \"echo > up; {WAITS.strip()}\"\n"
    job = started(jobs, make_job(script))
    assert job.state is State.RUNNING
    jobs.stop(job.id, firm_after_seconds=60)
    done = jobs.wait(job.id, seconds=60)
    assert done.state is State.STOPPED
    assert "saved" in log_of(job).splitlines()
    assert "script got it" not in log_of(job)


def test_a_script_without_steps_gets_the_signal_itself(jobs: Jobs, make_job: MakeJob) -> None:
    job = started(jobs, make_job("trap 'echo saved; exit 0' TERM\necho > up\nwhile :; do sleep 0.1; done\n"))
    gate = threading.Barrier(2)

    def stop(_: int) -> None:
        gate.wait()
        jobs.stop(job.id, firm_after_seconds=60)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(stop, range(2)))
    done = jobs.wait(job.id, seconds=60)
    assert (done.state, done.exit_code) == (State.STOPPED, 0)
    assert log_of(job).count("saved") == 1


@pytest.mark.parametrize("grace", [60.0, 0.0])
def test_a_stop_that_comes_after_the_end_is_no_error(jobs: Jobs, make_job: MakeJob, grace: float) -> None:
    job = jobs.start(make_job("true\n").id)
    done = jobs.wait(job.id, seconds=60)
    assert done.engine_id is not None
    find_engine("slurm").stop(done.engine_id, Path(done.plan.folder), grace)
    assert jobs.get(job.id).state is State.SUCCEEDED


def test_what_ignores_a_stop_is_cancelled_after_the_grace(jobs: Jobs, make_job: MakeJob) -> None:
    job = started(jobs, make_job("srun sh -c \"trap '' TERM; echo > up; while :; do sleep 0.1; done\"\n"))
    jobs.stop(job.id, firm_after_seconds=0.5)
    done = jobs.wait(job.id, seconds=60)
    assert (done.state, done.reason) == (State.STOPPED, "stopped (Slurm: CANCELLED)")


def test_a_job_that_waits_is_cancelled_at_once(jobs: Jobs, make_job: MakeJob) -> None:
    job = make_job("true\n", "--begin=now+1hour")
    found = jobs.start(job.id)
    assert (found.state, found.reason) == (State.QUEUED, "Slurm: PENDING (BeginTime)")
    jobs.stop(job.id)
    assert jobs.wait(job.id, seconds=60).state is State.STOPPED


def test_a_job_that_somebody_cancelled_by_hand_is_told_as_stopped(jobs: Jobs, make_job: MakeJob) -> None:
    job = started(jobs, make_job("echo > up\nsleep 1000\n"))
    slurm("scancel", number_of(job))
    done = jobs.wait(job.id, seconds=60)
    assert (done.state, done.reason) == (State.STOPPED, "Slurm: CANCELLED")


def test_a_requeued_job_is_followed_through_its_second_run(jobs: Jobs, make_job: MakeJob) -> None:
    script = 'echo "run $SLURM_RESTART_COUNT"\n[ -n "$SLURM_RESTART_COUNT" ] && exit 0\necho > up\nsleep 1000\n'
    job = started(jobs, make_job(script, "--requeue"))
    slurm("scontrol", "requeue", number_of(job))
    waiting = jobs.wait(job.id, seconds=60, states={State.QUEUED})
    assert (waiting.state, waiting.reason) == (State.QUEUED, "Slurm: PENDING (BeginTime), requeued 1 times")
    # Slurm would wait two minutes; the node still tidies up, and needs a moment.
    slurm("scontrol", "update", f"jobid={number_of(job)}", "starttime=now+3")
    done = jobs.wait(job.id, seconds=60)
    assert (done.state, log_of(job).splitlines()[-1]) == (State.SUCCEEDED, "run 1")


def test_the_signal_before_the_time_limit_lets_the_script_save(jobs: Jobs, make_job: MakeJob) -> None:
    """Slurm sends it between the asked time and 60 s before the end, so a limit of a minute has it at once."""
    script = "trap 'echo saved; exit 0' TERM\necho > up\nwhile :; do sleep 0.1; done\n"
    job = started(jobs, make_job(script, "--time=1", "--signal=B:TERM@59"))
    done = jobs.wait(job.id, seconds=100)
    assert done.state is State.SUCCEEDED
    assert "saved" in log_of(job).splitlines()


def test_a_controller_that_is_down_leaves_the_job_as_it_was_with_a_note(
    cluster: Any, jobs: Jobs, make_job: MakeJob
) -> None:
    job = started(jobs, make_job("echo > up\nsleep 1000\n"))
    cluster.stop_controller()
    try:
        found = jobs.get(job.id)
    finally:
        cluster.start_controller()
    assert found.state is State.RUNNING
    assert "Unable to contact slurm controller" in found.note
    assert jobs.get(job.id).note == ""
    slurm("scancel", number_of(job))
    assert jobs.wait(job.id, seconds=60).state is State.STOPPED


def test_two_hundred_reads_at_once_ask_slurm_a_few_times(
    jobs: Jobs, make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: Any
) -> None:
    job = started(jobs, make_job("echo > up\nsleep 1000\n"))
    counting = tmp_path / "bin"
    counting.mkdir()
    real = slurm("which", "squeue").strip()
    (counting / "squeue").write_text(f'#!/bin/sh\necho >> "{tmp_path}/asked"\nexec {real} "$@"\n')
    (counting / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{counting}:{cluster.environment['PATH']}")
    gate = threading.Barrier(40)

    def read(number: int) -> State:
        if number < 40:
            gate.wait()
        return jobs.get(job.id).state

    with ThreadPoolExecutor(40) as pool:
        assert set(pool.map(read, range(200))) == {State.RUNNING}
    assert len((tmp_path / "asked").read_text().splitlines()) < 150
    jobs.stop(job.id, firm_after_seconds=0)
    assert jobs.wait(job.id, seconds=60).state is State.STOPPED


def test_a_start_that_was_cut_is_found_by_the_folder_it_was_submitted_from(jobs: Jobs, make_job: MakeJob) -> None:
    job = started(jobs, make_job("echo > up\nsleep 1000\n", name=HOSTILE))
    gone = {"starter": {"pid": 1, "start": 1, "boot": "x"}}
    write_record(Path(job.plan.folder) / ENGINE, {"engine_id": gone})
    jobs.store.change(job, state=State.QUEUED, engine_id=gone)
    found = jobs.get(job.id)
    assert (found.state, number_of(found)) == (State.RUNNING, number_of(job))
    jobs.stop(job.id, firm_after_seconds=0)
    assert jobs.wait(job.id, seconds=60).state is State.STOPPED


def test_jobs_are_found_again_when_the_store_is_lost(jobs: Jobs, make_job: MakeJob) -> None:
    job = make_job("exit 5\n")
    jobs.start(job.id)
    jobs.wait(job.id, seconds=60)
    for path in jobs.state_folder.glob(f"{FILE}*"):
        path.unlink()
    found = jobs.get(job.id)
    assert (found.state, found.exit_code) == (State.FAILED, 5)


@pytest.mark.parametrize(
    ("record", "state", "code"),
    [
        (None, State.LOST, None),
        ({"code": 0, "ended": "2026-01-01"}, State.SUCCEEDED, 0),
        ({"code": 9}, State.FAILED, 9),
    ],
)
def test_a_job_that_slurm_has_forgotten_is_told_by_its_own_record(
    jobs: Jobs, make_job: MakeJob, record: dict[str, Any] | None, state: State, code: int | None
) -> None:
    job = make_job("true\n")
    jobs.store.change(job, state=State.RUNNING, engine_id={"job": "999999", "cluster": None})
    if record is not None:
        write_record(Path(job.plan.folder) / EXIT, record)
    found = jobs.get(job.id)
    assert (found.state, found.exit_code) == (state, code)
