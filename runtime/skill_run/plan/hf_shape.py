"""Read a ModelShape from a Hugging Face config.json: which of its many names say what."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from skill_run.config.text import parse_json, read_text
from skill_run.config.typing import INT64, shown
from skill_run.errors import InputError
from skill_run.plan.shape import ModelShape

_MOST_BYTES: Final = 2**20
_MOST_LAYERS: Final = 10_000
_TEXT_PARTS: Final = ("thinker_config", "llm_config", "language_config", "text_config")
# Sizes by our name; the first key that holds a whole number counts.
_SIZES: Final[Mapping[str, tuple[str, ...]]] = {
    "hidden": ("hidden_size", "n_embd"),
    "vocab": ("vocab_size",),
    "heads": ("num_attention_heads", "n_head"),
    "groups": ("num_key_value_heads",),
    "head_dim": ("head_dim", "attention_head_dim"),
    "ffn": ("intermediate_size", "ffn_dim", "n_inner"),
    "experts": ("n_routed_experts", "num_experts", "num_local_experts"),
    "topk": ("num_experts_per_tok", "moe_topk", "num_experts_per_token", "experts_per_token"),
    "moe_ffn": ("moe_intermediate_size", "expert_hidden_dim"),
    "latent": ("moe_latent_size",),
    "q_rank": ("q_lora_rank",),
    "kv_rank": ("kv_lora_rank",),
    "qk_nope": ("qk_nope_head_dim",),
    "qk_rope": ("qk_rope_head_dim",),
    "v_head": ("v_head_dim",),
    "index_heads": ("index_n_heads",),
    "index_dim": ("index_head_dim",),
    "index_topk": ("index_topk",),
    "mamba_heads": ("mamba_num_heads",),
    "mamba_head_dim": ("mamba_head_dim",),
    "mamba_state": ("ssm_state_size", "mamba_d_state"),
    "mamba_groups": ("n_groups", "mamba_n_groups"),
    "linear_key_heads": ("linear_num_key_heads",),
    "linear_value_heads": ("linear_num_value_heads",),
    "linear_key_dim": ("linear_key_head_dim",),
    "linear_value_dim": ("linear_value_head_dim",),
    "mtp_layers": ("num_nextn_predict_layers", "mtp_num_hidden_layers"),
    "max_tokens": ("max_position_embeddings",),
}
_NOT_GATED: Final = frozenset({"relu2", "relu", "gelu", "gelu_new"})
_KINDS: Final[Mapping[str, str]] = {
    "linear_attention": "L",
    "full_attention": "*",
    "sliding_attention": "*",
    "chunked_attention": "*",
    "attention": "*",
    "mamba": "M",
    "mamba2": "M",
    "moe": "E",
    "mlp": "-",
}


def read_config(path: Path) -> dict[str, Any]:
    """Return config.json of a folder, or the file itself; InputError when there is none or it is no JSON object."""
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise InputError(f"{path} has no config.json")
    data = parse_json(read_text(file, _MOST_BYTES), str(file))
    if not isinstance(data, dict):
        raise InputError(f"{file} does not hold a model config")
    return data


def shape_from_config(config: Mapping[str, Any], name: str, *, source: str) -> ModelShape:
    """Return the shape that a parsed config.json tells (of the text model in a multimodal one).

    Raises InputError for a config without the sizes that every model has, or with sizes that no model has.
    """
    text = _text_part(config)
    sizes = {ours: _size(text, keys, name) for ours, keys in _SIZES.items()}
    layers = _size(text, ("num_hidden_layers", "n_layer", "num_layers"), name)
    for what in ("hidden", "vocab"):
        if not sizes[what]:
            raise InputError(f"{name} has no {_SIZES[what][0]} in its config.json, so its memory cannot be told")
    if layers > _MOST_LAYERS:
        raise InputError(f"{name} gives {shown(layers)} layers, which no model has")
    pattern = _pattern(text, layers)
    if not pattern:
        raise InputError(f"{name} has no num_hidden_layers in its config.json, so its memory cannot be told")
    _complete(sizes)
    activation = text.get("mlp_hidden_act") or text.get("hidden_act") or text.get("hidden_activation")
    model_type = str(text.get("model_type", config.get("model_type", "")))
    return ModelShape(
        name=name,
        blocks=pattern,
        **sizes,
        shared_ffn=_shared_ffn(text, sizes["moe_ffn"], name),
        gated=not (isinstance(activation, str) and activation in _NOT_GATED and "gemma" not in model_type),
        tied=text.get("tie_word_embeddings", config.get("tie_word_embeddings")) is True,
        qkv_bias=text.get("attention_bias") is True or model_type in ("qwen2", "qwen2_moe", "gpt_oss"),
        linear_bias=model_type == "gpt_oss",
        qk_norm="qwen3" in model_type or text.get("use_qk_norm") is True,
        output_gate=text.get("attn_output_gate") is True or "qwen3_next" in model_type or "qwen3_5" in model_type,
        index_layers=_indexed(text, pattern),
        vision=_vision(config, name),
        window=_window(text, name),
        conv=_size(text, ("conv_kernel", "linear_conv_kernel_dim", "mamba_d_conv"), name) or 4,
        model_type=model_type,
        source=source,
    )


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    text: Mapping[str, Any] = config
    for part in _TEXT_PARTS:
        if isinstance(text.get(part), Mapping):
            text = {**text, **text[part]}
    return text


def _size(text: Mapping[str, Any], keys: tuple[str, ...], name: str) -> int:
    for key in keys:
        value = text.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            if not 0 <= value <= INT64 // 2**20:
                raise InputError(f"{name} gives {shown(value)} for {key}, which no model has")
            return value
    return 0


def _complete(sizes: dict[str, int]) -> None:
    """Fill in what a config.json leaves out because it follows from another size."""
    if sizes["heads"]:
        sizes["groups"] = sizes["groups"] or sizes["heads"]
        sizes["head_dim"] = sizes["head_dim"] or sizes["hidden"] // sizes["heads"]
    if sizes["experts"] and not sizes["moe_ffn"]:
        sizes["moe_ffn"] = sizes["ffn"]
    if sizes["mamba_heads"] and not sizes["mamba_groups"]:
        sizes["mamba_groups"] = 1


def _shared_ffn(text: Mapping[str, Any], moe_ffn: int, name: str) -> int:
    given = _size(
        text, ("moe_shared_expert_intermediate_size", "shared_expert_intermediate_size", "share_expert_dim"), name
    )
    count = _size(text, ("n_shared_experts", "num_shared_experts"), name)
    return given * max(1, count) if given else count * moe_ffn


def _indexed(text: Mapping[str, Any], pattern: tuple[str, ...]) -> int:
    """Return how many layers have an indexer; the others take the keys that one before them picked."""
    if not isinstance(text.get("index_topk"), int):
        return 0
    kinds = text.get("indexer_types")
    if isinstance(kinds, list) and len(kinds) == len(pattern):
        return kinds.count("full")
    step, first = text.get("index_topk_freq", 1), text.get("index_skip_topk_offset", 0)
    if not isinstance(step, int) or not isinstance(first, int) or step < 1:
        return len(pattern)
    return sum(layer < first or (layer + 1 - first) % step == 0 for layer in range(len(pattern)))


def _vision(config: Mapping[str, Any], name: str) -> int:
    """Return the parameters of a vision encoder's layers; its patches and projector are small beside them."""
    found = config.get("vision_config")
    if not isinstance(found, Mapping):
        return 0
    depth = _size(found, ("depth", "num_hidden_layers"), name)
    width = _size(found, ("hidden_size", "embed_dim"), name)
    inner = _size(found, ("intermediate_size", "mlp_dim"), name) or 4 * width
    return depth * (4 * width * width + (3 if found.get("hidden_act") == "silu" else 2) * width * inner)


