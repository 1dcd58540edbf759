"""Tests of skill_run.report.pack_map."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skill_run.batch.inspect import InspectionReport, Sequence, inspect_batch
from skill_run.batch.model import Batch, Boundaries, Row
from skill_run.report.pack_map import (
    MapRow,
    cells,
    coarse,
    covered,
    map_rows,
    tokens_in,
    true_runs,
    union,
    windows,
    within,
)

TOTAL = 40
PAIRS = st.lists(st.tuples(st.integers(0, TOTAL), st.integers(0, TOTAL)), max_size=8)
MASKS = st.lists(st.booleans(), min_size=1, max_size=TOTAL).map(lambda found: np.array(found, dtype=bool))
Inspect = Callable[..., InspectionReport]
Pack = Callable[..., dict[str, Any]]


def painted(runs: Any, total: int = TOTAL) -> list[bool]:
    """Return which tokens runs cover, one by one."""
    return [any(start <= at < end for start, end in runs) for at in range(total)]


def row_of(batch: dict[str, Any], **options: Any) -> MapRow:
    return next(map_rows(inspect_batch(batch, **options)))


@given(PAIRS)
def test_a_union_covers_the_same_tokens_with_sorted_runs_that_lie_apart(pairs: list[tuple[int, int]]) -> None:
    found = union(np.array(pairs, dtype=np.int64).reshape(-1, 2)).tolist()
    assert painted(found) == painted(pairs)
    assert all(first[1] < second[0] for first, second in pairwise(found))
    assert all(start < end for start, end in found)


@given(MASKS)
def test_runs_of_a_mask_are_where_it_is_true(mask: Any) -> None:
    assert painted(true_runs(mask).tolist(), mask.size) == mask.tolist()


@given(MASKS, st.lists(st.integers(0, TOTAL), min_size=2, max_size=8).map(sorted))
def test_covered_counts_tokens_between_edges(mask: Any, edges: list[int]) -> None:
    padded = np.pad(mask, (0, TOTAL - mask.size))
    expected = [int(padded[start:end].sum()) for start, end in pairwise(edges)]
    assert covered(true_runs(mask), np.array(edges)).tolist() == expected


@given(MASKS, st.integers(0, TOTAL), st.integers(0, TOTAL))
def test_within_cuts_runs_to_a_window(mask: Any, first: int, second: int) -> None:
    start, end = min(first, second), max(first, second)
    found = painted(within(true_runs(mask), start, end).tolist(), mask.size)
    assert found == [bool(value) and start <= at < end for at, value in enumerate(mask)]


def test_coarse_keeps_few_runs_as_they_are() -> None:
    runs = np.array([[0, 3], [5, 9], [20, 30]])
    assert coarse(runs, (4, 25), 3).tolist() == [[5, 9], [20, 25]]


@pytest.mark.parametrize("any_token", [False, True])
def test_coarse_bounds_many_runs_and_keeps_their_look(any_token: bool) -> None:
    mask = np.zeros(100_000, dtype=bool)
    mask[:50_000:10] = True
    mask[60_000:] = True
    found = coarse(true_runs(mask), (0, mask.size), 200, any_token=any_token)
    assert len(found) <= 200
    share = tokens_in(found) / mask.size
    assert share == pytest.approx(0.9 if any_token else 0.4, abs=0.01)


def test_a_packed_row_shows_sequences_padding_and_masked_tokens(pack: Pack) -> None:
    row = row_of(pack([5, 8, 6], multiple=4, total=32))
    assert row.numbers.tolist() == [0, 1, 2, 3]
    assert list(zip(row.starts.tolist(), row.ends.tolist(), strict=True)) == [(0, 8), (8, 16), (16, 24), (24, 32)]
    assert row.logical.tolist() == [5, 8, 6, 0]
    assert row.trained.tolist() == [3, 4, 3, 0]
    assert row.filler == 24
    assert row.padding.tolist() == [[5, 8], [22, 32]]
    assert row.masked is not None
    assert row.masked.tolist() == [[0, 2], [5, 12], [16, 19], [22, 32]]
    assert (row.faulty.size, row.loose.size, row.broken) == (0, 0, ())


def test_labels_say_the_numbers_of_a_sequence(pack: Pack) -> None:
    row = row_of(pack([5, 8], multiple=4, total=32))
    assert row.label(0) == "row 0, sequence 0: start 0, end 8, logical 5, physical 8, trained 3"
    assert row.label(2) == "row 0, tail filler: start 16, end 32, logical 0, physical 16, trained 0"


def test_tail_filler_is_padding_though_its_boundaries_do_not_say_so(pack: Pack) -> None:
    row = row_of(pack([10, 12], total=32))
    assert row.logical.tolist() == [10, 12, 10]
    assert row.padding.tolist() == [[22, 32]]


def test_padding_that_is_trained_is_told_apart(pack: Pack) -> None:
    batch = pack([5, 8, 6], multiple=4)
    batch["loss_mask"][0, 6:8] = 1
    assert row_of(batch).faulty.tolist() == [[6, 8]]


def test_tokens_behind_the_last_boundary_belong_to_no_sequence(pack: Pack) -> None:
    batch = pack([8, 8])
    batch["cu_seqlens_q"][0, -1] = 12
    assert row_of(batch).loose.tolist() == [[12, 16]]


@pytest.mark.parametrize(
    ("boundaries", "drawn", "broken"),
    [
        ([0, 8, 6, 16], [(0, 8), (8, 8), (6, 16)], (6,)),
        ([0, 8, 24], [(0, 8), (8, 16)], (16,)),
        ([0, 30, 16], [(0, 16), (16, 16)], (16,)),
        ([-4, 8, 16], [(0, 8), (8, 16)], (0,)),
        ([0, -9, 16], [(0, 0), (0, 16)], (0,)),
        ([0, 2**31 - 1, 16], [(0, 16), (16, 16)], (16,)),
    ],
)
def test_broken_boundaries_are_cut_to_the_row_and_marked(
    boundaries: list[int], drawn: list[tuple[int, int]], broken: tuple[int, ...], pack: Pack
) -> None:
    batch = pack([8, 8])
    del batch["token_count"]
    batch["cu_seqlens_q"] = np.array([boundaries], dtype=np.int32)
    row = row_of(batch)
    assert list(zip(row.starts.tolist(), row.ends.tolist(), strict=True)) == drawn
    assert row.broken == broken


def test_repeated_boundaries_at_the_end_are_no_sequences(pack: Pack) -> None:
    batch = pack([8, 8])
    batch["cu_seqlens_q"] = np.array([[0, 8, 16, 16, 16]], dtype=np.int32)
    assert row_of(batch).numbers.tolist() == [0, 1]


def test_one_ranks_part_has_no_loss_mask_to_show(inspected: Inspect) -> None:
    (row,) = map_rows(inspected("0.6.2/getbatch_mult4_cp2_mb0_rank0", cp=2))
    assert row.total == 128
    assert row.masked is None
    assert (row.trained == -1).all()


def test_all_rows_of_a_dp_rank_are_shown(inspected: Inspect) -> None:
    rows = list(map_rows(inspected("0.3.1/batch_offline_mult4_cp2_dprank_global")))
    assert [row.index for row in rows] == [0, 1, 2]
    assert all(row.filler < row.total == 128 for row in rows)


def test_an_unpacked_row_is_one_sequence(inspected: Inspect) -> None:
    rows = list(map_rows(inspected("0.6.2/batch_padded")))
    assert [(row.starts.tolist(), row.ends.tolist()) for row in rows] == [([0], [64])] * 2


@pytest.mark.parametrize("total", [10**15, 10**30])
def test_a_claim_of_endless_tokens_takes_no_memory(total: int) -> None:
    edges = np.array([0, 5, 10**15])
    row = Row(0, total, physical=Boundaries("cu_seqlens_q", edges, edges, "int64"))
    batch = Batch("packed", ">=0.6", "because", "meaning", [row], {})
    report = InspectionReport(
        "claim", "packed", ">=0.6", "because", "meaning", total, 1, (Sequence(0, 0, 5, 8, None),), (), batch=batch
    )
    (found,) = map_rows(report)
    shown = cells(found, np.linspace(0, found.total, 11).astype(np.int64))
    assert shown["loose"].all()


def test_rows_of_a_dataset_are_drawn_from_its_sequences() -> None:
    sequences = (Sequence(3, 0, 5, 8, 2), Sequence(3, 8, 4, 4, None), Sequence(7, 0, 6, 6, 1))
    report = InspectionReport("d", "packed_dataset", ">=0.6", "b", "m", 18, 2, sequences, ())
    first, second = map_rows(report)
    assert (first.index, first.total, first.padding.tolist()) == (3, 12, [[5, 8]])
    assert (second.index, second.total, second.trained.tolist()) == (7, 6, [1])


def test_a_dataset_without_sequences_has_nothing_to_draw() -> None:
    assert list(map_rows(InspectionReport("d", "packed_dataset", ">=0.6", "b", "m", 18, 2, (), ()))) == []


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=12),
    multiple=st.sampled_from([1, 2, 4]),
    columns=st.integers(1, 30),
)
def test_cells_show_what_most_of_their_tokens_are(lengths: list[int], multiple: int, columns: int, pack: Pack) -> None:
    row = row_of(pack(lengths, multiple))
    edges = np.unique(np.linspace(0, row.total, columns + 1).astype(np.int64))
    found = cells(row, edges)
    assert row.masked is not None
    for at, (start, end) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        middle = start + (end - start) // 2
        owner = [index for index in range(len(row.starts)) if row.starts[index] <= middle < row.ends[index]]
        assert found["owner"][at] == owner[0]
        begun = sum(start <= edge < end for edge in row.starts.tolist())
        assert (found["begins"][at], found["several"][at]) == (begun > 0, begun > 1)
        assert found["padding"][at] == (2 * sum(painted(row.padding.tolist(), row.total)[start:end]) > end - start)
        assert found["masked"][at] == (2 * sum(painted(row.masked.tolist(), row.total)[start:end]) >= end - start)


def test_a_row_of_many_sequences_is_drawn_in_parts_that_make_it_up(pack: Pack) -> None:
    row = row_of(pack([3] * 100))
    parts = windows(row, 1, 16)
    assert len(parts) == 7
    assert parts[0][0] == 0
    assert parts[-1][1] == row.total
    assert all(first[1] == second[0] for first, second in pairwise(parts))
    assert windows(row, 5, 16) == [(0, row.total)]
    assert windows(replace(row, total=2), 1, 1) == [(0, 1), (1, 2)]
