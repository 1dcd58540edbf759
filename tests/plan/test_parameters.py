"""Parameters by part, against what publishers and upstream's verification cards count."""

from __future__ import annotations

import json
import re
from importlib.resources import files

import pytest

from skill_run.plan.parameters import block_parameters
from skill_run.plan.shape import shape_of

# Elements of the checkpoint that upstream's verification cards give, prediction layers left out.
EXACT = {
    "meta-llama/Meta-Llama-3-8B": 8_030_261_248,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "openai/gpt-oss-20b": 20_914_757_184,
    "openai/gpt-oss-120b": 116_829_156_672,
    "nvidia/NVIDIA-Nemotron-3-Nano-4B-BF16": 3_973_556_832,
    "zai-org/GLM-5.2": 743_377_000_704,
}
# In billions, as published.
PUBLISHED = {
    "meta-llama/Meta-Llama-3-70B": 70.6,
    "meta-llama/Meta-Llama-3.1-405B": 405.9,
    "Qwen/Qwen2.5-7B": 7.62,
    "Qwen/Qwen3-8B": 8.19,
    "Qwen/Qwen3-235B-A22B": 235.1,
    "Qwen/Qwen3-Next-80B-A3B-Instruct": 80.0,
    "Qwen/Qwen3.5-27B": 27.0,
    "Qwen/Qwen3.5-397B-A17B": 397.0,
    "deepseek-ai/DeepSeek-V2": 236.0,
    "deepseek-ai/DeepSeek-V2-Lite": 15.7,
    "deepseek-ai/DeepSeek-V3": 671.0,
    "moonshotai/Moonlight-16B-A3B": 15.96,
    "moonshotai/Kimi-K2-Instruct": 1026.0,
    "zai-org/GLM-4.5-Air": 106.8,
    "nvidia/Nemotron-H-8B-Base-8K": 8.1,
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2": 8.9,
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 31.6,
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16": 120.6,
    "google/gemma-2-27b": 27.2,
    "google/gemma-3-1b-pt": 1.0,
    "mistralai/Mistral-7B-v0.3": 7.25,
    "allenai/OLMoE-1B-7B-0125": 6.92,
}


@pytest.mark.parametrize("model", EXACT)
def test_parameters_are_those_of_the_checkpoint(model: str) -> None:
    assert shape_of(model).parameters.total == EXACT[model]


@pytest.mark.parametrize("model", PUBLISHED)
def test_parameters_are_within_one_per_cent_of_what_is_published(model: str) -> None:
    assert shape_of(model).parameters.total / 1e9 == pytest.approx(PUBLISHED[model], rel=0.01)


@pytest.mark.parametrize("table", ["models.json", "shapes.json"])
def test_every_published_shape_has_about_the_parameters_that_its_name_says(table: str) -> None:
    data = json.loads((files("skill_run.bridge") / "data" / table).read_text("utf-8"))
    for architecture in data.values():
        for model in architecture["models"]:
            said = re.findall(r"(?<![A-Za-z\d])(\d+(?:\.\d+)?)B(?![\dA-Za-z])", model, re.IGNORECASE)
            shape = shape_of(model)
            assert shape.layers > 0
            if said:
                total = (shape.parameters.total + shape.vision) / 1e9
                assert total == pytest.approx(max(map(float, said)), rel=0.35), model


def test_parts_add_up_to_the_total() -> None:
    counts = shape_of("deepseek-ai/DeepSeek-V3").parameters.to_dict()
    assert counts.pop("total") == sum(counts.values())


def test_most_of_a_mixture_of_experts_is_experts() -> None:
    counts = shape_of("Qwen/Qwen3-30B-A3B").parameters
    assert counts.experts == 48 * 128 * 3 * 2048 * 768
    assert counts.dense_ffn == counts.shared_experts == 0
    assert counts.router == 48 * 2048 * 128


def test_tied_embeddings_have_no_output_layer() -> None:
    assert shape_of("Qwen/Qwen3-0.6B").parameters.output_layer == 0
    assert shape_of("Qwen/Qwen3-8B").parameters.output_layer == 151936 * 4096


def test_a_hybrid_model_has_mamba_attention_and_feed_forward_layers() -> None:
    counts = shape_of("nvidia/NVIDIA-Nemotron-3-Nano-4B-BF16").parameters
    assert min(counts.mamba, counts.attention, counts.dense_ffn) > 0
    assert counts.experts == 0


def test_latent_experts_work_in_the_latent_width() -> None:
    shape = shape_of("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16")
    assert block_parameters(shape, "E")["experts"] == 512 * 2 * 1024 * 2688
    assert block_parameters(shape, "E")["shared"] == 2 * 4096 * 5376 + 2 * 4096 * 1024


def test_only_layers_with_an_indexer_of_their_own_count_one() -> None:
    assert shape_of("zai-org/GLM-5.2").index_layers == 21
    assert shape_of("zai-org/GLM-5.1").index_layers == 78
