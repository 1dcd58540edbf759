"""What the command line and the server do with jobs: make, start, read, stop, retry, tidy up.

Every read asks the engine, so that a killed server, a restart of the machine or a job that was cancelled by hand is
told as it is. Any number of processes may do all of this at once.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from skill_run.errors import InputError, SkillRunError
from skill_run.jobs.diagnose import Diagnosis, diagnose
from skill_run.jobs.engine import find_engine, starter
from skill_run.jobs.folder import (
    CHECKPOINTS,
    ENGINE,
    METRICS,
    PLAN,
    STOP,
    check_name,
    make_folder,
    read_record,
    state_folder,
    write_files,
    write_record,
)
from skill_run.jobs.logs import pick_log, tail
from skill_run.jobs.metrics import last_metrics
from skill_run.jobs.model import ENDED, UNSETTLED, Job, Plan, State, new_id, now
from skill_run.jobs.reconcile import all_found_again, reconcile
from skill_run.jobs.store import Store
from skill_run.report.safe import printable

STOP_GRACE_SECONDS: Final = 60.0
_FIRST_WAIT, _LONGEST_WAIT = 0.02, 1.0


@dataclass(frozen=True, slots=True)
class Tidied:
    """A job that `gc` removes, or keeps for a reason."""

    id: str
    name: str
    size: int
    kept_because: str = ""


class Jobs:
    """The jobs of a state folder, by default the user's."""

    def __init__(self, folder: Path | None = None, *, busy_seconds: float = 10.0) -> None:
        """Open the store, which is made or found again from the jobs' folders as needed."""
        self.state_folder = (folder or state_folder()).absolute()
        self.jobs_folder = self.state_folder / "jobs"
        self.store = Store(
            self.state_folder, find_again=lambda: all_found_again(self.jobs_folder), busy_seconds=busy_seconds
        )

    def new_folder(self, job_id: str) -> Path:
        """Return where a job's folder is by default."""
        return self.jobs_folder / job_id

    def create(self, plan: Plan) -> Job:
        """Keep a plan as a job that is not started; its folder is made and holds the plan.

        Raises InputError when the folder exists, is no absolute path, or a file's name leads out of it.
        """
        folder = Path(plan.folder)
        if not folder.is_absolute():
            raise InputError(f"the folder of a job is an absolute path, not {printable(plan.folder)!r}")
        for name in plan.files:
            check_name(name)
        plan = plan if plan.created else replace(plan, created=now())
        make_folder(folder)
        write_record(folder / PLAN, plan.to_dict())
        if folder != self.new_folder(plan.id):
            # Found through here when the store is lost.
            self.jobs_folder.mkdir(parents=True, exist_ok=True)
            os.symlink(folder, self.new_folder(plan.id))
        job = Job(plan.without_files(), State.PREVIEWED, plan.digest(), plan.created)
        self.store.add(job)
        return job

    def plan(self, job_id: str) -> Plan:
        """Return the whole plan of a job, with the text of its files. Raises InputError when it is not as it was."""
        job = self._row(job_id)
        plan = Plan.from_dict(read_record(Path(job.plan.folder) / PLAN))
        if plan.digest() != job.plan_digest:
            raise InputError(f"the plan of {job.id} was changed after its preview; make a new one")
        return plan

    def start(self, job_id: str) -> Job:
        """Start a previewed job once, whoever else tries; return it as queued or running.

        Raises InputError when it was started before, when its plan changed, or in the engine's words when it refuses.
        """
        job = self._row(job_id)
        if job.state is not State.PREVIEWED:
            raise InputError(f"{job.id} was started before and is {job.state}; jobs retry makes a new job of it")
        plan = self.plan(job.id)
        engine, folder = find_engine(plan.engine), Path(plan.folder)
        claimed = self.store.change(job, state=State.QUEUED, engine_id=starter(), started=now())
        if claimed is None:
            raise InputError(f"{job.id} is being started by somebody else")
        try:
            write_record(folder / ENGINE, {"engine_id": claimed.engine_id, "started": claimed.started})
            write_files(folder, plan.files)
            engine_id = engine.start(plan, folder)
        except SkillRunError as error:
            self._refused(claimed, folder, str(error))
            raise
        # The folder first: the row can be made again from it.
        write_record(folder / ENGINE, {"engine_id": engine_id, "started": claimed.started})
        return self.get(job.id)

    def get(self, job_id: str) -> Job:
        """Return a job as it stands now, by its id, the beginning of one, or a name that only one job has.

        Raises InputError when none or several fit.
        """
        return self._fresh(reconcile(self.store, self._row(job_id)))

    def list(self, *, states: Collection[State] | None = None, limit: int | None = 50) -> Sequence[Job]:
        """Return jobs as they stand now, the newest first."""
        unsettled = self.store.rows(states=UNSETTLED)
        changed = {job.id: job for job in (reconcile(self.store, job) for job in unsettled)}
        rows = self.store.rows(states=states, limit=limit)
        return [self._fresh(replace(job, note=changed[job.id].note) if job.id in changed else job) for job in rows]

    def stop(self, job_id: str, *, firm_after_seconds: float = STOP_GRACE_SECONDS) -> Job:
        """Ask a job to save and end; what is left of it after the grace is killed. Returns at once.

        Asking twice is asking once; a shorter grace counts. A job that has ended stays as it is. Raises InputError for
        a job that was never started, or that the engine does not let go.
        """
        job = self.get(job_id)
        if job.state in ENDED:
            return job
        if job.state is State.PREVIEWED:
            raise InputError(f"{job.id} was never started, so there is nothing to stop")
        if "starter" in (job.engine_id or {}):
            raise InputError(f"{job.id} is just being started; stop it in a moment")
        folder = Path(job.plan.folder)
        asked = read_record(folder / STOP)
        if asked is None or asked.get("firm_after_seconds", 0) > firm_after_seconds:
            record = {"asked": (asked or {}).get("asked") or now(), "firm_after_seconds": firm_after_seconds}
            write_record(folder / STOP, {**(asked or {}), **record})
        if job.stop_asked is None:
            self.store.change(job, stop_asked=now())
        find_engine(job.plan.engine).stop(job.engine_id or {}, folder, firm_after_seconds)
        return self.get(job.id)

    def logs(self, job_id: str, *, rank: int | None = None, lines: int = 100) -> Sequence[str]:
        """Return the last lines of a job's log, or of one rank's. Raises InputError when there is none yet."""
        return tail(pick_log(Path(self._row(job_id).plan.folder), rank), lines)

    def diagnose(self, job_id: str) -> Diagnosis | None:
        """Return why a job failed or was lost; None for any other."""
        job = self.get(job_id)
        return diagnose(job) if job.state in (State.FAILED, State.LOST) else None

    def wait(self, job_id: str, *, seconds: float | None = None, states: Collection[State] = ENDED) -> Job:
        """Return a job once it is in one of these states or is lost, or after so many seconds as it is then."""
        deadline = None if seconds is None else time.monotonic() + seconds
        pause = _FIRST_WAIT
        while True:
            job = self.get(job_id)
            late = deadline is not None and time.monotonic() >= deadline
            if job.state in states or job.state is State.LOST or late:
                return job
            time.sleep(pause)
            pause = min(_LONGEST_WAIT, pause * 1.5)

    def retry(self, job_id: str, *, fresh: bool = False) -> Job:
        """Make a new job, not started, of the plan of one that has ended or is lost.

        Its own paths take the place of the old folder's. Checkpoints stay where they are when there are some, so that
        training goes on from them, unless `fresh`.
        """
        job = self.get(job_id)
        if job.state not in ENDED | {State.LOST}:
            raise InputError(f"{job.id} is {job.state}; only a job that has ended can be tried again")
        plan = self.plan(job.id)
        new = new_id()
        folder = Path(plan.folder).parent / new if Path(plan.folder).name == job.id else self.new_folder(new)
        saved = Path(plan.folder) / CHECKPOINTS
        keep = str(saved) if not fresh and saved.is_dir() and any(saved.iterdir()) else None
        moved = _moved(plan.to_dict(), plan.folder, str(folder), keep)
        moved.update(id=new, created=now(), extra={**moved["extra"], "retry_of": job.id})
        if keep is not None:
            moved["resumes_from"] = keep
        return self.create(Plan.from_dict(moved))

    def tidy(self, *, older_than: timedelta, checkpoints: bool = False, dry_run: bool = True) -> Sequence[Tidied]:
        """Remove jobs that ended, or were previewed and never started, longer ago than this, with their folders.

        A folder with checkpoints is kept unless `checkpoints`. With `dry_run` nothing is removed.
        """
        before = (datetime.now(UTC) - older_than).isoformat(timespec="milliseconds")
        self.list(limit=0)
        found = []
        for job in self.store.rows(states=ENDED | {State.PREVIEWED, State.LOST}):
            if (job.ended or job.created) > before:
                continue
            folder = Path(job.plan.folder)
            saved = folder / CHECKPOINTS
            has_saved = saved.is_dir() and any(saved.iterdir())
            because = "it has checkpoints" if has_saved and not checkpoints else ""
            found.append(Tidied(job.id, job.name, _size(folder), because))
            if not dry_run and not because:
                self._remove(job, folder)
        return found

    def rebuild(self) -> Sequence[Job]:
        """Make the store anew from the jobs' folders; return all jobs."""
        self.store.rebuild()
        return self.list(limit=None)

    def _row(self, told: str) -> Job:
        job = self.store.get(told)
        if job is not None:
            return job
        fitting = self.store.find(told) if told else []
        if not fitting:
            fitting = [each.id for each in self.store.rows() if each.name == told]
        if len(fitting) > 1:
            raise InputError(f"several jobs are called {printable(told[:80])!r}: {', '.join(fitting[:5])}")
        found = self.store.get(fitting[0]) if fitting else None
        if found is None:
            raise InputError(f"there is no job {printable(told[:80])!r}; skill-run jobs list shows them")
        return found

    def _fresh(self, job: Job) -> Job:
        """Return a job with its newest figures, which are written far more often than its row."""
        return replace(job, metrics=last_metrics(Path(job.plan.folder) / METRICS) or job.metrics)

    def _refused(self, claimed: Job, folder: Path, words: str) -> None:
        write_record(folder / ENGINE, {"refused": words, "ended": now()})
        self.store.change(claimed, state=State.FAILED, engine_id=None, ended=now(), reason=words)

    def _remove(self, job: Job, folder: Path) -> None:
        self.store.remove(job.id)
        if (read_record(folder / PLAN) or {}).get("id") == job.id:
            # Under such a name it is not found again when the removal is cut.
            gone = folder.with_name(f".gone-{job.id}")
            folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
        link = self.new_folder(job.id)
        if link.is_symlink():
            link.unlink()


def _moved(value: Any, old: str, new: str, keep: str | None) -> Any:
    """Return plain data with one folder's path replaced by another's, except where it leads to what is kept."""
    if isinstance(value, dict):
        return {key: _moved(item, old, new, keep) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_moved(item, old, new, keep) for item in value]
    if not isinstance(value, str):
        return value
    if keep is None:
        return value.replace(old, new)
    return keep.join(part.replace(old, new) for part in value.split(keep))


def _size(folder: Path) -> int:
    """Return the bytes of a folder's files, without following links."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except OSError:
                continue
    return total
