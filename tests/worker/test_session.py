"""What the tool makes of a worker's answers, failures, silence and death, and that nothing outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from held_pipes import is_closed

from skill_run.errors import EXIT_FINDINGS, EXIT_INPUT, EXIT_MISSING, InputError, MissingError
from skill_run.worker import session
from skill_run.worker.environments import Worker
from skill_run.worker.session import WorkerFailure, run_task

ODD = Worker("odd", (sys.executable, str(Path(__file__).with_name("odd_tasks.py"))))
KILLED_TOOL = """
import json, sys
from skill_run.worker.environments import Worker
from skill_run.worker.session import run_task
run_task(Worker("odd", tuple(json.loads(sys.argv[1]))), "odd", json.loads(sys.argv[2]))
"""


def ask(do: str, **request: Any) -> dict[str, Any]:
    return run_task(ODD, "odd", {"do": do, **request})


def test_a_task_gets_its_request_and_its_variables_and_answers() -> None:
    events: list[Any] = []
    found = run_task(ODD, "odd", {"do": "answer", "n": 7}, on_event=events.append, environment={"ODD": "yes"})
    assert found["request"] == {"do": "answer", "n": 7}
    assert (found["scratch"], found["variable"], found["number"]) == (True, "yes", None)
    assert events == [{"event": "progress", "text": "half", "done": 1, "total": 2}]


def test_what_programs_put_into_folders_of_their_own_goes_with_the_task() -> None:
    found = ask("answer")
    assert found["temporary"] == found["hub"] == found["folder"]
    assert not Path(found["folder"]).exists()


def test_a_release_that_is_set_outside_does_not_reach_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKILL_RUN_RELEASE", "/nowhere")
    assert ask("answer")["release"] is None


def test_an_answer_of_many_parts_is_put_together() -> None:
    assert len(ask("answer", text="x" * 3_000_000)["request"]["text"]) == 3_000_000


def test_python_settings_of_the_tool_do_not_reach_a_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert ask("answer")["python"] == []


def test_a_worker_that_gets_no_variables_is_sent_them() -> None:
    """As a container, which has neither the environment nor the folders of its client."""
    bare = Worker("bare", ("/usr/bin/env", "-i", *ODD.command))
    found = run_task(bare, "odd", {"do": "answer"}, environment={"ODD": "sent"})
    assert (found["variable"], found["scratch"]) == ("sent", True)


@pytest.mark.parametrize(
    ("kind", "error", "code"),
    [("input", InputError, EXIT_INPUT), ("missing", MissingError, EXIT_MISSING), ("failed", WorkerFailure, 1)],
)
def test_a_refusal_reaches_the_user_as_it_was_said(kind: str, error: type[Exception], code: int) -> None:
    with pytest.raises(error, match=f"^this is {kind}$") as caught:
        ask("refuse", kind=kind)
    assert getattr(caught.value, "exit_code", None) == code


def test_an_error_of_a_task_is_one_sentence_with_its_place() -> None:
    with pytest.raises(
        WorkerFailure, match=r"^the worker failed at odd_tasks\.py:\d+: ZeroDivisionError: by zero$"
    ) as caught:
        ask("fail")
    assert "Traceback" in caught.value.log
    assert caught.value.exit_code == EXIT_FINDINGS


def test_a_module_that_the_environment_lacks_is_named() -> None:
    with pytest.raises(MissingError, match="no module no_such_module"):
        ask("lack")


def test_a_worker_that_is_killed_is_told_with_its_last_words() -> None:
    with pytest.raises(WorkerFailure, match=r"ended by SIGKILL\); it said: about to die"):
        ask("die")


def test_a_worker_that_cannot_start_its_task_is_told_with_its_last_words() -> None:
    with pytest.raises(WorkerFailure, match=r"exit code 1\); it said: SystemExit|exit code 1\)") as caught:
        run_task(Worker("quits", (sys.executable, "-c", "raise SystemExit('gone')")), "odd", {})
    assert "gone" in str(caught.value)


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(MissingError, match="worker away cannot be started: /nowhere/python: No such file"):
        run_task(Worker("away", ("/nowhere/python",)), "odd", {})


def test_a_silent_worker_is_ended(alive: Path) -> None:
    reader = os.open(alive, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(WorkerFailure, match="was silent for 3 seconds and was ended"):
        run_task(ODD, "odd", {"do": "wait", "alive": str(alive)}, silence=3.0)
    assert is_closed(reader)


def test_a_worker_that_reads_nothing_does_not_hold_the_tool() -> None:
    deaf = Worker("deaf", (sys.executable, "-c", "import signal; signal.pause()"))
    with pytest.raises(WorkerFailure, match="worker deaf was silent for 1 seconds"):
        run_task(deaf, "odd", {"text": "x" * 2**20}, silence=1.0)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("[" * 100_000, "ended without an answer"),
        ('{"event": "result"}', "worker told sent no answer that can be read"),
        ('{"event": "result", "result": []}', "worker told sent no answer that can be read"),
    ],
)
def test_what_is_no_answer_is_told_in_one_sentence(tmp_path: Path, line: str, told: str) -> None:
    path = tmp_path / "line"
    path.write_text(line + "\n", "ascii")
    script = f"input(); print(open({str(path)!r}).read(), flush=True)"
    with pytest.raises(WorkerFailure, match=told):
        run_task(Worker("told", (sys.executable, "-c", script)), "odd", {})


def test_a_failure_on_a_full_disk_says_that_it_is_full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # No disk has as much room.
    monkeypatch.setattr(session, "_ROOM", 2**80)
    with pytest.raises(MissingError, match=rf"^{tmp_path} is full; make room there"):
        ask("fail")


def test_without_a_folder_for_temporary_files_that_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "away"))
    with pytest.raises(MissingError, match=r"^the folder for temporary files cannot be written"):
        ask("answer")


def test_what_a_task_leaves_running_is_ended_with_it(alive: Path) -> None:
    reader = os.open(alive, os.O_RDONLY | os.O_NONBLOCK)
    assert ask("leave", alive=str(alive)) == {"left": True}
    assert is_closed(reader)


@pytest.mark.parametrize("do", ["wait", "again"])
def test_a_worker_ends_and_clears_up_when_the_tool_is_killed(alive: Path, tmp_path: Path, do: str) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    request = json.dumps({"do": do, "alive": str(alive)})
    tool = subprocess.Popen(
        [sys.executable, "-c", KILLED_TOOL, json.dumps(ODD.command), request],
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    # Opening waits for the task, and reading waits for the end of the last process that can write.
    with open(alive, "rb") as stream:
        tool.send_signal(signal.SIGKILL)
        assert is_closed(stream.fileno())
    assert tool.wait() == -signal.SIGKILL
    assert list(temporary.iterdir()) == []
