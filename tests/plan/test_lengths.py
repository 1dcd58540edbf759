from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_run.errors import InputError
from skill_run.plan.lengths import (
    MAX_LENGTH,
    LengthCounter,
    from_mapping,
    from_values,
    thinned,
    total,
)

lists = st.lists(st.integers(1, 5000), min_size=1, max_size=200)


@given(lists, st.integers(1, 50))
def test_counting_block_by_block_gives_the_histogram_of_the_whole(lengths: list[int], block: int) -> None:
    counter = LengthCounter("lengths")
    for start in range(0, len(lengths), block):
        counter.add(np.array(lengths[start : start + block], dtype=np.int64))

    found = counter.lengths("lengths")

    assert np.repeat(found.values, found.counts).tolist() == sorted(lengths)
    assert (found.samples, found.tokens, found.longest) == (len(lengths), sum(lengths), max(lengths))


@given(lists)
def test_quantiles_are_those_of_the_sorted_lengths(lengths: list[int]) -> None:
    found = from_values(lengths, "lengths")

    for share in (0.0, 0.5, 0.95, 1.0):
        position = max(0, int(np.ceil(share * len(lengths))) - 1)
        assert found.quantile(share) == sorted(lengths)[position]


def test_the_weighted_mean_is_that_of_the_sample_a_token_lies_in() -> None:
    assert from_values([1, 3], "lengths").weighted_mean() == (1 * 1 + 3 * 3) / 4


@pytest.mark.parametrize(
    "given",
    [
        {"4": 2, "7": 1},
        {4: 2, 7: 1},
        {"length": [7, 4, 4], "count": [1, 1, 1]},
        {"lengths": [4, 7, 4]},
        {"4": 2, "7": 1, "9": 0},
    ],
)
def test_every_form_of_mapping_gives_the_same_histogram(given: dict[str, object]) -> None:
    found = from_mapping(given, "it")

    assert (found.values.tolist(), found.counts.tolist()) == ([4, 7], [2, 1])


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "it holds no lengths"),
        ({"4": 0}, "it holds no lengths"),
        ({"0": 3}, "0 is no length"),
        ({"-4": 3}, "-4 is no length"),
        ({"4.5": 3}, "4.5 is no length"),
        ({"four": 3}, "four is no length"),
        ({4: 2.5}, "2.5 is no number of samples"),
        ({4: -1}, "-1 is no number of samples"),
        ({4: True}, "True is no number of samples"),
        ({True: 4}, "True is no length"),
        ({MAX_LENGTH + 1: 1}, "more than any sample has"),
        ({4: 10**13}, "is no number of samples"),
        ({"length": [1, 2], "count": [1]}, "2 lengths but 1 counts"),
        ({"lengths": 4}, "lengths must be a list of numbers"),
        ({"lengths": [4, 0]}, "0 is no length"),
    ],
)
def test_a_mapping_that_is_no_histogram_is_refused_in_one_sentence(given: dict[object, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        from_mapping(given, "it")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([], "holds no lengths"),
        ([1, 2.0], "2.0 is no length"),
        (np.array([1.5, 2.0]), "1.5 is no length"),
        ([[1, 2]], r"\[1, 2\] is no length"),
        (np.ones((2, 2), dtype=int), "array of shape"),
        ([1, -2], "-2 is no length"),
        ([1, "2"], "2 is no length"),
        ([10**30], "more than any sample has"),
        (np.array([2**63], dtype=np.uint64), "more than any sample has"),
    ],
)
def test_what_is_no_list_of_lengths_is_refused_in_one_sentence(given: object, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        from_values(given, "lengths")


@pytest.mark.parametrize("kind", ["int8", "uint16", "int64", "uint64"])
def test_arrays_of_any_whole_type_are_lengths(kind: str) -> None:
    assert from_values(np.array([4, 7, 4], dtype=kind), "it").counts.tolist() == [2, 1]


def test_a_billion_tokens_in_one_sample_are_counted_exactly() -> None:
    found = from_mapping({10**9: 10**11}, "it")

    assert found.tokens == 10**20


def test_totals_are_exact_where_64_bits_are_too_few() -> None:
    values, counts = np.array([2**31 - 1, 5]), np.array([10**12, 1])

    assert total(values, counts) == (2**31 - 1) * 10**12 + 5


@given(st.dictionaries(st.integers(1, 1000), st.integers(1, 1000), min_size=1, max_size=40), st.integers(1, 200))
def test_thinning_keeps_the_shares_of_the_lengths_and_the_longest(counts: dict[int, int], most: int) -> None:
    whole = from_mapping(counts, "it")

    found, times = thinned(whole, most)

    assert found.longest == whole.longest
    assert found.samples <= max(most, 1) + 1 or found is whole
    assert times == pytest.approx(whole.samples / found.samples)
    kept = dict(zip(found.values.tolist(), found.counts.tolist(), strict=True))
    assert all(abs(kept.get(length, 0) * times - number) <= 2.5 * times for length, number in counts.items())
