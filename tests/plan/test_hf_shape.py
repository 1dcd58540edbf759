"""The many names of a config.json: experts, hybrid patterns, latent attention, encoders, and sizes that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_run.errors import InputError
from skill_run.plan.hf_shape import read_config, shape_from_config

BASE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "vocab_size": 512,
    "intermediate_size": 128,
}


def blocks(**more: Any) -> tuple[str, ...]:
    return shape_from_config({**BASE, **more}, "model", source="test").blocks


def test_the_first_layers_of_a_mixture_of_experts_may_be_dense() -> None:
    found = blocks(n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, first_k_dense_replace=3)
    assert found == ("*-",) * 3 + ("*E",) * 5


def test_every_second_layer_may_have_experts() -> None:
    assert blocks(num_experts=4, decoder_sparse_step=2) == ("*-", "*E") * 4
    assert blocks(num_experts=4, decoder_sparse_step=1, mlp_only_layers=[0, 7])[::7] == ("*-", "*-")
    assert blocks(num_experts=4, moe_layer_freq=[0, 1] * 4) == ("*-", "*E") * 4
    assert blocks(num_experts=4, mlp_layer_types=["dense"] * 2 + ["sparse"] * 6) == ("*-",) * 2 + ("*E",) * 6


def test_linear_attention_layers_are_listed_or_come_in_an_interval() -> None:
    assert blocks(linear_num_key_heads=2, full_attention_interval=4) == ("L-", "L-", "L-", "*-") * 2
    kinds = ["linear_attention", "full_attention"] * 4
    assert blocks(linear_num_key_heads=2, layer_types=kinds) == ("L-", "*-") * 4


def test_a_hybrid_pattern_is_one_block_a_layer_whatever_its_spelling() -> None:
    assert blocks(hybrid_override_pattern="M-M*-E") == ("M", "-", "M", "*", "-", "E")
    assert blocks(layers_block_type=["mamba", "moe", "attention"]) == ("M", "E", "*")
    assert blocks(layers_block_type=["linear_attention", "mlp", "full_attention"], mamba_num_heads=4) == ("M", "-", "*")


def test_the_text_part_of_a_multimodal_model_counts() -> None:
    vision = {"depth": 2, "hidden_size": 8, "intermediate_size": 16}
    config = {"text_config": BASE, "vision_config": vision, "model_type": "some_vl"}
    shape = shape_from_config(config, "vl", source="test")
    assert shape.layers == 8
    assert shape.vision == 2 * (4 * 8 * 8 + 2 * 8 * 16)


def test_experts_without_a_width_of_their_own_have_the_dense_one() -> None:
    shape = shape_from_config({**BASE, "num_local_experts": 4, "num_experts_per_tok": 2}, "m", source="test")
    assert (shape.experts, shape.topk, shape.moe_ffn) == (4, 2, 128)


def test_shared_experts_are_told_by_width_or_by_number() -> None:
    by_number = {**BASE, "n_routed_experts": 4, "moe_intermediate_size": 32, "n_shared_experts": 2}
    assert shape_from_config(by_number, "m", source="test").shared_ffn == 64
    by_width = {**BASE, "num_experts": 4, "shared_expert_intermediate_size": 48}
    assert shape_from_config(by_width, "m", source="test").shared_ffn == 48


@pytest.mark.parametrize("missing", ["hidden_size", "vocab_size", "num_hidden_layers"])
def test_a_config_without_a_needed_size_is_refused(missing: str) -> None:
    with pytest.raises(InputError, match=rf"no {missing} in its config\.json"):
        shape_from_config({key: value for key, value in BASE.items() if key != missing}, "model", source="test")


@pytest.mark.parametrize(("key", "value"), [("hidden_size", -1), ("vocab_size", 2**60), ("num_hidden_layers", 2**40)])
def test_a_size_that_no_model_has_is_refused(key: str, value: int) -> None:
    with pytest.raises(InputError, match="which no model has"):
        shape_from_config({**BASE, key: value}, "model", source="test")


def test_a_file_that_holds_no_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(InputError, match="does not hold a model config"):
        read_config(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**6) | st.sampled_from(["dense", "moe", "linear_attention", "M-*"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = sorted(
    set(BASE)
    | {"num_key_value_heads", "head_dim", "num_experts", "moe_layer_freq", "decoder_sparse_step", "mlp_only_layers"}
    | {"layer_types", "layers_block_type", "vision_config", "hybrid_override_pattern", "first_k_dense_replace"}
    | {"index_topk", "index_topk_freq", "indexer_types", "mlp_layer_types", "full_attention_interval"}
    | {"linear_num_key_heads", "text_config", "hidden_act", "model_type", "sliding_window", "kv_lora_rank"}
)


@given(st.dictionaries(st.sampled_from(KEYS), JSON))
def test_any_config_gives_a_shape_with_parameters_or_one_sentence(config: dict[str, Any]) -> None:
    try:
        shape = shape_from_config({**BASE, "num_hidden_layers": 2, **config}, "model", source="test")
    except InputError:
        return
    assert shape.parameters.total > 0
