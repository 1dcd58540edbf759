"""Architecture facts from a Hugging Face model: a folder with config.json, the file itself, or just an id."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from skill_run.bridge.release import index
from skill_run.config.model import Plain
from skill_run.config.text import parse_json, read_text
from skill_run.config.typing import INT64, shown
from skill_run.errors import InputError

MAX_BYTES: Final = 1024 * 1024

_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "model.num_layers": ("num_hidden_layers", "n_layer"),
    "model.hidden_size": ("hidden_size", "n_embd"),
    "model.ffn_hidden_size": ("intermediate_size",),
    "model.num_attention_heads": ("num_attention_heads", "n_head"),
    "model.num_query_groups": ("num_key_value_heads",),
    "model.num_moe_experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "model.vocab_size": ("vocab_size",),
    "model.kv_channels": ("head_dim",),
    "model.mamba_num_heads": ("mamba_num_heads",),
    "model.mamba_num_groups": ("n_groups",),
    "model.linear_num_key_heads": ("linear_num_key_heads",),
    "model.linear_num_value_heads": ("linear_num_value_heads",),
    "hf.max_position_embeddings": ("max_position_embeddings",),
    "hf.num_attention_heads": ("num_attention_heads",),
    "hf.num_key_value_heads": ("num_key_value_heads",),
    "hf.num_hidden_layers": ("num_hidden_layers",),
    "hf.sliding_window": ("sliding_window",),
}


# Fields that facts_from tells from more than one key.
MODEL_FIELDS: Final = frozenset(_FIELDS) | {
    "model.experimental_attention_variant",
    "model.is_hybrid_model",
    "model.softmax_type",
    "model.window_size",
}


def read_model(model: str) -> dict[str, Plain]:
    """Return canonical fields told by a model's config.json; {} when `model` is an id and not a path.

    A field that the file lacks is null: the file is the whole description of the architecture. Raises InputError for
    a path without a readable config.json.
    """
    path = Path(model)
    try:
        there = path.exists()
    except (OSError, ValueError):
        there = False
    if not there:
        if model.startswith((".", "/", "~")) or model.endswith((".json", "/")):
            raise InputError(
                f"{model[:200]} is not there; --model takes a folder with config.json, that file, or a model id"
            )
        return {}
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise InputError(f"{path} has no config.json")
    data = parse_json(read_text(file, MAX_BYTES), str(file))
    if not isinstance(data, dict):
        raise InputError(f"{file} does not hold a model config")
    facts = facts_from(data)
    for name, value in facts.items():
        low = 1 if name in index()["at_least_one"] else 0
        if isinstance(value, int) and not low <= value <= INT64:
            raise InputError(f"{file} gives {shown(value)} for {name}, which no model has")
    return facts


def _variants(source: dict[str, Any]) -> dict[str, Plain]:
    """Tell the attention variant, hybrid layers, softmax and window that Bridge derives from a model's config."""
    model_type = str(source.get("model_type"))
    variant = "dsa" if "index_topk" in source else "gated_delta_net" if "linear_num_key_heads" in source else None
    facts: dict[str, Plain] = {
        "model.experimental_attention_variant": variant,
        "model.is_hybrid_model": "mamba_num_heads" in source or "hybrid_override_pattern" in source,
        "model.softmax_type": "learnable" if model_type == "gpt_oss" else "vanilla",
    }
    window = source.get("sliding_window")
    if not isinstance(window, int) or source.get("use_sliding_window") is False:
        facts["model.window_size"] = None
    elif model_type == "mistral":
        facts["model.window_size"] = [window - 1, 0]
    return facts


def facts_from(data: dict[str, Any]) -> dict[str, Plain]:
    """Return canonical fields from a parsed config.json (the text part of a multimodal model)."""
    source = data
    for part in ("thinker_config", "llm_config", "text_config"):
        if isinstance(source.get(part), dict):
            source = {**source, **source[part]}
    facts: dict[str, Plain] = {}
    for name, keys in _FIELDS.items():
        found = next((source[key] for key in keys if isinstance(source.get(key), int)), None)
        facts[name] = None if isinstance(found, bool) else found
    for name in ("model.num_layers", "model.hidden_size", "model.num_attention_heads", "model.vocab_size"):
        if facts[name] is None:
            del facts[name]
    facts.update(_variants(source))
    rope = source.get("rope_scaling") or source.get("rope_parameters")
    if isinstance(rope, dict):
        kind = rope.get("rope_type", rope.get("type"))
        facts["hf.rope_scaling.rope_type"] = kind if isinstance(kind, str) else None
        for key in ("factor", "original_max_position_embeddings"):
            value = rope.get(key)
            number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
            facts[f"hf.rope_scaling.{key}"] = number
    else:
        facts["hf.rope_scaling"] = None
    model_type = data.get("model_type")
    if isinstance(model_type, str):
        facts["hf.model_type"] = model_type
    return facts
