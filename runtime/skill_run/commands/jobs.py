"""`skill-run jobs`: list, show, follow, stop, retry and tidy up jobs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from skill_run.errors import EXIT_CLEAN, EXIT_FINDINGS, InputError

if TYPE_CHECKING:
    from skill_run.jobs.model import Job
    from skill_run.jobs.service import Jobs

_STATES: Final = ("previewed", "queued", "running", "succeeded", "failed", "stopped", "lost")
_FORMAT = click.option("--format", "form_out", type=click.Choice(("text", "json")), default="text", show_default=True)
_LOOK_SECONDS: Final = 0.5
_AFTER_FIRM_SECONDS: Final = 60.0


@click.group()
def jobs() -> None:
    """Follow, stop and diagnose jobs, wherever they were started. JOB is an id, the beginning of one, or a name."""


@jobs.command("list")
@click.option("--state", "states", type=click.Choice(_STATES), multiple=True, help="Only these states; repeatable.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, metavar="N")
@_FORMAT
def list_jobs(states: tuple[str, ...], limit: int, form_out: str) -> int:
    """List jobs as they stand now, the newest first."""
    from skill_run.jobs.model import State
    from skill_run.report.jobs import render_list

    found = _jobs().list(states=[State(each) for each in states] or None, limit=limit)
    if form_out == "json":
        _print_json([job.to_dict() for job in found])
    else:
        click.echo(render_list(found))
    return EXIT_CLEAN


@jobs.command("show")
@click.argument("job_id", metavar="JOB")
@click.option("--plot", "plot_file", metavar="FILE", help="Draw the loss curve as PNG or SVG.")
@_FORMAT
def show(job_id: str, plot_file: str | None, form_out: str) -> int:
    """Show a job, its newest figures and, when it failed, the likely cause with its fix."""
    from skill_run.report.jobs import render_job

    service = _jobs()
    job = service.get(job_id)
    diagnosis = service.diagnose(job.id)
    if form_out == "json":
        told = {"plan": service.plan(job.id).to_dict(files=False)}
        _print_json({**job.to_dict(), **told, "diagnosis": None if diagnosis is None else diagnosis.to_dict()})
    else:
        click.echo(render_job(job, diagnosis))
    if plot_file is not None:
        from skill_run.jobs.folder import METRICS
        from skill_run.jobs.metrics import metrics_series
        from skill_run.report.loss_curve import save_loss_curve

        series = metrics_series(Path(job.plan.folder) / METRICS)
        save_loss_curve(series, f"{job.name} ({job.id})", Path(plot_file))
    return EXIT_CLEAN


@jobs.command("logs")
@click.argument("job_id", metavar="JOB")
@click.option("--follow", "-f", is_flag=True, help="Go on until the job has ended.")
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="The log of one rank.")
@click.option("--lines", "-n", type=click.IntRange(min=0), default=100, show_default=True, metavar="N")
def logs(job_id: str, follow: bool, rank: int | None, lines: int) -> int:
    """Print the end of a job's log."""
    service = _jobs()
    if not follow:
        for line in service.logs(job_id, rank=rank, lines=lines):
            click.echo(line)
        return EXIT_CLEAN
    return _follow(service, service.get(job_id), rank, lines)


@jobs.command("watch")
@click.argument("job_id", metavar="JOB")
def watch(job_id: str) -> int:
    """Show loss, tokens per second and padding while a job runs; exit code 1 when it fails or is lost."""
    from skill_run.commands.watch import watch_job

    service = _jobs()
    job = watch_job(service, service.get(job_id).id, terminal=sys.stdout is not None and sys.stdout.isatty())
    return _code(job)


@jobs.command("stop")
@click.argument("job_id", metavar="JOB")
@click.option("--grace", type=click.FloatRange(min=0), metavar="SECONDS", help="Time to save before it is killed.")
@click.option("--no-wait", is_flag=True, help="Return at once; the job ends by itself.")
@_FORMAT
def stop(job_id: str, grace: float | None, no_wait: bool, form_out: str) -> int:
    """Let a job save and end; kill what is left of it after the grace (60 s)."""
    from skill_run.jobs.model import ENDED
    from skill_run.jobs.service import STOP_GRACE_SECONDS

    service = _jobs()
    grace = STOP_GRACE_SECONDS if grace is None else grace
    before = service.get(job_id)
    job = service.stop(before.id, firm_after_seconds=grace)
    if not no_wait:
        job = service.wait(job.id, seconds=grace + _AFTER_FIRM_SECONDS)
    if form_out == "json":
        _print_json(job.to_dict())
    elif before.state in ENDED:
        click.echo(f"{job.id} had ended before: {job.state}")
    else:
        click.echo(f"{job.id}: {job.state}" + ("" if job.state in ENDED else ", asked to stop"))
    return EXIT_CLEAN if no_wait or job.state in ENDED else EXIT_FINDINGS


