"""Every degree of context parallelism with every communication type: transfer, verdict, or why it cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Final

from skill_run.plan.admitted import release_problems
from skill_run.plan.gpus import GpuRates
from skill_run.plan.layout import CP_COMM_TYPES, Layout, Run, problems
from skill_run.plan.links import nvlink_domain
from skill_run.plan.shape import ModelShape
from skill_run.plan.traffic import Traffic, heads_of, traffic_of

# Llama 3 8B's sizes, for plans without a model.
TYPICAL: Final = ModelShape(
    "a typical 8B model", ("*-",) * 32, hidden=4096, vocab=128256, heads=32, groups=8, head_dim=128, ffn=14336
)
_MOST_CP: Final = 64
_MOST_WITHOUT_GPUS: Final = 16
# A rank with fewer tokens of a pack spends its time on exchange.
_FEWEST_TOKENS: Final = 1024
# Rules that tell which Transformer Engine a communication type needs for packed sequences.
_PACKED_NEEDS: Final = {
    "all_gather": "all-gather-packed-needs-te-2.18",
    "a2a+p2p": "hierarchical-packed-needs-te-2.19",
}


def cp_table(
    shape: ModelShape, layout: Layout, run: Run, rates: GpuRates, *, gpus: int | None, attention: float
) -> tuple[Traffic, ...]:
    """Return a row for each CP degree and communication type, beside the layout's TP.

    attention: the mean sum of squared lengths of a pack of run.tokens_per_row tokens. gpus: how many there are, None
    when that is not known.
    """
    found = []
    for cp in degrees(layout, run.tokens_per_row, gpus):
        for tried in comm_layouts(shape, layout, cp, rates.name):
            why = _impossible(shape, tried, run)
            if why is None:
                needs = _needs(tried.comm) if tried.cp > 1 and run.packed else None
                row = traffic_of(shape, tried, rates, pack_size=run.tokens_per_row, attention=attention, why=needs)
            else:
                row = Traffic(tried, "impossible", why=why)
            found.append(row)
    return tuple(found)


def degrees(layout: Layout, pack_size: int, gpus: int | None) -> tuple[int, ...]:
    """Return the CP degrees worth a row: powers of two that leave a rank enough tokens, and the layout's own."""
    most = min(_MOST_CP, gpus // (layout.tp * layout.pp) if gpus is not None else _MOST_WITHOUT_GPUS)
    found = {layout.cp} if layout.cp > 1 else set()
    cp = 2
    while cp <= most and pack_size >= cp * _FEWEST_TOKENS:
        found.add(cp)
        cp *= 2
    return tuple(sorted(found))


def comm_layouts(shape: ModelShape, layout: Layout, cp: int, gpu: str) -> Iterator[Layout]:
    """Yield a layout for each communication type; a2a+p2p exchanges heads as far as they divide and NVLink reaches."""
    heads = heads_of(shape)
    near = min(cp // 2, max(1, nvlink_domain(gpu) // layout.tp))
    split = [
        size
        for size in range(2, near + 1)
        if cp % size == 0 and all(number % (layout.tp * size) == 0 for number in (heads.queries, heads.groups))
    ]
    # Expert parallelism has no part in attention.
    plain = replace(layout, pp=1, vpp=None, ep=1, etp=1, cp=cp, hierarchical_sizes=None, last_stage_layers=None)
    for comm in CP_COMM_TYPES:
        if comm != "a2a+p2p":
            yield replace(plain, cp_comm_type=comm)
        elif split:
            yield replace(plain, cp_comm_type=comm, hierarchical_sizes=(split[-1], cp // split[-1]))


def _impossible(shape: ModelShape, layout: Layout, run: Run) -> str | None:
    """Return why a layout cannot be, None when it can."""
    if shape.sparse_attention and layout.comm != "all_gather":
        return "sparse attention (DSA) exchanges by all_gather only"
    if shape.sinks and layout.comm != "a2a":
        return "attention sinks are exchanged by a2a only"
    if shape.windowed and layout.comm not in ("a2a", "all_gather"):
        return "sliding windows are exchanged by a2a or all_gather only"
    plain = replace(run, global_batch_size=None)
    found = problems(shape, layout, plain, world_size=layout.tp * layout.cp)
    return next(iter((*found, *release_problems(shape, layout, plain))), None)


@cache
def _needs(comm: str) -> str | None:
    """Return the title of the rule that limits a communication type to some Transformer Engine."""
    if comm not in _PACKED_NEEDS:
        return None
    from skill_run.bundle.load import load_rules

    return next((rule.title for rule in load_rules() if rule.id == _PACKED_NEEDS[comm]), None)
