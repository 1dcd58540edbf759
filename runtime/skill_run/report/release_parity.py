"""What a Megatron-Bridge release's own training loop computes on packed data, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skill_run.report.parity import wrapped
from skill_run.report.safe import flow


def render_release_parity(report: Mapping[str, Any], *, width: int = 100) -> str:
    """Return the answer of `run_release_parity` as text, without a final newline."""
    lines = [
        f"Megatron-Bridge {report['bridge']} with Megatron-Core {report['core']}: its own training loop on packed "
        "data, against unpacked data from the same weights (float32, gradients of the first step)."
    ]
    for layout in report["layouts"]:
        lines += _layout(layout)
    lines += [f"note: {flow(str(note))}" for note in report.get("notes", ())]
    lines.append(
        "Proved: every layout computes what unpacked training computes."
        if report["passed"]
        else "NOT proved: this release trains silently on something else in the layouts marked FAIL."
    )
    return wrapped(lines, width)


def _layout(layout: Mapping[str, Any]) -> list[str]:
    mark = "ok  " if layout["passed"] else "FAIL"
    worst = layout.get("worst") or {}
    lines = [
        f"  {mark} {flow(str(layout['layout']))}: loss {layout['loss_error']:.1e}, gradients "
        f"{layout['gradient_error']:.1e} (worst {flow(str(worst.get('tensor', '?')))} {worst.get('error', 0):.1e})"
    ]
    if layout.get("sentinels"):
        lines.append(f"       {layout['sentinels']} sentinels (-1) reached the partition of the tokens")
    diagnosis = layout.get("diagnosis")
    if diagnosis:
        sentence = diagnosis.get("sentence") if isinstance(diagnosis, Mapping) else diagnosis
        lines.append(f"       {flow(str(sentence))}")
    return lines
