from __future__ import annotations

import json
from pathlib import Path

import pytest

from skill_run.errors import InputError
from skill_run.plan.intent import read_intent

RECIPE = "qwen3_8b_sft_8gpu_h100_bf16_32k_config"


def test_without_anything_the_newest_release_and_an_h100_are_taken() -> None:
    found = read_intent()

    assert (found.bridge.version, found.gpu, found.shape, found.gpus, found.slots) == (
        "0.6.2",
        "h100",
        None,
        None,
        None,
    )


def test_a_recipe_tells_model_gpus_and_the_tokens_of_a_step_but_no_layout() -> None:
    found = read_intent(recipe=RECIPE)

    assert found.shape is not None
    assert (found.shape.name, found.gpus, found.gpu) == ("Qwen/Qwen3-8B", 8, "h100")
    assert (found.pack_size, found.slots, found.fixed) == (32768, 8 * 32768, {})
    assert found.base["model.tensor_model_parallel_size"] == 4


def test_options_go_before_what_a_recipe_tells() -> None:
    found = read_intent(recipe=RECIPE, gpus=16, gpu="h200", model="Qwen/Qwen3-30B-A3B", fixed={"tp": 2, "cp": None})

    assert found.shape is not None
    assert (found.shape.name, found.gpus, found.gpu, found.fixed) == ("Qwen/Qwen3-30B-A3B", 16, "h200", {"tp": 2})


def test_an_adapter_recipe_trains_adapters() -> None:
    assert read_intent(recipe="llama31_8b_peft_1gpu_h100_bf16_config").run.peft == "lora"
    assert read_intent(recipe=RECIPE).run.peft is None


def test_a_configs_own_sizes_are_decided(tmp_path: Path) -> None:
    path = tmp_path / "conf.yaml"
    path.write_text(
        "model: {tensor_model_parallel_size: 2, context_parallel_size: 4, cp_comm_type: a2a, seq_length: 8192}\n"
        "dataset: {seq_length: 8192, packed_sequence_specs: {packed_sequence_size: 8192, pad_seq_to_mult: 8}}\n"
        "train: {global_batch_size: 16, micro_batch_size: 1}\n"
    )

    found = read_intent(config=path, bridge="0.5.1", model="Qwen/Qwen3-8B", gpus=16)

    assert found.fixed == {"tp": 2, "cp": 4, "cp_comm_type": "a2a"}
    assert (found.pack_size, found.seq_length, found.pad_seq_to_mult, found.slots) == (8192, None, 8, 16 * 8192)
    assert found.config == str(path)


@pytest.mark.parametrize("extra", [{"seq_length": 2048}, {"offline_packing_specs.max_single_sequence_length": 2048}])
def test_a_limit_of_samples_apart_from_the_pack_size_is_kept(extra: dict[str, int]) -> None:
    dataset = {"seq_length": 8192, "offline_packing_specs.packed_sequence_size": 8192, **extra}

    assert read_intent(config={f"dataset.{name}": value for name, value in dataset.items()}).seq_length == 2048


def test_a_config_may_be_a_mapping() -> None:
    assert read_intent(config={"model": {"context_parallel_size": 2}}).fixed == {"cp": 2}


def test_a_folder_with_a_model_is_a_model(tmp_path: Path) -> None:
    published = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 100,
    }
    (tmp_path / "config.json").write_text(json.dumps(published))

    found = read_intent(model=str(tmp_path))

    assert found.shape is not None
    assert (found.shape.layers, found.shape.heads) == (2, 4)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"model": "nobody/nothing"}, "the sizes of nobody/nothing are not known"),
        ({"model": "./nowhere"}, "is not there"),
        ({"recipe": "qwen3_8b_sft_8gpu_h100_bf16_33k_config"}, "did you mean qwen3_8b_sft_8gpu_h100_bf16_32k_config?"),
        ({"recipe": RECIPE, "bridge": "0.3.1"}, "0.3.1 has no recipe .*; it is in 0.6.2"),
        ({"recipe": " "}, "the recipe name is empty"),
        ({"config": "nowhere.yaml"}, "nowhere.yaml"),
        ({"bridge": "newest"}, "is not a Megatron-Bridge version"),
        ({"recipe": RECIPE, "gpus": 0}, "world size must be a whole number of at least 1"),
    ],
)
def test_what_is_not_known_is_refused_in_one_sentence(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read_intent(**settings)  # type: ignore[arg-type]
