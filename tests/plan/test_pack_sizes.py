from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_run.errors import InputError
from skill_run.plan.lengths import from_mapping
from skill_run.plan.pack_sizes import MOST_SIZES, pack_sizes_for, rows_of_step


@given(st.dictionaries(st.integers(1, 2**31 - 1), st.integers(1, 10**6), min_size=1, max_size=30))
def test_sizes_are_a_few_powers_of_two_in_order(counts: dict[int, int]) -> None:
    sizes = pack_sizes_for(from_mapping(counts, "it"), (), None)

    assert 1 <= len(sizes) <= MOST_SIZES
    assert list(sizes) == sorted(set(sizes))
    assert all(size & (size - 1) == 0 for size in sizes)


@given(st.dictionaries(st.integers(1, 2**20), st.integers(1, 10**6), min_size=1, max_size=30))
def test_one_size_holds_the_longest_sample(counts: dict[int, int]) -> None:
    lengths = from_mapping(counts, "it")

    assert pack_sizes_for(lengths, (), None)[-1] >= lengths.longest


def test_sizes_lie_around_the_lengths() -> None:
    assert pack_sizes_for(from_mapping({400: 90, 2000: 9, 8000: 1}, "it"), (), None) == (
        1024,
        2048,
        4096,
        8192,
        16384,
        32768,
    )


def test_a_limit_of_the_samples_is_one_of_the_sizes_and_bounds_the_others() -> None:
    sizes = pack_sizes_for(from_mapping({400: 90, 100_000: 9}, "it"), (), 6000)

    assert 6000 in sizes
    assert max(sizes) <= 4 * 8192


@given(st.integers(1, 2**21), st.integers(2, 2**20))
def test_a_limit_of_the_samples_is_always_compared(longest: int, limit: int) -> None:
    assert limit in pack_sizes_for(from_mapping({1: 9, longest: 1}, "it"), (), limit)


def test_sizes_that_are_asked_for_are_taken_once_and_in_order() -> None:
    assert pack_sizes_for(from_mapping({400: 1}, "it"), (8192, 5000, 8192), None) == (5000, 8192)


@pytest.mark.parametrize("size", [0, -1, 1, 2**25, True, 8192.0, "8192"])
def test_a_size_that_cannot_be_is_refused(size: object) -> None:
    with pytest.raises(InputError, match="a pack size is a whole number of tokens"):
        pack_sizes_for(from_mapping({400: 1}, "it"), (size,), None)  # type: ignore[arg-type]


def test_too_many_sizes_are_refused() -> None:
    with pytest.raises(InputError, match="17 pack sizes"):
        pack_sizes_for(from_mapping({400: 1}, "it"), tuple(range(512, 529)), None)


@given(st.integers(1, 2**24), st.sampled_from([1024, 4096, 8192, 32768]), st.integers(1, 96))
def test_a_step_has_about_the_same_tokens_at_every_size_and_divides_by_the_ranks(
    slots: int, size: int, ranks: int
) -> None:
    rows = rows_of_step(slots, size, ranks)

    assert rows % ranks == 0
    assert rows >= ranks
    assert rows == ranks or abs(rows * size - slots) <= size * ranks / 2
