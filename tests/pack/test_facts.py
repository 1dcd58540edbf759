"""Datasets told by JSON: rows, or only lengths as a report states them."""

from __future__ import annotations

from typing import Any

import pytest
from packs import make_row

from skill_run.errors import InputError
from skill_run.pack.facts import fact_chunks, facts_dataset
from skill_run.pack.reader import CHUNK_ROWS, Dataset, Facts

ROW = {"seq_start_id": [0, 7, 18], "input_ids_len": 31}


def dataset(data: Any) -> Dataset:
    found = facts_dataset(data, "facts.json")
    assert found is not None
    assert found.kind == "json"
    return found


@pytest.mark.parametrize("data", [ROW, [ROW], {"rows": [ROW]}, {"file_rows": [ROW]}])
def test_rows_told_by_their_lengths_are_a_dataset(data: Any) -> None:
    (chunk,) = fact_chunks(dataset(data))
    assert chunk.faults == {}
    assert chunk.columns["input_ids"].lengths.tolist() == [31]
    assert chunk.columns["input_ids"].values is None
    assert set(chunk.columns) == {"input_ids", "seq_start_id"}


def test_whole_rows_are_read_with_their_tokens() -> None:
    rows = [make_row([4, 8]), make_row([12])]
    (chunk,) = fact_chunks(dataset(rows))
    assert chunk.columns["input_ids"].values is not None
    assert chunk.columns["input_ids"].values.tolist() == rows[0]["input_ids"] + rows[1]["input_ids"]
    assert set(chunk.columns) == {"input_ids", "loss_mask", "seq_start_id"}


def test_a_whole_row_without_a_mask_is_a_fault_of_its_chunk() -> None:
    (chunk,) = fact_chunks(dataset([{"seq_start_id": [0], "input_ids": [1, 2]}]))
    assert chunk.faults == {"loss_mask": "is missing"}


def test_many_rows_come_in_chunks() -> None:
    assert [chunk.rows for chunk in fact_chunks(dataset([ROW] * (CHUNK_ROWS + 1)))] == [CHUNK_ROWS, 1]


def test_lengths_of_samples_and_packs_are_kept() -> None:
    facts = dataset({"packed_sequence_size": 100, "stored_lengths": [3, 4], "pack_lengths": [90]}).facts
    assert isinstance(facts, Facts)
    assert facts.pack_size == 100
    assert facts.stored_lengths is not None
    assert facts.stored_lengths.tolist() == [3, 4]
    assert facts.pack_lengths is not None
    assert facts.pack_lengths.tolist() == [90]


@pytest.mark.parametrize(
    "data",
    [[], [1], 3, "x", None, {}, {"tokens": [1]}, [ROW, {}], {"rows": []}, {"packed_sequence_size": 3}, {"rows": [1]}],
)
def test_other_data_is_no_dataset(data: Any) -> None:
    assert facts_dataset(data, "x") is None


@pytest.mark.parametrize(
    "data",
    [
        {"stored_lengths": [-1]},
        {"stored_lengths": []},
        {"stored_lengths": [[1]]},
        {"stored_lengths": [0.5]},
        {"stored_lengths": ["a"]},
        {"stored_lengths": 10**30},
        {"stored_lengths": {"a": 1}},
        {"pack_lengths": [1, None]},
        {"pack_lengths": [10**30]},
        {"packed_sequence_size": -1, "pack_lengths": [1]},
        {"packed_sequence_size": "8192", "pack_lengths": [1]},
        {"packed_sequence_size": True, "pack_lengths": [1]},
    ],
)
def test_lengths_that_cannot_be_are_refused(data: Any) -> None:
    with pytest.raises(InputError):
        facts_dataset(data, "facts.json")


@pytest.mark.parametrize(
    "row",
    [
        {"seq_start_id": [0], "input_ids_len": -1},
        {"seq_start_id": [0], "input_ids_len": "3"},
        {"seq_start_id": [0], "input_ids_len": True},
        {"seq_start_id": [0], "input_ids_len": 10**8},
        {"seq_start_id": 0.5, "input_ids_len": 3},
        {"seq_start_id": [[0]], "input_ids_len": 3},
        {"seq_start_id": ["a"], "input_ids_len": 3},
        {"seq_start_id": [0], "input_ids": [1, None], "loss_mask": [1, 1]},
        {"seq_start_id": [0], "input_ids": [10**30], "loss_mask": [1]},
    ],
)
def test_rows_that_cannot_be_are_refused(row: Any) -> None:
    with pytest.raises(InputError):
        list(fact_chunks(dataset([row])))
