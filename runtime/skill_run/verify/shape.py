"""The shape of the model that parity runs: the config's own, with widths and layers made small and ratios kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import lcm
from typing import Any, Final

from skill_run.config.config import Config
from skill_run.config.model import State
from skill_run.verify.layouts import Layout

# The smallest model that shows every fault: two query heads on one key-value group, one layer.
SMALLEST: Final[dict[str, Any]] = {
    "num_layers": 1,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_query_groups": 1,
    "kv_channels": 16,
    "ffn_hidden_size": 64,
    "vocab_size": 64,
    "normalization": "RMSNorm",
    "gated_linear_unit": True,
    "activation": "silu",
    "position_embedding_type": "rope",
    "add_bias_linear": False,
}
_LARGEST_RATIO: Final = 8
_EXPERTS: Final = 4
_WINDOW: Final = 16
# Taken as they are: none of them has a size in it.
_KEPT: Final = (
    "normalization",
    "gated_linear_unit",
    "position_embedding_type",
    "rotary_base",
    "rotary_percent",
    "rotary_interleaved",
    "qk_layernorm",
    "add_bias_linear",
    "add_qkv_bias",
    "softmax_type",
    "layernorm_zero_centered_gamma",
    "share_embeddings_and_output_weights",
    "multi_latent_attention",
    "moe_router_load_balancing_type",
    "moe_aux_loss_coeff",
    "mtp_num_layers",
)
_LATENT: Final = {
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_head_dim": 16,
    "qk_pos_emb_head_dim": 16,
    "v_head_dim": 16,
}


@dataclass(slots=True)
class Shape:
    """Fields of the small model in TransformerConfig's names, what was changed, and what the config does not tell."""

    model: dict[str, Any]
    changes: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)


def smallest_shape(layout: Layout) -> Shape:
    """Return the smallest model that shows every fault, with heads and layers that the layout can split."""
    shape = Shape(dict(SMALLEST))
    groups = _groups(layout)
    shape.model.update(num_query_groups=groups, num_attention_heads=2 * groups, num_layers=_layers(layout))
    if layout.ep > 1:
        shape.model.update(num_moe_experts=_EXPERTS, moe_router_topk=2, moe_ffn_hidden_size=32)
    return shape


def scaled_shape(config: Config, layout: Layout) -> Shape:
    """Return the config's model made small: heads per group, rope, norm, activation, MoE and MLA are kept."""
    shape = smallest_shape(layout)
    model = shape.model
    for name in _KEPT:
        value = _told(config, name, shape)
        if value is not None:
            model[name] = value
    _scale_heads(config, layout, shape)
    _scale_widths(config, layout, shape)
    _scale_layers(config, layout, shape)
    _scale_experts(config, layout, shape)
    if model.get("multi_latent_attention"):
        model.update(_LATENT)
        shape.changes.append("latent ranks and head sizes -> 32 and 16")
    activation = _activation(config)
    if activation is None:
        shape.assumed.append("activation_func")
    else:
        model["activation"] = activation
    return shape


def _told(config: Config, name: str, shape: Shape) -> Any:
    """Return a model field's value, None when it has none; what the input does not tell is noted as assumed."""
    value = config.get(f"model.{name}")
    # A recipe's model class is not known, so a default may be another class's.
    if value.state is State.UNKNOWN or (value.state is State.UNSET and config.base != "complete"):
        shape.assumed.append(name)
        return None
    held: Any = value.value
    # Some fields may be a list with one entry for each loss or layer kind; the small model has one.
    if isinstance(held, (list, tuple)) and held:
        if len(held) > 1:
            shape.changes.append(f"{name} {list(held)} -> {held[0]}")
        return held[0]
    return held


def _groups(layout: Layout) -> int:
    """Return the key-value groups that can be split over TP, and over CP where heads travel."""
    return lcm(layout.tp, 1) * (layout.cp if "a2a" in layout.cp_comm_type else 1)