def _window(text: Mapping[str, Any], name: str) -> int:
    return 0 if text.get("use_sliding_window") is False else _size(text, ("sliding_window",), name)


def _pattern(text: Mapping[str, Any], layers: int) -> tuple[str, ...]:
    """Return the blocks of each layer."""
    written = text.get("hybrid_override_pattern") or text.get("hybrid_layer_pattern")
    if isinstance(written, str) and set(written) <= set("M*-E"):
        return tuple(written)
    listed = text.get("layers_block_type")
    if isinstance(listed, list) and listed and _known(listed):
        # Newer writers call every recurrent layer linear attention.
        kinds = {**_KINDS, "linear_attention": "M"} if "mamba_num_heads" in text else _KINDS
        return tuple(kinds[kind] for kind in listed)
    return tuple(
        f"{mixer}{'E' if moe else '-'}"
        for mixer, moe in zip(_mixers(text, layers), _expert_layers(text, layers), strict=True)
    )


def _known(kinds: list[Any]) -> bool:
    return all(isinstance(kind, str) and kind in _KINDS for kind in kinds)


def _mixers(text: Mapping[str, Any], layers: int) -> list[str]:
    kinds = text.get("layer_types")
    if isinstance(kinds, list) and len(kinds) == layers and _known(kinds):
        return [_KINDS[kind] for kind in kinds]
    every = text.get("full_attention_interval")
    if "linear_num_key_heads" in text:
        step = every if isinstance(every, int) and every > 0 else 4
        return ["*" if (layer + 1) % step == 0 else "L" for layer in range(layers)]
    return ["*"] * layers


def _expert_layers(text: Mapping[str, Any], layers: int) -> list[bool]:
    if not any(isinstance(text.get(key), int) and text[key] > 0 for key in _SIZES["experts"]):
        return [False] * layers
    frequency, kinds = text.get("moe_layer_freq"), text.get("mlp_layer_types")
    if isinstance(kinds, list) and len(kinds) == layers:
        return [kind == "sparse" for kind in kinds]
    if isinstance(frequency, list) and len(frequency) == layers:
        return [bool(entry) for entry in frequency]
    step = text.get("decoder_sparse_step", frequency)
    step = step if isinstance(step, int) and step > 0 else 1
    first = text.get("first_k_dense_replace", 0)
    first = first if isinstance(first, int) else 0
    dense = text.get("mlp_only_layers")
    skipped = {layer for layer in dense if isinstance(layer, int)} if isinstance(dense, list) else set()
    offset = 1 if "decoder_sparse_step" in text else 0
    return [layer >= first and layer not in skipped and (layer + offset) % step == 0 for layer in range(layers)]
