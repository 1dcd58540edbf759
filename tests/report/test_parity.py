"""A parity report as text: the figures, what was caught, and a verdict that cannot be misread."""

from __future__ import annotations

from typing import Any

from skill_run.report.parity import render_parity
from skill_run.report.release_parity import render_release_parity
from skill_run.verify.layouts import Layout
from skill_run.verify.lengths import default_packs
from skill_run.verify.parity import ParityReport
from skill_run.verify.shape import smallest_shape

LEAK = {"passed": True, "sequences": 9, "outside": 0.0, "gradient_outside": 0.0, "before": 0.0, "unmoved": 0}
LAYOUT = {
    "layout": Layout(cp=2).to_dict(),
    "loss_error": 0.0,
    "gradient_error": 9e-16,
    "worst": {"tensor": "decoder.layers.0.mlp.linear_fc1.weight", "error": 2e-15},
    "tolerance": 1e-12,
    "passed": True,
    "steps": {"count": 2, "loss_error": 1e-16, "parameter_error": 3e-16},
    "leak": LEAK,
    "diagnosis": None,
}
CONTROL = {
    "name": "loss-scaling",
    "title": "loss divided on each rank",
    "loss_error": 0.0,
    "gradient_error": 1.0,
    "norm_ratio": 2.0,
    "caught": True,
    "right_diagnosis": True,
    "diagnosis": {"name": "loss-scaling", "sentence": "The gradients are CP times too large."},
}


def report(layout: dict[str, Any] | None = None, control: dict[str, Any] | None = None) -> ParityReport:
    result = {
        "environment": {"versions": {"torch": "2.13.0", "megatron-core": "0.16.1"}, "device": "cpu"},
        "layouts": [{**LAYOUT, **(layout or {})}],
        "controls": [{**CONTROL, **(control or {})}],
        "notes": ["rope_scaling is not used"],
    }
    return ParityReport("core-0.16.1", result, smallest_shape(Layout(cp=2)), default_packs(4))


def test_a_clean_report_tells_its_figures_and_ends_with_the_proof() -> None:
    text = render_parity(report())
    assert "ok   CP 2, all_gather: loss 0, gradients 9.0e-16" in text
    assert "allowed 1.0e-12" in text
    assert "caught: loss divided on each rank (loss 0, gradients 1.0e+00, gradient norm x 2.000)" in text
    assert "note: rope_scaling is not used" in text
    assert "\nProved: " in text
    assert max(map(len, text.splitlines())) <= 100


def test_an_error_beyond_the_tolerance_is_not_proved_and_names_the_tensor() -> None:
    leak = {**LEAK, "passed": False, "outside": 0.12, "unmoved": 48}
    told = report({"passed": False, "gradient_error": 0.53, "leak": leak, "diagnosis": {"sentence": "Boundaries."}})
    text = render_parity(told)
    assert not told.passed
    assert "FAIL CP 2, all_gather" in text
    assert "48 later tokens" in " ".join(text.split())
    assert "Boundaries." in text
    assert "\nNOT proved" in text
    assert "\nProved" not in text


def test_a_control_that_is_missed_or_misnamed_is_not_proved() -> None:
    missed = report(control={"caught": False, "right_diagnosis": False})
    misnamed = report(control={"right_diagnosis": False})
    assert "MISSED: loss divided" in render_parity(missed)
    assert "WRONG DIAGNOSIS: loss divided" in render_parity(misnamed)
    assert not missed.passed
    assert not misnamed.passed


def test_a_report_without_any_layout_proves_nothing() -> None:
    empty = ParityReport("w", {"layouts": [], "controls": []}, smallest_shape(Layout()), default_packs(1))
    assert not empty.passed


def test_what_comes_from_the_input_cannot_reach_the_terminal_as_control_characters() -> None:
    told = report({"passed": False, "diagnosis": {"sentence": "a\x1b[31mb"}})
    assert "\x1b" not in render_parity(told)


def test_a_release_report_names_the_layouts_that_fail() -> None:
    layouts = [
        {"layout": "CP 1", "loss_error": 1e-7, "gradient_error": 2e-6, "passed": True, "worst": {}},
        {
            "layout": "PP 4",
            "loss_error": 2e-4,
            "gradient_error": 0.49,
            "worst": {"tensor": "decoder.layers.1.w", "error": 0.94},
            "passed": False,
            "sentinels": 3,
            "diagnosis": {"sentence": "Middle stages get no boundaries."},
        },
    ]
    text = render_release_parity({"bridge": "0.4.2", "core": "0.17.0", "layouts": layouts, "passed": False})
    assert "ok   CP 1: loss 1.0e-07, gradients 2.0e-06" in text
    assert "FAIL PP 4: loss 2.0e-04, gradients 4.9e-01" in text
    assert "3 sentinels" in text
    assert "Middle stages get no boundaries." in text
    assert "\nNOT proved" in text
    assert "\nProved" not in text
