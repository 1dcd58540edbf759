"""A parity report as text: what was compared, how far apart, which faults were put in and caught."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from skill_run.report.safe import flow
from skill_run.report.wording import count

if TYPE_CHECKING:
    from skill_run.verify.parity import ParityReport


def render_parity(report: ParityReport, *, width: int = 100) -> str:
    """Return the report as text, without a final newline."""
    return wrapped([line for block in _blocks(report) for line in block], width)


def wrapped(lines: Iterable[str], width: int) -> str:
    """Return lines wrapped at `width` columns, with what goes on indented below what it belongs to."""
    parts: list[str] = []
    for line in lines:
        hang = " " * (len(line) - len(line.lstrip()) + 2)
        parts += textwrap.wrap(line, width, subsequent_indent=hang, break_long_words=False) or [""]
    return "\n".join(parts)


def _blocks(report: ParityReport) -> Iterator[list[str]]:
    yield _header(report)
    yield ["Packed against unpacked, from the same weights and samples:"]
    for layout in report.layouts:
        yield _layout(layout)
    if report.controls:
        yield ["Faults put in on purpose:"]
        for control in report.controls:
            yield _control(control)
    masked = report.result.get("all_masked")
    if masked:
        told = "stay finite" if masked.get("finite") else "are NOT finite"
        yield [f"Ranks whose tokens are all masked: loss and gradients {told}."]
    yield [f"note: {flow(str(note))}" for note in report.result.get("notes", ())]
    yield [_verdict(report)]


def _header(report: ParityReport) -> list[str]:
    environment: Mapping[str, Any] = report.result.get("environment", {})
    versions = environment.get("versions", {})
    told = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = [f"Worker {report.worker} ({told}) on {environment.get('device', 'cpu')}."]
    core_attention = environment.get("core_attention")
    if core_attention:
        lines[0] = lines[0][:-1] + f"; core attention: {flow(str(core_attention))}."
    model = report.shape.model
    lines.append(
        f"Model: hidden {model['hidden_size']}, {count(model['num_layers'], 'layer')}, "
        f"{model['num_attention_heads']} heads on {model['num_query_groups']} key-value groups, "
        f"{model.get('normalization')}, {model.get('position_embedding_type')}."
    )
    changes = [*report.changes, *report.shape.changes]
    if changes:
        lines.append(f"Made small: {'; '.join(changes)}.")
    if report.shape.assumed:
        names = report.shape.assumed
        lines.append(f"The config does not tell {', '.join(names)}: those of the smallest model are used.")
    packs = report.packs
    sequences = sum(len(pack) for pack in packs.packs)
    lines.append(
        f"Packs: {len(packs.packs)} of up to {packs.pack_size} tokens with {count(sequences, 'sequence')} padded to a "
        f"multiple of {packs.pad_seq_to_mult}; {'; '.join(packs.notes)}."
    )
    return lines


def _layout(layout: Mapping[str, Any]) -> list[str]:
    mark = "ok  " if layout["passed"] else "FAIL"
    figures = (
        f"loss {_error(layout.get('loss_error'))}, gradients {_error(layout.get('gradient_error'))} "
        f"(worst {_worst(layout)}; allowed {_error(layout.get('tolerance'))})"
    )
    lines = [f"  {mark} {_name(layout['layout'])}: {figures}"]
    steps = layout.get("steps") or {}
    if steps.get("count"):
        lines.append(
            f"       {count(steps['count'], 'optimizer step')}: loss {_error(steps.get('loss_error'))}, "
            f"parameters {_error(steps.get('parameter_error'))}"
        )
    leak = layout.get("leak")
    if leak:
        lines.append(f"       leak test: {_leak(leak)}")
    diagnosis = layout.get("diagnosis")
    if diagnosis:
        lines.append(f"       {flow(str(diagnosis.get('sentence')))}")
    return lines


def _leak(leak: Mapping[str, Any]) -> str:
    if leak.get("passed"):
        return (
            f"one token of each of {count(leak.get('sequences', 0), 'sequence')} changed: nothing outside its sequence "
            "or before it moved, every later token of it did"
        )
    return (
        f"changing one token moved tokens outside its sequence by {_error(leak.get('outside'))} "
        f"(gradients {_error(leak.get('gradient_outside'))}), tokens before it by {_error(leak.get('before'))}; "
        f"{leak.get('unmoved')} later tokens of its own sequence did not move"
    )


def _control(control: Mapping[str, Any]) -> list[str]:
    caught = control["caught"] and control["right_diagnosis"]
    mark = "caught" if caught else "MISSED" if not control["caught"] else "caught, WRONG DIAGNOSIS"
    figures = f"loss {_error(control.get('loss_error'))}, gradients {_error(control.get('gradient_error'))}"
    ratio = control.get("norm_ratio")
    if ratio is not None and abs(ratio - 1) > 1e-6:
        figures += f", gradient norm x {ratio:.3f}"
    lines = [f"  {mark}: {flow(str(control.get('title') or control['name']))} ({figures})"]
    diagnosis = control.get("diagnosis")
    if diagnosis:
        lines.append(f"       diagnosis: {flow(str(diagnosis.get('sentence')))}")
    return lines


def _name(layout: Mapping[str, Any]) -> str:
    from skill_run.verify.layouts import Layout

    known = {key: layout[key] for key in Layout.__dataclass_fields__ if key in layout}
    return str(Layout(**known))


def _worst(layout: Mapping[str, Any]) -> str:
    worst = layout.get("worst") or {}
    return f"{worst.get('tensor', '?')} {_error(worst.get('error'))}"


def _error(value: Any) -> str:
    if value is None:
        return "not known"
    return "0" if value == 0 else f"{value:.1e}"


def _verdict(report: ParityReport) -> str:
    if report.passed:
        caught = f", and {count(len(report.controls), 'fault')} put in on purpose caught" if report.controls else ""
        return f"Proved: packed training computes what unpacked training computes{caught}."
    return "NOT proved: see the lines marked FAIL, MISSED or WRONG DIAGNOSIS."
