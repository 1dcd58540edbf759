"""`skill-run jobs` as real processes: what it prints, its exit codes, and that no text of a job harms a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from skill_run.commands.watch import sparkline
from skill_run.jobs.model import Job, Plan, State, new_id
from skill_run.jobs.service import Jobs

HOSTILE = 'it\'s "odd"\n$(touch pwned)\x1b[31m\u202e\u00fc\udcff'
OOM = (
    "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 1 has a total capacity of "
    "79.11 GiB of which 1.50 GiB is free."
)


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    """The jobs of a new state folder, all of them ended at the end."""
    made = Jobs(tmp_path / "state")
    yield made
    for job in made.list(states={State.RUNNING}):
        made.stop(job.id, firm_after_seconds=0)
        made.wait(job.id, seconds=30)


@pytest.fixture
def start(jobs: Jobs) -> Callable[..., Job]:
    """Return a function that starts a job of a shell script and, unless told otherwise, waits for its end."""

    def begin(script: str, *, wait: bool = True, metrics: str = "", **fields: Any) -> Job:
        job_id = new_id()
        given = {"name": "a job", "engine": "local", "folder": str(jobs.new_folder(job_id)), **fields}
        job = jobs.create(Plan(id=job_id, command=("sh", "-c", script), **given))
        if metrics:
            (Path(job.plan.folder) / "metrics.jsonl").write_text(metrics)
        job = jobs.start(job.id)
        return jobs.wait(job.id, seconds=30) if wait else job

    return begin


@pytest.fixture
def run(jobs: Jobs) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs `skill-run jobs` on that state folder."""

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "skill_run.cli", "jobs", *arguments],
            env={**os.environ, "SKILL_RUN_STATE": str(jobs.state_folder), "PYTHONUTF8": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    return call


Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., Job]


def test_an_empty_list_is_no_fault(run: Run) -> None:
    assert (run("list").stdout, run("list").returncode) == ("no jobs\n", 0)
    assert json.loads(run("list", "--format", "json").stdout) == []


def test_the_list_shows_state_figures_and_a_harmless_name(run: Run, start: Start) -> None:
    start("true", name=HOSTILE, metrics='{"step": 7, "loss": 1.25}\n')
    done = run("list")
    header, row = done.stdout.splitlines()
    assert header.split() == ["JOB", "STATE", "ENGINE", "STEP", "LOSS", "TIME", "NAME"]
    assert row.split()[1:5] == ["succeeded", "local", "7", "1.2500"]
    assert row.isprintable()
    (told,) = json.loads(run("list", "--format", "json").stdout)
    assert told["state"] == "succeeded"
    assert told["metrics"] == {"step": 7, "loss": 1.25}
    assert run("list", "--state", "failed").stdout == "no jobs\n"


def test_a_failed_job_is_shown_with_its_cause_and_fix(run: Run, start: Start) -> None:
    job = start(f"echo '{OOM}'; exit 1", world_size=2)
    done = run("show", job.id)
    assert done.returncode == 0
    text = " ".join(done.stdout.split())
    assert f"{job.id}: failed, exit code 1" in text
    assert "why: rank 1: GPU memory ran out: 20.00 GiB were asked for on GPU 1, which has 79.11 GiB." in text
    assert "fix: Raise context_parallel_size" in text
    told = json.loads(run("show", job.id, "--format", "json").stdout)
    assert (told["diagnosis"]["signature"], told["diagnosis"]["rank"]) == ("oom-cuda", 1)
    assert told["plan"]["command"][0] == "sh"


