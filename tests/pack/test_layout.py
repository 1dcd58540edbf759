"""Sequences of a chunk against a plain loop over its rows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packs import END, FUZZ, Rows, make_row, packed_rows

from skill_run.pack.layout import Layout, lay_out
from skill_run.pack.reader import Chunk, Column, column_of


def chunk_of(rows: Rows, mask: Any = np.int8) -> Chunk:
    kinds = {"input_ids": np.int64, "loss_mask": mask, "seq_start_id": np.int64}
    columns = {name: column_of([np.asarray(row[name], dtype=kind) for row in rows]) for name, kind in kinds.items()}
    return Chunk("a", 0, len(rows), columns)


def layout_of(rows: Rows, mask: Any = np.int8) -> Layout:
    found = lay_out(chunk_of(rows, mask))
    assert found is not None
    return found


def is_sound(row: dict[str, list[int]]) -> bool:
    edges = [*row["seq_start_id"], len(row["input_ids"])]
    return len(edges) > 1 and edges[0] == 0 and all(b > a for a, b in pairwise(edges))


any_rows = st.lists(
    st.integers(0, 12).flatmap(
        lambda size: st.fixed_dictionaries(
            {
                "input_ids": st.lists(st.sampled_from([END, 5, 6]), min_size=size, max_size=size),
                "loss_mask": st.lists(st.integers(0, 1), min_size=max(0, size - 1), max_size=size),
                "seq_start_id": st.one_of(
                    st.lists(st.integers(-2, 14), max_size=4),
                    st.lists(st.integers(0, 12), max_size=4, unique=True).map(lambda starts: sorted({0, *starts})),
                ),
            }
        )
    ),
    min_size=1,
    max_size=6,
)


@FUZZ
@given(any_rows, st.sampled_from([np.int8, np.bool_, np.int64, np.float32]))
def test_lengths_trained_tokens_and_padding_are_those_of_a_plain_loop(rows: Rows, mask: Any) -> None:
    layout = layout_of(rows, mask)
    assert layout.sound.tolist() == [is_sound(row) for row in rows]
    runtime: list[int] = []
    trained: list[int] = []
    padding: list[int] = []
    on_padding: list[int] = []
    for row in rows:
        edges = [*row["seq_start_id"], len(row["input_ids"])]
        for first, last in pairwise(edges):
            if not is_sound(row):
                trained.append(-1)
                padding.append(0)
                on_padding.append(0)
                continue
            tokens = row["input_ids"][first:last]
            runtime.append(last - first - 1)
            masked = len(row["loss_mask"]) == len(row["input_ids"])
            trained.append(sum(row["loss_mask"][first : last - 1]) if masked else -1)
            ends = 0
            while ends < len(tokens) and tokens[-1 - ends] == END:
                ends += 1
            padding.append(max(0, ends - 1))
            on_padding.append(sum(row["loss_mask"][last - 1 - padding[-1] : last - 1]) if masked else 0)
    assert layout.runtime.tolist() == runtime
    assert layout.trained.tolist() == trained
    assert layout.padding(END).tolist() == padding
    assert layout.trained_padding(layout.padding(END)).tolist() == on_padding


@FUZZ
@given(packed_rows())
def test_sound_rows_have_the_lengths_they_were_made_of(rows: Rows) -> None:
    layout = layout_of(rows)
    assert layout.sound.all()
    assert layout.row_runtime.tolist() == [len(row["input_ids"]) - len(row["seq_start_id"]) for row in rows]


def test_weights_above_one_count_as_trained_tokens() -> None:
    row = {**make_row([4]), "loss_mask": [0, 3, 1, 0, 1]}
    assert layout_of([row]).trained.tolist() == [2]
    assert layout_of([row], np.uint8).trained.tolist() == [2]


def test_a_start_beyond_every_number_is_only_wrong() -> None:
    row = {**make_row([4]), "seq_start_id": [0, 2**62]}
    assert layout_of([row]).sound.tolist() == [False]


def test_places_name_row_and_sequence() -> None:
    layout = layout_of([make_row([4, 8]), make_row([12, 4])])
    assert [layout.place(sequence) for sequence in (1, 2)] == ["row 0, sequence 1", "row 1, sequence 0"]


@pytest.mark.parametrize("missing", ["input_ids", "seq_start_id"])
def test_a_chunk_without_a_needed_column_has_no_layout(missing: str) -> None:
    chunk = chunk_of([make_row([4])])
    kept = {name: column for name, column in chunk.columns.items() if name != missing}
    assert lay_out(Chunk("a", 0, 1, kept)) is None


def test_lengths_without_tokens_have_no_padding() -> None:
    columns = {"input_ids": Column(np.array([0, 5]), None), "seq_start_id": column_of([np.array([0])])}
    layout = lay_out(Chunk("a", 0, 1, columns))
    assert layout is not None
    assert layout.last_tokens() is None
    assert layout.padding(END).tolist() == [0]
    assert layout.trained.tolist() == [-1]
