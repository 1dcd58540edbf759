"""Hold a job's row against what its engine says now, and against its folder when the store was lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from skill_run.errors import InputError, SkillRunError
from skill_run.jobs.engine import find_engine
from skill_run.jobs.folder import ENGINE, METRICS, PLAN, STOP, read_record
from skill_run.jobs.metrics import last_metrics
from skill_run.jobs.model import UNSETTLED, Job, Plan, Seen, State, may_move
from skill_run.jobs.store import Store
from skill_run.jobs.supervisor import is_alive


def reconcile(store: Store, job: Job) -> Job:
    """Return a job as it stands now, and write down what changed.

    When the engine cannot be asked, the job stays as it is and its `note` says why.
    """
    if job.state not in UNSETTLED:
        return job
    folder = Path(job.plan.folder)
    engine_id: Mapping[str, Any] | None
    try:
        engine_id, seen = _look(job, folder)
    except SkillRunError as error:
        engine_id, seen = job.engine_id, Seen(None, note=str(error))
    metrics = last_metrics(folder / METRICS) or job.metrics
    if seen.state is None:
        return replace(job, note=seen.note, metrics=metrics)
    changes = _changes(job, seen, engine_id)
    if not changes:
        return replace(job, note=seen.note, metrics=metrics)
    after = store.change(job, **changes, metrics=metrics)
    if after is None:
        # Another reader was first, with the same news or newer ones.
        return store.get(job.id) or job
    return replace(after, note=seen.note)


def found_again(folder: Path) -> Job | None:
    """Return the job of a folder as far as the folder tells; None when it holds no plan.

    What was started is `lost` until its engine is asked, which is at the next read.
    """
    record = read_record(folder / PLAN)
    try:
        plan = Plan.from_dict(record)
    except InputError:
        return None
    told = read_record(folder / ENGINE) or {}
    job = Job(
        plan=plan.without_files(),
        state=State.PREVIEWED,
        plan_digest=plan.digest(),
        created=plan.created,
        stop_asked=(read_record(folder / STOP) or {}).get("asked"),
        metrics=last_metrics(folder / METRICS),
    )
    if "refused" in told:
        return replace(job, state=State.FAILED, reason=told["refused"], ended=told.get("ended"))
    if isinstance(told.get("engine_id"), dict):
        reason = "found again from its folder"
        return replace(job, state=State.LOST, engine_id=told["engine_id"], started=told.get("started"), reason=reason)
    return job


def all_found_again(jobs_folder: Path) -> Iterator[Job]:
    """Yield the job of every folder that has one."""
    if not jobs_folder.is_dir():
        return
    for folder in sorted(jobs_folder.iterdir()):
        if not folder.name.startswith("."):
            job = found_again(folder)
            if job is not None:
                yield job


def _look(job: Job, folder: Path) -> tuple[dict[str, Any] | None, Seen]:
    """Return the engine's id of a job, which may have become known only now, and what the engine sees."""
    engine = find_engine(job.plan.engine)
    engine_id = dict(job.engine_id or {})
    if "starter" not in engine_id:
        return engine_id, engine.look(engine_id, folder)
    # The start is going on, or was cut between the engine's answer and the row.
    written = (read_record(folder / ENGINE) or {}).get("engine_id") or {}
    if not written or "starter" in written:
        if is_alive(engine_id["starter"]):
            return engine_id, Seen(State.QUEUED)
        written = engine.find(job.id, folder) or {}
    if written:
        return written, engine.look(written, folder)
    reason = "the process that was starting it was killed before the engine took the job"
    return None, Seen(State.FAILED, reason=reason)


def _changes(job: Job, seen: Seen, engine_id: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields of a row that what was seen changes."""
    assert seen.state is not None
    if not may_move(job.state, seen.state):
        raise AssertionError(f"{job.id} cannot go from {job.state} to {seen.state}")
    ended = seen.when if seen.state not in (State.QUEUED, State.RUNNING) else None
    wanted = {
        "state": seen.state,
        "exit_code": seen.exit_code,
        "reason": seen.reason,
        "started": seen.started or job.started,
        "ended": ended,
        "engine_id": engine_id,
    }
    return {name: value for name, value in wanted.items() if getattr(job, name) != value}