def test_the_loss_curve_is_drawn(run: Run, start: Start, tmp_path: Path) -> None:
    lines = [json.dumps({"step": step, "loss": 9.0 / step, "tokens_per_second": 100.0}) for step in range(1, 30)]
    job = start("true", name=HOSTILE, metrics="\n".join([*lines, '{"step": 30, "loss": NaN}', "torn {"]))
    done = run("show", job.id, "--plot", str(tmp_path / "loss.svg"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "tokens/s" in (tmp_path / "loss.svg").read_text()
    assert run("show", job.id, "--plot", str(tmp_path / "loss.png")).returncode == 0
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    refused = run("show", job.id, "--plot", str(tmp_path / "loss.txt"))
    assert refused.returncode == 2
    assert refused.stderr.endswith("must end in .png or .svg: a plot is written as one of these\n")


def test_logs_are_printable_and_as_long_as_asked(run: Run, start: Start) -> None:
    job = start(r"printf 'one\ntwo\033[31m red\007\nold progress\rnew progress\nlast'")
    assert run("logs", job.id).stdout == "one\ntwo red\\x07\nnew progress\nlast\n"
    assert run("logs", job.id, "-n", "2").stdout == "new progress\nlast\n"
    refused = run("logs", job.id, "--rank", "3")
    assert (refused.returncode, refused.stderr) == (2, "skill-run: there is no log of rank 3\n")


def test_following_the_log_goes_on_to_the_jobs_end(run: Run, start: Start, jobs: Jobs) -> None:
    job = start("mkfifo go; echo first; read x < go; echo second; printf third; exit 1", wait=False)
    go = Path(job.plan.folder) / "go"
    words = [sys.executable, "-m", "skill_run.cli", "jobs", "logs", "-f", job.id]
    environment = {**os.environ, "SKILL_RUN_STATE": str(jobs.state_folder), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        assert reader.stdout.readline() == "first\n"
        go.write_text("\n")
        assert reader.stdout.read() == "second\nthird\n"
        assert reader.stderr.read() == f"{job.id}: failed\n"
    assert reader.returncode == 1


def test_watching_tells_each_step_and_the_end(run: Run, start: Start) -> None:
    figures = {"step": 3, "loss": 2.5, "tokens": 75, "padded_tokens": 100, "tokens_per_second": 1234.5}
    job = start("exit 2", metrics=json.dumps(figures) + "\n")
    done = run("watch", job.id)
    assert (done.returncode, done.stdout) == (1, "failed, step 3, loss 2.5000, tokens/s 1,234, padding 25.0%\n")


def test_a_stop_waits_for_the_end_and_can_be_asked_again(run: Run, start: Start) -> None:
    job = start("sleep 1000", wait=False)
    done = run("stop", job.id)
    assert (done.returncode, done.stdout) == (0, f"{job.id}: stopped\n")
    assert run("stop", job.id).stdout == f"{job.id} had ended before: stopped\n"


def test_a_retry_is_shown_first_and_started_on_yes(run: Run, start: Start) -> None:
    job = start("exit 3")
    shown = run("retry", job.id)
    assert shown.returncode == 0
    new = shown.stdout.split(":")[0]
    assert f"retry of: {job.id}" in shown.stdout
    assert "not started" in shown.stdout
    assert run("start", new).returncode == 2
    assert run("start", new, "--yes").returncode == 0
    assert run("watch", new).returncode == 1
    started = json.loads(run("retry", job.id, "--yes", "--format", "json").stdout)
    assert started["state"] in ("queued", "running", "failed")


def test_tidying_lists_first_and_removes_on_yes(run: Run, start: Start) -> None:
    job = start("true")
    assert run("gc").stdout == "nothing to remove\n"
    assert run("gc", "--days", "0").stdout.splitlines()[-1] == "nothing was removed; add --yes"
    assert run("gc", "--days", "0", "--yes").stdout.startswith(f"{job.id}: removed")
    assert run("list").stdout == "no jobs\n"


@pytest.mark.parametrize("command", ["show", "logs", "stop", "watch", "retry"])
def test_a_job_that_is_not_there_is_one_sentence(run: Run, command: str) -> None:
    done = run(command, HOSTILE.replace("\udcff", ""))
    assert done.returncode == 2
    assert done.stderr.startswith("skill-run: there is no job")
    assert len(done.stderr.splitlines()) == 1
    assert "\x1b" not in done.stderr


def test_a_sparkline_rises_with_its_values() -> None:
    bars = sparkline([1.0, 2.0, float("nan"), 3.0])
    assert len(bars) == 4
    assert bars[2] == " "
    assert bars[0] < bars[1] < bars[3]
    assert sparkline([5.0, 5.0]) == sparkline([1.0, 1.0])
    assert sparkline([float("inf")]) == ""
