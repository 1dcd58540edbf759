"""assign_packs: every sequence in one pack, none too full, as few as first-fit-decreasing, mixed, limited, balanced."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skill_run import pack
from skill_run.errors import InputError
from skill_run.pack.assign import ALGORITHMS, assign_packs

SIZES = {
    "log-normal": lambda r: np.clip(np.exp(r.normal(6, 1, 4000)).astype(int), 8, 8192),
    "all equal": lambda r: np.full(3000, 100),
    "two lengths": lambda r: r.choice([4097, 4095], 4000),
    "two that leave room": lambda r: r.choice([3000, 2600], 4000),
    "more than half a pack": lambda r: r.integers(4097, 8193, 3000),
    "uniform": lambda r: r.integers(1, 8193, 4000),
    "thirds": lambda r: r.integers(2600, 2800, 4000),
    "whole packs": lambda r: np.full(50, 8192),
    "one sequence": lambda r: np.asarray([5]),
    "one token each": lambda r: np.ones(1000, int),
}


def check(lengths: Any, ids: Any, pack_size: int) -> int:
    """Check that ids are a packing, and return the number of packs."""
    assert ids.dtype.kind == "i"
    assert len(ids) == len(lengths)
    tokens = np.bincount(ids, weights=lengths)
    assert tokens.max() <= pack_size
    assert np.bincount(ids).min() > 0
    return int(ids.max()) + 1


def packs_by_size(name: str, **options: Any) -> tuple[int, int, Any]:
    lengths = SIZES[name](np.random.default_rng(1))
    ids = assign_packs(lengths, 8192, **options)
    classic = check(lengths, assign_packs(lengths, 8192, algorithm="first_fit_decreasing"), 8192)
    return check(lengths, ids, 8192), classic, np.bincount(ids)


@pytest.mark.parametrize("name", SIZES)
def test_histogram_packing_takes_no_more_packs_than_first_fit_decreasing(name: str) -> None:
    packs, classic, _ = packs_by_size(name)
    assert packs <= classic


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("most", [1, 2, 5])
def test_no_pack_holds_more_sequences_than_the_limit(name: str, most: int) -> None:
    packs, classic, held = packs_by_size(name, max_sequences=most)
    assert held.max() <= most
    assert packs >= max(classic, -(-held.sum() // most)) or packs == classic


@pytest.mark.parametrize("name", SIZES)
def test_balance_costs_at_most_one_pack_in_a_hundred(name: str) -> None:
    packs, classic, _ = packs_by_size(name, balance=True)
    assert packs <= classic * 1.01


def test_a_limit_of_32_costs_at_most_half_a_percent(log_normal: Any) -> None:
    lengths = log_normal(100_000)
    free = check(lengths, assign_packs(lengths, 8192), 8192)
    assert check(lengths, assign_packs(lengths, 8192, max_sequences=32), 8192) <= free * 1.005


@pytest.mark.parametrize("most", [3, 8, 12])
def test_a_limit_that_binds_before_room_does_costs_few_packs_over_the_fewest_possible(
    most: int, log_normal: Any
) -> None:
    lengths = log_normal(100_000)
    packs = check(lengths, assign_packs(lengths, 8192, max_sequences=most), 8192)
    assert packs <= -(-len(lengths) // most) * 1.03


def test_sequences_are_mixed_where_first_fit_decreasing_heaps_up_the_shortest(log_normal: Any) -> None:
    lengths = log_normal(100_000)
    classic = np.bincount(assign_packs(lengths, 8192, algorithm="first_fit_decreasing"))
    assert np.bincount(assign_packs(lengths, 8192)).max() < classic.max() / 3


def test_balanced_packs_have_work_three_times_less_uneven_than_first_fit_decreasing(log_normal: Any) -> None:
    # A sequence as long as the pack is alone in it, whatever is packed, so none is that long here.
    lengths = log_normal(100_000, longest=4096)

    def excess(ids: Any) -> float:
        work = np.bincount(ids, weights=lengths.astype(float) ** 2)
        return float(np.percentile(work, 99) / np.percentile(work, 50) - 1)

    classic = excess(assign_packs(lengths, 8192, algorithm="first_fit_decreasing"))
    assert excess(assign_packs(lengths, 8192, balance=True)) < classic / 3


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=400),
    st.integers(300, 900),
    st.sampled_from([None, 1, 3, 17]),
    st.booleans(),
)
@settings(deadline=None)
def test_any_lengths_are_packed_whole_and_within_limits(
    lengths: list[int], pack_size: int, most: int | None, balance: bool
) -> None:
    ids = assign_packs(lengths, pack_size, max_sequences=most, balance=balance)
    packs = check(np.asarray(lengths), ids, pack_size)
    assert most is None or np.bincount(ids).max() <= most
    classic = int(assign_packs(lengths, pack_size, algorithm="first_fit_decreasing").max()) + 1
    assert most is not None or packs <= max(classic, int(classic * 1.005) if balance else 0)


@given(st.lists(st.integers(1, 64), min_size=1, max_size=60), st.integers(64, 128))
@settings(deadline=None)
def test_first_fit_decreasing_is_the_textbook_algorithm(lengths: list[int], pack_size: int) -> None:
    packs: list[list[int]] = []
    for length in sorted(lengths, reverse=True):
        fits = next((held for held in packs if sum(held) + length <= pack_size), None)
        if fits is None:
            packs.append([length])
        else:
            fits.append(length)
    ids = assign_packs(lengths, pack_size, algorithm="first_fit_decreasing")
    found = [sorted(np.asarray(lengths)[ids == number].tolist(), reverse=True) for number in range(ids.max() + 1)]
    assert found == packs


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_same_call_gives_the_same_packs_and_leaves_the_global_generator_alone(
    algorithm: str, log_normal: Any
) -> None:
    lengths = log_normal(3000)
    before = np.random.get_state()[1].tolist()  # type: ignore[union-attr]
    first = assign_packs(lengths, 8192, algorithm=algorithm, seed=4)
    assert np.array_equal(first, assign_packs(lengths, 8192, algorithm=algorithm, seed=4))
    assert np.random.get_state()[1].tolist() == before  # type: ignore[union-attr]


def test_no_lengths_need_no_pack() -> None:
    assert assign_packs([], 100).tolist() == []


def test_the_function_is_offered_by_the_package() -> None:
    assert pack.assign_packs is assign_packs


@pytest.mark.parametrize(
    ("lengths", "options", "message"),
    [
        ([5, 0, -1], {}, "2 of 3 lengths are below 1; the first is number 1: 0"),
        ([5, 101, 200], {}, r"2 of 3 lengths are longer than the pack \(100 tokens\); the first is number 1: 101"),
        ([1.5, 2.0], {}, "1 of 2 lengths are no whole numbers"),
        ([float("nan")], {}, "no whole numbers"),
        (["a"], {}, "must be whole numbers"),
        ([True, False], {}, "must be whole numbers"),
        ([[1, 2], [3, 4]], {}, "2 dimensions"),
        ([[1], [2, 3]], {}, "no list of numbers"),
        ([1], {"algorithm": "first_fit_shuffle", "seed": -1}, "the seed must be a whole number"),
        ([1], {"algorithm": "first_fit_shuffle", "seed": "a"}, "the seed must be a whole number"),
        ([1], {"algorithm": "best_fit"}, "there is no packing algorithm 'best_fit'"),
        ([1], {"max_sequences": 0}, "at least one sequence"),
        ([1], {"max_sequences": 1.5}, "at least one sequence .a whole number., not 1.5"),
        ([1], {"max_sequences": "8"}, "at least one sequence"),
        ([1], {"algorithm": "first_fit_shuffle", "balance": True}, "neither limits nor balances"),
        ([1], {"algorithm": "first_fit_decreasing", "max_sequences": 3}, "neither limits nor balances"),
    ],
)
def test_what_cannot_be_packed_is_refused_in_one_sentence(lengths: Any, options: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        assign_packs(lengths, 100, **options)


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "8", 2**40])
def test_a_pack_size_that_is_none_is_refused(size: Any) -> None:
    with pytest.raises(InputError, match="the pack size must be a whole number"):
        assign_packs([1], size)
