"""Figures of a dataset, whatever the chunks it comes in."""

from __future__ import annotations

import math
import statistics as plain
from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from packs import FUZZ, Rows, packed_rows
from test_layout import layout_of

from skill_run.pack.statistics import Statistics, spread


def gathered(chunks: list[Rows]) -> Statistics:
    found = Statistics()
    for rows in chunks:
        found.rows += len(rows)
        found.add(layout_of(rows))
    return found


@FUZZ
@given(st.lists(packed_rows(multiple=3), min_size=1, max_size=4))
def test_figures_do_not_depend_on_the_chunks(chunks: list[Rows]) -> None:
    whole = gathered([[row for rows in chunks for row in rows]]).figures(50)
    assert gathered(chunks).figures(50) == whole
    rows = [row for rows in chunks for row in rows]
    lengths = [
        last - first - 1
        for row in rows
        for first, last in zip(row["seq_start_id"], [*row["seq_start_id"][1:], len(row["input_ids"])], strict=True)
    ]
    assert whole["rows"] == len(rows)
    assert whole["sequences"] == len(lengths)
    assert whole["alignment"] == math.gcd(*lengths)
    assert whole["sequence_length"] == {"min": min(lengths), "max": max(lengths)}
    assert whole["fill"] == round(sum(lengths) / (50 * len(rows)), 4)
    assert sum(whole["length_histogram"].values()) == len(lengths)
    packs = [len(row["seq_start_id"]) for row in rows]
    assert whole["sequences_per_pack"] == {"min": min(packs), "median": plain.median_low(packs), "max": max(packs)}


def test_the_histogram_has_a_range_for_each_power_of_two() -> None:
    found = Statistics()
    found.add_lengths(np.array([0, 1, 2, 3, 4, 1023, 1024]))
    histogram = found.figures(None)["length_histogram"]
    assert histogram == {"0": 1, "1": 1, "2-3": 2, "4-7": 1, "512-1023": 1, "1024-2047": 1}
    assert found.figures(None)["empty_sequences"] == 1


def test_nothing_gives_no_figures() -> None:
    assert Statistics().figures(None) == {}
    assert Statistics().fill(8) is None


@FUZZ
@given(st.lists(st.integers(0, 9), min_size=1))
def test_spread_is_smallest_lower_median_and_largest(values: list[int]) -> None:
    assert spread(Counter(values)) == {
        "min": min(values),
        "median": plain.median_low(values),
        "max": max(values),
    }
