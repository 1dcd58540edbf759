"""Symptoms are mapped to the fault that causes them."""

from __future__ import annotations

from typing import Any

import pytest

from skill_run.worker.inside.diagnosis import Diagnosis, Symptoms, diagnose

CLEAN: dict[str, Any] = {
    "tolerance": 1e-12,
    "loss_error": 2e-16,
    "gradient_error": 1e-15,
    "norm_ratio": 1.0,
    "tokens": 68,
    "reference_tokens": 68,
    "outside": 0.0,
    "gradient_outside": 0.0,
    "before": 0.0,
    "unmoved": 0,
    "cp": 2,
}


def diagnosed(**changes: Any) -> Diagnosis:
    found = diagnose(Symptoms(**{**CLEAN, **changes}))
    assert found is not None
    return found


def test_a_clean_run_has_no_diagnosis() -> None:
    assert diagnose(Symptoms(**CLEAN)) is None


def test_rounding_is_no_fault_but_a_number_that_is_none_is() -> None:
    assert diagnose(Symptoms(**{**CLEAN, "loss_error": 9e-13, "gradient_error": 9e-13})) is None
    assert diagnosed(gradient_error=float("nan"), loss_error=float("nan")).name != ""


WRONG = {"loss_error": 1e-2, "gradient_error": 0.6}


@pytest.mark.parametrize(
    ("name", "symptoms"),
    [
        ("contiguous-split", {**WRONG, "pattern": "contiguous", "outside": 0.6, "unmoved": 10}),
        ("dense-zigzag", {**WRONG, "pattern": "whole", "outside": 0.6, "unmoved": 9}),
        ("ignored-boundaries", {**WRONG, "pattern": "whole", "outside": 0.4}),
        ("ignored-boundaries", {**WRONG, "gradient_outside": 0.4, "cp": 1}),
        ("middle-stage-without-boundaries", {**WRONG, "outside": 0.4, "pp": 3, "gradient_outside": None}),
        ("logical-boundaries", {**WRONG, "outside": 0.7, "unmoved": 3, "cp": 1}),
        ("sentinel", {**WRONG, "lost": 4, "twice": 4, "negative": True, "unmoved": 3}),
        ("pad-multiple-1", {**WRONG, "lost": 2, "twice": 2, "uneven": 9, "unmoved": 1}),
        ("pad-multiple-1", {"stopped": "no multiple", "refused": True, "uneven": 3, "gradient_error": None}),
        ("pad-multiple-1", {**WRONG, "uneven": 1, "outside": 0.4}),
        ("partition", {**WRONG, "lost": 2, "unmoved": 2}),
        ("loss-mask-shift", {**WRONG}),
        ("loss-mask-shift", {**WRONG, "tokens": 66}),
        ("loss-scaling", {"gradient_error": 0.3, "norm_ratio": 1.04}),
        ("loss-scaling", {"gradient_error": 1.1, "norm_ratio": 2.1}),
        ("loss-scaling", {"gradient_error": 0.5, "norm_ratio": 0.5}),
        ("loss-scaling", {"gradient_error": 12.0, "norm_ratio": 13.0}),
        ("mtp-boundaries", {"gradient_error": 0.06, "mtp": True, "padded": True}),
        ("mtp-boundaries", {"stopped": "an index", "mtp": True, "padded": True, "gradient_error": None}),
        ("aux-loss-scaling", {"gradient_error": 0.3, "balanced": True, "gradient_outside": None}),
        ("pipeline-messages", {"gradient_error": 39.0, "norm_ratio": 40.0, "vpp": True}),
        ("not-causal", {**WRONG, "before": 0.1}),
        ("stopped", {"stopped": "rank 1 was killed", "gradient_error": None}),
        ("unknown", {**WRONG, "outside": None, "gradient_outside": None, "before": None, "unmoved": None}),
    ],
)
def test_symptoms_name_their_fault(name: str, symptoms: dict[str, Any]) -> None:
    assert diagnosed(**symptoms).name == name


def test_a_wrong_loss_scale_names_the_tell_tale_ratio() -> None:
    assert "2.100 times the reference's, about CP" in diagnosed(gradient_error=1.1, norm_ratio=2.1).sentence
    assert "calculate_per_token_loss must be True" in diagnosed(gradient_error=0.3, norm_ratio=1.04).sentence


def test_lost_tokens_are_a_fault_even_when_nothing_leaks() -> None:
    assert diagnosed(**WRONG, lost=4, twice=4, negative=True).sentence.startswith("4 tokens are on no rank and 4 on")


def test_later_tokens_that_do_not_move_are_a_fault_at_right_gradients() -> None:
    assert diagnosed(unmoved=3).name == "unknown"


def test_a_diagnosis_is_json_ready() -> None:
    assert diagnosed(**WRONG).to_dict()["name"] == "loss-mask-shift"
