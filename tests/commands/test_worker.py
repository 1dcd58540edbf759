"""`skill-run worker` as real processes: exit codes, what goes where, and one sentence for each fault."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from skill_run.worker.environments import RECORD, Worker
from skill_run.worker.kinds import find_kind

# What the one who runs the tests may have set, and what the default worker has to install.
PACKAGES = len(next(iter(find_kind(None).locks.values())).pins)
UNSET = ("SKILL_RUN_WORKER", "PYTHONPATH")


@pytest.fixture
def workers(tmp_path: Path) -> Path:
    """The folder for workers, which is not there yet."""
    return tmp_path / "workers"


def run(workers: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key not in UNSET}
    environment["SKILL_RUN_WORKERS"] = str(workers)
    return subprocess.run(
        [sys.executable, "-m", "skill_run.cli", "worker", *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def add(workers: Path, name: str, command: list[str], *, built: bool) -> None:
    (workers / name).mkdir(parents=True)
    record = {"command": command, "versions": {"torch": "2.0", "megatron-core": "1.0"}, "built": built}
    (workers / name / RECORD).write_text(json.dumps(record), "utf-8")


def test_without_workers_the_list_says_what_can_be_built_and_what_it_costs(workers: Path) -> None:
    done = run(workers, "list")
    assert done.returncode == 0
    first, *available = done.stdout.splitlines()
    assert first == "no worker is ready"
    assert len(available) == 2
    assert "MB to download" in available[0]
    assert available[0].endswith("skill-run worker setup core-0.16.1")


def test_the_list_as_json_holds_workers_kinds_and_the_folder(workers: Path) -> None:
    add(workers, "mine", ["/x/python"], built=False)
    found = json.loads(run(workers, "list", "--format", "json").stdout)
    assert found["folder"] == str(workers)
    assert [one["name"] for one in found["workers"]] == ["mine"]
    assert [kind["name"] for kind in found["kinds"]] == ["core-0.16.1", "cpu-0.6.2"]
    assert found["kinds"][0]["torch"]["cpu"]["download_mb"] > 200


def test_a_list_of_workers_says_where_each_is_from(workers: Path) -> None:
    add(workers, "core-0.16.1", ["/x/python"], built=True)
    add(workers, "mine", ["docker", "run", "a\x1b[31mb"], built=False)
    lines = run(workers, "list").stdout.splitlines()
    assert lines[0] == "core-0.16.1: torch 2.0, megatron-core 1.0 (built here)"
    assert lines[1] == r"mine: torch 2.0, megatron-core 1.0 (registered: docker run a\x1b[31mb)"


def test_an_interpreter_is_registered_checked_and_removed(workers: Path, core_worker: Worker) -> None:
    (python,) = core_worker.command
    done = run(workers, "setup", "--python", python, "--name", "gpu")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("worker gpu is ready: torch 2.13.0")
    shown = run(workers, "check", "gpu")
    assert (shown.returncode, shown.stdout.splitlines()[0]) == (0, "gpu: ready")
    (report,) = json.loads(run(workers, "check", "--format", "json").stdout)
    assert report["worker"]["name"] == "gpu"
    assert report["abilities"]["rehearsal"]["can"] is False
    removed = run(workers, "remove", "gpu")
    assert removed.stdout == "worker gpu is no longer listed; its environment stays\n"
    assert Path(python).exists()


def test_a_worker_that_needs_repair_is_a_finding(workers: Path) -> None:
    add(workers, "bare", [sys.executable, "-S"], built=False)
    done = run(workers, "check", "bare")
    assert done.returncode == 1
    assert "error torch-broken: torch cannot be imported" in " ".join(done.stdout.split())


def test_a_worker_that_does_not_answer_is_a_finding_and_the_others_are_checked(workers: Path) -> None:
    add(workers, "away", ["/nowhere/python"], built=False)
    add(workers, "bare", [sys.executable, "-S"], built=False)
    done = run(workers, "check", "--format", "json")
    assert done.returncode == 1
    away, bare = json.loads(done.stdout)
    assert (away["found"], away["remarks"][0]["id"]) == ({}, "no-answer")
    assert "/nowhere/python: No such file" in away["remarks"][0]["message"]
    assert bare["remarks"][0]["id"] == "torch-broken"
    assert "error no-answer: worker away cannot be started" in run(workers, "check", "away").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("setup", "huge"), 2, "there is no kind of worker 'huge'"),
        (("setup", "--python", "/nowhere/python"), 2, "/nowhere/python is not a program that can be run"),
        (("setup", "--python", "a", "--command", "b"), 2, "give one of them"),
        (("setup", "cpu-0.6.2", "--python", "a"), 2, "so a kind has no meaning"),
        (("setup", "--command", "a", "--find-links", "x"), 2, "so --find-links has no meaning"),
        (("setup", "cpu-0.6.2", "--torch", "cpu"), 2, "cpu-0.6.2 has no lock for --torch cpu"),
        (("setup", "--name", "../up"), 2, "'../up' cannot be a worker's name"),
        (("setup", "--python", sys.executable), 3, "has no torch and no megatron-core"),
        (("check",), 3, "no worker is set up; skill-run worker setup makes one"),
        (("check", "no"), 2, "there is no worker 'no'"),
        (("remove", "no"), 2, "there is no worker 'no'"),
    ],
)
def test_a_fault_is_one_sentence_and_a_documented_code(
    workers: Path, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    done = run(workers, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not workers.exists() or [path.name for path in workers.iterdir() if not path.name.startswith(".")] == []


@pytest.mark.parametrize("option", ["--python", "--command"])
def test_an_empty_word_is_no_wish_for_a_download(workers: Path, option: str) -> None:
    done = run(workers, "setup", option, "")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "skill-run: --python and --command must name a program\n"


def test_without_the_files_a_set_up_says_what_to_do_in_plain_lines(workers: Path, tmp_path: Path) -> None:
    done = run(workers, "setup", "--torch", "cpu", "--no-index", "--find-links", str(tmp_path))
    assert (done.returncode, done.stdout) == (3, "")
    *steps, last = done.stderr.splitlines()
    assert "MB to download" in steps[0]
    assert any(line.startswith(f"making a virtual environment (0 of {PACKAGES} packages, 0 of ") for line in steps)
    assert last.startswith("skill-run: no package index or folder that pip knows has pip ")


def test_on_a_terminal_a_set_up_shows_a_bar(workers: Path, tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "skill_run.cli", "worker", "setup", "--no-index", "--find-links", str(tmp_path)],
        env={**os.environ, "SKILL_RUN_WORKERS": str(workers), "TERM": "xterm", "COLUMNS": "120"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=follower,
    )
    os.close(follower)
    shown = b""
    while part := _read(leader):
        shown += part
    os.close(leader)
    assert child.wait() == 3
    assert f"0/{PACKAGES} packages".encode() in shown
    assert b"MB" in shown


def _read(leader: int) -> bytes:
    try:
        return os.read(leader, 2**16)
    except OSError:
        # What Linux says when the last process that held the terminal is gone.
        return b""
