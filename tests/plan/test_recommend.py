from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from skill_run.plan.assess import Candidate, Terms, assess
from skill_run.plan.intent import Intent, read_intent
from skill_run.plan.lengths import from_mapping
from skill_run.plan.recommend import better_comm, recommend
from skill_run.plan.traffic import Traffic


def judged(counts: dict[int, int], sizes: tuple[int, ...], intent: Intent | None = None, **terms: Any) -> Any:
    intent = intent or read_intent(bridge="0.6.2")
    lengths = from_mapping(counts, "it")
    common = Terms(**{"slots": 524288, **terms})
    candidates = [assess(size, lengths, intent, common) for size in sizes]

    def again(best: Candidate, row: Traffic) -> Candidate:
        return replace(best, layout=replace(best.layout, cp_comm_type=row.layout.cp_comm_type))

    return recommend(candidates, intent, again)


def test_a_size_that_cuts_tokens_is_out_with_its_share() -> None:
    found = judged({300: 900, 6000: 100}, (2048, 8192))

    assert found.pack_size == 8192
    # 100 x (5999 - 2047) of 900 x 300 + 100 x 6000 tokens.
    assert "Packs of 2048 tokens would lose 45.43% of the tokens to cutting; larger ones 0.00%." in found.reasons


def test_a_size_that_is_filled_badly_is_out_with_both_fills() -> None:
    # 3000 tokens: one in 4096, ten in 32768.
    found = judged({3001: 200}, (4096, 32768))

    assert found.pack_size == 32768
    assert any("Packs of 4096 tokens are filled to 73.2% only, of 32768 to 9" in reason for reason in found.reasons)


@pytest.mark.parametrize(("sizes", "best"), [((2048, 8192, 16384), 8192), ((2048, 32768), 2048), ((1024, 4096), 4096)])
def test_of_equally_good_sizes_the_nearest_to_upstreams_first_is_taken(sizes: tuple[int, ...], best: int) -> None:
    found = judged({65: 20000, 257: 2000}, sizes)

    assert found.pack_size == best
    assert any(f"would do as well; {best} is nearest to 8192" in reason for reason in found.reasons)


def test_a_size_that_upstream_would_stop_on_is_not_recommended() -> None:
    found = judged({300: 900, 6000: 100}, (4096, 8192), seq_length=8192)

    assert found.pack_size == 8192

    found = judged({300: 900, 6000: 100}, (4096,), seq_length=8192)
    assert found.candidate is None
    assert found.reasons == (
        "No size can be packed: samples longer than the pack size 4096 stop the packing with a KeyError.",
    )


def test_a_size_off_the_alignment_is_out() -> None:
    found = judged({300: 900}, (1001, 8192), pad_seq_to_mult=8)

    assert found.pack_size == 8192
    assert "1001 is out: a pack of 1001 tokens is not a multiple of pad_seq_to_mult 8." in found.reasons


def test_a_size_that_does_not_fit_the_gpus_is_out_with_the_reason() -> None:
    intent = read_intent(model="meta-llama/Meta-Llama-3-70B", gpus=8, gpu="h100", bridge="0.6.2")

    found = judged({300: 900}, (8192,), intent)

    assert found.candidate is None
    assert any("does not fit on 8 H100" in reason for reason in found.reasons)


def test_memory_and_layout_of_the_best_are_told() -> None:
    intent = read_intent(model="Qwen/Qwen3-8B", gpus=16, gpu="h100", bridge="0.6.2")

    found = judged({65: 20000, 257: 2000}, (8192, 65536), intent)

    assert found.pack_size == 8192
    assert any("A trained token costs least time with 8192" in reason for reason in found.reasons)
    assert any("of 80 GiB on the fullest H100" in reason for reason in found.reasons)


def row(candidate: Candidate, comm: str, exposed: float, why: str | None = None) -> Traffic:
    layout = replace(candidate.layout, cp_comm_type=comm)
    return Traffic(layout, "exposed", attention=50, products=50, exposed=exposed, why=why)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([("a2a", 40, None), ("p2p", 10, None)], "p2p"),
        ([("a2a", 12, None), ("p2p", 10, None)], None),
        ([("a2a", 40, None), ("all_gather", 5, "needs a newer engine")], None),
        ([("a2a", 10, None), ("p2p", 40, None)], None),
    ],
)
def test_another_exchange_is_taken_only_when_it_is_clearly_better(
    rows: list[tuple[str, float, str | None]], expected: str | None
) -> None:
    intent = read_intent(bridge="0.6.2", fixed={"cp": 4})
    plain = assess(8192, from_mapping({300: 900}, "it"), intent, Terms(slots=524288))
    candidate = replace(plain, layout=replace(plain.layout, cp_comm_type="a2a"))
    candidate = replace(candidate, traffic=tuple(row(candidate, *each) for each in rows))

    found = better_comm(candidate, {})

    assert (found.layout.comm if found is not None else None) == expected
    assert better_comm(candidate, {"cp_comm_type": "a2a"}) is None
