"""The small model of a parity run keeps what makes the config's model what it is."""

from __future__ import annotations

from typing import Any

import pytest

from skill_run.rules.validate import build_config, read_sources
from skill_run.verify.layouts import Layout
from skill_run.verify.shape import SMALLEST, Shape, scaled_shape, smallest_shape

LLAMA = {
    "_target_": "megatron.bridge.models.llama.llama_provider.LlamaModelProvider",
    "num_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_query_groups": 8,
    "ffn_hidden_size": 14336,
    "vocab_size": 128256,
    "normalization": "RMSNorm",
    "gated_linear_unit": True,
    "activation_func": {"_target_": "torch.nn.functional.silu", "_call_": False},
    "position_embedding_type": "rope",
    "rotary_base": 500000,
    "qk_layernorm": False,
    "add_bias_linear": False,
    "num_moe_experts": None,
    "multi_latent_attention": False,
}


def scaled(layout: Layout | None = None, **fields: Any) -> Shape:
    config = build_config(read_sources({"model": {**LLAMA, **fields}}, bridge="0.6.2"), bridge="0.6.2")
    return scaled_shape(config, layout or Layout(cp=2))


def test_query_heads_on_a_group_and_the_mlp_ratio_are_kept() -> None:
    shape = scaled()
    model = shape.model
    assert model["num_attention_heads"] == 4 * model["num_query_groups"]
    assert model["ffn_hidden_size"] == 3.5 * model["hidden_size"]
    assert (model["rotary_base"], model["activation"], model["normalization"]) == (500000, "silu", "RMSNorm")
    assert any("32/8" in change and "4 query heads a group kept" in change for change in shape.changes)
    assert any(change.startswith("num_layers 32 -> 1") for change in shape.changes)


def test_many_query_heads_on_one_group_are_fewer_and_that_is_told() -> None:
    shape = scaled(num_attention_heads=64, num_query_groups=1)
    assert shape.model["num_attention_heads"] == 8
    assert any("query heads a group 64 -> 8" in change for change in shape.changes)


@pytest.mark.parametrize(
    ("layout", "groups"),
    [(Layout(cp=2), 1), (Layout(cp=2, tp=2), 2), (Layout(cp=2, cp_comm_type="a2a"), 2), (Layout(tp=3), 3)],
)
def test_heads_can_be_split_by_the_layout(layout: Layout, groups: int) -> None:
    assert scaled(layout).model["num_query_groups"] == groups
    assert smallest_shape(layout).model["num_query_groups"] == groups


def test_layers_follow_the_pipeline() -> None:
    assert smallest_shape(Layout(pp=2, vpp=2)).model["num_layers"] == 4
    assert scaled(Layout(pp=4)).model["num_layers"] == 4


def test_experts_keep_their_kind_and_serve_expert_parallelism() -> None:
    shape = scaled(Layout(cp=2, ep=2), num_moe_experts=128, moe_router_topk=8)
    assert (shape.model["num_moe_experts"], shape.model["moe_router_topk"]) == (4, 2)
    assert any("experts 128 top-8 -> 4 top-2" in change for change in shape.changes)
    assert "num_moe_experts" not in scaled().model
    assert smallest_shape(Layout(cp=2, ep=2)).model["num_moe_experts"] % 2 == 0


def test_a_balancing_loss_is_one_for_the_small_model_however_the_config_writes_it() -> None:
    moe = {"num_moe_experts": 8, "moe_router_topk": 2}
    alone = scaled(**moe, moe_router_load_balancing_type="aux_loss", moe_aux_loss_coeff=0.01).model
    assert (alone["moe_router_load_balancing_type"], alone["moe_aux_loss_coeff"]) == ("aux_loss", 0.01)
    both = scaled(**moe, moe_router_load_balancing_type=["seq_aux_loss", "aux_loss"], moe_aux_loss_coeff=0.1)
    assert (both.model["moe_router_load_balancing_type"], both.model["moe_aux_loss_coeff"]) == ("seq_aux_loss", 0.1)
    assert any("seq_aux_loss" in change for change in both.changes)


def test_a_window_keeps_a_layer_of_each_kind() -> None:
    shape = scaled(window_size=[128, 0], window_attn_skip_freq=2)
    assert shape.model["window_size"] == [16, 0]
    assert shape.model["num_layers"] == 2


def test_latent_attention_is_kept_with_small_ranks() -> None:
    shape = scaled(multi_latent_attention=True, q_lora_rank=1536, kv_lora_rank=512)
    assert (shape.model["multi_latent_attention"], shape.model["kv_lora_rank"]) == (True, 32)


def test_what_a_recipe_does_not_tell_is_assumed_and_said() -> None:
    recipe = "qwen3_8b_sft_8gpu_h100_bf16_32k_config"
    shape = scaled_shape(build_config(read_sources(None, recipe=recipe), recipe=recipe), Layout(cp=2))
    assert {"num_attention_heads", "normalization"} <= set(shape.assumed)
    assert shape.model["normalization"] == SMALLEST["normalization"]
    assert len(shape.assumed) == len(set(shape.assumed))
