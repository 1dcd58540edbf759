"""Weights, gradients and optimizer state of one pipeline stage on one GPU, full finetuning and adapters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from skill_run.plan.layout import Layout, Run
from skill_run.plan.parameters import VOCAB_MULTIPLE, block_parameters, indexer_parameters
from skill_run.plan.shape import ModelShape

_MOMENTS: Final = {"adam": 2, "muon": 1, "dist_muon": 1, "sgd": 1}
# Held whole by every tensor-parallel rank.
_WHOLE: Final = frozenset({"norms", "router"})


@dataclass(frozen=True, slots=True)
class Stage:
    """The layers of one pipeline stage; first holds the embedding, last the output layer."""

    index: int
    blocks: tuple[str, ...]
    first: bool
    last: bool


@dataclass(frozen=True, slots=True)
class Held:
    """Elements that one GPU holds: dense parameters, experts' parameters, and those of adapters."""

    dense: float
    experts: float
    adapters: float = 0.0
    expert_adapters: float = 0.0


@dataclass(frozen=True, slots=True)
class States:
    """Bytes of the model's state on one GPU."""

    weights: float
    gradients: float
    optimizer: float


def stages_of(shape: ModelShape, layout: Layout) -> tuple[Stage, ...]:
    """Return the pipeline stages; layers that do not divide evenly lie in the first ones."""
    count = layout.pp
    small, more = divmod(shape.layers, count)
    found, start = [], 0
    for index in range(count):
        end = start + small + (1 if index < more else 0)
        found.append(Stage(index, shape.blocks[start:end], index == 0, index == count - 1))
        start = end
    return tuple(found)


def padded_vocab(shape: ModelShape, layout: Layout) -> int:
    """Return the vocabulary as Bridge pads it: a multiple of 128 x TP (calculate_padded_vocab_size)."""
    multiple = VOCAB_MULTIPLE * layout.tp
    return ceil(shape.vocab / multiple) * multiple


def held_parameters(shape: ModelShape, layout: Layout, run: Run, stage: Stage) -> Held:
    """Return the elements on one GPU of a stage."""
    dense = experts = 0.0
    for layer in stage.blocks:
        for block in layer:
            for part, size in block_parameters(shape, block).items():
                if part == "experts":
                    experts += size / (layout.ep * layout.etp)
                else:
                    dense += size if part in _WHOLE else size / layout.tp
        if "*" in layer and shape.index_layers:
            dense += indexer_parameters(shape) * shape.index_layers / shape.count("*")
    table = padded_vocab(shape, layout) * shape.hidden / layout.tp
    if stage.first:
        dense += table + shape.vision / layout.tp
    if stage.last:
        dense += shape.hidden + (0 if shape.tied and stage.first else table)
    if run.peft is None:
        return Held(dense, experts)
    adapters, expert_adapters = _adapters(shape, layout, run, stage.blocks)
    return Held(dense, experts, adapters, expert_adapters)


def _adapters(shape: ModelShape, layout: Layout, run: Run, blocks: Sequence[str]) -> tuple[float, float]:
    """Return adapter elements on one GPU; the rank's side of each pair is split over TP where the linear layer is."""
    dense = experts = 0.0
    for layer in blocks:
        for block in layer:
            for target, (width_in, width_out, column) in _linears(shape, block).items():
                if target not in run.peft_targets:
                    continue
                split = layout.etp if block == "E" else layout.tp
                inside, outside = (width_in, width_out / split) if column else (width_in / split, width_out)
                size = run.peft_dim * (inside / (layout.tp if column else 1) + outside)
                size += outside if run.peft == "dora" else 0
                if block == "E":
                    experts += size
                else:
                    dense += size
    return dense, experts


def _linears(shape: ModelShape, block: str) -> dict[str, tuple[int, int, bool]]:
    """Return the linear layers of a block in Bridge's names: width in, width out, whether the output is split."""
    gate = 2 if shape.gated else 1
    if block == "*":
        inner = shape.heads * (shape.v_head if shape.mla else shape.head_dim)
        queries = shape.heads * shape.head_dim + 2 * shape.groups * shape.head_dim
        proj = {"linear_proj": (inner, shape.hidden, False)}
        return proj if shape.mla else {"linear_qkv": (shape.hidden, queries, True), **proj}
    if block == "-":
        return {
            "linear_fc1": (shape.hidden, gate * shape.ffn, True),
            "linear_fc2": (shape.ffn, shape.hidden, False),
        }
    if block == "E":
        width = shape.latent or shape.hidden
        return {
            "linear_fc1": (width, gate * shape.moe_ffn, True),
            "linear_fc2": (shape.moe_ffn, width, False),
        }
    return {}


def state_bytes(held: Held, layout: Layout, run: Run, *, world_size: int) -> States:
    """Return bytes of weights, gradients and optimizer.

    The distributed optimizer shards master weights and moments over DP x CP, the experts' over the ranks that hold the
    same experts. Frozen weights have neither gradients nor optimizer state.
    """
    kept = 1 if run.fp8_params else 2
    weights = kept * (held.dense + held.experts) + 2 * (held.adapters + held.expert_adapters)
    full = run.peft is None
    dense, experts = (held.dense, held.experts) if full else (held.adapters, held.expert_adapters)
    per_element = (run.main_bytes + _MOMENTS.get(run.optimizer, 2) * run.moment_bytes) * (1 - run.optimizer_offload)
    dense_shards = layout.data_parallel(world_size) * layout.cp if run.distributed_optimizer else 1
    expert_shards = layout.expert_data_parallel(world_size) if run.distributed_optimizer else 1
    return States(
        weights=weights,
        gradients=run.grad_bytes * (dense + experts),
        optimizer=per_element * (dense / dense_shards + experts / expert_shards),
    )
