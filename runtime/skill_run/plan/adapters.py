"""Parameters of LoRA and DoRA adapters on one GPU, for the linear layers that they are put beside."""

from __future__ import annotations

from collections.abc import Sequence

from skill_run.plan.layout import Layout, Run
from skill_run.plan.shape import ModelShape

# Width in and width out.
_Linear = tuple[int, int]


def adapter_parameters(shape: ModelShape, layout: Layout, run: Run, layers: Sequence[str]) -> tuple[float, float]:
    """Return the elements of adapters beside dense layers and beside experts.

    Experts on one GPU share an adapter (share_expert_adapters, the default of megatron/bridge/peft/lora.py in 0.6.2).
    DoRA adds a magnitude for every output.
    """
    dense = experts = 0.0
    for layer in layers:
        for block in layer:
            split = layout.etp if block == "E" else layout.tp
            size = sum(
                _size(linear, run, split)
                for target, linear in linear_layers(shape, block).items()
                if target in run.peft_targets
            )
            if block == "E":
                experts += size
            else:
                dense += size
    return dense, experts


def _size(linear: _Linear, run: Run, split: int) -> float:
    """Return the elements of one pair: both matrices are split over TP, one by its rank, the other with the layer."""
    width_in, width_out = linear
    size = run.peft_dim * (width_in + width_out) / split
    return size + (width_out / split if run.peft == "dora" else 0)


def linear_layers(shape: ModelShape, block: str) -> dict[str, _Linear]:
    """Return the linear layers of a block by Megatron's names, as adapters' target_modules name them."""
    gate = 2 if shape.gated else 1
    if block == "*":
        return _latent_layers(shape) if shape.mla else _attention_layers(shape)
    if block == "M":
        inner = shape.mamba_heads * shape.mamba_head_dim
        width = 2 * inner + 2 * shape.mamba_groups * shape.mamba_state + shape.mamba_heads
        return {"in_proj": (shape.hidden, width), "out_proj": (inner, shape.hidden)}
    if block == "L":
        keys = shape.linear_key_heads * shape.linear_key_dim
        values = shape.linear_value_heads * shape.linear_value_dim
        width = 2 * keys + 2 * values + 2 * shape.linear_value_heads
        return {"in_proj": (shape.hidden, width), "out_proj": (values, shape.hidden)}
    width, inner = (shape.hidden, shape.ffn) if block == "-" else (shape.latent or shape.hidden, shape.moe_ffn)
    return {"linear_fc1": (width, gate * inner), "linear_fc2": (inner, width)}


def _attention_layers(shape: ModelShape) -> dict[str, _Linear]:
    inner = shape.heads * shape.head_dim
    queries = inner * (2 if shape.output_gate else 1) + 2 * shape.groups * shape.head_dim
    return {"linear_qkv": (shape.hidden, queries), "linear_proj": (inner, shape.hidden)}


def _latent_layers(shape: ModelShape) -> dict[str, _Linear]:
    query = shape.heads * (shape.qk_nope + shape.qk_rope)
    found: dict[str, _Linear] = {"linear_q_proj": (shape.hidden, query)}
    if shape.q_rank:
        found = {
            "linear_q_down_proj": (shape.hidden, shape.q_rank),
            "linear_q_up_proj": (shape.q_rank, query),
        }
    return {
        **found,
        "linear_kv_down_proj": (shape.hidden, shape.kv_rank + shape.qk_rope),
        "linear_kv_up_proj": (shape.kv_rank, shape.heads * (shape.qk_nope + shape.v_head)),
        "linear_proj": (shape.heads * shape.v_head, shape.hidden),
    }
