"""Which workers are listed, and which of them is taken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skill_run.errors import InputError, MissingError
from skill_run.worker.environments import RECORD, WORKER_ENVIRONMENT, find_worker, list_workers, workers_folder


def add(workers: Path, name: str, core: str, bridge: str | None = None, *, built: bool = True) -> None:
    versions = {"torch": "2.0", "megatron-core": core, **({"megatron-bridge": bridge} if bridge else {})}
    write(workers, name, {"command": ["/bin/python"], "versions": versions, "built": built})


def write(workers: Path, name: str, record: Any) -> None:
    (workers / name).mkdir(parents=True)
    (workers / name / RECORD).write_text(record if isinstance(record, str) else json.dumps(record), "utf-8")


def test_a_worker_says_what_it_holds(workers: Path) -> None:
    add(workers, "one", "0.19.2", "0.6.2")
    (worker,) = list_workers()
    assert (worker.name, worker.core, worker.bridge) == ("one", "0.19.2", "0.6.2")
    assert worker.to_dict()["command"] == ["/bin/python"]


@pytest.mark.parametrize(
    "record",
    [
        "",
        "[1]",
        "null",
        "{",
        "[" * 100_000,
        '{"command": [], "built": true}',
        '{"command": [], "versions": {}, "built": true}',
        '{"command": 1, "versions": {}, "built": true}',
        '{"command": "python", "versions": {}, "built": true}',
        '{"command": ["py\\u0000thon"], "versions": {}, "built": true}',
        '{"command": ["python", 1], "versions": {}, "built": true}',
    ],
)
def test_a_record_that_is_cut_or_is_none_lists_nothing(workers: Path, record: str) -> None:
    write(workers, "bad", record)
    (workers / "unfinished").mkdir()
    (workers / "a file").write_text("", "utf-8")
    assert list_workers() == []


def test_without_a_folder_there_is_no_worker(workers: Path) -> None:
    assert list_workers() == []
    with pytest.raises(MissingError, match=r"^no worker is set up; skill-run worker setup makes one$"):
        find_worker()
    with pytest.raises(MissingError, match=r"^no worker with Megatron-Bridge .* setup cpu-0\.6\.2 makes one$"):
        find_worker(bridge=True)


def test_one_that_was_built_here_comes_first_and_then_the_newest(workers: Path) -> None:
    add(workers, "theirs", "0.20.0", "0.7.0", built=False)
    add(workers, "old", "0.9.0")
    add(workers, "new", "0.16.1")
    assert find_worker().name == "new"
    assert find_worker(bridge=True).name == "theirs"


def test_a_worker_is_found_by_its_name_or_by_the_variable(workers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(workers, "one", "0.9.0")
    add(workers, "two", "0.16.1")
    assert find_worker("one").name == "one"
    monkeypatch.setenv(WORKER_ENVIRONMENT, "one")
    assert find_worker().name == "one"
    assert find_worker("two").name == "two"
    with pytest.raises(InputError, match="there is no worker 'three'"):
        find_worker("three")


def test_a_named_worker_without_bridge_does_not_stand_in_for_one_with_it(workers: Path) -> None:
    add(workers, "one", "0.16.1")
    with pytest.raises(MissingError, match=r"^worker one has no Megatron-Bridge; "):
        find_worker("one", bridge=True)


def test_workers_lie_in_the_users_data_folder(workers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert workers_folder() == workers
    monkeypatch.delenv("SKILL_RUN_WORKERS")
    monkeypatch.setenv("XDG_DATA_HOME", "/data/home")
    assert workers_folder() == Path("/data/home/skill-run/workers")
