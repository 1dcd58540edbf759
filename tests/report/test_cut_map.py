"""Tests of skill_run.report.cut_map."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from skill_run.batch.inspect import inspect_batch
from skill_run.report.cut_map import CutPart, cut_window, rank_parts, token_runs
from skill_run.report.pack_map import MapRow, map_rows

Pack = Callable[..., dict[str, Any]]


def preview(batch: dict[str, Any], cp: int) -> tuple[Any, MapRow]:
    report = inspect_batch(batch, cp=cp)
    assert report.cp is not None
    return report.cp, next(map_rows(report))


def test_token_runs_put_neighbours_together() -> None:
    assert token_runs(np.array([5, 1, 2, 9, 0, 8])).tolist() == [[0, 3], [5, 6], [8, 10]]
    assert token_runs(np.array([], dtype=np.int64)).tolist() == []


def test_parts_are_the_tokens_of_the_rank_cut_where_a_sequence_begins(pack: Pack) -> None:
    cut, row = preview(pack([8, 16], multiple=8), 2)
    parts = rank_parts(cut.indices[0], row, (0, 24), 100)
    assert parts == [CutPart(0, 2, 0), CutPart(6, 8, 0), CutPart(8, 12, 1), CutPart(20, 24, 1)]
    assert parts[1].label(row, 2, 0) == "rank 0: tokens 6 to 7, sequence 0, chunk 3 of 4"
    (middle, _) = rank_parts(cut.indices[1], row, (0, 24), 100)
    assert middle.label(row, 2, 1) == "rank 1: tokens 2 to 5, sequence 0, chunks 1 to 2 of 4"


def test_chunks_are_not_named_where_a_sequence_cannot_be_cut_evenly(pack: Pack) -> None:
    cut, row = preview(pack([6, 10, 8]), 2)
    assert "chunk" not in rank_parts(cut.indices[0], row, (0, 24), 100)[0].label(row, 2, 0)


def test_tokens_of_no_sequence_have_no_owner(pack: Pack) -> None:
    batch = pack([8, 16])
    batch["cu_seqlens_q"][0, -1] = 16
    cut, row = preview(batch, 2)
    owners = {part.owner for rank in cut.indices for part in rank_parts(rank, row, (0, 24), 100) if part.start >= 16}
    assert owners <= {None}


def test_a_row_of_few_sequences_is_shown_whole(pack: Pack) -> None:
    cut, row = preview(pack([8] * 12), 2)
    assert cut_window(cut, row) == (0, row.total)


def test_of_many_sequences_the_first_are_shown(pack: Pack) -> None:
    cut, row = preview(pack([8] * 100), 2)
    assert cut_window(cut, row) == (0, 96)


def test_more_ranks_leave_room_for_fewer_sequences(pack: Pack) -> None:
    cut, row = preview(pack([128] * 20), 64)
    assert cut_window(cut, row) == (0, 256)


@pytest.mark.parametrize("at", [0, 1, 30, 99])
def test_the_window_holds_the_first_fault(at: int, pack: Pack) -> None:
    lengths = [8] * 100
    lengths[at] = 10
    cut, row = preview(pack([*lengths, 6]), 2)
    assert not cut.whole
    start, end = cut_window(cut, row)
    first = int(np.concatenate([cut.duplicated, cut.lost]).min())
    assert start <= first < end
    assert end - start <= 12 * 10


def test_the_number_of_parts_is_bounded(pack: Pack) -> None:
    cut, row = preview(pack([8] * 1000), 2)
    assert len(rank_parts(cut.indices[0], row, (0, row.total), 50)) <= 50 + len(row.starts)
