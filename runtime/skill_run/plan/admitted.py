"""What a model and a release of Megatron-Bridge admit beyond divisibility: CP types, pipeline stages under packing."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from skill_run.bridge.release import matches, newest_release
from skill_run.plan.layout import Layout, Run
from skill_run.plan.shape import ModelShape
from skill_run.rules.derived import ACTIVATION_BYTES, FULL_RECOMPUTE_BYTES, LOGIT_BYTES


def cp_comm_choices(
    shape: ModelShape, cp: int, tp: int, run: Run, *, domain: int
) -> Iterator[tuple[str | None, tuple[int, ...] | None]]:
    """Yield the communication types worth trying, best first, each with its hierarchical sizes."""
    if cp == 1:
        yield None, None
    elif shape.sparse_attention:
        yield "allgather", None
    elif not shape.has_attention:
        yield "p2p", None
    else:
        if tp * cp <= domain and _heads_split(shape, tp, cp):
            yield "a2a", None
        if not run.packed and not shape.sinks and tp * cp > domain:
            inner = max(
                (
                    size
                    for size in (2, 4, 8, 16, 32, 64)
                    if cp % size == 0 and size < cp and tp * size <= domain and _heads_split(shape, tp, size)
                ),
                default=0,
            )
            if inner:
                yield "a2a+p2p", (inner, cp // inner)
        if shape.sinks or shape.windowed:
            if tp * cp > domain and _heads_split(shape, tp, cp):
                yield "a2a", None
        else:
            yield "p2p", None


def _heads_split(shape: ModelShape, tp: int, by: int) -> bool:
    return all(heads % tp == 0 and heads // tp % by == 0 for heads in (shape.heads, shape.groups))


def warned(shape: ModelShape, layout: Layout, run: Run, *, budget: int) -> bool:
    """Tell whether a rule of thumb of ours warns of a layout: activation-memory-fits-gpu, logits-memory-fits-gpu."""
    tokens = run.tokens_per_row * run.micro_batch_size / layout.cp
    each = FULL_RECOMPUTE_BYTES if run.recompute == "full" else ACTIVATION_BYTES
    activations = each * shape.hidden * tokens * ceil(shape.layers / layout.pp) / (layout.tp if layout.sp else 1)
    return activations > budget or 4 * LOGIT_BYTES * tokens * shape.vocab / layout.tp > budget


def release_problems(shape: ModelShape, layout: Layout, run: Run) -> tuple[str, ...]:
    """Return why the run's release (the newest when none is named) would not train a layout that divides evenly."""
    bridge = run.bridge or newest_release()
    found = []
    if layout.cp > 1:
        if shape.count("L") and matches("<0.5", bridge):
            found.append(f"Bridge {bridge} has no context parallelism for linear attention")
        if shape.sparse_attention and matches("<0.6", bridge):
            found.append(f"Bridge {bridge} has no context parallelism for sparse attention")
        if shape.biased_attention and matches(">=0.6", bridge):
            found.append(f"Bridge {bridge} refuses context parallelism for {shape.model_type}")
    if run.packed and layout.pp > 2 and matches("<0.5", bridge):
        found.append(f"with PP > 2 the middle stages of Bridge {bridge} do not know where packed samples end")
    return tuple(found)
