"""Packed `.npy` files: upstream's own, and what only looks like one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packs import DATA, make_row, write_npy

from skill_run.errors import InputError
from skill_run.pack.npy import read_packed_npy
from skill_run.pack.reader import CHUNK_ROWS, COLUMNS

ROW = make_row([4, 8])


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        list(read_packed_npy(path))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("path", sorted(DATA.glob("0.3.1/*/*.npy")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_upstreams_own_files_hold_the_rows_that_numpy_reads(path: Path) -> None:
    expected = np.load(path, allow_pickle=True)
    chunks = list(read_packed_npy(path))
    assert sum(chunk.rows for chunk in chunks) == len(expected)
    for chunk in chunks:
        assert chunk.faults == {}
        for name in COLUMNS:
            column = chunk.columns[name]
            assert column.values is not None
            for row in range(chunk.rows):
                found = column.values[column.offsets[row] : column.offsets[row + 1]].tolist()
                assert found == expected[chunk.first_row + row][name]


def test_many_rows_come_in_chunks_of_bounded_size(tmp_path: Path) -> None:
    rows = [make_row([1 + number % 3]) for number in range(CHUNK_ROWS + 10)]
    chunks = list(read_packed_npy(write_npy(tmp_path / "a.npy", rows)))
    assert [(chunk.first_row, chunk.rows) for chunk in chunks] == [(0, CHUNK_ROWS), (CHUNK_ROWS, 10)]


def test_rows_with_other_columns_are_a_chunk_of_their_own(tmp_path: Path) -> None:
    bad = {"input_ids": ["a"], "seq_start_id": [0.5]}
    chunks = list(read_packed_npy(write_npy(tmp_path / "a.npy", [ROW, bad, make_row([4])])))
    assert [(chunk.first_row, chunk.rows, sorted(chunk.columns)) for chunk in chunks] == [
        (0, 1, sorted(COLUMNS)),
        (1, 1, []),
        (2, 1, sorted(COLUMNS)),
    ]
    assert chunks[1].faults == {
        "input_ids": "holds str, not a list of numbers",
        "loss_mask": "is missing",
        "seq_start_id": "holds float64, not whole numbers",
    }


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (np.arange(4), "holds one array of int64 values"),
        (np.array(["a"]), "holds one array of <U1 values"),
        (np.array(3), "holds one array"),
        (np.empty((2, 2), dtype=object), "shape (2, 2)"),
        (np.empty(0, dtype=object), "shape (0,)"),
        (np.empty(3, dtype=object), "list of packed rows"),
    ],
)
def test_an_array_that_is_no_list_of_rows_is_refused(tmp_path: Path, content: Any, told: str) -> None:
    np.save(tmp_path / "a.npy", content, allow_pickle=True)
    assert told in refused(tmp_path / "a.npy")


@pytest.mark.parametrize("content", [b"x", b"\x93NUMPY\x01\x00", b"\x93NUMPY\x01\x00\xff\xff{", b"PAR1"])
def test_a_file_with_another_beginning_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    assert "no array file" in refused(tmp_path / "a.npy")


def test_a_header_that_claims_more_rows_than_there_are_is_refused(tmp_path: Path) -> None:
    path = write_npy(tmp_path / "a.npy", [ROW, make_row([4])])
    path.write_bytes(path.read_bytes().replace(b"'shape': (2,)", b"'shape': (9,)"))
    assert "says it has 9 rows but holds 2" in refused(path)


def test_a_truncated_file_is_refused_after_the_rows_before_the_cut(tmp_path: Path) -> None:
    path = write_npy(tmp_path / "a.npy", [make_row([4]) for _ in range(20)])
    data = path.read_bytes()
    for length in range(129, len(data), 97):
        path.write_bytes(data[:length])
        assert "truncated" in refused(path)


def test_a_payload_in_a_packed_file_never_runs(tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {tmp_path}/ran",)

    path = write_npy(tmp_path / "a.npy", [ROW, Payload()])
    told = refused(path)
    assert "system" in told
    assert not (tmp_path / "ran").exists()
    np.load(path, allow_pickle=True)
    assert (tmp_path / "ran").exists()
