from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skill_run.worker.inside.errors import RefusedError
from skill_run.worker.inside.rehearse_data import MOST_SAMPLES, training_file, write_training_data

PAIRS = ("input", "output")
CHAT = ("messages",)


def written(tmp_path: Path, text: str | bytes | None, columns: tuple[str, ...] = PAIRS) -> dict[str, Any]:
    source = tmp_path / "given.jsonl"
    if text is not None:
        source.write_bytes(text.encode() if isinstance(text, str) else text)
    return write_training_data(source, columns, tmp_path / "data")


def test_samples_are_taken_as_they_are(tmp_path: Path) -> None:
    row = {"input": "a b", "output": "c", "more": [1]}
    held = written(tmp_path, json.dumps(row) + "\n\n")
    assert held == {"samples": 1, "cut": False, "made_up": False, "columns": ["input", "output"]}
    assert json.loads((tmp_path / "data" / "training.jsonl").read_text("utf-8")) == row


def test_only_the_first_samples_of_a_large_file_are_taken_and_that_is_told(tmp_path: Path) -> None:
    held = written(tmp_path, (json.dumps({"input": "a", "output": "b"}) + "\n") * (MOST_SAMPLES + 5))
    assert (held["samples"], held["cut"]) == (MOST_SAMPLES, True)


@pytest.mark.parametrize(
    ("text", "columns", "reason"),
    [
        ('{"input": "a", "output": "b"}\n{"input": \n', PAIRS, "line 2 is no JSON"),
        (b'{"input": "\xff", "output": "b"}\n', PAIRS, "line 1 is no JSON: not UTF-8"),
        ("[1]\n", PAIRS, "line 1 is no JSON object"),
        ('{"prompt": "a", "output": "b"}\n', PAIRS, "line 1 has no text under 'input'"),
        ('{"input": 3, "output": "b"}\n', PAIRS, "line 1 has no text under 'input'"),
        ('{"messages": "a"}\n', CHAT, "line 1 has no list under messages"),
        ("\n \n", PAIRS, "is empty: there is nothing to train on"),
        (None, PAIRS, "is not there; the data folder must hold training.jsonl"),
    ],
)
def test_data_that_cannot_be_read_are_one_sentence_with_the_line(
    tmp_path: Path, text: str | bytes | None, columns: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(RefusedError, match=r"given\.jsonl") as caught:
        written(tmp_path, text, columns)
    assert reason in str(caught.value)
    assert caught.value.kind == "input"


@pytest.mark.parametrize("columns", [PAIRS, CHAT, ("question", "answer")])
def test_made_up_samples_have_the_columns_of_the_config(tmp_path: Path, columns: tuple[str, ...]) -> None:
    held = write_training_data(None, columns, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "training.jsonl").read_text("utf-8").splitlines()]
    assert held["made_up"] is True
    assert all(set(row) == set(columns) for row in rows)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="no such data folder"):
        training_file(str(tmp_path / "nowhere"))
