"""Run the faults that are put in on purpose, and the batch in which whole ranks and packs count nowhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from skill_run.worker.inside import controls
from skill_run.worker.inside.comparison import Comparison, Data, Measured
from skill_run.worker.inside.controls import CONTROLS, Control
from skill_run.worker.inside.diagnosis import diagnose
from skill_run.worker.inside.gpt_model import ModelShape
from skill_run.worker.inside.parallel import Layout
from skill_run.worker.inside.samples import Sample, pack_samples


def run_control(comparison: Comparison, name: str, shape: ModelShape, data: Data) -> dict[str, Any]:
    """Return what the comparison said of one fault: its figures, whether it was caught, and the diagnosis."""
    started = time.monotonic()
    control = CONTROLS[name]
    comparison.tell(f"fault put in: {control.title}")
    shape = _shape_for(control, shape)
    data = _data_for(control, data)
    case = comparison.case(shape, control.layout, data, control.variation)
    measured = comparison.measure(case, leak=True)
    diagnosis = diagnose(measured.symptoms)
    caught = measured.symptoms.wrong and not measured.stopped
    refused = ""
    if control.checked is not None:
        checked = comparison.measure(comparison.case(shape, control.layout, data, control.checked), leak=False)
        refused, caught = checked.stopped, caught and checked.symptoms.refused
    return {
        "name": name,
        "title": control.title,
        **_figures(measured),
        "refused": refused or measured.stopped,
        "caught": caught,
        "diagnosis": diagnosis.to_dict() if diagnosis else None,
        "right_diagnosis": diagnosis is not None and diagnosis.name == control.diagnosis,
        "seconds": time.monotonic() - started,
    }


def _figures(measured: Measured) -> dict[str, Any]:
    figures, leak = measured.figures, measured.figures["leak"]
    told = {name: figures[name] for name in ("loss_error", "gradient_error", "worst", "norm_ratio", "cosine")}
    told |= {name: figures[name] for name in ("tokens", "reference_tokens")}
    told["leak"] = None if leak is None else {**{k: v for k, v in leak.items() if k != "index"}, **leak["index"]}
    return told


def _shape_for(control: Control, shape: ModelShape) -> ModelShape:
    """Return the model that shows the fault alone: what differs without a fault is left out."""
    shape = shape.compared_exactly()
    if int(shape.config["num_layers"]) % control.layers:
        shape = shape.with_layers(control.layers)
    return shape if control.positions else shape.without_positions()


def _data_for(control: Control, data: Data) -> Data:
    if not controls.can_show(data.packs, data.multiple):
        data = Data(controls.PACKS, controls.PACK_SIZE, controls.MULTIPLE)
    return data if control.multiple is None else replace(data, multiple=control.multiple)


def run_all_masked(comparison: Comparison, shape: ModelShape, data: Data) -> dict[str, Any]:
    """Compare a batch in which CP rank 1 has no counted token, and the last pack none on any rank.

    Returns {"finite", "loss_error", "gradient_error", "passed"}.
    """
    comparison.tell("ranks and packs whose tokens are all masked")
    layout = Layout(cp=2)
    data = replace(data, multiple=-(-data.multiple // 4) * 4)
    if data.pack_size % 4 or not _fits(data):
        data = Data(controls.PACKS, controls.PACK_SIZE, controls.MULTIPLE)
    case = comparison.case(shape.compared_exactly(), layout, data)
    samples = [[_masked(sample, data.multiple) for sample in pack] for pack in case.samples]
    samples[-1] = [Sample(each.tokens, each.labels, torch.zeros_like(each.loss_mask)) for each in samples[-1]]
    measured = comparison.measure(replace(case, samples=samples, steps=0), leak=False)
    errors = (measured.figures["loss_error"], measured.figures["gradient_error"])
    return {
        "finite": bool(measured.figures.get("finite")),
        "loss_error": errors[0],
        "gradient_error": errors[1],
        "passed": not measured.symptoms.wrong,
    }


def _fits(data: Data) -> bool:
    def physical(pack: Sequence[Any]) -> int:
        return sum(-(-int(each["length"]) // data.multiple) * data.multiple for each in pack)

    return all(physical(pack) <= data.pack_size for pack in data.packs)


def _masked(sample: Sample, multiple: int) -> Sample:
    """Return the sample with only those tokens counted that CP rank 0 of 2 holds: the first and the last quarter."""
    (start, end), *_ = pairwise(pack_samples([sample], -(-sample.length // multiple) * multiple, multiple).physical)
    mask = torch.zeros_like(sample.loss_mask)
    mask[: (end - start) // 4] = 1.0
    return Sample(sample.tokens, sample.labels, mask)
