"""How far a run is from its reference, in relative errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from skill_run.worker.inside.case import Outcome

# Largest relative error of loss, gradients and weights that rounding explains, by the type that is computed in.
TOLERANCES: Final = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 3e-2}
# In bfloat16 a rounding error sends some tokens to another expert.
_BFLOAT16_EXPERTS: Final = 1e-1


def tolerance_of(dtype: str, *, experts: bool) -> float:
    """Return the largest relative error that rounding explains."""
    return _BFLOAT16_EXPERTS if experts and dtype == "bfloat16" else TOLERANCES[dtype]


def compare(outcome: Outcome, reference: Outcome) -> dict[str, Any]:
    """Return the errors of a run: loss_error, gradient_error, worst, norm_ratio, cosine, tokens and steps.

    gradient_error: norm of the difference over the norm of the reference, over all parameters; worst: the tensor with
    the largest error of its own.
    """
    assert outcome.gradients is not None
    assert reference.gradients is not None
    ours, theirs = outcome.gradients, reference.gradients
    if set(ours) != set(theirs):
        raise KeyError(f"parameters differ: {sorted(set(ours) ^ set(theirs))[:4]}")
    errors = {name: _relative(ours[name], theirs[name]) for name in theirs}
    worst = max(errors, key=lambda name: errors[name])
    flat, flat_reference = _flat(ours, theirs), _flat(theirs, theirs)
    norm, reference_norm = float(flat.norm()), float(flat_reference.norm())
    return {
        "loss_error": _relative_number(outcome.losses[0], reference.losses[0]),
        "gradient_error": _relative(flat, flat_reference),
        "worst": {"tensor": worst, "error": errors[worst]},
        "norm_ratio": norm / reference_norm if reference_norm else float(norm == 0),
        "cosine": float(flat @ flat_reference) / (norm * reference_norm) if norm * reference_norm else 0.0,
        "tokens": outcome.tokens,
        "reference_tokens": reference.tokens,
        "finite": bool(torch.isfinite(flat).all()),
        "steps": _steps(outcome, reference),
    }


def gradient_norm(outcome: Outcome) -> float:
    """Return the norm of a run's first gradient over all parameters."""
    assert outcome.gradients is not None
    return float(_flat(outcome.gradients, outcome.gradients).norm())


def _steps(outcome: Outcome, reference: Outcome) -> dict[str, Any]:
    errors = [_relative_number(a, b) for a, b in zip(outcome.losses, reference.losses, strict=True)]
    parameter_error = None
    if outcome.weights is not None and reference.weights is not None:
        ours, theirs = outcome.weights, reference.weights
        parameter_error = _relative(_flat(ours, theirs), _flat(theirs, theirs))
    return {"count": len(errors) - 1, "loss_error": max(errors), "parameter_error": parameter_error}


def _flat(values: Mapping[str, Any], order: Mapping[str, Any]) -> Any:
    return torch.cat([values[name].double().flatten() for name in order])


def _relative(value: Any, reference: Any) -> float:
    norm = float(reference.double().norm())
    difference = float((value.double() - reference.double()).norm())
    return difference / norm if norm else difference


def _relative_number(value: float, reference: float) -> float:
    return abs(value - reference) / abs(reference) if reference else abs(value)
