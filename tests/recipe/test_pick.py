"""Which recipe a model, a task and a number of GPUs come to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skill_run.errors import InputError
from skill_run.recipe.pick import named_recipe, pick_recipe

ANY: dict[str, Any] = {"gpus": None, "gpu": None, "seq_length": None}


@pytest.mark.parametrize(
    ("model", "task", "release", "wanted", "name"),
    [
        ("Qwen/Qwen3-8B", "sft", "0.6.2", {"gpus": 4, "seq_length": 2048}, "qwen3_8b_sft_config"),
        ("Qwen/Qwen3-8B", "sft", "0.6.2", {"gpus": 8, "seq_length": 32768}, "qwen3_8b_sft_32k_config"),
        ("Qwen/Qwen3-8B", "peft", "0.3.1", {}, "qwen3_8b_peft_config"),
        ("moonshotai/Moonlight-16B-A3B", "sft", "0.3.1", {}, "moonlight_16b_sft_config"),
        (
            "nvidia/NVIDIA-Nemotron-3-Nano-4B-BF16",
            "pretrain",
            "main",
            {},
            "nemotron_3_nano_4b_pretrain_8gpu_h100_bf16_config",
        ),
    ],
)
def test_a_model_gets_the_recipe_of_its_kind_and_size(
    model: str, task: Any, release: str, wanted: dict[str, Any], name: str
) -> None:
    version = "0.7.0.dev0" if release == "main" else release
    assert pick_recipe(model, task, version, **{**ANY, **wanted}).name == name


def test_a_folder_tells_its_model_by_its_config_or_else_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "Qwen3-8B"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert pick_recipe(str(folder), "sft", "0.5.1", **ANY).name == "qwen3_8b_sft_config"
    (folder / "config.json").write_text(json.dumps({"_name_or_path": "Qwen/Qwen3-14B"}))
    assert pick_recipe(str(folder / "config.json"), "sft", "0.5.1", **ANY).name == "qwen3_14b_sft_config"


def test_a_broken_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"cannot be read as a model's config\.json"):
        pick_recipe(str(tmp_path), "sft", "0.6.2", **ANY)


def test_a_model_without_a_recipe_is_refused_with_near_ones() -> None:
    with pytest.raises(InputError, match=r"has no sft recipe for Qwen/Qwen3-9B; near are .*qwen3"):
        pick_recipe("Qwen/Qwen3-9B", "sft", "0.6.2", **ANY)


def test_data_that_no_recipe_of_the_model_reads_are_refused_with_its_recipes() -> None:
    with pytest.raises(InputError, match="with data of EnergonDatasetConfig; it has qwen3_8b"):
        pick_recipe("Qwen/Qwen3-8B", "sft", "0.6.2", **ANY, classes=("EnergonDatasetConfig",))


def test_a_model_without_a_pretraining_recipe_starts_from_its_finetuning_one() -> None:
    found = pick_recipe("Qwen/Qwen3-8B", "pretrain", "0.7.0.dev0", **ANY, classes=("GPTDatasetConfig",))
    assert found.kind == "sft"


def test_a_recipe_of_another_release_is_refused_with_where_it_is() -> None:
    with pytest.raises(InputError, match=r"has no recipe 'qwen3_8b_sft_32k_config'; it is in 0.6.2"):
        named_recipe("qwen3_8b_sft_32k_config", "0.5.1")