def _layers(layout: Layout) -> int:
    return layout.pp * (layout.vpp or 1)


def _scale_heads(config: Config, layout: Layout, shape: Shape) -> None:
    heads, groups = _told(config, "num_attention_heads", shape), _told(config, "num_query_groups", shape)
    if not isinstance(heads, int) or heads < 1:
        return
    groups = groups if isinstance(groups, int) and groups > 0 else heads
    ratio = max(1, heads // groups)
    kept = min(ratio, _LARGEST_RATIO)
    small = _groups(layout)
    shape.model.update(num_attention_heads=kept * small, num_query_groups=small)
    what = f"{ratio} query heads a group kept" if kept == ratio else f"query heads a group {ratio} -> {kept}"
    shape.changes.append(f"heads {heads}/{groups} -> {kept * small}/{small} ({what})")


def _scale_widths(config: Config, layout: Layout, shape: Shape) -> None:
    hidden, ffn = _told(config, "hidden_size", shape), _told(config, "ffn_hidden_size", shape)
    small = int(shape.model["hidden_size"])
    if isinstance(hidden, int) and hidden > small:
        shape.changes.append(f"hidden_size {hidden} -> {small}")
        if isinstance(ffn, int) and ffn > 0:
            narrow = max(layout.tp * 8, round(small * ffn / hidden / (8 * layout.tp)) * 8 * layout.tp)
            shape.model["ffn_hidden_size"] = narrow
            shape.changes.append(f"ffn_hidden_size {ffn} -> {narrow} (its ratio to hidden_size kept)")
    vocabulary = config.get("model.vocab_size")
    if vocabulary.state is State.SET and isinstance(vocabulary.value, int):
        shape.changes.append(f"vocab_size {vocabulary.value} -> {shape.model['vocab_size']}")


def _scale_layers(config: Config, layout: Layout, shape: Shape) -> None:
    layers = _told(config, "num_layers", shape)
    window = config.get("model.window_size").value
    small = _layers(layout)
    if isinstance(window, (list, tuple)) and len(window) == 2:
        # A window pattern needs a layer of each kind.
        small = small if small > 1 else 2
        shape.model["window_size"] = [_WINDOW, 0]
        shape.changes.append(f"window_size {list(window)} -> [{_WINDOW}, 0]")
        frequency = config.get("model.window_attn_skip_freq").value
        if isinstance(frequency, int) and frequency > 1:
            shape.model["window_attn_skip_freq"] = 2
    shape.model["num_layers"] = small
    if isinstance(layers, int) and layers != small:
        shape.changes.append(f"num_layers {layers} -> {small}")


def _scale_experts(config: Config, layout: Layout, shape: Shape) -> None:
    experts = _told(config, "num_moe_experts", shape)
    if not isinstance(experts, int) or experts < 1:
        if layout.ep == 1:
            for name in ("moe_router_load_balancing_type", "moe_aux_loss_coeff"):
                shape.model.pop(name, None)
        return
    small = max(layout.ep, min(experts, _EXPERTS))
    topk = _told(config, "moe_router_topk", shape)
    kept = min(topk if isinstance(topk, int) and topk > 0 else 2, max(1, small // 2))
    shape.model.update(num_moe_experts=small, moe_router_topk=kept, moe_ffn_hidden_size=32)
    if (experts, topk) != (small, kept):
        shape.changes.append(f"experts {experts} top-{topk or '?'} -> {small} top-{kept}")


def _activation(config: Config) -> str | None:
    """Return the activation's plain name, or None when the config does not tell it."""
    found = config.get("model.activation_func")
    if found.state is not State.SET:
        return None
    value: Any = found.value
    if isinstance(value, dict):
        value = value.get("_target_")
    text = str(value).rpartition(".")[2].lower()
    return text if text in ("silu", "gelu", "relu", "squared_relu", "quick_gelu") else None
