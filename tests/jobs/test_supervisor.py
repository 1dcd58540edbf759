"""The supervisor as a process of its own, and what it does with the processes of a job."""

from __future__ import annotations

import ast
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from skill_run.jobs import supervisor
from skill_run.jobs.folder import EXIT, LOG
from skill_run.jobs.model import Job, State, Variable
from skill_run.jobs.service import Jobs
from skill_run.jobs.supervisor import PROCESS

MakeJob = Callable[..., Job]
StartPython = Callable[..., Job]
ProcessesOf = Callable[[Job], list[int]]
READY = "import os, signal, subprocess, sys, time\ndef ready(): open('ready', 'w').close()\n"


def test_an_identity_is_of_one_process_only() -> None:
    own = supervisor.identity(os.getpid())
    assert own is not None
    assert supervisor.is_alive(own)
    assert not supervisor.is_alive({**own, "start": own["start"] - 1})
    assert not supervisor.is_alive({**own, "boot": "another"})
    assert not supervisor.is_alive(None)
    assert not supervisor.is_alive({"pid": os.getpid()})


def test_a_process_that_ended_and_was_not_waited_for_is_gone() -> None:
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    known = supervisor.identity(child.pid)
    assert supervisor.is_alive(known)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not supervisor.is_alive(known)
    child.communicate()


def test_a_process_whose_name_holds_brackets_and_spaces_is_read_right(tmp_path: Path) -> None:
    odd = tmp_path / "a) S (b"
    shutil.copy(shutil.which("cat") or "", odd)
    child = subprocess.Popen([odd], stdin=subprocess.PIPE)
    known = supervisor.identity(child.pid)
    assert known is not None
    assert known["start"] > 1000
    child.communicate()


def test_the_log_and_the_record_tell_how_a_command_ended(jobs: Jobs, make_job: MakeJob) -> None:
    job = make_job("sh", "-c", 'echo out; echo err >&2; printf "%s" "$GREETING"; exit 3', environment={
        "GREETING": Variable("a 'b' $(reboot)\n", "a greeting"),
    })  # fmt: skip
    jobs.start(job.id)
    done = jobs.wait(job.id, seconds=30)
    assert (done.state, done.exit_code, done.reason) == (State.FAILED, 3, "exit code 3")
    assert (Path(job.plan.folder) / LOG).read_text() == "out\nerr\na 'b' $(reboot)\n"
    record = json.loads((Path(job.plan.folder) / EXIT).read_text())
    assert (record["code"], record["signal"], record["stopped"]) == (3, None, False)


def test_a_command_that_is_killed_is_told_by_the_signals_name(jobs: Jobs, make_job: MakeJob) -> None:
    job = make_job("sh", "-c", "kill -SEGV $$")
    jobs.start(job.id)
    done = jobs.wait(job.id, seconds=30)
    assert (done.state, done.exit_code, done.reason) == (State.FAILED, 139, "killed by SIGSEGV")


def test_a_stop_lets_the_command_save_and_is_told_as_stopped(jobs: Jobs, start_python: StartPython) -> None:
    code = "def save(*_): open('saved', 'w').close(); sys.exit(0)\nsignal.signal(15, save); ready(); signal.pause()"
    job = start_python(READY + code)
    jobs.stop(job.id)
    done = jobs.wait(job.id, seconds=30)
    assert (done.state, done.exit_code, done.reason) == (State.STOPPED, 0, "stopped (exit code 0)")
    assert (Path(job.plan.folder) / "saved").exists()


def test_what_ignores_the_stop_is_killed_with_all_it_started(
    jobs: Jobs, start_python: StartPython, processes_of: ProcessesOf
) -> None:
    code = (
        "signal.signal(15, signal.SIG_IGN)\n"
        "subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "subprocess.Popen(['sh', '-c', 'trap \"\" TERM; sleep 1000 & sleep 1000'])\n"
        "ready(); signal.pause()"
    )
    job = start_python(READY + code)
    jobs.stop(job.id, firm_after_seconds=0.2)
    done = jobs.wait(job.id, seconds=30)
    assert (done.state, done.reason) == (State.STOPPED, "stopped (killed by SIGKILL, by force)")
    assert processes_of(job) == []


