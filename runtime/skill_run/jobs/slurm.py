"""The engine for jobs on a cluster: Slurm's own commands start, show and cancel them.

squeue is asked for numbers and words of Slurm's only, never for a name or a path, so no text of a user can be taken for
a state. Once Slurm has forgotten a job, the record that its script wrote and the accounting, where there is one, tell
how it ended.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from skill_run.errors import InputError, MissingError
from skill_run.jobs.folder import EXIT, SIGNALLED, STOP, read_record
from skill_run.jobs.model import Plan, Seen, State, now
from skill_run.report.safe import flow

_SECONDS: Final = 60.0
_SUBMITTED: Final = re.compile(r"\s*(?:Submitted batch job )?(\d{1,12})(?:;(\S{1,64}))?\s*")
_COLUMNS: Final = {
    "JobID": 20, "State": 20, "exit_code": 12, "Reason": 40, "StartTime": 24, "EndTime": 24, "RestartCnt": 8,
}  # fmt: skip
# What scancel says of a job that has ended.
_ENDED_WORDS: Final = ("Invalid job id specified", "already completing or completed")
_QUEUED: Final = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
)
_ENDS: Final = {
    "COMPLETED": State.SUCCEEDED, "CANCELLED": State.STOPPED, "REVOKED": State.STOPPED, "FAILED": State.FAILED,
    "TIMEOUT": State.FAILED, "OUT_OF_MEMORY": State.FAILED, "NODE_FAIL": State.FAILED, "BOOT_FAIL": State.FAILED,
    "DEADLINE": State.FAILED, "PREEMPTED": State.FAILED,
}  # fmt: skip
_UNKNOWN_TIMES: Final = ("", "N/A", "Unknown", "None", "NONE")


class _SlurmError(Exception):
    """A command of Slurm's failed; the text is its own words."""


@dataclass(frozen=True, slots=True)
class _Row:
    """What Slurm says about a job. exit_code: as a shell would give it; times: ISO, in UTC."""

    word: str
    exit_code: int | None
    reason: str
    start: str | None
    end: str | None
    restarts: str


class SlurmEngine:
    """Submits a plan's sbatch command from the job's folder."""

    def start(self, plan: Plan, folder: Path) -> dict[str, Any]:
        """Submit; return Slurm's number of the job. Raises InputError in Slurm's own words, MissingError without it."""
        if not shutil.which(plan.command[0]):
            raise MissingError(f"{plan.command[0][:80]} is not on PATH: submit from a machine with Slurm's commands")
        environment = {name: each.value for name, each in plan.environment.items()}
        try:
            told = _run(plan.command, folder=folder, environment=environment)
        except _SlurmError as error:
            raise InputError(f"Slurm refuses the job: {error}") from error
        found = _SUBMITTED.search(told)
        if found is None:
            raise InputError(f"sbatch did not say which number the job has: {flow(told)[:200]}")
        return {"job": found[1], "cluster": found[2], "submitted": now()}

    def look(self, engine_id: Mapping[str, Any], folder: Path) -> Seen:
        """Return how Slurm says the job stands; also ends by force what outlasted the grace of a stop."""
        stop = read_record(folder / STOP)
        try:
            row = _queue(engine_id.get("cluster")).get(engine_id["job"])
        except _SlurmError as error:
            return _recorded(folder, stop) or Seen(None, note=f"Slurm cannot be asked: {error}")
        if row is None:
            return _recorded(folder, stop) or _accounted(engine_id, stop) or _forgotten(engine_id)
        seen = _seen(row, stop)
        if seen.state in (State.RUNNING, State.QUEUED) and stop is not None and _is_overdue(stop):
            _cancel(engine_id)
        return seen

    def stop(self, engine_id: Mapping[str, Any], folder: Path, firm_after_seconds: float) -> None:
        """Send SIGTERM to the ranks once, so that they save; cancel at once what has not begun, later what goes on."""
        try:
            row = _queue(engine_id.get("cluster")).get(engine_id["job"])
            if row is None or row.word in _QUEUED or firm_after_seconds <= 0:
                _cancel(engine_id)
            elif _claim_signal(folder):
                try:
                    _cancel(engine_id, *_whom(engine_id))
                except _SlurmError:
                    (folder / SIGNALLED).unlink()
                    raise
        except _SlurmError as error:
            raise InputError(f"the job cannot be stopped now: {error}") from error

    def find(self, job_id: str, folder: Path) -> dict[str, Any] | None:
        """Return the job that was submitted from the folder, which no other job shares."""
        try:
            told = _run(("squeue", "--noheader", "--states=all", f"--user={os.getuid()}", "--format=%A|%Z"))
        except _SlurmError as error:
            raise InputError(f"Slurm cannot be asked: {error}") from error
        found = re.search(r"(?m)^(\d+)\|" + re.escape(str(folder)) + "$", told)
        return None if found is None else {"job": found[1], "cluster": None, "submitted": None}


