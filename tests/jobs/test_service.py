"""Jobs from the making to the tidying, through every fault that the engine of this machine can have."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from skill_run.errors import InputError
from skill_run.jobs import supervisor
from skill_run.jobs.engine import starter
from skill_run.jobs.folder import ENGINE, EXIT, LOG, PLAN, write_record
from skill_run.jobs.model import Job, Plan, State
from skill_run.jobs.service import Jobs
from skill_run.jobs.store import FILE

MakeJob = Callable[..., Job]
StartPython = Callable[..., Job]
ProcessesOf = Callable[[Job], list[int]]
READY = "import os, signal, sys\ndef ready(): open('ready', 'w').close()\n"
RUNS = READY + "ready(); signal.pause()"
HOSTILE = 'it\'s "odd"\n$(touch pwned) `touch pwned` ;touch pwned;\t\u00fc\u4e2d\U0001f600 --x=1 \udcff'


def lose_the_store(jobs: Jobs) -> None:
    for path in jobs.state_folder.glob(f"{FILE}*"):
        path.unlink()


def end_by_force(known: dict[str, int]) -> None:
    """Kill a process and return when it is gone."""
    handle = os.pidfd_open(known["pid"])
    os.kill(known["pid"], signal.SIGKILL)
    select.select([handle], [], [], 30)
    os.close(handle)


def test_a_job_goes_from_its_preview_to_its_end(jobs: Jobs, make_job: MakeJob) -> None:
    job = make_job("sh", "-c", "cat sub/in.txt", files={"sub/in.txt": "given\n"})
    assert job.state is State.PREVIEWED
    assert not (Path(job.plan.folder) / "sub").exists()
    jobs.start(job.id)
    done = jobs.wait(job.id, seconds=30)
    assert (done.state, done.exit_code) == (State.SUCCEEDED, 0)
    assert (Path(job.plan.folder) / LOG).read_text() == "given\n"
    assert done.ended is not None
    assert done.started is not None
    assert done.created <= done.started <= done.ended
    assert [each.id for each in jobs.list()] == [job.id]


def test_fifty_starts_and_stops_leave_no_process_and_lose_no_row(
    jobs: Jobs, make_job: MakeJob, processes_of: ProcessesOf
) -> None:
    made = [make_job("sh", "-c", "sleep 1000 & sleep 1000") for _ in range(50)]

    def cycle(job: Job) -> State:
        jobs.start(job.id)
        jobs.stop(job.id, firm_after_seconds=20)
        return jobs.wait(job.id, seconds=60).state

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(cycle, made)) == {State.STOPPED}
    assert {job.id for job in jobs.list(limit=None)} == {job.id for job in made}
    assert [pid for job in made for pid in processes_of(job)] == []


def test_two_starts_at_once_start_one_job(jobs: Jobs, make_job: MakeJob) -> None:
    job = make_job("sh", "-c", "echo started")
    gate = threading.Barrier(2)

    def start(_: int) -> str:
        gate.wait()
        try:
            return str(jobs.start(job.id).id)
        except InputError as error:
            return str(error)

    with ThreadPoolExecutor(2) as pool:
        told = sorted(pool.map(start, range(2)), key=len)
    assert told[0] == job.id
    assert "started" in told[1]
    jobs.wait(job.id, seconds=30)
    assert (Path(job.plan.folder) / LOG).read_text() == "started\n"


def test_two_stops_at_once_are_one(jobs: Jobs, start_python: StartPython) -> None:
    code = (
        "asked = []\n"
        "def save(*_):\n"
        "    asked.append(1)\n"
        "    signal.setitimer(signal.ITIMER_REAL, 0.3)\n"
        "def end(*_):\n"
        "    print(len(asked)); sys.exit(0)\n"
        "signal.signal(signal.SIGALRM, end); signal.signal(15, save); ready()\n"
        "while True: signal.pause()"
    )
    job = start_python(READY + code)
    gate = threading.Barrier(2)

    def stop(_: int) -> State:
        gate.wait()
        return jobs.stop(job.id).state

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(stop, range(2)))
    done = jobs.wait(job.id, seconds=30)
    assert done.state is State.STOPPED
    assert (Path(job.plan.folder) / LOG).read_text() == "1\n"
    assert jobs.stop(job.id) == done


def test_a_second_stop_with_a_shorter_grace_counts(jobs: Jobs, start_python: StartPython) -> None:
    job = start_python(READY + "signal.signal(15, signal.SIG_IGN); ready()\nwhile True: signal.pause()")
    assert jobs.stop(job.id, firm_after_seconds=1000).state is State.RUNNING
    jobs.stop(job.id, firm_after_seconds=0)
    assert jobs.wait(job.id, seconds=30).reason == "stopped (killed by SIGKILL, by force)"


def test_a_job_goes_on_when_the_server_that_started_it_is_killed(jobs: Jobs, make_job: MakeJob) -> None:
    job = make_job(sys.executable, "-uc", READY + "ready(); sys.exit(len(open('go').read()))")
    for name in ("ready", "go"):
        os.mkfifo(Path(job.plan.folder) / name)
    code = (
        "import sys; from pathlib import Path; from skill_run.jobs.service import Jobs;"
        "Jobs(Path(sys.argv[1])).start(sys.argv[2]); print('started', flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", code, str(jobs.state_folder), job.id]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"started\n"
        (Path(job.plan.folder) / "ready").read_text()
        os.killpg(server.pid, signal.SIGKILL)
    again = Jobs(jobs.state_folder)
    assert again.get(job.id).state is State.RUNNING
    (Path(job.plan.folder) / "go").write_text("12345")
    assert again.wait(job.id, seconds=30).exit_code == 5


def test_a_job_outlives_the_session_of_its_starter(jobs: Jobs, start_python: StartPython) -> None:
    job = start_python(RUNS)
    assert job.engine_id is not None
    pids = [job.engine_id[who]["pid"] for who in ("supervisor", "command")]
    sessions = {os.getsid(pid) for pid in pids}
    assert len(sessions) == 2
    assert os.getsid(0) not in sessions


def test_a_start_that_was_cut_before_the_engine_took_the_job_is_told_as_failed(jobs: Jobs, make_job: MakeJob) -> None:
    job = make_job("true")
    gone = {"starter": {**starter()["starter"], "start": 1}}
    jobs.store.change(job, state=State.QUEUED, engine_id=gone)
    found = jobs.get(job.id)
    assert (found.state, found.reason) == (
        State.FAILED, "the process that was starting it was killed before the engine took the job",
    )  # fmt: skip


def test_a_start_that_was_cut_after_the_engine_took_the_job_is_found(jobs: Jobs, start_python: StartPython) -> None:
    job = start_python(RUNS)
    gone = {"starter": {**starter()["starter"], "start": 1}}
    write_record(Path(job.plan.folder) / ENGINE, {"engine_id": gone})
    jobs.store.change(job, state=State.QUEUED, engine_id=gone)
    found = jobs.get(job.id)
    assert (found.state, found.engine_id) == (State.RUNNING, job.engine_id)


def test_a_start_that_goes_on_is_queued(jobs: Jobs, make_job: MakeJob) -> None:
    job = make_job("true")
    jobs.store.change(job, state=State.QUEUED, engine_id=starter())
    assert jobs.get(job.id).state is State.QUEUED
    with pytest.raises(InputError, match="just being started"):
        jobs.stop(job.id)


def test_a_command_that_cannot_be_started_fails_with_the_systems_words(jobs: Jobs, make_job: MakeJob) -> None:
    job = make_job("/nowhere/torchrun")
    with pytest.raises(InputError, match="No such file or directory"):
        jobs.start(job.id)
    found = jobs.get(job.id)
    assert (found.state, found.reason) == (
        State.FAILED, "the command cannot be started: /nowhere/torchrun: No such file or directory",
    )  # fmt: skip
    lose_the_store(jobs)
    assert jobs.get(job.id).reason == found.reason


def test_a_pid_that_another_process_has_now_is_neither_taken_for_the_job_nor_signalled(
    jobs: Jobs, make_job: MakeJob
) -> None:
    job = make_job("true")
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other:
        known = supervisor.identity(other.pid)
        assert known is not None
        ours = {**known, "start": known["start"] - 100}
        engine_id = {"job": job.id, "host": os.uname().nodename, "supervisor": ours, "command": ours}
        jobs.store.change(job, state=State.RUNNING, engine_id=engine_id)
        found = jobs.get(job.id)
        assert found.state is State.LOST
        assert "its supervisor was killed" in found.reason
        assert jobs.stop(job.id).state is State.STOPPED
        assert other.poll() is None
        other.communicate()


def test_a_restart_of_the_machine_is_told(jobs: Jobs, make_job: MakeJob) -> None:
    job = make_job("true")
    known = {**(supervisor.identity(os.getpid()) or {}), "boot": "an earlier one"}
    engine_id = {"job": job.id, "host": os.uname().nodename, "supervisor": known, "command": known}
    jobs.store.change(job, state=State.RUNNING, engine_id=engine_id)
    found = jobs.get(job.id)
    assert (found.state, found.reason) == (
        State.LOST, "the machine was restarted while it ran, so how it ended is not known",
    )  # fmt: skip


def test_a_job_of_another_machine_stays_as_it_is_with_a_note(jobs: Jobs, make_job: MakeJob) -> None:
    job = make_job("true")
    known = {**(supervisor.identity(os.getpid()) or {}), "boot": "another"}
    jobs.store.change(
        job, state=State.RUNNING, engine_id={"job": job.id, "host": "far", "supervisor": known, "command": known}
    )
    found = jobs.get(job.id)
    assert (found.state, found.note) == (State.RUNNING, "it was started on far, and can be asked there only")
    with pytest.raises(InputError, match="stop it there"):
        jobs.stop(job.id)


def test_a_job_whose_supervisor_was_killed_still_runs_and_can_be_stopped(
    jobs: Jobs, start_python: StartPython, processes_of: ProcessesOf
) -> None:
    job = start_python(RUNS)
    assert job.engine_id is not None
    end_by_force(job.engine_id["supervisor"])
    found = jobs.get(job.id)
    assert found.state is State.RUNNING
    assert found.note == "its supervisor was killed; 1 of its processes still run, and jobs stop ends them"
    assert jobs.stop(job.id, firm_after_seconds=5).state is State.STOPPED
    assert processes_of(job) == []


def test_a_rank_that_is_killed_fails_the_job_through_its_launcher(jobs: Jobs, start_python: StartPython) -> None:
    launcher = (
        "import subprocess\n"
        "ranks = [subprocess.Popen(['sleep', '1000'], env={**os.environ, 'LOCAL_RANK': str(r)}) for r in range(2)]\n"
        "open('rank', 'w').write(str(ranks[1].pid)); ready()\n"
        "print('rank 1 ended with', ranks[1].wait(), flush=True); ranks[0].kill(); sys.exit(1)"
    )
    job = start_python(READY + launcher)
    os.kill(int((Path(job.plan.folder) / "rank").read_text()), signal.SIGKILL)
    done = jobs.wait(job.id, seconds=30)
    assert (done.state, done.exit_code) == (State.FAILED, 1)
    assert (Path(job.plan.folder) / LOG).read_text() == "rank 1 ended with -9\n"


def test_jobs_are_found_again_from_their_folders_when_the_store_is_corrupt(
    jobs: Jobs, make_job: MakeJob, start_python: StartPython
) -> None:
    previewed = make_job("true", name=HOSTILE)
    failed = make_job("sh", "-c", "exit 4")
    jobs.start(failed.id)
    jobs.wait(failed.id, seconds=30)
    running = start_python(RUNS)
    for path in jobs.state_folder.glob(f"{FILE}-*"):
        path.unlink()
    (jobs.state_folder / FILE).write_bytes(b"no database" * 1000)
    found = {job.id: job for job in jobs.list()}
    assert {each: job.state for each, job in found.items()} == {
        previewed.id: State.PREVIEWED, failed.id: State.FAILED, running.id: State.RUNNING,
    }  # fmt: skip
    assert found[previewed.id].name == HOSTILE
    assert found[failed.id].exit_code == 4
    jobs.start(previewed.id)
    assert jobs.wait(previewed.id, seconds=30).state is State.SUCCEEDED


def test_a_job_in_a_folder_elsewhere_is_found_again_too(jobs: Jobs, make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job("true", folder=str(tmp_path / f"a folder {HOSTILE[:20]}"))
    lose_the_store(jobs)
    assert jobs.get(job.id).plan.folder == job.plan.folder
    jobs.start(job.id)
    assert jobs.wait(job.id, seconds=30).state is State.SUCCEEDED


def test_names_arguments_and_paths_of_any_kind_arrive_as_they_are_and_nothing_is_run(
    jobs: Jobs, make_job: MakeJob, tmp_path: Path
) -> None:
    code = "import os, sys; open('told', 'wb').write(os.fsencode(sys.argv[1]) + os.fsencode(os.getcwd()))"
    folder = tmp_path / HOSTILE.replace("/", "|")
    job = make_job(sys.executable, "-c", code, HOSTILE, name=HOSTILE, folder=str(folder))
    jobs.start(job.id)
    assert jobs.wait(job.id, seconds=30).state is State.SUCCEEDED
    assert (folder / "told").read_bytes() == os.fsencode(HOSTILE) + os.fsencode(folder)
    assert jobs.get(job.id).name == HOSTILE
    assert not list(tmp_path.rglob("pwned"))


def test_two_hundred_reads_at_once_all_tell_the_same(jobs: Jobs, start_python: StartPython) -> None:
    job = start_python(RUNS)
    with ThreadPoolExecutor(40) as pool:
        states = list(pool.map(lambda _: jobs.get(job.id).state, range(200)))
    assert states == [State.RUNNING] * 200


def test_readers_while_a_job_ends_write_its_end_once(jobs: Jobs, make_job: MakeJob) -> None:
    job = make_job("sh", "-c", "read x < go; exit 6")
    os.mkfifo(Path(job.plan.folder) / "go")
    jobs.start(job.id)
    with ThreadPoolExecutor(20) as pool:
        waiting = [pool.submit(jobs.wait, job.id, seconds=30) for _ in range(20)]
        (Path(job.plan.folder) / "go").write_text("\n")
        ends = [each.result() for each in waiting]
    assert {(each.state, each.exit_code, each.version) for each in ends} == {(State.FAILED, 6, ends[0].version)}


def test_a_plan_that_was_changed_after_its_preview_is_not_started(jobs: Jobs, make_job: MakeJob) -> None:
    job = make_job("true")
    record = Path(job.plan.folder) / PLAN
    record.write_text(record.read_text().replace('"true"', '"false"'))
    with pytest.raises(InputError, match="was changed after its preview"):
        jobs.start(job.id)
    assert jobs.get(job.id).state is State.PREVIEWED


@pytest.mark.parametrize("name", ["../out", "/etc/x", "a/../../x", "plan.json", "exit.json", "", "."])
def test_a_file_that_leads_out_of_the_folder_or_is_ours_is_refused(jobs: Jobs, make_job: MakeJob, name: str) -> None:
    with pytest.raises(InputError, match="a plan cannot write a file"):
        make_job("true", files={name: "x"})
    assert jobs.list() == []


def test_a_job_is_found_by_the_beginning_of_its_id_or_by_its_name(jobs: Jobs, make_job: MakeJob) -> None:
    first, second = make_job("true", id="aaa-1", name="one"), make_job("true", id="aab-1", name="two")
    assert jobs.get("aaa").id == first.id
    assert jobs.get("two").id == second.id
    with pytest.raises(InputError, match="several jobs"):
        jobs.get("aa")
    for unknown in ("zzz", "", "%", "../x"):
        with pytest.raises(InputError, match="there is no job"):
            jobs.get(unknown)


def test_what_was_never_started_or_still_runs_is_refused_where_it_makes_no_sense(
    jobs: Jobs, make_job: MakeJob, start_python: StartPython
) -> None:
    with pytest.raises(InputError, match="was never started"):
        jobs.stop(make_job("true").id)
    job = start_python(RUNS)
    with pytest.raises(InputError, match="was started before and is running"):
        jobs.start(job.id)
    with pytest.raises(InputError, match="only a job that has ended"):
        jobs.retry(job.id)


def test_a_retry_is_the_same_plan_in_a_folder_of_its_own(jobs: Jobs, make_job: MakeJob) -> None:
    job_id = "old-1"
    old = str(jobs.new_folder(job_id))
    job = make_job("sh", "-c", "echo $0; exit 1", f"{old}/train.py", id=job_id, outputs={"save": f"{old}/checkpoints"})
    jobs.start(job.id)
    jobs.wait(job.id, seconds=30)
    again = jobs.retry(job.id)
    new = again.plan.folder
    assert again.state is State.PREVIEWED
    assert again.plan.command[-1] == f"{new}/train.py"
    assert again.plan.outputs == {"save": f"{new}/checkpoints"}
    assert again.plan.extra["retry_of"] == job.id
    assert again.plan.resumes_from is None


def test_a_retry_goes_on_from_the_checkpoints_unless_it_is_fresh(jobs: Jobs, make_job: MakeJob) -> None:
    job_id = "old-2"
    old = str(jobs.new_folder(job_id))
    job = make_job("sh", "-c", "mkdir -p checkpoints/iter_1; exit 1", f"{old}/checkpoints", f"{old}/x", id=job_id)
    jobs.start(job.id)
    jobs.wait(job.id, seconds=30)
    again = jobs.retry(job.id)
    assert again.plan.command[-2:] == (f"{old}/checkpoints", f"{again.plan.folder}/x")
    assert again.plan.resumes_from == f"{old}/checkpoints"
    fresh = jobs.retry(job.id, fresh=True)
    assert fresh.plan.command[-2:] == (f"{fresh.plan.folder}/checkpoints", f"{fresh.plan.folder}/x")
    assert fresh.plan.resumes_from is None


def test_tidying_removes_what_ended_and_keeps_checkpoints_and_what_runs(
    jobs: Jobs, make_job: MakeJob, start_python: StartPython, tmp_path: Path
) -> None:
    done, saved, elsewhere = (
        make_job("true"), make_job("sh", "-c", "mkdir -p checkpoints/iter_1"), make_job("true", folder=f"{tmp_path}/e"),
    )  # fmt: skip
    for job in (done, saved, elsewhere):
        jobs.start(job.id)
        jobs.wait(job.id, seconds=30)
    running = start_python(RUNS)
    assert jobs.tidy(older_than=timedelta(days=1)) == []
    would = jobs.tidy(older_than=timedelta(0))
    assert {each.id: each.kept_because for each in would} == {
        done.id: "", saved.id: "it has checkpoints", elsewhere.id: "",
    }  # fmt: skip
    assert len(jobs.list()) == 4
    jobs.tidy(older_than=timedelta(0), dry_run=False)
    assert {job.id for job in jobs.list()} == {saved.id, running.id}
    assert not Path(done.plan.folder).exists()
    assert not Path(elsewhere.plan.folder).exists()
    jobs.tidy(older_than=timedelta(0), dry_run=False, checkpoints=True)
    lose_the_store(jobs)
    assert {job.id for job in jobs.list()} == {running.id}


def test_a_folder_that_is_there_already_is_not_taken(jobs: Jobs, make_job: MakeJob, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is there already"):
        make_job("true", folder=str(tmp_path))
    with pytest.raises(InputError, match="an absolute path"):
        make_job("true", folder="relative")


def test_the_figures_of_a_running_job_are_its_newest(jobs: Jobs, start_python: StartPython) -> None:
    job = start_python(RUNS)
    with (Path(job.plan.folder) / "metrics.jsonl").open("w") as stream:
        for step in range(3):
            stream.write(json.dumps({"step": step, "loss": 2.0 - step}) + "\n")
            stream.flush()
            assert jobs.get(job.id).metrics == {"step": step, "loss": 2.0 - step}


def test_a_record_that_is_no_record_is_told_as_lost(jobs: Jobs, start_python: StartPython) -> None:
    job = start_python(RUNS)
    assert job.engine_id is not None
    (Path(job.plan.folder) / EXIT).write_text("[1, 2")
    assert jobs.get(job.id).state is State.RUNNING
    (Path(job.plan.folder) / EXIT).unlink()


def test_a_plan_for_an_unknown_engine_is_refused_at_its_start(jobs: Jobs, make_job: MakeJob) -> None:
    job = make_job("true", engine="pigeon")
    with pytest.raises(InputError, match="there is no engine 'pigeon'"):
        jobs.start(job.id)
    assert jobs.get(job.id).state is State.PREVIEWED


def test_plans_of_the_same_id_do_not_replace_each_other(jobs: Jobs, make_job: MakeJob) -> None:
    job = make_job("true")
    other = replace(job.plan, command=("false",))
    with pytest.raises(InputError, match="is there already"):
        jobs.create(Plan.from_dict(other.to_dict()))
    assert jobs.plan(job.id).command == ("true",)
