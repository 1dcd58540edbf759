"""Weights, gradients and optimizer state of one pipeline stage on one GPU, full finetuning and adapters."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from skill_run.plan.adapters import adapter_parameters
from skill_run.plan.layout import Layout, Run
from skill_run.plan.parameters import VOCAB_MULTIPLE, block_parameters, indexer_parameters
from skill_run.plan.shape import ModelShape

_MOMENTS: Final = {"adam": 2, "muon": 1, "dist_muon": 1, "sgd": 1}
# Held whole by every tensor-parallel rank.
_WHOLE: Final = frozenset({"norms", "router"})


@dataclass(frozen=True, slots=True)
class Stage:
    """One pipeline stage: the first holds the embedding, the last the output layer and multi-token prediction (MTP).

    blocks: the layers whose weights it holds. passes: the layers that a micro batch goes through. heads: MTP heads.
    """

    index: int
    blocks: tuple[str, ...]
    first: bool
    last: bool
    passes: tuple[str, ...]
    heads: int = 0


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


def stages_of(shape: ModelShape, layout: Layout, run: Run) -> tuple[Stage, ...]:
    """Return the pipeline stages; layers that do not divide evenly lie in the first ones.

    A multi-token prediction layer is one more layer in the last stage. With more predictions than the model has such
    layers their weights are used again (mtp_use_repeated_layer).
    """
    heads = shape.mtp_layers if run.mtp_layers is None else run.mtp_layers
    held = min(heads, shape.mtp_layers or heads)
    found, start = [], 0
    for index, count in enumerate(_layers_of_stages(shape, layout)):
        end = start + count
        blocks, last = shape.blocks[start:end], index == layout.pp - 1
        found.append(
            Stage(
                index,
                blocks + shape.mtp_blocks * (held if last else 0),
                index == 0,
                last,
                blocks + shape.mtp_blocks * (heads if last else 0),
                heads if last else 0,
            )
        )
        start = end
    return tuple(found)


def _layers_of_stages(shape: ModelShape, layout: Layout) -> list[int]:
    if layout.last_stage_layers is not None and layout.pp > 1:
        each = (shape.layers - layout.last_stage_layers) // (layout.pp - 1)
        return [*([each] * (layout.pp - 1)), layout.last_stage_layers]
    small, more = divmod(shape.layers, layout.pp)
    return [small + (1 if index < more else 0) for index in range(layout.pp)]


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
    elif stage.heads:
        dense += table
    if stage.last:
        dense += shape.hidden + (0 if shape.tied and stage.first else table)
        dense += min(stage.heads, shape.mtp_layers or stage.heads) * 2 * shape.hidden * shape.hidden / layout.tp
    if run.peft is None:
        return Held(dense, experts)
    adapters, expert_adapters = adapter_parameters(shape, layout, run, stage.blocks)
    return Held(dense, experts, adapters, expert_adapters)


def state_bytes(held: Held, layout: Layout, run: Run, *, world_size: int) -> States:
    """Return bytes of weights, gradients and optimizer.

    The distributed optimizer shards master weights and moments over DP x CP, the experts' over the ranks that hold the
    same experts. Frozen weights have neither gradients nor optimizer state.
    """
    kept = 1 if run.fp8_params else 2
    weights = kept * (held.dense + held.experts) + 2 * (held.adapters + held.expert_adapters)
    if run.frozen:
        return States(weights, 0.0, 0.0)
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
