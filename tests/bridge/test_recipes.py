"""The recipe catalogue of each release."""

from __future__ import annotations

import pytest

from skill_run.bridge.names import canonical_field, is_free_form
from skill_run.bridge.recipes import catalogue, find_recipe, is_recorded_in_full, nearest_recipe, releases_with
from skill_run.bridge.release import known_releases, load_release
from skill_run.config.typing import check_value


@pytest.mark.parametrize("version", known_releases())
def test_every_recipe_sets_only_fields_that_some_release_has(version: str) -> None:
    unknown = {
        name
        for recipe in catalogue(version).values()
        for name in recipe.values
        if canonical_field(name) is None and not is_free_form(name)
    }
    assert unknown == set()


@pytest.mark.parametrize("version", known_releases())
def test_every_value_of_a_recipe_has_the_type_of_its_field(version: str) -> None:
    wrong = []
    for recipe in catalogue(version).values():
        for name, value in recipe.values.items():
            spec = canonical_field(name)
            if spec is not None and check_value(name, value, spec)[1] is not None:
                wrong.append((recipe.name, name, value))
    assert wrong == []


@pytest.mark.parametrize("version", known_releases())
def test_every_recipe_names_its_parallel_sizes_batch_sizes_and_dataset(version: str) -> None:
    wanted = {
        "model.tensor_model_parallel_size",
        "model.pipeline_model_parallel_size",
        "model.context_parallel_size",
        "train.micro_batch_size",
        "train.global_batch_size",
        "dataset.type",
        "dataset.seq_length",
    }
    recorded = [recipe for recipe in catalogue(version).values() if recipe.values]
    assert [recipe.name for recipe in recorded if not wanted <= recipe.values.keys()] == []


@pytest.mark.parametrize("version", known_releases())
def test_only_functions_that_raise_upstream_have_no_values(version: str) -> None:
    empty = {recipe.name for recipe in catalogue(version).values() if not recipe.values}
    assert {name for name in empty if not name.startswith("qwen3_next_80b_a3b_peft_")} <= {
        "qwen3_vl_8b_peft_energon_config"
    }


@pytest.mark.parametrize("version", known_releases())
def test_the_dataset_of_every_recipe_is_a_class_of_its_release(version: str) -> None:
    of_one_example = {"Step37Flickr8kSFTDataProvider", "FluxDatasetConfig", "WanDatasetConfig"}
    types = {recipe.values["dataset.type"] for recipe in catalogue(version).values() if recipe.values}
    assert types - of_one_example <= load_release(version).datasets.keys()


def test_a_recipe_sets_what_its_function_sets() -> None:
    recipe = find_recipe("gemma2_27b_peft_config", "0.4.2")
    assert recipe is not None
    assert recipe.kind == "peft"
    assert recipe.module == "megatron.bridge.recipes.gemma.gemma2"
    assert recipe.hf_model == "google/gemma-2-27b"
    assert recipe.gpus is None
    assert not recipe.benchmark
    assert recipe.values["model.tensor_model_parallel_size"] == 4
    assert recipe.values["dataset.offline_packing_specs.packed_sequence_size"] == 2048
    assert recipe.values["peft.type"] == "LoRA"


def test_a_recipe_for_one_layout_tells_its_gpus_and_environment() -> None:
    recipe = find_recipe("deepseek_v3_pretrain_1024gpu_h100_bf16_config", "0.6.2")
    assert recipe is not None
    assert recipe.gpus == 1024
    assert recipe.benchmark
    assert recipe.env["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"


def test_an_alias_is_an_entry_of_its_own_with_the_same_values() -> None:
    alias = find_recipe("deepseek_v4_flash_sft_config", "0.6.2")
    recipe = find_recipe("deepseek_v4_flash_sft_32gpu_h100_bf16_config", "0.6.2")
    assert alias is not None
    assert recipe is not None
    assert alias.name == "deepseek_v4_flash_sft_config"
    assert alias.values == recipe.values


@pytest.mark.parametrize(
    "name",
    ["gemma2_2b_sft_config", "recipes.gemma2_2b_sft_config", "megatron.bridge.recipes.gemma.gemma2_2b_sft_config"],
)
def test_a_recipe_is_found_by_its_name_or_its_dotted_path(name: str) -> None:
    recipe = find_recipe(name, "0.6.2")
    assert recipe is not None
    assert recipe.name == "gemma2_2b_sft_config"


@pytest.mark.parametrize("name", ["", ".", "gemma2_2b", "GEMMA2_2B_SFT_CONFIG", "x" * 10_000, "\ud800"])
def test_an_unknown_recipe_is_not_found(name: str) -> None:
    assert find_recipe(name, "0.6.2") is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gemma2_2b_sft_config", list(known_releases())),
        ("gemma2_27b_pretrain_config", ["0.4.2"]),
        ("deepseek_v2_pretrain_config", ["0.3.1", "0.5.1"]),
        ("deepseek_v3_pretrain_256gpu_b200_bf16_config", ["0.6.2"]),
        ("no_such_config", []),
    ],
)
def test_the_releases_that_have_a_recipe_are_listed(name: str, expected: list[str]) -> None:
    assert releases_with(name) == expected


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("gemma2_27b_sft_confg", "gemma2_27b_sft_config"),
        ("gemma2_27_sft_config", "gemma2_27b_sft_config"),
        ("gemma2_27b_peft_config", "gemma2_27b_peft_config"),
    ],
)
def test_a_misspelt_recipe_suggests_the_one_that_was_meant(misspelt: str, meant: str) -> None:
    assert nearest_recipe(misspelt, "0.6.2") == meant


@pytest.mark.parametrize("name", ["", "my_own_recipe", "train", "x" * 1000])
def test_a_recipe_close_to_nothing_gets_no_suggestion(name: str) -> None:
    assert nearest_recipe(name, "0.6.2") is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gemma2_2b_sft_config", True),
        ("my.module.llama3_8b_peft_config", True),
        ("qwen3_vl_8b_finetune_config", True),
        ("llama3_8b_pretrain_config", False),
        ("my_soft_config", False),
        ("", False),
    ],
)
def test_only_recipes_for_fine_tuning_are_recorded_in_full(name: str, expected: bool) -> None:
    assert is_recorded_in_full(name) is expected
