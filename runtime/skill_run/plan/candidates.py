"""All layouts that a model, a row, a world and a release admit, with what the user fixed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from math import ceil
from typing import Any, Final

from skill_run.plan.admitted import cp_comm_choices, release_problems
from skill_run.plan.layout import Layout, Run, problems
from skill_run.plan.links import nvlink_domain
from skill_run.plan.shape import ModelShape

_MOST_TP: Final = 8
_MOST_CP: Final = 128
# A rank with fewer tokens of a row than this spends its time on exchange.
_FEWEST_TOKENS: Final = 2048
SELECTIVE: Final = {"E": ("core_attn", "layernorm", "moe_act"), "-": ("core_attn", "layernorm", "mlp")}


def candidates_for(
    shape: ModelShape, *, gpus: int, gpu: str, run: Run, fixed: Mapping[str, Any]
) -> Iterator[tuple[Layout, Run]]:
    """Yield every layout and run that divides evenly and that the release trains."""
    for layout in _layouts(shape, gpus=gpus, gpu=gpu, run=run, fixed=fixed):
        if problems(shape, layout, run, world_size=gpus) or release_problems(shape, layout, run):
            continue
        for level in _levels(fixed):
            yield layout, with_recompute(shape, run, level)


def with_recompute(shape: ModelShape, run: Run, level: str | None) -> Run:
    """Return the run with a level of recompute; the modules of selective are those that cost little."""
    if level == run.recompute:
        return run
    modules = SELECTIVE["E"] if shape.experts else SELECTIVE["-"]
    if level == "full":
        return replace(run, recompute=level, recompute_method="uniform", recompute_num_layers=1)
    return replace(run, recompute=level, recompute_method=None, recompute_modules=modules)


def _levels(fixed: Mapping[str, Any]) -> tuple[str | None, ...]:
    if "recompute" in fixed:
        return (None if fixed["recompute"] == "none" else str(fixed["recompute"]),)
    return (None, "selective", "full")


def _layouts(shape: ModelShape, *, gpus: int, gpu: str, run: Run, fixed: Mapping[str, Any]) -> Iterator[Layout]:
    tps = _sizes(fixed, "tp", (size for size in _powers(min(_MOST_TP, gpus))))
    cps = _sizes(fixed, "cp", (size for size in _powers(min(_MOST_CP, gpus)) if _long_enough(run, size)))
    pps = _sizes(fixed, "pp", (size for size in range(1, min(gpus, shape.layers) + 1) if gpus % size == 0))
    eps = _sizes(fixed, "ep", (size for size in range(1, gpus + 1) if shape.experts % size == 0 and gpus % size == 0))
    eps = eps if shape.experts or "ep" in fixed else (1,)
    for tp, cp, pp, ep in product(tps, cps, pps, eps):
        if gpus % (tp * cp * pp) or gpus % (ep * pp * int(fixed.get("etp", 1))):
            continue
        for comm, sizes in _comms(shape, tp, cp, run, gpu, fixed):
            yield Layout(
                tp=tp,
                pp=pp,
                vpp=fixed.get("vpp"),
                cp=cp,
                ep=ep,
                etp=int(fixed.get("etp", 1)),
                sp=bool(fixed.get("sp", tp > 1)),
                cp_comm_type=comm,
                hierarchical_sizes=sizes,
                last_stage_layers=_last_stage(shape, pp, fixed),
            )


def _last_stage(shape: ModelShape, pp: int, fixed: Mapping[str, Any]) -> int | None:
    """Return the layers of a shorter last stage, which has the output layer too; None where stages are alike.

    Hybrid models are cut by their pattern, evenly only.
    """
    if shape.layers % pp == 0 or shape.hybrid or fixed.get("vpp") not in (None, 1):
        return None
    last = shape.layers - (pp - 1) * ceil(shape.layers / pp)
    return last if last > 0 else None


def _comms(
    shape: ModelShape, tp: int, cp: int, run: Run, gpu: str, fixed: Mapping[str, Any]
) -> Iterator[tuple[str | None, tuple[int, ...] | None]]:
    choices = cp_comm_choices(shape, cp, tp, run, domain=nvlink_domain(gpu))
    asked = fixed.get("cp_comm_type")
    if cp == 1 or asked is None:
        yield from choices
    elif asked == "a2a+p2p":
        yield from ((asked, (inner, cp // inner)) for inner in _powers(cp // 2)[::-1] if inner > 1)
    else:
        yield str(asked), None


def _sizes(fixed: Mapping[str, Any], name: str, otherwise: Iterator[int]) -> tuple[int, ...]:
    return (int(fixed[name]),) if name in fixed else tuple(otherwise)


def _long_enough(run: Run, cp: int) -> bool:
    return cp == 1 or run.tokens_per_row * run.micro_batch_size >= _FEWEST_TOKENS * cp


def _powers(most: int) -> tuple[int, ...]:
    return tuple(2**power for power in range(most.bit_length()) if 2**power <= most)
