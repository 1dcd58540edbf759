"""Task `parity`: packed training on parallel ranks against unpacked training on one, and faults put in on purpose.

The reference is unpacked, one sample a microbatch, on one rank, with Megatron's own attention. A balancing loss of
experts is computed per microbatch, so such a model is compared with its own packed run on one rank instead.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from skill_run.worker.inside.backend import open_backend
from skill_run.worker.inside.controls import CONTROLS
from skill_run.worker.inside.diagnosis import Symptoms, diagnose
from skill_run.worker.inside.errors import RefusedError
from skill_run.worker.inside.parallel import Layout
from skill_run.worker.inside.serve import Channel
from skill_run.worker.inside.variation import Variation

DTYPES: Final = ("float64", "float32", "bfloat16")
# How the packed runs average their losses; the reference does so per token.
LOSSES: Final = ("per-token", "per-microbatch")


def run(request: Mapping[str, Any], channel: Channel) -> dict[str, Any]:
    """Return the report of a parity request; report/parity.schema.json gives its form.

    Raises RefusedError for a request that no run can answer, and for a GPU or releases that the device cannot take.
    """
    started = time.monotonic()
    channel.progress("loading Megatron", 0, 1)
    _check(request)
    names = list(request.get("controls", ()))
    layouts = [Layout.read(values) for values in request["layouts"]]
    sizes = [layout.size for layout in layouts] + [CONTROLS[name].layout.size for name in names]
    dtype = str(request.get("dtype", "float64"))
    backend = open_backend(str(request.get("device", "cpu")), dtype, max(sizes, default=1))

    from skill_run.worker.inside.comparison import Comparison, Data
    from skill_run.worker.inside.control_runs import run_all_masked, run_control
    from skill_run.worker.inside.gpt_model import count_mtp_tokens_alike, read_shape

    loaded = time.monotonic()
    shape = read_shape(request["model"])
    if shape.predicts_more:
        count_mtp_tokens_alike()
    progress = _Progress(channel, len(layouts) + len(names) + 2)
    comparison = Comparison(backend, dtype, int(request.get("seed", 0)), int(request.get("steps", 0)), progress.next)
    data = Data(request["packs"], int(request["pack_size"]), int(request.get("pad_seq_to_mult", 1)))
    notes = [*shape.notes, *backend.notes, *_notes(shape, layouts)]
    layouts = [replace(layout, tp=1, sp=False) if shape.latent else layout for layout in layouts]
    # Without a layout there is still a reference to tell of.
    reference = comparison.reference(comparison.case(shape, layouts[0] if layouts else Layout(), data))
    variation = Variation(loss=str(request.get("loss", LOSSES[0])))
    cases = [comparison.case(shape, layout, data, variation) for layout in layouts]
    told = [_layout(comparison, case, request, progress) for case in cases]
    return {
        "environment": backend.environment(),
        "reference": _reference_figures(reference),
        "layouts": told,
        "controls": [run_control(comparison, name, shape, data) for name in names],
        "all_masked": run_all_masked(comparison, shape, data),
        "notes": list(dict.fromkeys(notes)),
        "seconds": {"load": loaded - started, "all": time.monotonic() - started},
    }


class _Progress:
    """Tells which of the request's cases begins."""

    def __init__(self, channel: Channel, total: int) -> None:
        self._channel, self._total, self._done = channel, total, 0

    def next(self, text: str) -> None:
        self._channel.progress(text, min(self._done, self._total), self._total)
        self._done += 1


def _check(request: Mapping[str, Any]) -> None:
    dtype = request.get("dtype", "float64")
    if dtype not in DTYPES:
        raise RefusedError(f"dtype {dtype!r} is none of {', '.join(DTYPES)}")
    if request.get("loss", LOSSES[0]) not in LOSSES:
        raise RefusedError(f"loss {request['loss']!r} is none of {', '.join(LOSSES)}")
    unknown = sorted(set(request.get("controls", ())) - set(CONTROLS))
    if unknown:
        raise RefusedError(f"there is no control {unknown[0]!r}; there are {', '.join(CONTROLS)}")
    if not request.get("packs") or not all(request["packs"]):
        raise RefusedError("there are no sequences to pack")


def _notes(shape: Any, layouts: Sequence[Layout]) -> list[str]:
    notes = []
    if shape.predicts_more:
        notes.append("the factor of the multi-token-prediction loss that is taken per microbatch is left out")
    if shape.balanced:
        notes.append(
            "the experts' balancing loss is computed per microbatch, so packed ranks are compared with packed training "
            "on one rank"
        )
    if shape.latent and any(layout.tp > 1 for layout in layouts):
        notes.append(
            "multi-latent attention is compared with TP 1: Megatron's local layers do not sum the gradient of its "
            "shared positions over TP, unpacked or packed"
        )
    return notes


def _reference_figures(path: str) -> dict[str, Any]:
    import torch

    from skill_run.worker.inside.compare import gradient_norm

    outcome = torch.load(path, weights_only=False)
    return {"loss": outcome.losses[0], "tokens": outcome.tokens, "gradient_norm": gradient_norm(outcome)}


def _layout(comparison: Any, case: Any, request: Mapping[str, Any], progress: _Progress) -> dict[str, Any]:
    started = time.monotonic()
    progress.next(f"packed on {case.layout}")
    measured = comparison.measure(case, leak=bool(request.get("leak", True)))
    figures, symptoms = measured.figures, measured.symptoms
    diagnosis = diagnose(symptoms)
    leak = leak_verdict(figures["leak"], symptoms)
    steps = figures["steps"] or {}
    errors = [figures["loss_error"], figures["gradient_error"]]
    errors += [steps["loss_error"], steps["parameter_error"]] if steps.get("count") else []
    agrees = all(error is not None and error <= symptoms.tolerance for error in errors)
    return {
        "layout": case.layout.to_dict(),
        **{name: figures[name] for name in ("loss_error", "gradient_error", "worst", "norm_ratio")},
        "steps": figures["steps"],
        "tolerance": symptoms.tolerance,
        "passed": agrees and (leak is None or leak["passed"]),
        "leak": leak,
        "refused": measured.stopped,
        "diagnosis": diagnosis.to_dict() if diagnosis else None,
        "seconds": time.monotonic() - started,
    }


def leak_verdict(leak: Mapping[str, Any] | None, symptoms: Symptoms) -> dict[str, Any] | None:
    """Return a leak test's figures with its verdict, None when there was none."""
    if leak is None:
        return None
    index = leak["index"]
    passed = not symptoms.leaks and not leak["unmoved"] and not index["lost"] and not index["twice"]
    return {**{name: value for name, value in leak.items() if name != "index"}, **index, "passed": passed}
