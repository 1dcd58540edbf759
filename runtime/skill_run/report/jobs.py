"""Jobs for people, as plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from skill_run.jobs.metrics import padding_share
from skill_run.report.safe import clip, flow, printable

if TYPE_CHECKING:
    from skill_run.jobs.diagnose import Diagnosis
    from skill_run.jobs.model import Job

_WIDTH: Final = 100
_NAME: Final = 32


def render_list(jobs: Sequence[Job]) -> str:
    """Return a table of jobs, without a final newline."""
    if not jobs:
        return "no jobs"
    rows = [("JOB", "STATE", "ENGINE", "STEP", "LOSS", "TIME", "NAME")]
    for job in jobs:
        figures = job.metrics or {}
        rows.append(
            (
                job.id,
                job.state.value + ("*" if job.note else ""),
                job.plan.engine,
                _number(figures.get("step"), "{:d}"),
                _number(figures.get("loss"), "{:.4f}"),
                _duration(job),
                printable(clip(job.name, _NAME)),
            )
        )
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]) - 1)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows
    ]
    lines += [f"* {job.id}: {flow(job.note)}" for job in jobs if job.note]
    return "\n".join(lines)


def render_job(job: Job, diagnosis: Diagnosis | None = None) -> str:
    """Return all that is known about a job, without a final newline."""
    return "\n".join(_job_lines(job, diagnosis))


def figures_line(figures: Mapping[str, Any]) -> str:
    """Return the newest figures of a run on one line; empty without any."""
    share = padding_share(figures)
    memory = figures.get("memory_bytes")
    parts = (
        ("step", _number(figures.get("step"), "{:d}")),
        ("loss", _number(figures.get("loss"), "{:.4f}")),
        ("tokens/s", _number(figures.get("tokens_per_second"), "{:,.0f}")),
        ("padding", "" if share is None else f"{share:.1%}"),
        ("grad norm", _number(figures.get("grad_norm"), "{:.3f}")),
        ("memory", "" if memory is None else f"{memory / 2**30:.2f} GiB"),
    )
    return ", ".join(f"{name} {value}" for name, value in parts if value)


def _job_lines(job: Job, diagnosis: Diagnosis | None) -> Iterator[str]:
    yield f"{job.id}: {job.state.value}" + (f", {flow(job.reason)}" if job.reason else "")
    if job.note:
        yield f"note: {flow(job.note)}"
    plan = job.plan
    facts = (
        ("name", job.name),
        ("engine", f"{plan.engine}, {_count(plan.world_size, 'rank')} on {_count(plan.nodes, 'node')}"),
        ("bridge", plan.bridge or ""),
        ("recipe", plan.recipe or ""),
        ("created", job.created),
        ("started", job.started or ""),
        ("ended", job.ended or ""),
        ("took", _duration(job)),
        ("resumes from", plan.resumes_from or ""),
        ("retry of", str(plan.extra.get("retry_of") or "")),
        ("folder", plan.folder),
        *((name, path) for name, path in plan.outputs.items()),
        *(("allowed", f"{each.rule} by {each.by} at {each.at}") for each in plan.allowed),
        ("figures", figures_line(job.metrics or {})),
    )
    for name, value in facts:
        if value:
            yield f"  {printable(name)}: {printable(clip(value, 500))}"
    if diagnosis is not None:
        yield ""
        yield from textwrap.wrap(f"why: {flow(diagnosis.summary)}", _WIDTH)
        if diagnosis.fix:
            yield from textwrap.wrap(f"fix: {flow(diagnosis.fix)}", _WIDTH)
        if diagnosis.evidence:
            yield f"seen in {printable(diagnosis.log) or 'the reason'}: {printable(clip(diagnosis.evidence, 500))}"
        if diagnosis.also:
            yield from textwrap.wrap(f"also seen: {'; '.join(diagnosis.also)}", _WIDTH)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _number(value: Any, form: str) -> str:
    return "" if value is None else form.format(value)


def _duration(job: Job) -> str:
    if job.started is None:
        return ""
    try:
        end = datetime.fromisoformat(job.ended) if job.ended else datetime.now(UTC)
        seconds = max(0, int((end - datetime.fromisoformat(job.started)).total_seconds()))
    except (ValueError, TypeError):
        return ""
    hours, minutes = divmod(seconds // 60, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{seconds % 60:02d}s"
