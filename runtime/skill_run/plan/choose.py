"""Choose a layout: of all that a model, a row and a world admit, the cheapest whose memory fits, with its reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from skill_run.errors import InputError
from skill_run.plan.admitted import release_problems, warned
from skill_run.plan.candidates import candidates_for
from skill_run.plan.config_fields import layout_fields, recompute_fields
from skill_run.plan.cost import relative_cost
from skill_run.plan.layout import CP_COMM_TYPES, Layout, Run, problems
from skill_run.plan.memory import GIB, MemoryEstimate, estimate_memory, gpu_memory
from skill_run.plan.reasons import Reason, Reasons
from skill_run.plan.remedies import remedies
from skill_run.plan.shape import ModelShape

# A layout is taken when it leaves this share of the GPU free.
MARGIN: Final = 0.10
FIXABLE: Final = ("tp", "pp", "vpp", "cp", "ep", "etp", "sp", "cp_comm_type", "recompute")
_LEVELS: Final = ("none", "selective", "full")
_MOST_GPUS: Final = 16384

_Fixed = Mapping[str, int | bool | str]


@dataclass(frozen=True, slots=True)
class Choice:
    """A layout that fits, the run chosen with it (recompute included), its memory, and one sentence for each number."""

    layout: Layout
    run: Run
    estimate: MemoryEstimate
    reasons: tuple[Reason, ...]

    @property
    def fields(self) -> dict[str, Any]:
        """Return the config fields to set, by canonical name; null where the choice is to leave a feature off."""
        return {**layout_fields(self.layout), **recompute_fields(self.run)}

    def to_dict(self) -> dict[str, Any]:
        """Return the choice as JSON-ready data."""
        return {
            "fields": self.fields,
            "layout": self.layout.to_dict(),
            "run": self.run.to_dict(),
            "memory": self.estimate.to_dict(),
            "reasons": [{"field": name, "value": value, "because": text} for name, value, text in self.reasons],
        }


def choose_layout(
    shape: ModelShape,
    *,
    gpus: int,
    gpu: str,
    run: Run,
    fixed: Mapping[str, int | bool | str | None] | None = None,
) -> Choice:
    """Return the cheapest layout that fits the GPUs.

    gpus: the world size. fixed: what the user decided, by the names in FIXABLE (recompute: none, selective or full);
    None is as good as absent. Recompute is chosen too, unless it is fixed. Raises InputError when the fixed sizes
    cannot be, or when nothing fits, with what would.
    """
    decided = _checked({name: value for name, value in (fixed or {}).items() if value is not None})
    if not 1 <= gpus <= _MOST_GPUS:
        raise InputError(f"{gpus} GPUs cannot be planned for; give 1 to {_MOST_GPUS}")
    found = _search(shape, gpus=gpus, gpu=gpu, run=run, fixed=decided)
    if isinstance(found, str):
        raise InputError(found)
    layout, chosen, estimate = found
    if not estimate.fits:
        raise InputError(_does_not_fit(shape, found, gpus=gpus, fixed=decided))
    sentences = Reasons(shape, layout, chosen, estimate, world_size=gpus).sentences(frozenset(decided))
    return Choice(layout, chosen, estimate, sentences)


def _checked(decided: dict[str, Any]) -> _Fixed:
    unknown = sorted(set(decided) - set(FIXABLE))
    if unknown:
        raise InputError(f"{', '.join(unknown)} cannot be fixed; known are {', '.join(FIXABLE)}")
    for name in ("tp", "pp", "vpp", "cp", "ep", "etp"):
        value = decided.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_GPUS:
            raise InputError(f"{name} must be a whole number from 1 on, not {str(value)[:40]!r}")
    if not isinstance(decided.get("sp", False), bool):
        raise InputError(f"sp must be true or false, not {str(decided['sp'])[:40]!r}")
    comm = decided.get("cp_comm_type", "p2p")
    if comm not in (*CP_COMM_TYPES, "allgather"):
        raise InputError(f"cp_comm_type must be one of {', '.join(CP_COMM_TYPES)}, not {str(comm)[:40]!r}")
    if decided.get("recompute", "none") not in _LEVELS:
        raise InputError(f"recompute must be one of {', '.join(_LEVELS)}, not {str(decided['recompute'])[:40]!r}")
    return decided


def _search(
    shape: ModelShape, *, gpus: int, gpu: str, run: Run, fixed: _Fixed
) -> tuple[Layout, Run, MemoryEstimate] | str:
    """Return the cheapest that fits with the margin, else the cheapest that fits at all, else the nearest miss.

    Layouts that our own rules would warn of come last. A sentence is returned when no sizes divide.
    """
    ranked = sorted(
        candidates_for(shape, gpus=gpus, gpu=gpu, run=run, fixed=fixed),
        key=lambda pair: (
            warned(shape, *pair, budget=gpu_memory(gpu)),
            relative_cost(shape, *pair, world_size=gpus, gpu=gpu),
        ),
    )
    if not ranked:
        return _impossible(shape, gpus, run, fixed)
    tight: tuple[Layout, Run, MemoryEstimate] | None = None
    nearest: tuple[Layout, Run, MemoryEstimate] | None = None
    for layout, tried in ranked:
        estimate = estimate_memory(shape, layout, tried, world_size=gpus, gpu=gpu)
        if estimate.total <= (1 - MARGIN) * estimate.budget:
            return layout, tried, estimate
        if estimate.fits and tight is None:
            tight = layout, tried, estimate
        if nearest is None or estimate.total < nearest[2].total:
            nearest = layout, tried, estimate
    found = tight or nearest
    assert found is not None
    return found


def _impossible(shape: ModelShape, gpus: int, run: Run, fixed: _Fixed) -> str:
    layout = Layout(
        **{name: value for name, value in fixed.items() if name != "recompute"}  # type: ignore[arg-type]
    )
    layout = replace(layout, sp=bool(fixed.get("sp", layout.tp > 1)))
    why = (*problems(shape, layout, run, world_size=gpus), *release_problems(shape, layout, run))
    said = "; ".join(why) if why else "no sizes divide the GPUs, layers, heads and tokens at once"
    return f"no layout of {shape.name} on {gpus} GPUs is possible: {said}"


def _does_not_fit(shape: ModelShape, nearest: tuple[Layout, Run, MemoryEstimate], *, gpus: int, fixed: _Fixed) -> str:
    layout, run, estimate = nearest
    return (
        f"{shape.name} with {run.tokens_per_row} tokens a row does not fit on {gpus} {estimate.gpu.upper()}: "
        f"the nearest, {layout} with {run.recompute or 'no'} recompute, "
        f"needs {estimate.total / GIB:.0f} of {estimate.budget / GIB:.0f} GiB"
        f"{_more_gpus(shape, run, gpus=gpus, gpu=estimate.gpu, fixed=fixed)}"
        f"{_smaller_state(shape, layout, run, gpus=gpus, gpu=estimate.gpu)}"
    )


def _more_gpus(shape: ModelShape, run: Run, *, gpus: int, gpu: str, fixed: _Fixed) -> str:
    """Return how many GPUs would do, as a part of the sentence; doubled until something fits."""
    more = gpus
    while (more := more * 2) <= min(_MOST_GPUS, 64 * gpus):
        full = fixed if "recompute" in fixed else {**fixed, "recompute": "full"}
        found = _search(shape, gpus=more, gpu=gpu, run=run, fixed=full)
        if not isinstance(found, str) and found[2].fits:
            return f"; {more} GPUs would do with {found[0]}"
    return ""


def _smaller_state(shape: ModelShape, layout: Layout, run: Run, *, gpus: int, gpu: str) -> str:
    """Return which settings would make the nearest miss fit, as a part of the sentence."""
    found = next((item for item in remedies(shape, layout, run, world_size=gpus, gpu=gpu) if item.estimate.fits), None)
    if found is None:
        return ""
    settings = ", ".join(f"{name}={value}" for name, value in found.fields.items())
    return f"; with {settings} it would need {found.estimate.total / GIB:.0f} GiB"