def test_ranks_get_the_signal_and_neither_their_launcher_nor_their_helpers(
    jobs: Jobs, start_python: StartPython
) -> None:
    """As torchrun: sessions of their own, LOCAL_RANK set; a helper of a rank that is signalled makes the rank fail."""
    rank = (
        "import signal, subprocess, sys\n"
        "helper = subprocess.Popen(['sleep', '1000'])\n"
        "def save(*_):\n"
        "    alive = helper.poll() is None\n"
        "    helper.kill(); helper.wait()\n"
        "    sys.exit(0 if alive else 7)\n"
        "signal.signal(15, save); print('up', flush=True); signal.pause()"
    )
    launcher = (
        "signal.signal(15, lambda *_: sys.exit(9))\n"
        f"ranks = [subprocess.Popen([sys.executable, '-uc', {rank!r}], env={{**os.environ, 'LOCAL_RANK': str(r)}},\n"
        "    start_new_session=True, stdout=subprocess.PIPE) for r in range(2)]\n"
        "[each.stdout.readline() for each in ranks]\n"
        "ready(); codes = [each.wait() for each in ranks]; print(codes)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {15}); sys.exit(sum(codes))"
    )
    job = start_python(READY + launcher)
    jobs.stop(job.id)
    done = jobs.wait(job.id, seconds=30)
    assert (Path(job.plan.folder) / LOG).read_text() == "[0, 0]\n"
    assert (done.state, done.exit_code) == (State.STOPPED, 0)


def test_a_launcher_that_starts_its_ranks_again_is_stopped_after_them(
    jobs: Jobs, start_python: StartPython, processes_of: ProcessesOf
) -> None:
    launcher = (
        "def one(): return subprocess.Popen(['sleep', '1000'], env={**os.environ, 'LOCAL_RANK': '0'})\n"
        "rank = one(); ready()\n"
        "while True: rank.wait(); rank = one()"
    )
    job = start_python(READY + launcher)
    jobs.stop(job.id)
    assert jobs.wait(job.id, seconds=30).state is State.STOPPED
    assert processes_of(job) == []


def test_what_a_finished_command_left_running_is_ended(
    jobs: Jobs, make_job: MakeJob, processes_of: ProcessesOf
) -> None:
    job = make_job("sh", "-c", "sleep 1000 & setsid sleep 1000 & exit 0")
    jobs.start(job.id)
    assert jobs.wait(job.id, seconds=30).state is State.SUCCEEDED
    assert processes_of(job) == []


def test_a_job_starts_with_default_signals_whatever_its_starter_ignores(jobs: Jobs, make_job: MakeJob) -> None:
    job = make_job("grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status")
    before = {each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, signal.SIGHUP)}
    try:
        jobs.start(job.id)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert jobs.wait(job.id, seconds=30).state is State.SUCCEEDED
    values = dict(line.split(":\t") for line in (Path(job.plan.folder) / LOG).read_text().splitlines())
    kept = 1 << (signal.SIGINT - 1) | 1 << (signal.SIGHUP - 1) | 1 << (signal.SIGTERM - 1)
    assert {name: int(value, 16) & kept for name, value in values.items()} == {"SigBlk": 0, "SigIgn": 0}


def test_the_record_is_written_on_a_disk_that_became_full(tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], check=False)
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        spec = {
            "job": "j", "command": ["sh", "-c", "cat /dev/zero > filler; exit 5"], "environment": dict(os.environ),
            "folder": str(place), "log": str(place / LOG), "exit": str(place / EXIT), "stop": str(place / "stop.json"),
        }  # fmt: skip
        words = [sys.executable, "-I", supervisor.__file__]
        done = subprocess.run(words, input=json.dumps(spec), capture_output=True, text=True, check=True)
        who = json.loads(done.stdout)["supervisor"]
        assert json.loads((place / PROCESS).read_text())["supervisor"] == who
        handle = None
        if supervisor.is_alive(who):
            handle = os.pidfd_open(who["pid"])
            select.select([handle], [], [], 30)
            os.close(handle)
        assert json.loads((place / EXIT).read_text())["code"] == 5
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_supervisor_runs_under_an_older_python_as_well() -> None:
    """Its source parses as Python 3.9: a training environment may be that old."""
    ast.parse(Path(supervisor.__file__).read_text(), feature_version=(3, 9))
