from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from skill_run.errors import InputError
from skill_run.jobs.model import ENDED, MOVES, Allowance, Job, Plan, State, Variable, check_id, may_move, new_id

PLAN = Plan(
    id="one",
    name="packed run\n$(reboot) 'x' \"y\" \u00fc \udc80",
    engine="slurm",
    command=("sbatch", "--time=1", "job.sbatch"),
    folder="/a b/one",
    files={"train.py": "print(1)\n"},
    environment={"CUDA_DEVICE_MAX_CONNECTIONS": Variable("1", "TP > 1 on Hopper")},
    allowed=(Allowance("offline-mbs-1", "ann", "2026-01-01T00:00:00+00:00"),),
    gpu_hours=1.5,
    extra={"partition": "batch"},
)


def test_a_plan_goes_to_json_and_back_as_it_was() -> None:
    assert Plan.from_dict(json.loads(json.dumps(PLAN.to_dict()))) == PLAN


def test_a_row_goes_to_ascii_and_back_without_the_text_of_files() -> None:
    job = Job(PLAN.without_files(), State.RUNNING, PLAN.digest(), "2026-01-01", {"job": 4}, version=7)
    body = job.body()
    assert body.isascii()
    assert "print(1)" not in body
    assert Job.from_body(body, 7) == job


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"command": ("sbatch", "--time=2", "job.sbatch")},
        {"files": {"train.py": "print(2)\n"}},
        {"environment": {"CUDA_DEVICE_MAX_CONNECTIONS": Variable("8", "TP > 1 on Hopper")}},
        {"allowed": ()},
    ],
)
def test_any_change_of_a_plan_changes_its_digest(change: dict[str, Any]) -> None:
    assert replace(PLAN, **change).digest() != PLAN.digest()


@pytest.mark.parametrize("text", ["", "../x", "a/b", "-x", ".x", "a b", "a\nb", "x" * 65, "$(x)"])
def test_an_id_that_is_no_plain_name_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="a job's id"):
        check_id(text)


def test_new_ids_differ_and_sort_by_time() -> None:
    ids = [new_id() for _ in range(50)]
    assert len(set(ids)) == 50
    assert [each[:15] for each in ids] == sorted(each[:15] for each in ids)


@pytest.mark.parametrize(
    "told",
    [
        None, [], "text", {}, {**PLAN.to_dict(), "command": "rm -rf"}, {**PLAN.to_dict(), "command": [1]},
        {**PLAN.to_dict(), "command": []}, {**PLAN.to_dict(), "environment": {"A": "b"}},
        {**PLAN.to_dict(), "environment": {"A=B": {"value": "c"}}}, {**PLAN.to_dict(), "id": "../../x"},
        {**PLAN.to_dict(), "command": ["a\0b"]}, {**PLAN.to_dict(), "files": {"x": None}},
    ],
)  # fmt: skip
def test_data_that_is_no_plan_is_refused_in_a_sentence(told: Any) -> None:
    with pytest.raises(InputError):
        Plan.from_dict(told)


def test_a_job_that_has_ended_goes_nowhere_and_a_lost_one_anywhere_but_back_to_its_preview() -> None:
    assert all(not MOVES[state] for state in ENDED)
    assert {after for after in State if may_move(State.LOST, after)} == set(State) - {State.PREVIEWED}
    assert may_move(State.RUNNING, State.QUEUED)
    assert not may_move(State.PREVIEWED, State.RUNNING)