class _Flight:
    """One question to Slurm that all who ask at the same time share: an answer counts for whoever asked before it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked_at = -1.0
        self._rows: dict[str, _Row] = {}
        self._error: _SlurmError | None = None

    def rows(self, cluster: str | None) -> dict[str, _Row]:
        """Return all jobs of this user that Slurm still knows, by number."""
        arrived = time.monotonic()
        with self._lock:
            if self._asked_at < arrived:
                self._asked_at, self._error = time.monotonic(), None
                try:
                    self._rows = _ask(cluster)
                except _SlurmError as error:
                    self._error = error
            if self._error is not None:
                raise _SlurmError(str(self._error))
            return self._rows


_FLIGHTS: Final[dict[tuple[str | None, str | None], _Flight]] = {}
_FLIGHTS_LOCK: Final = threading.Lock()


def _queue(cluster: str | None) -> dict[str, _Row]:
    with _FLIGHTS_LOCK:
        flight = _FLIGHTS.setdefault((cluster, os.environ.get("SLURM_CONF")), _Flight())
    return flight.rows(cluster)


def _ask(cluster: str | None) -> dict[str, _Row]:
    form = ",".join(f"{name}:{width}" for name, width in _COLUMNS.items())
    words = ["squeue", "--noheader", "--states=all", f"--user={os.getuid()}", f"--Format={form}"]
    told = _run((*words, *_on(cluster)))
    rows = {}
    for line in told.splitlines():
        values, at = [], 0
        for width in _COLUMNS.values():
            values.append(line[at : at + width].strip())
            at += width
        number, word, status, reason, start, end, restarts = values
        if number.isdigit():
            rows[number] = _Row(word, _shell_code(status), reason, _time(start), _time(end), restarts)
    return rows


def _seen(row: _Row, stop: Mapping[str, Any] | None) -> Seen:
    restarts = "" if row.restarts in ("", "0") else f", requeued {row.restarts} times"
    if row.word in _QUEUED:
        return Seen(State.QUEUED, reason=f"Slurm: {row.word} ({row.reason}){restarts}")
    state = _ENDS.get(row.word)
    if state is None:
        return Seen(State.RUNNING, started=row.start, reason=f"Slurm: {row.word}{restarts}" if restarts else "")
    because = "" if row.reason in ("None", "") else f" ({row.reason})"
    seen = Seen(state, row.exit_code, f"Slurm: {row.word}{because}{restarts}", row.end, row.start)
    return _as_stopped(seen, stop) if state is not State.SUCCEEDED or stop else replace(seen, reason="")


def _recorded(folder: Path, stop: Mapping[str, Any] | None) -> Seen | None:
    """Return how the job's own script says that it ended."""
    record = read_record(folder / EXIT)
    code = None if record is None else record.get("code")
    if record is None or not isinstance(code, int):
        return None
    state = State.FAILED if code else State.SUCCEEDED
    return _as_stopped(Seen(state, code, f"exit code {code}" if code else "", record.get("ended")), stop)


