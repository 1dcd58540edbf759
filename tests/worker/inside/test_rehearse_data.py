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
    row = json.dumps({"input": "a \u00e4 b", "output": "c", "more": [1]}, ensure_ascii=False)
    # Blank lines and line ends too: Bridge must read here what it reads in the run.
    held = written(tmp_path, f"{row}\r\n\n{row}")
    assert held == {"samples": 2, "cut": False, "made_up": False, "columns": ["input", "output"]}
    assert (tmp_path / "data" / "training.jsonl").read_bytes() == f"{row}\r\n\n{row}".encode()


def test_of_large_samples_so_many_are_taken_as_a_laptop_tokenizes(tmp_path: Path) -> None:
    row = json.dumps({"input": "a", "output": "b" * 2**20}) + "\n"
    held = written(tmp_path, row * 12)
    assert (held["samples"], held["cut"]) == (7, True)


def test_only_the_first_samples_of_a_large_file_are_taken_and_that_is_told(tmp_path: Path) -> None:
    held = written(tmp_path, (json.dumps({"input": "a", "output": "b"}) + "\n") * (MOST_SAMPLES + 5))
    assert (held["samples"], held["cut"]) == (MOST_SAMPLES, True)


@pytest.mark.parametrize(
    ("text", "columns", "reason"),
    [
        ('{"input": "a", "output": "b"}\n{"input": \n', PAIRS, "line 2 is no JSON"),
        (b'{"input": "\xff", "output": "b"}\n', PAIRS, "line 1 is no JSON: not UTF-8"),
        (b'\xef\xbb\xbf{"input": "a", "output": "b"}\n', PAIRS, "line 1 is no JSON: Unexpected UTF-8 BOM"),
        ('{"input": "a", "output": "b"}\n'.encode("utf-16"), PAIRS, "line 1 is no JSON: not UTF-8"),
        ('{"input": "\\ud800", "output": "b"}\n', PAIRS, "line 1 is no JSON: not UTF-8"),
        ("[" * 200_000 + "\n", PAIRS, "line 1 is no JSON that can be read: it is nested too deep"),
        (f'{{"input": "a", "output": "b", "n": {"9" * 5000}}}\n', PAIRS, "line 1 is no JSON that can be read"),
        ('{"input": "a", "output": "' + "b" * 2**23 + '"}\n', PAIRS, "line 1 is longer than 8 MiB"),
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
