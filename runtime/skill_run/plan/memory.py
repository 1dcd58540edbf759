"""Memory per GPU of a training run: the fullest pipeline stage, part by part, against what the GPU has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from skill_run.bridge.release import index
from skill_run.errors import InputError
from skill_run.plan.activations import stored_and_working
from skill_run.plan.layout import Layout, Run, heads_exchanged
from skill_run.plan.links import gpu_name
from skill_run.plan.shape import ModelShape
from skill_run.plan.states import Stage, held_parameters, padded_vocab, stages_of, state_bytes

GIB: Final = 2**30
# FP32 logits, with their softmax in place, for each head; and one BF16 gradient at a time.
LOGIT_BYTES: Final = 4
LOGIT_GRADIENT_BYTES: Final = 2
# CUDA context, NCCL communicators, cuBLAS and attention workspaces.
FIXED_RESERVE: Final = 2.5 * GIB
# Share of the allocated memory that the allocator loses in holes.
FRAGMENTATION: Final = 0.04

FORMULA: Final[tuple[tuple[str, str], ...]] = (
    ("weights", "parameters of the stage / TP (experts / (EP x ETP)) x 2 bytes"),
    ("gradients", "trained parameters x 4 bytes"),
    ("optimizer", "trained parameters x 12 bytes / (DP x CP), experts' / the ranks that hold the same experts"),
    ("activations", "bytes per token and layer x tokens / CP x layers of the stage x micro batches in flight"),
    ("logits", "vocabulary / TP x tokens / CP x (4 bytes for each head + 2), last stage, one micro batch"),
    ("working", "gradients, gathered inputs and recomputed activations of one layer, beyond the logits' room"),
    ("cp_buffers", "key-value blocks in flight: two (p2p), the whole row's (all_gather), exchanged heads (a2a)"),
    ("reserve", "2.5 GiB for CUDA, NCCL and workspaces, and 4 % of the rest for holes in the allocator's blocks"),
)
LIMITS: Final[tuple[str, ...]] = (
    "Not counted: Megatron-FSDP, CUDA graph pools, recurrent states of Mamba and "
    "linear attention, activations of vision and audio encoders.",
    "Experts are taken to be uneven by 1.2 with EP > 1; an untrained router can be worse.",
    "Flash or fused attention is assumed; unfused attention needs tokens squared.",
)


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes on one GPU of the fullest pipeline stage; budget: all that the GPU has."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    working: float
    logits: float
    cp_buffers: float
    reserve: float
    budget: float
    gpu: str
    stage: int
    in_flight: float
    formula: tuple[tuple[str, str], ...] = FORMULA
    limits: tuple[str, ...] = LIMITS

    @property
    def parts(self) -> dict[str, float]:
        """Return the bytes by part."""
        return {name: getattr(self, name) for name, _ in self.formula}

    @property
    def total(self) -> float:
        """Return the sum of the parts."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """Tell whether the parts fit into the GPU."""
        return self.total <= self.budget

    def to_dict(self) -> dict[str, Any]:
        """Return the estimate as JSON-ready data, sizes in GiB with two decimals."""
        return {
            "gpu": self.gpu,
            "unit": "GiB",
            "parts": {name: round(size / GIB, 2) for name, size in self.parts.items()},
            "total": round(self.total / GIB, 2),
            "budget": round(self.budget / GIB, 2),
            "fits": self.fits,
            "stage": self.stage,
            "micro_batches_in_flight": round(self.in_flight, 2),
            "formula": dict(self.formula),
            "limits": list(self.limits),
        }


def gpu_memory(gpu: str) -> int:
    """Return the memory of a kind of GPU in bytes; InputError for a kind that is not known."""
    sizes: dict[str, int] = index()["gpu_memory_gib"]
    name = gpu_name(gpu)
    if name not in sizes:
        raise InputError(f"{gpu[:40]!r} is not a known kind of GPU; known are {', '.join(sizes)}")
    return sizes[name] * GIB


def estimate_memory(shape: ModelShape, layout: Layout, run: Run, *, world_size: int, gpu: str) -> MemoryEstimate:
    """Return what one GPU of the fullest pipeline stage needs.

    Raises InputError for a kind of GPU that is not known. Mirrors the terms of
    megatron/bridge/training/utils/theoretical_memory_utils.py (0.6.2) and adds what that leaves out.
    """
    budget = gpu_memory(gpu)
    estimates = [
        _of_stage(shape, layout, run, stage, world_size=world_size, budget=budget, gpu=gpu)
        for stage in stages_of(shape, layout, run)
    ]
    return max(estimates, key=lambda estimate: estimate.total)


def _of_stage(
    shape: ModelShape, layout: Layout, run: Run, stage: Stage, *, world_size: int, budget: int, gpu: str
) -> MemoryEstimate:
    states = state_bytes(held_parameters(shape, layout, run, stage), layout, run, world_size=world_size)
    tokens = run.tokens_per_row * run.micro_batch_size / layout.cp
    in_flight = micro_batches_in_flight(layout, run, stage, world_size=world_size)
    per_token, working = stored_and_working(shape, layout, run, stage.passes)
    logits = _logits(shape, layout, stage) * tokens
    # By the time the layers' backward pass runs the logits are gone.
    working = max(0.0, working * tokens - logits)
    buffers = _cp_buffers(shape, layout, run)
    activations = per_token * tokens * in_flight
    held = states.weights + states.gradients + states.optimizer + activations + working + logits + buffers
    return MemoryEstimate(
        weights=states.weights,
        gradients=states.gradients,
        optimizer=states.optimizer,
        activations=activations,
        working=working,
        logits=logits,
        cp_buffers=buffers,
        reserve=FIXED_RESERVE + FRAGMENTATION * held,
        budget=budget,
        gpu=gpu_name(gpu),
        stage=stage.index,
        in_flight=in_flight,
    )


def micro_batches_in_flight(layout: Layout, run: Run, stage: Stage, *, world_size: int) -> float:
    """Return for how many micro batches a stage keeps activations: 1F1B, or its interleaved form with VPP.

    Later stages wait for fewer: PP - stage. Interleaved, a stage holds 2 (PP - stage - 1) + (VPP - 1) PP + 1 chunks of
    1 / VPP of its layers (megatron/core/pipeline_parallel/schedules.py).
    """
    ahead = layout.pp - stage.index - 1
    count = run.global_batch_size
    batches = count / (run.micro_batch_size * layout.data_parallel(world_size)) if count else float("inf")
    if layout.vpp is None or layout.vpp == 1:
        return max(1.0, min(ahead + 1.0, batches))
    chunks = 2 * ahead + (layout.vpp - 1) * layout.pp + 1
    return max(1.0, min(chunks / layout.vpp, batches))


def _logits(shape: ModelShape, layout: Layout, stage: Stage) -> float:
    """Return bytes per token; every multi-token prediction layer has logits of its own."""
    if not stage.last:
        return 0.0
    return (LOGIT_BYTES * (1 + stage.heads) + LOGIT_GRADIENT_BYTES) * padded_vocab(shape, layout) / layout.tp


def _cp_buffers(shape: ModelShape, layout: Layout, run: Run) -> float:
    """Return bytes that context parallelism holds beside the activations, in the backward pass, where it is most."""
    if layout.cp == 1 or not shape.has_attention:
        return 0.0
    tokens = run.tokens_per_row * run.micro_batch_size
    if shape.sparse_attention:
        # The latents and the indexer's keys of the whole row, and their gradients.
        return 2 * 2 * (shape.kv_rank + shape.qk_rope + shape.index_dim) * tokens
    key_width, value_width = (shape.qk_nope + shape.qk_rope, shape.v_head) if shape.mla else (shape.head_dim,) * 2
    groups = shape.heads if shape.mla else shape.groups
    keys = 2 * groups * (key_width + value_width) / layout.tp
    queries = 2 * shape.heads * (key_width + value_width) / layout.tp
    if layout.comm == "all_gather":
        return 2 * keys * tokens
    exchanged = 2 * (queries + keys) * tokens / layout.cp
    # Key-values and their gradients, each received while the one before is in use.
    ring = 4 * keys * tokens / layout.cp
    if layout.comm == "a2a":
        return exchanged
    return ring + (exchanged if heads_exchanged(layout) > 1 else 0.0)