def _accounted(engine_id: Mapping[str, Any], stop: Mapping[str, Any] | None) -> Seen | None:
    """Return how the accounting says that the job ended; None where there is none."""
    if not shutil.which("sacct"):
        return None
    words = ["sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={engine_id['job']}"]
    try:
        told = _run((*words, "--format=State,ExitCode,Start,End", *_on(engine_id.get("cluster"))))
    except _SlurmError:
        return None
    fields = told.strip().split("|")
    if len(fields) != 4 or not fields[0]:
        return None
    word = fields[0].split()[0]
    code, _, number = fields[1].partition(":")
    exit_code = 128 + int(number) if number.isdigit() and int(number) else int(code) if code.isdigit() else None
    return _seen(_Row(word, exit_code, "", _time(fields[2]), _time(fields[3]), ""), stop)


def _forgotten(engine_id: Mapping[str, Any]) -> Seen:
    reason = f"Slurm no longer knows job {engine_id['job']}, and the job left no record of its end"
    return Seen(State.LOST, reason=reason)


def _as_stopped(seen: Seen, stop: Mapping[str, Any] | None) -> Seen:
    """Return what was seen as a stop when one was asked for: a job that saves and leaves ends with code 0."""
    if stop is None:
        return seen
    how = seen.reason or f"exit code {seen.exit_code}"
    return replace(seen, state=State.STOPPED, reason=f"stopped ({how})")


def _claim_signal(folder: Path) -> bool:
    """Tell whether this stop is the one that signals the ranks: a second signal would cut the saving short."""
    try:
        with open(folder / SIGNALLED, "x", encoding="ascii") as stream:
            stream.write(now())
    except FileExistsError:
        return False
    return True


def _is_overdue(stop: Mapping[str, Any]) -> bool:
    try:
        asked = datetime.fromisoformat(stop["asked"])
        return datetime.now(UTC) >= asked + timedelta(seconds=float(stop["firm_after_seconds"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        return True


def _whom(engine_id: Mapping[str, Any]) -> tuple[str, ...]:
    """Return how to signal the ranks: the steps that srun started, else the script with all it started."""
    told = _run(("squeue", "--noheader", "--steps", f"--jobs={engine_id['job']}", "--format=%i"))
    has_steps = any(line.strip().rpartition(".")[2].isdigit() for line in told.splitlines())
    return ("--signal=TERM",) if has_steps else ("--signal=TERM", "--full")


def _cancel(engine_id: Mapping[str, Any], *options: str) -> None:
    """Cancel or signal a job; one that ended meanwhile needs neither."""
    try:
        _run(("scancel", *options, *_on(engine_id.get("cluster")), str(engine_id["job"])))
    except _SlurmError as error:
        if not any(words in str(error) for words in _ENDED_WORDS):
            raise


def _on(cluster: str | None) -> tuple[str, ...]:
    return () if cluster is None else (f"--clusters={cluster}",)


def _shell_code(status: str) -> int | None:
    """Return the exit code that a wait status stands for, 128 + N for signal N."""
    if not status.isdigit():
        return None
    code = os.waitstatus_to_exitcode(int(status) & 0xFFFF)
    return code if code >= 0 else 128 - code


def _time(text: str) -> str | None:
    return None if text in _UNKNOWN_TIMES else f"{text}+00:00"


def _run(words: Sequence[str], *, folder: Path | None = None, environment: Mapping[str, str] | None = None) -> str:
    """Return what a command of Slurm's prints, with times in UTC and words in English."""
    # A submitted job would inherit these, so only questions get them.
    plain = {"TZ": "UTC", "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"} if environment is None else environment
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            env={**os.environ, **plain},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except FileNotFoundError as error:
        raise _SlurmError(f"{words[0]} is not on PATH") from error
    except OSError as error:
        raise _SlurmError(f"{words[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise _SlurmError(f"{words[0]} did not answer within {_SECONDS:g} s") from error
    if done.returncode:
        raise _SlurmError(flow(done.stderr.decode("utf-8", "replace"))[:600] or f"exit code {done.returncode}")
    return done.stdout.decode("utf-8", "surrogateescape")
