"""A rough order of layouts by time per token: what each kind of parallelism adds, relative to data parallelism alone.

The figures only rank layouts that fit. They follow upstream's guidance (docs/performance-guide.md): data parallel
first, tensor parallel inside NVLink, context parallel when rows are long against the hidden size, selective before full
recompute.
"""

from __future__ import annotations

from math import log2
from typing import Final

from skill_run.plan.layout import Layout, Run
from skill_run.plan.links import nvlink_domain
from skill_run.plan.shape import ModelShape

# Share of a step that recompute adds: a second forward pass of everything, or of norms and activations.
RECOMPUTE: Final = {None: 0.0, "selective": 0.04, "full": 0.30}
_TENSOR: Final = 0.05
_RING: Final = 0.04
_EXCHANGE: Final = 0.03
_EXPERTS: Final = 0.02
_OUTSIDE: Final = 0.10
_STAGE: Final = 0.03
# Below this many tokens per rank a ring no longer hides behind the attention: upstream's CP of about tokens / 4096.
RING_TOKENS: Final = 4096
_UNKNOWN_MICRO_BATCHES: Final = 16
_HIDDEN: Final = 4096


def relative_cost(shape: ModelShape, layout: Layout, run: Run, *, world_size: int, gpu: str) -> float:
    """Return time per token relative to data parallelism alone, 1.0 at best."""
    domain = nvlink_domain(gpu)
    cost = 1.0 + RECOMPUTE[run.recompute]
    cost *= 1 + _TENSOR * (layout.tp - 1) * _HIDDEN / shape.hidden
    cost *= 1 + _context(layout, run, domain)
    cost *= 1 + _expert(layout, domain)
    return cost * (1 + _bubble(layout, run, world_size))


def _context(layout: Layout, run: Run, domain: int) -> float:
    if layout.cp == 1:
        return 0.0
    each = _RING if layout.comm in ("p2p", "all_gather") else _EXCHANGE
    cost = each * log2(layout.cp)
    short = RING_TOKENS * layout.cp / (run.tokens_per_row * run.micro_batch_size)
    if short > 1:
        cost += 0.15 * log2(short)
    if layout.tp * layout.cp > domain:
        cost += _OUTSIDE if layout.comm != "a2a+p2p" else _OUTSIDE / 2
    return cost


def _expert(layout: Layout, domain: int) -> float:
    if layout.ep * layout.etp == 1:
        return 0.0
    cost: float = _EXPERTS * log2(layout.ep) + 2 * _TENSOR * (layout.etp - 1)
    return cost + (_OUTSIDE * log2(layout.ep * layout.etp / domain) if layout.ep * layout.etp > domain else 0.0)


def _bubble(layout: Layout, run: Run, world_size: int) -> float:
    if layout.pp == 1:
        return 0.0
    rows = run.global_batch_size
    count = rows / (run.micro_batch_size * layout.data_parallel(world_size)) if rows else _UNKNOWN_MICRO_BATCHES
    return (layout.pp - 1) / (max(1.0, count) * (layout.vpp or 1)) + _STAGE * log2(layout.pp)
