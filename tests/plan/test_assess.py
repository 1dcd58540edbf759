from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_run.plan.assess import MOST_SAMPLES, Candidate, Terms, assess, fixed_layout, pad_multiple
from skill_run.plan.intent import read_intent
from skill_run.plan.lengths import from_mapping

SLOTS = 524288


def judged(size: int = 8192, counts: dict[int, int] | None = None, fixed: dict[str, Any] | None = None) -> Candidate:
    intent = read_intent(bridge="0.6.2", fixed=fixed)
    return assess(size, from_mapping(counts or {300: 900, 6000: 100}, "it"), intent, Terms(SLOTS))


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 3, 4, 8]), st.booleans())
def test_the_alignment_is_that_of_the_rules(tp: int, cp: int, sp: bool) -> None:
    found = pad_multiple(tp, cp, sp and tp > 1)

    assert found % (2 * cp if cp > 1 else 1) == 0
    assert found % (cp * tp if sp and tp > 1 else 1) == 0
    assert found <= 2 * cp * tp


@pytest.mark.parametrize(
    ("fixed", "multiple", "text"),
    [
        ({}, 1, "TP1"),
        ({"cp": 4}, 8, "TP1 CP4 p2p"),
        ({"tp": 2, "cp": 3}, 6, "TP2 CP3 p2p SP"),
        ({"tp": 4, "cp": 2}, 8, "TP4 CP2 p2p SP"),
        ({"tp": 8, "sp": False}, 1, "TP8"),
    ],
)
def test_what_was_fixed_makes_the_layout_and_its_alignment(fixed: dict[str, Any], multiple: int, text: str) -> None:
    assert str(fixed_layout(read_intent(fixed=fixed))) == text
    assert judged(8208 if "cp" in fixed and fixed["cp"] == 3 else 8192, fixed=fixed).pad_seq_to_mult == multiple


@pytest.mark.parametrize("size", [1024, 4096, 8192, 32768])
def test_every_size_gets_the_same_token_slots(size: int) -> None:
    found = judged(size)

    assert found.global_batch_size * size == SLOTS


def test_steps_are_the_packs_of_an_epoch_in_global_batches() -> None:
    found = judged(8192, {8192: 130})

    assert found.statistics is not None
    assert (found.statistics.packs, found.global_batch_size, found.steps) == (130, 64, 3)


def test_gpus_decide_over_how_many_ranks_a_batch_is_dealt() -> None:
    intent = read_intent(bridge="0.6.2", gpus=24, fixed={"tp": 2, "cp": 4})

    found = assess(8192, from_mapping({300: 900}, "it"), intent, Terms(SLOTS))

    assert (found.data_parallel, found.global_batch_size) == (3, 63)


def test_when_nothing_is_left_to_pack_the_size_is_unfit() -> None:
    found = judged(8192, {1: 5})

    assert (found.statistics, found.unfit, found.cut.empty) == (None, "no sample is left to pack", 5)
    assert found.steps is None
    assert found.traffic == ()


def test_very_many_samples_are_thinned_and_told_for_all() -> None:
    found = judged(8192, {400: 6 * MOST_SAMPLES, 800: 4 * MOST_SAMPLES})

    assert found.statistics is not None
    assert found.statistics.scale == pytest.approx(10)
    assert found.cut.samples == 10 * MOST_SAMPLES
    # Twenty short samples or ten long ones fill a pack.
    assert found.statistics.packs == pytest.approx(MOST_SAMPLES * (6 + 2 * 4) / 20, rel=0.001)


def test_a_model_and_gpus_bring_memory_for_each_size() -> None:
    intent = read_intent(model="Qwen/Qwen3-8B", gpus=16, gpu="h100", bridge="0.6.2")
    small, large = (assess(size, from_mapping({300: 900}, "it"), intent, Terms(SLOTS)) for size in (4096, 65536))

    assert small.choice is not None
    assert large.choice is not None
    assert large.choice.layout.cp > small.choice.layout.cp
    assert small.choice.estimate.fits
    assert large.choice.estimate.fits
    assert (small.cost or 9) < (large.cost or 0)
