"""Forked ranks: results by rank, and what is said and ended when one fails, dies or hangs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from skill_run.errors import InputError
from skill_run.worker.environments import Worker
from skill_run.worker.session import WorkerFailure, run_task

ODD = Worker("odd", (sys.executable, str(Path(__file__).parents[1] / "odd_tasks.py")))


def run(rank_1: str, alive: Path, size: int = 3, **request: Any) -> dict[str, Any]:
    """Run ranks of which number 1 does what is asked; then no process may be left."""
    reader = os.open(alive, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return run_task(ODD, "odd", {"do": "ranks", "size": size, "rank_1": rank_1, "alive": str(alive), **request})
    finally:
        assert os.read(reader, 1) == b"", "a process is left"
        os.close(reader)


def test_each_rank_has_torchruns_variables_and_answers_in_its_place(alive: Path) -> None:
    found = run("alive", alive)
    assert found["results"] == [[rank, str(rank), "3", "127.0.0.1"] for rank in range(3)]
    assert found["told"] == [[rank, "started"] for rank in range(3)]


def test_a_rank_that_raises_is_named_and_the_others_are_ended(alive: Path) -> None:
    with pytest.raises(WorkerFailure, match=r"^rank 1 failed at odd_tasks\.py:\d+: ValueError: no good$") as caught:
        run("raise", alive)
    assert "Traceback" in caught.value.log


def test_a_refusal_of_a_rank_is_told_as_it_was_said(alive: Path) -> None:
    with pytest.raises(InputError, match=r"^the data is too short$"):
        run("refuse", alive)


def test_a_dead_rank_is_named_and_no_process_is_left(alive: Path) -> None:
    with pytest.raises(WorkerFailure, match=r"^rank 1 was killed by SIGKILL$"):
        run("kill", alive)


def test_a_rank_that_exits_without_a_result_is_named(alive: Path) -> None:
    with pytest.raises(WorkerFailure, match=r"^rank 1 ended with exit code 3 without a result$"):
        run("exit", alive)


def test_ranks_that_hang_are_ended(alive: Path) -> None:
    with pytest.raises(WorkerFailure, match="rank 0, 1, 2 did nothing for 1 seconds: the ranks hang and were ended"):
        run("hang", alive, silence=1.0)


def test_what_a_rank_leaves_running_is_ended_before_the_answer(alive: Path) -> None:
    found = run("leave", alive, size=2)
    assert found["results"][1] == 1
    assert found["children"] == 0
