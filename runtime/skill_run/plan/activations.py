"""Bytes that one token leaves behind for the backward pass, block by block, and what a layer needs while it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from skill_run.plan.layout import Layout, Run
from skill_run.plan.shape import ModelShape

# Experts get unequal shares of the tokens; the fullest rank is taken to get this many times the mean.
IMBALANCE: Final = 1.2


@dataclass(frozen=True, slots=True)
class Saved:
    """Bytes per token of a rank (tokens of the row / CP).

    input: the layer's input, all that full recompute keeps. whole: kept from forward to backward without recompute.
    stored: kept with the run's selective recompute. gradients: the most that the backward pass of a block needs on top.
    """

    input: float
    whole: float
    stored: float
    gradients: float

    def __add__(self, other: Saved) -> Saved:
        """Return one block after the other: the first input and the larger gradients remain."""
        return Saved(
            self.input,
            self.whole + other.whole,
            self.stored + other.stored,
            max(self.gradients, other.gradients),
        )


def layer_activations(shape: ModelShape, layout: Layout, run: Run, layer: str) -> Saved:
    """Return what one layer keeps per token, by the letters of its blocks."""
    blocks = [_BLOCKS[block](shape, layout, run) for block in layer]
    total = blocks[0]
    for block in blocks[1:]:
        total = total + block
    return total


def _linear_input(run: Run) -> int:
    """Return bytes per element of a linear layer's input: FP8 and FP4 recipes keep the quantised copy."""
    return 2 if run.precision == "bf16" else 1


def _selected(run: Run, module: str) -> bool:
    return run.recompute == "selective" and module in run.recompute_modules


def _gathered(shape: ModelShape, layout: Layout) -> float:
    """Return the gathered input and the gradient before it is scattered, which each rank holds whole."""
    return 2 * 2 * shape.hidden if layout.tp > 1 else 2 * shape.hidden


def _block(shape: ModelShape, layout: Layout, run: Run, inner: float, kept: float, gradients: float) -> Saved:
    """Return a block with its residual and norm in front: inner is what it leaves whole, kept with recompute."""
    residual = 2 * shape.hidden / (layout.tp if layout.sp else 1)
    normed = residual * _linear_input(run) / 2
    stored = kept + (0 if _selected(run, "layernorm") else normed)
    return Saved(residual, residual + normed + inner, residual + stored, _gathered(shape, layout) + gradients)


def _attention(shape: ModelShape, layout: Layout, run: Run) -> Saved:
    softmax = 4 * shape.heads / layout.tp
    if shape.mla:
        inner, kept = _latent(shape, layout, run)
        # The scores of every key of the row for each query, and their gradient, in FP32.
        scores = 8 * run.tokens_per_row if shape.sparse_attention else 0
        return _block(shape, layout, run, inner + softmax, kept + softmax, inner + scores)
    queries, keys = shape.heads * shape.head_dim, shape.groups * shape.head_dim
    norms = queries + keys if shape.qk_norm else 0
    gates = 2 * queries if shape.output_gate else 0
    inner = 2 * (2 * queries + 2 * keys + norms + gates) / layout.tp
    return _block(shape, layout, run, inner + softmax, inner + softmax, inner)


def _latent(shape: ModelShape, layout: Layout, run: Run) -> tuple[float, float]:
    """Return bytes of MLA's queries, keys, values and output, whole and as kept; the latents are on every TP rank.

    Sparse attention works on the latents themselves (absorbed MLA), so that keys and values are never projected up.
    """
    query, out = shape.qk_nope + shape.qk_rope, shape.v_head
    latent = shape.kv_rank + shape.qk_rope
    per_head = query + latent + shape.kv_rank if shape.sparse_attention else 2 * query + shape.v_head
    latents = 2 * 2 * (shape.q_rank + latent)
    index = 2 * (shape.index_heads + 1) * shape.index_dim + 4 * shape.index_topk
    whole = 2 * shape.heads * (per_head + out) / layout.tp + latents + index
    kept = 2 * shape.heads * out / layout.tp + latents + index if _selected(run, "mla_up_proj") else whole
    return whole, kept


