from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_run.errors import InputError
from skill_run.plan import number_files
from skill_run.plan.lengths import Lengths
from skill_run.plan.number_files import read_array, read_json, read_numbers, read_table


def written(folder: Path, text: str | bytes, name: str = "lengths.txt") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def listed(lengths: Lengths) -> list[int]:
    return list(np.repeat(lengths.values, lengths.counts).tolist())


@pytest.mark.parametrize(
    "text", ["4\n7\n4\n", "4\r\n7\r\n4", "[4, 7, 4]", "length\n4\n7\n4\n", "\ufeff4\n7\n4\n", "\n4,7\n\n4\n", "4 7 4"]
)
def test_every_form_of_number_list_is_read(tmp_path: Path, text: str) -> None:
    assert listed(read_numbers(written(tmp_path, text), "it")) == [4, 4, 7]


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=60), st.integers(8, 40))
def test_blocks_of_any_size_give_the_same_lengths(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], block: int
) -> None:
    path = written(tmp_path_factory.mktemp("it"), "\n".join(map(str, lengths)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(number_files, "_BLOCK", block)
        assert listed(read_numbers(path, "it")) == sorted(lengths)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("4\n0\n", "it:2: 0 is no length"),
        ("4\n\n-3\n", "it:3: -3 is no length"),
        ("4\n5.5\n", "it:2: 5.5 is no length"),
        ("4\nseven\n", "it:2: seven is no length"),
        ("4\n99999999999\n", "it: 99999999999 tokens are more than any sample has"),
        ("4\n" + "9" * 30, "it:2: 9+ tokens are more than any sample has"),
        ("length\n", "it holds no lengths"),
        ("4\n\x1b[31m\n", r"it:2: \\x1b is no length"),
    ],
)
def test_a_line_that_is_no_length_is_named(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=f"^{sentence}"):
        read_numbers(written(tmp_path, text), "it")


def test_a_fault_far_into_a_file_is_named_by_its_own_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(number_files, "_BLOCK", 64)

    with pytest.raises(InputError, match=r"^it:501: x is no length"):
        read_numbers(written(tmp_path, "12\n" * 500 + "x\n"), "it")


def test_a_file_without_a_separator_is_refused_before_it_fills_memory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without a separator"):
        read_numbers(written(tmp_path, b"1" * 200_000), "it")


@pytest.mark.parametrize(
    "text",
    [
        "4,2\n7,1\n",
        "length,count\n4,2\n7,1\n",
        "count\tlength\n2\t4\n1\t7\n",
        '"length","count"\n"4","2"\n"7","1"',
        "4 2\n7   1\n",
        "4;2\n\n7;1\n",
        "id,length,count\na,4,2\nb,7,1\n",
    ],
)
def test_every_form_of_table_is_read(tmp_path: Path, text: str) -> None:
    found = read_table(written(tmp_path, text), "it")

    assert (listed(found), found.kind) == ([4, 4, 7], "histogram")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a,b\n4,2\n", "columns a, b; length and count are needed"),
        ("4,2\n7\n", "it:2: a line has a length and a count"),
        ("4,2\n7,x\n", "x is no number of samples"),
        ("4,2\n0,1\n", "0 is no length"),
        ("4,2\n\xff,1\n", "it:2 is not UTF-8 text"),
    ],
)
def test_a_table_with_a_fault_is_refused_in_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read_table(written(tmp_path, text.encode("latin-1")), "it")


@pytest.mark.parametrize("kind", ["int64", "int32", "uint16", ">i4"])
def test_arrays_of_whole_numbers_are_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "lengths.npy"
    np.save(path, np.array([4, 7, 4], dtype=kind))

    assert listed(read_array(path, "it")) == [4, 4, 7]


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (np.array([4.0]), "values of type float64"),
        (np.ones((2, 2), dtype=int), "array of shape"),
        (np.array([], dtype=int), "holds no lengths"),
        (np.array([4, 0]), "0 is no length"),
        (np.array([2**64 - 1], dtype=np.uint64), "more than any sample has"),
    ],
)
def test_an_array_that_holds_no_lengths_is_refused(tmp_path: Path, array: np.ndarray, sentence: str) -> None:
    path = tmp_path / "lengths.npy"
    np.save(path, array)

    with pytest.raises(InputError, match=sentence):
        read_array(path, "it")


def test_an_array_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lengths.npy"
    np.save(path, np.arange(1, 1000))
    path.write_bytes(path.read_bytes()[:-100])

    with pytest.raises(InputError, match="cut short"):
        read_array(path, "it")


@pytest.mark.parametrize(
    "data",
    [
        {"4": 2, "7": 1},
        [[4, 2], [7, 1]],
        [{"length": 4, "count": 2}, {"length": 7, "count": 1}],
        {"lengths": [4, 7, 4]},
    ],
)
def test_every_form_of_json_histogram_is_read(tmp_path: Path, data: object) -> None:
    assert listed(read_json(written(tmp_path, json.dumps(data)), "it")) == [4, 4, 7]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"4": 2', "it:1:8: not valid JSON"),
        ("[]", "holds no lengths"),
        ('["a"]', "holds no lengths"),
        ('"4"', "holds no lengths"),
        ("[" * 100_000, "nested too deep"),
        ('{"prompt": 3}', "prompt is no length"),
    ],
)
def test_json_that_holds_no_lengths_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read_json(written(tmp_path, text), "it")
