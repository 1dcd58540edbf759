"""Count a model's parameters by part, whole and as the most loaded GPU of a pipeline stage holds them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from skill_run.plan.shape import ModelShape

# Bridge pads the vocabulary to a multiple of this times TP (GPTModelProvider.make_vocab_size_divisible_by).
VOCAB_MULTIPLE: Final = 128


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters by part, in elements; multi-token prediction layers are not counted."""

    embedding: int
    output_layer: int
    attention: int
    mamba: int
    linear_attention: int
    dense_ffn: int
    experts: int
    shared_experts: int
    router: int
    norms: int

    @property
    def total(self) -> int:
        """Return all of them."""
        return sum(asdict(self).values())

    def to_dict(self) -> dict[str, int]:
        """Return the counts by part and the total."""
        return {**asdict(self), "total": self.total}


def count_parameters(shape: ModelShape) -> Parameters:
    """Return the parameters of the whole model by part."""
    embedding = shape.vocab * shape.hidden
    per = {block: block_parameters(shape, block) for block in set("".join(shape.blocks))}
    sums = dict.fromkeys(("attention", "mamba", "linear", "dense", "experts", "shared", "router", "norms"), 0)
    for layer in shape.blocks:
        for block in layer:
            for part, size in per[block].items():
                sums[part] += size
    sums["attention"] += shape.index_layers * indexer_parameters(shape)
    return Parameters(
        embedding=embedding,
        output_layer=0 if shape.tied else embedding,
        attention=sums["attention"],
        mamba=sums["mamba"],
        linear_attention=sums["linear"],
        dense_ffn=sums["dense"],
        experts=sums["experts"],
        shared_experts=sums["shared"],
        router=sums["router"],
        norms=sums["norms"] + shape.hidden,
    )


def block_parameters(shape: ModelShape, block: str) -> dict[str, int]:
    """Return the parameters of one block (a letter of ModelShape.blocks), by part, indexers left out."""
    norms = {"norms": shape.hidden}
    if block == "*":
        return {"attention": attention_parameters(shape), **norms}
    if block == "M":
        return {"mamba": _mamba(shape), **norms}
    if block == "L":
        return {"linear": _linear_attention(shape), **norms}
    if block == "-":
        return {"dense": _ffn(shape, shape.hidden, shape.ffn), **norms}
    width = shape.latent or shape.hidden
    experts = shape.experts * _ffn(shape, width, shape.moe_ffn)
    latent = 2 * shape.hidden * shape.latent
    shared = _ffn(shape, shape.hidden, shape.shared_ffn) if shape.shared_ffn else 0
    router = shape.hidden * shape.experts + (shape.experts if shape.linear_bias else 0)
    return {"experts": experts, "shared": shared + latent, "router": router, **norms}


def attention_parameters(shape: ModelShape) -> int:
    """Return the parameters of one attention block: grouped-query or multi-latent, with biases and head norms."""
    if shape.mla:
        return _latent_attention(shape)
    queries, keys = shape.heads * shape.head_dim, shape.groups * shape.head_dim
    gate = queries if shape.output_gate else 0
    size = shape.hidden * (2 * queries + gate + 2 * keys)
    size += queries + 2 * keys if shape.qkv_bias else 0
    size += shape.hidden + shape.heads if shape.linear_bias else 0
    return size + (2 * shape.head_dim if shape.qk_norm else 0)


def _latent_attention(shape: ModelShape) -> int:
    query_width = shape.heads * (shape.qk_nope + shape.qk_rope)
    if shape.q_rank:
        size = shape.hidden * shape.q_rank + shape.q_rank + shape.q_rank * query_width
    else:
        size = shape.hidden * query_width
    size += shape.hidden * (shape.kv_rank + shape.qk_rope) + shape.kv_rank
    size += shape.kv_rank * shape.heads * (shape.qk_nope + shape.v_head) + shape.heads * shape.v_head * shape.hidden
    return size


def indexer_parameters(shape: ModelShape) -> int:
    """Return the parameters of one indexer of sparse attention (DSA): queries, one key, weights and the key's norm."""
    queries = (shape.q_rank or shape.hidden) * shape.index_heads * shape.index_dim
    return queries + shape.hidden * (shape.index_dim + shape.index_heads) + 2 * shape.index_dim


def _ffn(shape: ModelShape, width: int, inner: int) -> int:
    size = (3 if shape.gated else 2) * width * inner
    return size + ((2 if shape.gated else 1) * inner + width if shape.linear_bias else 0)


def _mamba(shape: ModelShape) -> int:
    inner = shape.mamba_heads * shape.mamba_head_dim
    conv = inner + 2 * shape.mamba_groups * shape.mamba_state
    size = shape.hidden * (inner + conv + shape.mamba_heads) + conv * (shape.conv + 1)
    return size + 3 * shape.mamba_heads + inner + inner * shape.hidden


def _linear_attention(shape: ModelShape) -> int:
    keys = shape.linear_key_heads * shape.linear_key_dim
    values = shape.linear_value_heads * shape.linear_value_dim
    size = shape.hidden * (2 * keys + 2 * values + 2 * shape.linear_value_heads)
    size += (2 * keys + values) * shape.conv + 2 * shape.linear_value_heads + shape.linear_value_dim
    return size + values * shape.hidden