def _dense(shape: ModelShape, layout: Layout, run: Run) -> Saved:
    first = 2 * (2 if shape.gated else 1) * shape.ffn / layout.tp
    inner = first + _linear_input(run) * shape.ffn / layout.tp
    return _block(shape, layout, run, inner, 0 if _selected(run, "mlp") else inner, first)


def _experts(shape: ModelShape, layout: Layout, run: Run) -> Saved:
    own = layout.tp if layout.sp else 1
    width = shape.latent or shape.hidden
    share = shape.topk * layout.etp / own * (IMBALANCE if layout.ep > 1 else 1)
    activated = share * _linear_input(run) * shape.moe_ffn / layout.etp
    first = share * 2 * (2 if shape.gated else 1) * shape.moe_ffn / layout.etp
    dispatched = share * _linear_input(run) * width
    shared = (2 * (2 if shape.gated else 1) + _linear_input(run)) * shape.shared_ffn / layout.tp
    router = (8 * shape.experts + 2 * 2 * shape.latent) / own
    inner = dispatched + first + activated + shared + router
    kept = 0.0 if _selected(run, "moe") else inner
    if kept:
        kept -= activated if _selected(run, "moe_act") else 0
        kept -= shared if _selected(run, "shared_experts") else 0
    # Tokens travel back: a send and a receive buffer beside the gradient of the experts' first layer.
    return _block(shape, layout, run, inner, kept, first + 2 * share * 2 * width)


def _mamba(shape: ModelShape, layout: Layout, run: Run) -> Saved:
    inner = shape.mamba_heads * shape.mamba_head_dim
    states = 2 * shape.mamba_groups * shape.mamba_state
    # Projected input (z, x, B, C, dt), the convolution's output, the scan's output and the gated norm's.
    kept = 2 * (2 * inner + states + shape.mamba_heads + inner + states + 2 * inner) / layout.tp
    return _block(shape, layout, run, kept, kept, kept)


def _linear(shape: ModelShape, layout: Layout, run: Run) -> Saved:
    keys = shape.linear_key_heads * shape.linear_key_dim
    values = shape.linear_value_heads * shape.linear_value_dim
    # Projections (q, k, v, z), the convolution's output, q and k for every value head, the output and its norm.
    kept = 2 * (2 * keys + 2 * values + 2 * keys + values + 2 * values + 2 * values) / layout.tp
    return _block(shape, layout, run, kept, kept, kept)


_BLOCKS: Final[dict[str, Callable[[ModelShape, Layout, Run], Saved]]] = {
    "*": _attention,
    "-": _dense,
    "E": _experts,
    "M": _mamba,
    "L": _linear,
}


def stored_and_working(shape: ModelShape, layout: Layout, run: Run, layers: Sequence[str]) -> tuple[float, float]:
    """Return bytes per token that a stage keeps of one micro batch, and the most that one layer needs while it runs.

    Full recompute keeps the input of each group of layers (uniform: all in groups of `recompute_num_layers`; block: the
    first `recompute_num_layers` one by one, the rest keep everything) and needs one group whole while it is recomputed.
    """
    if not layers:
        return 0.0, 0.0
    each = {layer: layer_activations(shape, layout, run, layer) for layer in set(layers)}
    saved = [each[layer] for layer in layers]
    if run.recompute != "full":
        working = max(layer.whole - layer.stored + layer.gradients for layer in saved)
        kept = saved[min(run.offload_layers, len(saved)) :]
        return sum(layer.stored for layer in kept), working
    count = max(1, run.recompute_num_layers)
    if run.recompute_method == "block":
        # mcore counts the recomputed layers in every virtual chunk of a stage.
        count = min(len(saved), count * (layout.vpp or 1))
        kept_whole = sum(layer.whole for layer in saved[count:])
        working = max(layer.whole + layer.gradients for layer in saved)
        return sum(layer.input for layer in saved[:count]) + kept_whole, working
    count = min(count, len(saved))
    groups = ceil(len(saved) / count)
    working = count * max(layer.whole for layer in saved) + max(layer.gradients for layer in saved)
    return groups * saved[0].input, working
