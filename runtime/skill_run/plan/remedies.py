"""What would make a run fit that does not: one change at a time, the cheapest first, each with what it then needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from skill_run.plan.candidates import with_recompute
from skill_run.plan.layout import Layout, Run
from skill_run.plan.memory import GIB, MemoryEstimate, estimate_memory
from skill_run.plan.shape import ModelShape


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change: the fields to set, what it costs in words, and the memory with it."""

    fields: dict[str, Any]
    cost: str
    run: Run
    estimate: MemoryEstimate

    def to_dict(self) -> dict[str, Any]:
        """Return the remedy as JSON-ready data."""
        return {
            "fields": self.fields,
            "cost": self.cost,
            "total": round(self.estimate.total / GIB, 2),
            "fits": self.estimate.fits,
        }


def remedies(shape: ModelShape, layout: Layout, run: Run, *, world_size: int, gpu: str) -> tuple[Remedy, ...]:
    """Return changes of the run that lower its memory and keep the layout; each one alone, then all together."""
    found = []
    everything, fields = run, dict[str, Any]()
    for changed, settings, cost in _changes(shape, run):
        estimate = estimate_memory(shape, layout, changed, world_size=world_size, gpu=gpu)
        found.append(Remedy(settings, cost, changed, estimate))
        differing = {
            name: getattr(changed, name) for name in changed.to_dict() if getattr(changed, name) != getattr(run, name)
        }
        everything, fields = replace(everything, **differing), {**fields, **settings}
    if len(found) > 1:
        estimate = estimate_memory(shape, layout, everything, world_size=world_size, gpu=gpu)
        found.append(Remedy(fields, "all of these together", everything, estimate))
    return tuple(found)


def _changes(shape: ModelShape, run: Run) -> Iterator[tuple[Run, dict[str, Any], str]]:
    if run.recompute != "full":
        fields = {
            "model.recompute_granularity": "full",
            "model.recompute_method": "uniform",
            "model.recompute_num_layers": 1,
        }
        yield with_recompute(shape, run, "full"), fields, "about 30 % more compute"
    if run.peft is not None or run.frozen:
        return
    if run.moment_bytes > 2:
        fields = {
            "optimizer.use_precision_aware_optimizer": True,
            "optimizer.exp_avg_dtype": "bfloat16",
            "optimizer.exp_avg_sq_dtype": "bfloat16",
        }
        yield replace(run, moment_bytes=2), fields, "moments rounded to BF16"
    if run.grad_bytes > 2:
        yield replace(run, grad_bytes=2), {"ddp.grad_reduce_in_fp32": False}, "gradients summed in BF16"
    if run.optimizer_offload < 1:
        fields = {"optimizer.optimizer_cpu_offload": True, "optimizer.optimizer_offload_fraction": 1.0}
        yield replace(run, optimizer_offload=1.0), fields, "the optimizer's state in the host's memory, slower steps"