@jobs.command("retry")
@click.argument("job_id", metavar="JOB")
@click.option("--fresh", is_flag=True, help="Start anew instead of going on from the saved checkpoints.")
@click.option("--yes", is_flag=True, help="Start it; without this the plan is only shown.")
@_FORMAT
def retry(job_id: str, fresh: bool, yes: bool, form_out: str) -> int:
    """Make a new job of the plan of one that has ended, and start it with --yes."""
    import shlex

    from skill_run.report.jobs import render_job
    from skill_run.report.safe import printable

    service = _jobs()
    job = service.retry(job_id, fresh=fresh)
    if yes:
        job = service.start(job.id)
    if form_out == "json":
        _print_json({**job.to_dict(), "plan": service.plan(job.id).to_dict(files=False)})
        return EXIT_CLEAN
    click.echo(render_job(job))
    if not yes:
        click.echo(printable(f"  command: {shlex.join(job.plan.command)}"))
        click.echo(f"not started; skill-run jobs start {job.id} --yes starts it")
    return EXIT_CLEAN


@jobs.command("start")
@click.argument("job_id", metavar="JOB")
@click.option("--yes", is_flag=True, help="Confirm: without this nothing is started.")
def start(job_id: str, yes: bool) -> int:
    """Start a job that was only previewed."""
    service = _jobs()
    job = service.get(job_id)
    if not yes:
        raise InputError(f"{job.id} is not started without --yes; skill-run jobs show {job.id} shows its plan")
    job = service.start(job.id)
    click.echo(f"{job.id}: {job.state}")
    return EXIT_CLEAN


@jobs.command("gc")
@click.option("--days", type=click.FloatRange(min=0), default=30, show_default=True, help="Age from which jobs go.")
@click.option("--checkpoints", is_flag=True, help="Also remove folders that hold checkpoints.")
@click.option("--yes", is_flag=True, help="Remove; without this the jobs are only listed.")
@_FORMAT
def tidy(days: float, checkpoints: bool, yes: bool, form_out: str) -> int:
    """Remove old jobs that have ended or were never started, with their folders."""
    from skill_run.report.safe import printable

    try:
        age = timedelta(days=days)
    except OverflowError as error:
        raise InputError(f"--days {days:g} is too many") from error
    found = _jobs().tidy(older_than=age, checkpoints=checkpoints, dry_run=not yes)
    if form_out == "json":
        keys = ("id", "name", "size", "kept_because")
        _print_json({"removed": yes, "jobs": [{key: getattr(each, key) for key in keys} for each in found]})
        return EXIT_CLEAN
    for each in found:
        what = f"kept, {each.kept_because}" if each.kept_because else "removed" if yes else "would be removed"
        click.echo(f"{each.id}: {what}, {each.size / 2**20:.1f} MiB ({printable(each.name[:60])})")
    if not found:
        click.echo("nothing to remove")
    elif not yes:
        click.echo("nothing was removed; add --yes")
    return EXIT_CLEAN


def _jobs() -> Jobs:
    from skill_run.jobs.service import Jobs

    return Jobs()


def _follow(service: Jobs, job: Job, rank: int | None, lines: int) -> int:
    from skill_run.jobs.folder import LOG
    from skill_run.jobs.logs import Follower, pick_log
    from skill_run.jobs.model import UNSETTLED, State

    folder = Path(job.plan.folder)
    follower = Follower(folder / LOG if rank is None else pick_log(folder, rank).path)
    for line in follower.last_lines(lines):
        click.echo(line)
    while True:
        job = service.get(job.id)
        # Asked before the last look, so that nothing that was written before the end is left out.
        goes_on = job.state in UNSETTLED and job.state is not State.LOST
        while found := follower.new_lines():
            click.echo("\n".join(found))
        if not goes_on:
            break
        time.sleep(_LOOK_SECONDS)
    for line in follower.rest():
        click.echo(line)
    click.echo(f"{job.id}: {job.state}", err=True)
    return _code(job)


def _code(job: Job) -> int:
    return EXIT_FINDINGS if job.state.value in ("failed", "lost") else EXIT_CLEAN


def _print_json(value: Mapping[str, Any] | Sequence[Any]) -> None:
    from skill_run.report.safe import strict

    click.echo(json.dumps(strict(value), indent=2, allow_nan=False))
