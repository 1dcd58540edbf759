"""What is set over a recipe: the layout with its reasons, what goes with CP, the data, and what the user gave."""

from __future__ import annotations

from typing import Any

import pytest

from skill_run.errors import InputError
from skill_run.recipe.generate import GeneratedRecipe, generate_recipe


def made(workflow: str = "offline-packed-sft", **asked: Any) -> GeneratedRecipe:
    given = {"model": "Qwen/Qwen3-8B", "gpus": 16, "gpu": "h100", "bridge": "0.6.2", **asked}
    return generate_recipe(workflow, **given)


def test_sizes_that_nobody_gives_are_chosen_with_a_reason_for_each() -> None:
    found = made(inputs={"seq_length": 32768})
    assert found.settings["model.context_parallel_size"] == 4
    reasons = dict(found.reasons)
    assert "GiB" in reasons["model.tensor_model_parallel_size"]
    assert "32768" in reasons["model.context_parallel_size"]


def test_sizes_that_are_given_stay_and_the_rest_is_chosen_around_them() -> None:
    found = made(inputs={"seq_length": 32768, "tensor_parallel": 4, "context_parallel": "choose"})
    assert found.settings.get("model.tensor_model_parallel_size", 4) == 4


def test_a_named_recipe_keeps_its_own_sizes() -> None:
    found = made(model=None, recipe="qwen3_8b_sft_config")
    assert "model.tensor_model_parallel_size" not in found.settings


def test_context_parallel_finetuning_counts_its_loss_per_token_and_aligns_samples() -> None:
    found = made(model=None, recipe="qwen3_8b_sft_config", inputs={"context_parallel": 2})
    assert found.settings["model.calculate_per_token_loss"] is True
    assert found.settings["dataset.offline_packing_specs.pad_seq_to_mult"] == 4


def test_names_are_those_of_the_release() -> None:
    found = made(model=None, recipe="qwen3_8b_sft_config", bridge="0.5.1", inputs={"context_parallel": 2})
    assert found.settings["dataset.packed_sequence_specs.pad_seq_to_mult"] == 4
    assert "dataset.enable_offline_packing" not in found.settings


def test_a_global_batch_that_nobody_gave_becomes_one_that_divides() -> None:
    found = made(model=None, recipe="qwen3_8b_peft_config", gpus=24)
    assert found.settings["train.global_batch_size"] == 48


def test_the_recipes_own_checkpoint_folder_is_never_resumed_from() -> None:
    assert made().settings["checkpoint.load"] is None


def test_a_folder_of_data_replaces_the_data_set_of_the_hub() -> None:
    assert made(inputs={"data": "/data/sft"}).settings["dataset.hf_dataset"] is None
    old = made(bridge="0.5.1", inputs={"data": "/data/sft"})
    assert old.settings["dataset.type"] == "FinetuningDatasetConfig"


def test_an_id_on_the_hub_is_refused_where_its_columns_are_not_known() -> None:
    with pytest.raises(InputError, match="is not a folder"):
        made(inputs={"data": "org/data"})


def test_settings_of_the_user_win() -> None:
    found = made(overrides=["optimizer.lr=0.001", "dataset.num_workers=7"])
    assert found.settings["optimizer.lr"] == 0.001
    assert found.settings["dataset.num_workers"] == 7


def test_a_setting_that_breaks_training_is_told_and_not_changed() -> None:
    found = made(model=None, recipe="qwen3_8b_sft_config", overrides=["train.micro_batch_size=4"])
    assert found.settings["train.micro_batch_size"] == 4
    assert [finding.severity for finding in found.bad] == ["error"]
    assert not found.clean


def test_packs_are_not_cut_by_context_parallelism_where_the_release_does_it_wrong() -> None:
    with pytest.raises(InputError, match=r"0\.4\.2 cuts packed samples at wrong places with CP > 1"):
        made(bridge="0.4.2", model=None, recipe="qwen3_8b_sft_config", inputs={"context_parallel": 2})


def test_the_models_own_sizes_are_left_to_its_recipe() -> None:
    found = made("moe-layout", model="Qwen/Qwen3-30B-A3B")
    assert "model.num_moe_experts" not in found.settings


def test_multi_token_prediction_goes_where_padded_packs_would_spoil_it() -> None:
    found = made("in-batch-packed-sft", model="Qwen/Qwen3.5-35B-A3B", gpus=32)
    assert found.settings["model.mtp_num_layers"] is None
    assert found.settings["dataset.enable_in_batch_packing"] is True
    assert found.clean


def test_a_length_that_nobody_gives_is_the_workflows_for_model_and_data_alike() -> None:
    found = made()
    assert found.settings["model.seq_length"] == found.settings["dataset.seq_length"] == 8192
