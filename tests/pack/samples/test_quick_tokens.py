"""The quick reading of tokenised lines gives what the JSON parser gives, or leaves the line to it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_run.pack.samples.quick_tokens import quick_row

IDS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=12)


@given(
    ids=IDS,
    key=st.sampled_from(["loss_mask", "labels", "answer_start_idx"]),
    separators=st.sampled_from([(", ", ": "), (",", ":"), (" , ", " : ")]),
    data=st.data(),
)
def test_lines_of_the_common_form_are_read_as_json_reads_them(
    ids: list[int], key: str, separators: tuple[str, str], data: st.DataObject
) -> None:
    one = {"loss_mask": st.integers(0, 1), "labels": st.integers(-100, 9), "answer_start_idx": st.integers(0, 9)}[key]
    value: Any = data.draw(one if key == "answer_start_idx" else st.lists(one, min_size=1, max_size=12))
    line = json.dumps({"input_ids": ids, key: value}, separators=separators).encode()
    found = quick_row(line)
    assert found is not None
    assert found["input_ids"].tolist() == ids
    assert (found[key] if isinstance(value, int) else found[key].tolist()) == value


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
        '{"x": 1, "input_ids": [1, 2], "loss_mask": [1, 1]}',
    ],
)
def test_other_lines_are_left_to_the_parser(line: str) -> None:
    assert quick_row(line.encode()) is None
