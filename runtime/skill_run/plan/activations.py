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

    stored: kept from forward to backward. input: what full recompute keeps instead, the layer's input. working: what
    the layer needs on top while its backward runs: gradients of its activations and gathered inputs.
    """

    stored: float
    input: float
    working: float

    def __add__(self, other: Saved) -> Saved:
        """Return one block after the other: stored adds up, the first input and the larger working set remain."""
        return Saved(self.stored + other.stored, self.input, max(self.working, other.working))


def layer_activations(shape: ModelShape, layout: Layout, run: Run, layer: str) -> Saved:
    """Return what one layer keeps per token, by the letters of its blocks."""
    blocks = [_BLOCKS[block](shape, layout, run) for block in layer]
    total = blocks[0]
    for block in blocks[1:]:
        total = total + block
    return total


def _selected(run: Run, module: str) -> bool:
    return run.recompute == "selective" and module in run.recompute_modules


def _entry(shape: ModelShape, layout: Layout, run: Run) -> tuple[float, float]:
    """Return the residual and the norm's output in bytes; sequence parallelism splits both over TP."""
    width = 2 * shape.hidden / (layout.tp if layout.sp else 1)
    return width, 0 if _selected(run, "layernorm") else width


def _gathered(shape: ModelShape, layout: Layout) -> float:
    """Return the gathered input and the gradient before it is scattered, which each rank holds whole."""
    return 2 * 2 * shape.hidden if layout.tp > 1 else 2 * shape.hidden


def _attention(shape: ModelShape, layout: Layout, run: Run) -> Saved:
    residual, normed = _entry(shape, layout, run)
    if shape.mla:
        inner, kept = _latent(shape, layout, run)
    else:
        queries, keys = shape.heads * shape.head_dim, shape.groups * shape.head_dim
        norms = queries + keys if shape.qk_norm else 0
        gates = 2 * queries if shape.output_gate else 0
        inner = kept = 2 * (2 * queries + 2 * keys + norms + gates) / layout.tp
    softmax = 4 * shape.heads / layout.tp
    working = _gathered(shape, layout) + inner
    return Saved(residual + normed + kept + softmax, residual, working)


def _latent(shape: ModelShape, layout: Layout, run: Run) -> tuple[float, float]:
    """Return bytes of MLA's queries, keys, values and output, whole and as kept; the latents are on every TP rank."""
    up = shape.heads * (2 * (shape.qk_nope + shape.qk_rope) + shape.v_head)
    out = shape.heads * shape.v_head
    latents = 2 * 2 * (shape.q_rank + shape.kv_rank + shape.qk_rope)
    index = 2 * (shape.index_heads + 1) * shape.index_dim + 4 * shape.index_topk
    whole = 2 * (up + out) / layout.tp + latents + index
    kept = 2 * out / layout.tp + latents + index if _selected(run, "mla_up_proj") else whole
    return whole, kept


def _dense(shape: ModelShape, layout: Layout, run: Run) -> Saved:
    residual, normed = _entry(shape, layout, run)
    inner = 2 * (3 if shape.gated else 2) * shape.ffn / layout.tp
    kept = 0 if _selected(run, "mlp") else inner
    return Saved(residual + normed + kept, residual, _gathered(shape, layout) + inner)


def _experts(shape: ModelShape, layout: Layout, run: Run) -> Saved:
    residual, normed = _entry(shape, layout, run)
    own = layout.tp if layout.sp else 1
    width = shape.latent or shape.hidden
    share = shape.topk * IMBALANCE * layout.etp / own if layout.ep > 1 else shape.topk * layout.etp / own
    activated = 2 * shape.moe_ffn / layout.etp
    before = (2 if shape.gated else 1) * activated
    dispatched = 2 * width
    inner = share * (dispatched + before + activated)
    kept = inner - (share * activated if _selected(run, "moe_act") else 0)
    shared = 2 * (3 if shape.gated else 2) * shape.shared_ffn / layout.tp
    router = 8 * shape.experts / own
    latent = 2 * 2 * shape.latent / own
    total = 0 if _selected(run, "moe") else kept + router + latent
    total += 0 if _selected(run, "moe") or _selected(run, "shared_experts") else shared
    # Tokens travel out and back: a send and a receive buffer beside the experts' own input.
    working = inner + shared + 2 * share * dispatched + _gathered(shape, layout)
    return Saved(residual + normed + total, residual, working)


def _mamba(shape: ModelShape, layout: Layout, run: Run) -> Saved:
    residual, normed = _entry(shape, layout, run)
    inner = shape.mamba_heads * shape.mamba_head_dim
    states = 2 * shape.mamba_groups * shape.mamba_state
    # Projected input (z, x, B, C, dt), the convolution's output, the scan's output and the gated norm's.
    kept = 2 * (2 * inner + states + shape.mamba_heads + inner + states + 2 * inner) / layout.tp
    return Saved(residual + normed + kept, residual, _gathered(shape, layout) + 2 * kept)


def _linear(shape: ModelShape, layout: Layout, run: Run) -> Saved:
    residual, normed = _entry(shape, layout, run)
    keys = shape.linear_key_heads * shape.linear_key_dim
    values = shape.linear_value_heads * shape.linear_value_dim
    # Projections (q, k, v, z), the convolution's output, q and k for every value head, the output and its norm.
    kept = 2 * (2 * keys + 2 * values + 2 * keys + values + 2 * values + 2 * values) / layout.tp
    return Saved(residual + normed + kept, residual, _gathered(shape, layout) + 2 * kept)


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
    working = max(layer.working for layer in saved)
    if run.recompute != "full":
        kept = saved[min(run.offload_layers, len(saved)) :]
        return sum(layer.stored for layer in kept), working
    largest = max(layer.stored for layer in saved)
    count = max(1, run.recompute_num_layers)
    if run.recompute_method == "block":
        # mcore counts the recomputed layers in every virtual chunk of a stage.
        count = min(len(saved), count * (layout.vpp or 1))
        return (
            sum(layer.input for layer in saved[:count]) + sum(layer.stored for layer in saved[count:]),
            working + largest,
        )
    groups = ceil(len(saved) / count)
    return groups * saved[0].input, working + min(count, len(saved)) * largest
