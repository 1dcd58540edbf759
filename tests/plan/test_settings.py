from __future__ import annotations

from typing import Any

import pytest

from skill_run import validate_config
from skill_run.plan.plan import PackingPlan, plan_packing

LENGTHS = {300: 4000, 1200: 900, 3900: 200, 7000: 40}
RELEASES = ["0.3.1", "0.4.2", "0.5.1", "0.6.2", "main"]
RECIPES = {
    "0.3.1": "qwen3_8b_sft_config",
    "0.4.2": "qwen3_8b_sft_config",
    "0.5.1": "qwen3_8b_sft_config",
    "0.6.2": "qwen3_8b_sft_8gpu_h100_bf16_32k_config",
    "main": "qwen3_8b_sft_8gpu_h100_bf16_32k_config",
}


def planned(**settings: Any) -> PackingPlan:
    return plan_packing(LENGTHS, pack_sizes=(8192, 16384), **settings)


@pytest.mark.parametrize("bridge", RELEASES)
@pytest.mark.parametrize("fixed", [{}, {"cp": 2}, {"tp": 2, "cp": 4}], ids=str)
def test_a_recipe_with_the_overrides_of_a_plan_is_valid_or_says_why_not(bridge: str, fixed: dict[str, int]) -> None:
    plan = planned(recipe=RECIPES[bridge], bridge=bridge, gpus=16, gpu="h100", **fixed)

    report = validate_config(
        None, recipe=RECIPES[bridge], bridge=bridge, overrides=list(plan.overrides), world_size=16, gpu="h100"
    )

    assert plan.overrides
    # What an old release cannot do right is told beside the settings.
    untold = [each.rule for each in report.at_least("corruption") if not any(each.rule in note for note in plan.notes)]
    assert untold == []
    if bridge in ("0.5.1", "0.6.2", "main"):
        assert report.at_least("corruption") == []


@pytest.mark.parametrize(("bridge", "specs"), [("0.5.1", "packed_sequence_specs"), ("0.6.2", "offline_packing_specs")])
def test_overrides_are_in_the_names_of_the_release(bridge: str, specs: str) -> None:
    overrides = planned(bridge=bridge, cp=2).overrides

    assert f"dataset.{specs}.pad_seq_to_mult=4" in overrides
    assert ("dataset.enable_offline_packing=true" in overrides) == (bridge == "0.6.2")
    assert "model.calculate_per_token_loss=true" in overrides
    assert "ddp.average_in_collective=false" in overrides


def test_a_limit_of_samples_is_set_beside_the_pack_size_where_the_release_can() -> None:
    newer, older = (
        plan_packing(LENGTHS, pack_sizes=(8192,), bridge=bridge, seq_length=4096).settings
        for bridge in ("0.6.2", "0.5.1")
    )

    assert newer["model.seq_length"] == newer["dataset.seq_length"] == 8192
    assert newer["dataset.offline_packing_specs.max_single_sequence_length"] == 4096
    assert older["model.seq_length"] == older["dataset.seq_length"] == 4096


def test_without_a_recipe_defaults_are_left_out() -> None:
    overrides = planned(bridge="0.6.2").overrides

    assert not [each for each in overrides if each.startswith("model.tensor") or each.endswith("=null")]


def test_sequence_parallelism_is_set_although_true_equals_one() -> None:
    assert "model.sequence_parallel=true" in planned(bridge="0.6.2", tp=2).overrides


def test_what_a_recipe_already_sets_is_not_set_again() -> None:
    plan = plan_packing(LENGTHS, pack_sizes=(32768,), recipe=RECIPES["0.6.2"], tp=4, cp=2, cp_comm_type="a2a")

    assert plan.intent.base["model.tensor_model_parallel_size"] == 4
    assert not [each for each in plan.overrides if "parallel_size" in each or "packed_sequence_size" in each]
