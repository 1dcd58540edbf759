from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from skill_run.errors import InputError
from skill_run.plan.lengths import Lengths
from skill_run.plan.sources import Reading, read_lengths

PACKED = Path(__file__).parents[1] / "pack" / "data"
READING = Reading(bridge="0.6.2")
ROW = {"input_ids": [5, 6, 2, 7, 2], "loss_mask": [0, 1, 0, 1, 0], "seq_start_id": [0, 3]}


def listed(lengths: Lengths) -> list[int]:
    return list(np.repeat(lengths.values, lengths.counts).tolist())


def write(path: Path, content: Any) -> Path:
    if isinstance(content, np.ndarray):
        np.save(path, content)
    elif isinstance(content, pyarrow.Table):
        parquet.write_table(content, path)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "content", "kind", "lengths"),
    [
        ("a.txt", "4\n7\n4\n", "lengths", [4, 4, 7]),
        ("a.json", [4, 7, 4], "lengths", [4, 4, 7]),
        ("a.json", "[\n  4,\n  7,\n  4\n]\n", "lengths", [4, 4, 7]),
        ("a.npy", np.array([4, 7, 4]), "lengths", [4, 4, 7]),
        ("a.csv", "length,count\n4,2\n7,1\n", "histogram", [4, 4, 7]),
        ("a.tsv", "4\t2\n7\t1\n", "histogram", [4, 4, 7]),
        ("a.json", {"4": 2, "7": 1}, "histogram", [4, 4, 7]),
        ("a.json", '{\n  "4": 2,\n  "7": 1\n}', "histogram", [4, 4, 7]),
        ("a.json", [[4, 2], [7, 1]], "histogram", [4, 4, 7]),
        ("a.json", {"lengths": [4, 7, 4]}, "lengths", [4, 4, 7]),
        ("a.parquet", pyarrow.table({"tokens": [[1, 2], [3]]}), "tokens", [1, 2]),
        ("a.parquet", pyarrow.table({"length": [4, 7, 4]}), "lengths", [4, 4, 7]),
        ("a.parquet", pyarrow.table({key: [value] for key, value in ROW.items()}), "packed", [2, 3]),
        ("a.jsonl", json.dumps(ROW) + "\n" + json.dumps(ROW) + "\n", "packed", [2, 2, 3, 3]),
        ("a.json", [ROW], "packed", [2, 3]),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 12 else "",
)
def test_what_a_file_holds_is_told_from_its_content(
    tmp_path: Path, name: str, content: Any, kind: str, lengths: list[int]
) -> None:
    path = write(tmp_path / name, content)

    found = read_lengths(path, READING)

    assert (listed(found), found.kind) == (lengths, kind)
    assert found.source == str(path)


def test_packed_folders_and_globs_are_read_as_one() -> None:
    folder = PACKED / "0.6.2" / "tiny-wordlevel_pad_seq_to_mult4_sft_387e432be16e"

    whole = read_lengths(folder, READING)
    named = read_lengths(str(folder / "training_*.parquet"), READING)

    assert whole.samples > named.samples > 0
    assert whole.padded_to == named.padded_to == 4


def test_mappings_and_arrays_are_sources_too() -> None:
    assert listed(read_lengths({"4": 2, 7: 1}, READING)) == [4, 4, 7]
    assert listed(read_lengths(np.array([4, 7, 4]), READING)) == [4, 4, 7]
    assert listed(read_lengths((4, 7, 4), READING)) == [4, 4, 7]


@pytest.mark.parametrize("text", ["4\n7\n4\n", '{"4": 2, "7": 1}', "[4, 7, 4]", "length,count\n4,2\n7,1"])
def test_standard_input_is_told_like_a_file(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    found = read_lengths("-", READING)

    assert (listed(found), found.source) == ([4, 4, 7], "standard input")


def test_closed_standard_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)

    with pytest.raises(InputError, match="standard input is closed"):
        read_lengths("-", READING)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.txt", "", "is empty; there is nothing to plan for"),
        ("a.txt", " \n\n", "only blank space"),
        ("a.txt", "\x00\x01 \udcff", "neither text nor"),
        ("a.txt", "hello\nworld\n", "a.txt:2: world is no length"),
        ("a.txt", "a long line of words\n", "has the columns"),
        ("a.json", "{}", "holds no lengths"),
        ("a.json", "[]", "holds no lengths"),
        ("a.json", '{"pack_lengths": [4, 7]}', "pack_lengths is no length"),
    ],
)
def test_a_file_without_lengths_is_refused_in_one_sentence(
    tmp_path: Path, name: str, content: str, sentence: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode("utf-8", "surrogateescape"))

    with pytest.raises(InputError, match=sentence) as caught:
        read_lengths(path, READING)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", ["", "nowhere/lengths.txt", "nowhere-*.parquet", "a\0b"])
def test_a_path_that_is_not_there_is_refused(source: str) -> None:
    with pytest.raises(InputError, match=r"is not there|names no file|empty or holds a zero byte"):
        read_lengths(source, READING)


def test_a_folder_without_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="names no file"):
        read_lengths(tmp_path, READING)


def test_a_kind_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="a source is one of text, tokens, packed, lengths, histogram, not words"):
        read_lengths([4], READING, kind="words")  # type: ignore[arg-type]


def test_a_kind_that_is_forced_decides(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "4 2\n")

    assert listed(read_lengths(path, READING)) == [4, 4]
    assert listed(read_lengths(path, READING, kind="lengths")) == [2, 4]
