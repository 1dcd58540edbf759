from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skill_run.batch.context_parallel import (
    MAX_SIZE,
    MAX_TOKENS,
    can_cut,
    closed_form_indices,
    kernel_indices,
    partition,
    reassemble,
    row_indices,
)
from skill_run.errors import InputError

EXAMPLES = settings(derandomize=True, deadline=None, database=None, max_examples=60)


@st.composite
def aligned_rows(draw: st.DrawFn) -> tuple[list[int], int]:
    """Return boundaries on the grid of a group size, with empty sequences among them, and the size."""
    size = draw(st.sampled_from([1, 2, 3, 4, 8]))
    lengths = draw(st.lists(st.integers(0, 5), min_size=1, max_size=8).filter(any))
    return [0, *np.cumsum(np.array(lengths) * 2 * size).tolist()], size


def _every(boundaries: list[int], size: int, tokens: int | None = None) -> list[list[int]]:
    cu = np.array(boundaries)
    return [kernel_indices(cu, int(cu[-1]) if tokens is None else tokens, size, rank).tolist() for rank in range(size)]


def test_the_cut_is_the_one_that_transformer_engine_tests() -> None:
    assert _every([0, 8, 16], 2) == [[0, 1, 6, 7, 8, 9, 14, 15], [2, 3, 4, 5, 10, 11, 12, 13]]


@EXAMPLES
@given(aligned_rows())
def test_kernel_and_definition_agree_on_the_grid(row: tuple[list[int], int]) -> None:
    boundaries, size = row
    defined = [closed_form_indices(np.array(boundaries), size, rank).tolist() for rank in range(size)]
    assert _every(boundaries, size) == defined


@EXAMPLES
@given(aligned_rows())
def test_on_the_grid_every_token_is_on_exactly_one_rank(row: tuple[list[int], int]) -> None:
    boundaries, size = row
    held = sorted(index for rank in _every(boundaries, size) for index in rank)
    assert held == list(range(boundaries[-1]))


@EXAMPLES
@given(aligned_rows(), st.integers(1, 4))
def test_repeated_last_boundaries_and_one_sentinel_change_nothing(row: tuple[list[int], int], times: int) -> None:
    boundaries, size = row
    usual = _every(boundaries, size)
    assert _every([*boundaries, *[boundaries[-1]] * times], size) == usual
    assert _every([*boundaries, -1], size, boundaries[-1]) == usual


def test_two_sentinels_duplicate_and_lose_tokens() -> None:
    cut = partition(np.array([0, 36, 84, 120, 128, -1, -1]), 128, 2)
    assert not cut.whole
    assert cut.duplicated.tolist() == [60, 61, 62, 63]
    assert cut.lost.tolist() == [120, 121, 122, 123, 124, 125, 126, 127]


@pytest.mark.parametrize("boundaries", [[0, 6, 16], [0, 7, 16], [0, 12, 8, 16], [4, 8, 16]])
def test_a_cut_by_other_boundaries_is_not_whole(boundaries: list[int]) -> None:
    cut = partition(np.array(boundaries), 16, 2)
    assert not cut.whole
    assert cut.lost.size + cut.duplicated.size + cut.outside > 0


@EXAMPLES
@given(st.lists(st.integers(-(2**62), 2**62), min_size=2, max_size=8), st.sampled_from([1, 2, 4]), st.integers(1, 8))
def test_any_boundaries_are_cut_without_an_error(boundaries: list[int], size: int, chunks: int) -> None:
    tokens = 2 * size * chunks
    cut = partition(np.array(boundaries), tokens, size)
    assert [index.size for index in cut.indices] == [tokens // size] * size
    assert cut.lost.size <= tokens


@EXAMPLES
@given(aligned_rows())
def test_parts_put_together_give_the_row_back(row: tuple[list[int], int]) -> None:
    boundaries, size = row
    tokens = np.arange(boundaries[-1]) * 3 + 1
    cut = partition(np.array(boundaries), tokens.size, size)
    assert np.array_equal(reassemble([tokens[index] for index in cut.indices], cut.indices), tokens)


def test_an_ordinary_row_is_cut_as_one_sequence() -> None:
    assert row_indices(8, 2, 0).tolist() == [0, 1, 6, 7]
    assert row_indices(8, 2, 1).tolist() == [2, 3, 4, 5]


def test_work_counts_the_keys_that_each_token_attends_to() -> None:
    cut = partition(np.array([0, 4, 8]), 8, 2)
    assert cut.work == (10, 10)
    assert cut.imbalance == 1.0
    assert sum(cut.work) == 2 * math.comb(5, 2)


def test_trained_tokens_are_counted_per_rank() -> None:
    mask = np.array([1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, math.nan])
    assert partition(np.array([0, 8]), 8, 2, mask).trained == (2, 0)
    assert partition(np.array([0, 8]), 8, 2, mask[:4]).trained is None


def test_the_partition_as_data_is_bounded() -> None:
    shown = partition(np.array([0, 4096]), 4096, 2).to_dict(limit=8)
    assert shown["whole"] is True
    assert [len(rank["indices"]) for rank in shown["ranks"]] == [8, 8]
    assert [rank["tokens"] for rank in shown["ranks"]] == [2048, 2048]


@pytest.mark.parametrize(
    ("boundaries", "tokens", "size", "rank", "said"),
    [
        ([0], 8, 2, 0, "at least two boundaries"),
        ([0, 8], 8, 2, 2, "outside a context parallel group of 2"),
        ([0, 6], 6, 2, 0, "not a multiple of 4"),
        ([0, 0], 0, 2, 0, "0 tokens cannot be cut"),
    ],
)
def test_what_the_host_code_refuses_is_refused(
    boundaries: list[int], tokens: int, size: int, rank: int, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        kernel_indices(np.array(boundaries), tokens, size, rank)


def test_rows_and_groups_beyond_any_run_are_not_previewed() -> None:
    assert can_cut(8, 2)
    assert not can_cut(6, 2)
    assert not can_cut(0, 2)
    assert not can_cut(MAX_TOKENS * 4, 2)
    assert not can_cut(2 * (MAX_SIZE + 1), MAX_SIZE + 1)
    with pytest.raises(InputError, match="too long to preview"):
        partition(np.array([0, MAX_TOKENS * 4]), MAX_TOKENS * 4, 2)
    with pytest.raises(InputError, match="cannot be previewed"):
        partition(np.array([0, 8]), 8, MAX_SIZE + 1)
