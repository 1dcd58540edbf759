"""A job's figures while it runs: a panel on a terminal, a line for each new step elsewhere."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from skill_run.jobs.folder import METRICS
from skill_run.jobs.metrics import metrics_series
from skill_run.jobs.model import UNSETTLED, Job, State
from skill_run.report.jobs import figures_line
from skill_run.report.safe import flow

if TYPE_CHECKING:
    from skill_run.jobs.service import Jobs

_SECONDS: Final = 1.0
_BARS: Final = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_CURVE: Final = 60


def watch_job(service: Jobs, job_id: str, *, terminal: bool) -> Job:
    """Show a job until it has ended or is lost; return it as it is then."""
    return _panel(service, job_id) if terminal else _lines(service, job_id)


def sparkline(values: list[float]) -> str:
    """Return the last values as a line of bars, the smallest lowest; what is not finite is left blank."""
    import math

    shown = values[-_CURVE:]
    finite = [value for value in shown if math.isfinite(value)]
    if not finite:
        return ""
    low, span = min(finite), max(finite) - min(finite)
    top = len(_BARS) - 1
    return "".join(
        " " if not math.isfinite(value) else _BARS[round((value - low) / span * top) if span else 0] for value in shown
    )


def _lines(service: Jobs, job_id: str) -> Job:
    last = ""
    while True:
        job = service.get(job_id)
        line = f"{job.state}" + (f", {figures}" if (figures := figures_line(job.metrics or {})) else "")
        line += f" ({flow(job.note)})" if job.note else ""
        if line != last:
            click.echo(line)
            last = line
        if not _goes_on(job):
            return job
        time.sleep(_SECONDS)


def _panel(service: Jobs, job_id: str) -> Job:
    from rich.live import Live

    with Live(refresh_per_second=4) as live:
        while True:
            job = service.get(job_id)
            live.update(_drawn(job), refresh=True)
            if not _goes_on(job):
                return job
            time.sleep(_SECONDS)


def _drawn(job: Job) -> Any:
    from rich.panel import Panel
    from rich.text import Text

    losses = [each["loss"] for each in metrics_series(Path(job.plan.folder) / METRICS, points=200) if "loss" in each]
    lines = [job.state.value + (f", {flow(job.reason)}" if job.reason else "")]
    lines += [figures_line(job.metrics or {}) or "no figures yet", f"loss {sparkline(losses)}" if losses else ""]
    lines += [f"note: {flow(job.note)}"] if job.note else []
    return Panel(Text("\n".join(line for line in lines if line)), title=Text(flow(f"{job.name[:60]} ({job.id})")))


def _goes_on(job: Job) -> bool:
    return job.state in UNSETTLED and job.state is not State.LOST
