from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skill_run.errors import InputError
from skill_run.plan.plan import plan_packing

LENGTHS = {300: 4000, 1200: 900, 3900: 200, 7000: 40}
RECIPE = "qwen3_8b_sft_8gpu_h100_bf16_32k_config"
SCHEMA = json.loads((files("skill_run.report") / "plan.schema.json").read_text("utf-8"))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"model": "Qwen/Qwen3-8B", "gpus": 16},
        {"model": "Qwen/Qwen3-30B-A3B", "gpus": 16, "gpu": "gb200", "peft": "lora"},
        {"recipe": RECIPE},
        {"cp": 4, "tp": 2, "dp": 3, "bridge": "0.4.2"},
        {"pack_sizes": (64,), "seq_length": 9000},
        {"model": "meta-llama/Meta-Llama-3-70B", "gpus": 8},
        {"model": "zai-org/GLM-5.2", "gpus": 608, "pack_sizes": (131072,), "recompute": "full"},
    ],
    ids=str,
)
def test_the_dict_has_the_form_that_is_published(options: dict[str, Any]) -> None:
    told = plan_packing(LENGTHS, **options).to_dict()

    jsonschema.validate(told, SCHEMA)
    assert json.loads(json.dumps(told, allow_nan=False)) == told


@given(st.dictionaries(st.integers(1, 20000), st.integers(1, 60), min_size=1, max_size=20), st.sampled_from([1, 2, 4]))
@settings(deadline=None, max_examples=25)
def test_any_lengths_make_a_plan_whose_figures_agree(counts: dict[int, int], cp: int) -> None:
    plan = plan_packing(counts, cp=cp, bridge="0.6.2")

    for each in plan.candidates:
        assert each.global_batch_size * each.pack_size == pytest.approx(plan.tokens_per_step, abs=each.pack_size)
        assert each.cut.samples + each.cut.dropped_samples + each.cut.empty == sum(counts.values())
        if each.statistics is not None:
            assert each.statistics.fill <= 1
            slots = each.statistics.packs * each.pack_size
            assert each.statistics.fill * slots == pytest.approx(each.cut.tokens)
            assert each.statistics.alignment_padding * slots == pytest.approx(each.cut.alignment)
    recommended = plan.recommendation.candidate
    assert recommended is None or recommended.lost <= min(each.lost for each in plan.candidates) + 0.001


def test_paths_arrays_and_mappings_of_the_same_lengths_make_the_same_plan(tmp_path: Path) -> None:
    path = tmp_path / "lengths.npy"
    lengths = np.repeat(list(LENGTHS), list(LENGTHS.values()))
    np.save(path, lengths)

    plans = [plan_packing(source).to_dict() for source in (path, str(path), lengths, lengths.tolist(), LENGTHS)]

    for plan in plans:
        del plan["lengths"]["source"], plan["lengths"]["kind"]
    assert all(plan == plans[0] for plan in plans)


def test_a_global_batch_counts_packs_of_the_size_it_is_given_for() -> None:
    def slots(**options: Any) -> int:
        return plan_packing(LENGTHS, **options).tokens_per_step

    assert slots() == 64 * 8192
    assert slots(global_batch_size=16) == 16 * 8192
    assert slots(global_batch_size=16, pack_sizes=(4096,)) == 16 * 4096
    assert slots(global_batch_size=16, seq_length=2048) == 16 * 2048
    assert slots(recipe=RECIPE) == 8 * 32768
    assert slots(recipe=RECIPE, global_batch_size=4) == 4 * 32768
    assert slots(recipe=RECIPE, tokens_per_step=10**6) == 10**6


def test_chats_are_dropped_and_not_cut() -> None:
    plain, chat = (
        plan_packing({300: 9, 9000: 1}, pack_sizes=(8192,), bridge="0.6.2", chat=flag).candidates[0].cut
        for flag in (False, True)
    )

    assert (plain.truncated_samples, plain.dropped_samples) == (1, 0)
    assert (chat.truncated_samples, chat.dropped_samples) == (0, 1)


@pytest.mark.parametrize("bridge", ["0.4.2", "0.5.1"])
def test_chats_that_an_old_release_cannot_pack_are_not_recommended(bridge: str) -> None:
    found = plan_packing({300: 9, 9000: 1}, pack_sizes=(8192,), bridge=bridge, chat=True).recommendation

    assert found.candidate is None
    assert "IndexError" in found.reasons[-1]


def test_without_a_model_the_notes_say_what_is_not_told() -> None:
    assert "memory is not; give --model" in plan_packing(LENGTHS).notes[0]
    assert "give --gpus" in plan_packing(LENGTHS, model="Qwen/Qwen3-8B").notes[0]


def test_very_many_samples_are_planned_for_from_an_even_choice() -> None:
    plan = plan_packing({400: 6_000_000, 900: 4_000_000}, pack_sizes=(8192,))

    assert any("1 in 20.0 samples" in note for note in plan.notes)
    assert plan.candidates[0].cut.samples == 10_000_000


def test_a_rule_against_the_settings_is_told() -> None:
    notes = plan_packing(LENGTHS, bridge="0.4.2", cp=2).notes

    assert any("parquet-packs-ignore-pad-multiple" in note for note in notes)


@pytest.mark.parametrize(
    ("source", "options", "sentence"),
    [
        ({}, {}, "holds no lengths"),
        ([0], {}, "0 is no length"),
        ([-5], {}, "-5 is no length"),
        ([4.5], {}, "4.5 is no length"),
        ("nowhere.txt", {}, "is not there"),
        (LENGTHS, {"gpus": 0}, "gpus must be a whole number from 1 on, not 0"),
        (LENGTHS, {"tp": -1}, "tp must be a whole number"),
        (LENGTHS, {"cp": 2.0}, "cp must be a whole number"),
        (LENGTHS, {"max_sequences": 0}, "max_sequences must be a whole number"),
        (LENGTHS, {"tokens_per_step": True}, "tokens_per_step must be a whole number"),
        (LENGTHS, {"seq_length": 10**12}, "seq_length must be a whole number"),
        (LENGTHS, {"pack_sizes": (0,)}, "a pack size is a whole number"),
        (LENGTHS, {"gpu": "abacus"}, "'abacus' is not a known kind of GPU"),
        (LENGTHS, {"bridge": "one"}, "is not a Megatron-Bridge version"),
        (LENGTHS, {"model": "nobody/nothing"}, "sizes of nobody/nothing are not known"),
        (LENGTHS, {"recipe": "nothing_sft_config"}, "has no recipe nothing_sft_config"),
        (LENGTHS, {"config": "nowhere.yaml"}, "nowhere.yaml"),
    ],
)
def test_bad_input_ends_in_one_sentence(source: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        plan_packing(source, **options)
    assert "\n" not in str(caught.value)


def test_a_billion_tokens_in_one_sample_end_in_a_plan_that_says_what_it_loses() -> None:
    plan = plan_packing({10**9: 1, 500: 1000})

    assert plan.candidates[-1].lost > 0.99
    assert plan.candidates[-1].cut.truncated_samples == 1
