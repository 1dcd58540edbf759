"""The quick reading of tokenised lines gives what the JSON parser gives, or leaves the line to it."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_run.pack.samples.quick_tokens import quick_columns
from skill_run.pack.samples.token_columns import Column

IDS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=12)


@given(
    ids=st.lists(IDS, min_size=1, max_size=4),
    key=st.sampled_from(["loss_mask", "labels", "answer_start_idx"]),
    separators=st.sampled_from([(", ", ": "), (",", ":"), (" , ", " : ")]),
    data=st.data(),
)
def test_lines_of_the_common_form_are_read_as_json_reads_them(
    ids: list[list[int]], key: str, separators: tuple[str, str], data: st.DataObject
) -> None:
    one = {"loss_mask": st.integers(0, 1), "labels": st.integers(-100, 9), "answer_start_idx": st.integers(0, 9)}[key]
    some = one if key == "answer_start_idx" else st.lists(one, min_size=1, max_size=12)
    values: list[Any] = [data.draw(some) for _ in ids]
    rows = zip(ids, values, strict=True)
    lines = [json.dumps({"input_ids": row, key: value}, separators=separators).encode() for row, value in rows]
    found = quick_columns(lines)
    assert found is not None
    assert unpacked(found["input_ids"]) == ids
    assert unpacked(found[key]) == values


def unpacked(column: Column) -> list[Any]:
    values = column.values.tolist()
    if column.starts is None:
        return values
    return [values[start:end] for start, end in pairwise(column.starts.tolist())]


@pytest.mark.parametrize(
    "line",
    [
        '{"input_ids": [1 2], "loss_mask": [1]}',
        '{"input_ids": [1,,2], "loss_mask": [1, 1]}',
        '{"input_ids": [1, 2,], "loss_mask": [1, 1]}',
        '{"input_ids": [1.0, 2], "loss_mask": [1, 1]}',
        '{"input_ids": [1, "2"], "loss_mask": [1, 1]}',
        '{"input_ids": [1, -2], "loss_mask": [1, 1]}',
        '{"input_ids": [], "loss_mask": []}',
        '{"input_ids": [1, 2], "loss_mask": [1, 2]}',
        '{"input_ids": [1, 2], "loss_mask": [11]}',
        '{"input_ids": [1, 2], "loss_mask": [1.0, 1]}',
        '{"input_ids": [1, 2], "loss_mask": [true, false]}',
        '{"input_ids": [1, 2], "answer_start_idx": 1.5}',
        '{"input_ids": [1, 2], "loss_mask": [1, 1]} x',
        '{"input_ids": [1, 2], "loss_mask": [1, 1], "x": 1}',
        '{"input_ids": [1, 2], "loss_mask": [1, 1]',
        '{"input_ids": [1, 2, "loss_mask": [1, 1]}',
        '{"input_ids": [3], "answer_start_idx": 1}',
        '{"x": 1, "input_ids": [1, 2], "loss_mask": [1, 1]}',
    ],
)
def test_other_lines_are_left_to_the_parser(line: str) -> None:
    good = b'{"input_ids": [1, 2], "loss_mask": [1, 1]}'
    assert quick_columns([good]) is not None
    assert quick_columns([good, line.encode(), good]) is None
