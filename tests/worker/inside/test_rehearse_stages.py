"""How a failure inside upstream's code is told: in its own words, and where it has none in its own line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skill_run.worker.inside import rehearse_stages
from skill_run.worker.inside.errors import RefusedError
from skill_run.worker.inside.rehearse_stages import StageFailure, refuse_full_disk


def say_nothing() -> None:
    raise AssertionError


def compare_nothing(low: Any) -> bool:
    return bool(low >= 0.0)


def refuse() -> None:
    raise RefusedError("the data are empty")


def say_much() -> None:
    raise ValueError("one\n   two\t" + "x" * 2000)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (say_nothing, "AssertionError: raise AssertionError"),
        (
            lambda: compare_nothing(None),
            "TypeError: '>=' not supported between instances of 'NoneType' and 'float': return bool(low >= 0.0)",
        ),
        (refuse, "the data are empty"),
        (say_much, f"ValueError: one two {'x' * 1192}..."),
    ],
)
def test_an_error_is_one_sentence_that_names_something(call: Callable[[], Any], told: str) -> None:
    with pytest.raises((AssertionError, RefusedError, TypeError, ValueError)) as caught:
        call()
    failure = StageFailure.from_error("setup", caught.value)
    assert (failure.stage, str(failure)) == ("setup", told)


def test_a_full_disk_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_full_disk(str(tmp_path))
    # No disk has as much room.
    monkeypatch.setattr(rehearse_stages, "_ROOM", 2**80)
    with pytest.raises(RefusedError, match=f"^{tmp_path.parent} is full; make room there") as caught:
        refuse_full_disk(str(tmp_path))
    assert caught.value.kind == "missing"
