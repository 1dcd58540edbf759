from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skill_run.pack import assign_packs
from skill_run.plan.cutting import Cut, cut_for
from skill_run.plan.lengths import from_values
from skill_run.plan.statistics import PackStatistics, pack_statistics


def cut(lengths: list[int], pack_size: int, multiple: int = 1) -> Cut:
    return cut_for(
        from_values(lengths, "it"), bridge="0.6.2", pack_size=pack_size, seq_length=pack_size, pad_seq_to_mult=multiple
    )


def counted_by_hand(found: Cut, pack_size: int) -> dict[str, object]:
    """The figures from the packs themselves, one by one."""
    physical, logical = (np.repeat(each, found.counts).tolist() for each in (found.physical, found.logical))
    packs: dict[int, list[tuple[int, int]]] = {}
    for pack, pair in zip(assign_packs(physical, pack_size), zip(physical, logical, strict=True), strict=True):
        packs.setdefault(int(pack), []).append(pair)
    slots = len(packs) * pack_size
    squares = [sum(length**2 for length, _ in members) for members in packs.values()]
    return {
        "packs": len(packs),
        "fill": sum(real for members in packs.values() for _, real in members) / slots,
        "alignment": sum(length - real for members in packs.values() for length, real in members) / slots,
        "tail": sum(pack_size - sum(length for length, _ in members) for members in packs.values()) / slots,
        "mean": sum(map(len, packs.values())) / len(packs),
        "most": max(map(len, packs.values())),
        "attention": sum(squares) / len(packs),
        "length": sum(squares) / sum(length for members in packs.values() for length, _ in members),
        "padded": 1 - sum(real**2 for members in packs.values() for _, real in members) / sum(squares),
    }


def told(found: PackStatistics) -> dict[str, object]:
    return {
        "packs": found.packs,
        "fill": found.fill,
        "alignment": found.alignment_padding,
        "tail": found.tail_padding,
        "mean": found.sequences_mean,
        "most": found.sequences_max,
        "attention": found.attention,
        "length": found.mean_length,
        "padded": found.alignment_work,
    }


@given(st.lists(st.integers(2, 300), min_size=1, max_size=120), st.sampled_from([1, 4, 6]))
@settings(deadline=None)
def test_figures_are_those_counted_in_the_packs_by_hand(lengths: list[int], multiple: int) -> None:
    found = cut(lengths, 240, multiple)

    assert told(pack_statistics(found, 240)) == pytest.approx(counted_by_hand(found, 240))


@given(st.lists(st.integers(2, 300), min_size=1, max_size=120), st.sampled_from([1, 8]))
@settings(deadline=None)
def test_tokens_and_padding_add_up_to_the_slots(lengths: list[int], multiple: int) -> None:
    found = pack_statistics(cut(lengths, 240, multiple), 240)

    assert 0 < found.fill <= 1
    assert found.fill + found.alignment_padding + found.tail_padding == pytest.approx(1)
    assert found.sequences_mean <= found.sequences_max


def test_one_sample_makes_one_pack() -> None:
    found = pack_statistics(cut([101], 400), 400)

    assert (found.packs, found.fill, found.sequences_max, found.cu_seqlens) == (1, 0.25, 1, 3)
    assert found.mean_length == 100
    assert found.to_dict()["sequences_per_pack"] == {"mean": 1, "max": 1}


def test_a_cap_on_sequences_holds_and_costs_packs() -> None:
    found = cut([9] * 64, 256)

    free, capped = pack_statistics(found, 256), pack_statistics(found, 256, max_sequences=4)

    assert (free.packs, free.sequences_max) == (2, 32)
    assert (capped.packs, capped.sequences_max) == (16, 4)


def test_packs_of_an_even_choice_are_told_for_all() -> None:
    found = pack_statistics(cut([101] * 40, 400), 400, scale=2.5)

    assert found.packs == 25
    assert found.to_dict()["sampled"] is True


def test_balance_evens_out_the_attention_of_packs() -> None:
    lengths = np.random.default_rng(0).lognormal(np.log(200), 1, 4000).clip(8, 4096).astype(int).tolist()

    found = pack_statistics(cut(lengths, 4096), 4096, data_parallel=4, rows_per_step=16)

    assert found.balanced is not None
    assert found.balanced.ratio < found.spread.ratio
    assert found.balanced.wait is not None
    assert found.spread.wait is not None
    assert found.balanced.wait < found.spread.wait
    assert found.balanced.packs <= 1.05 * found.packs
