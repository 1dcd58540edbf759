"""The engine for jobs on this machine: each runs under a supervisor that outlives the server and the terminal."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from skill_run.errors import InputError, MissingError
from skill_run.jobs import supervisor
from skill_run.jobs.folder import EXIT, LOG, STOP, read_record, write_record
from skill_run.jobs.model import Plan, Seen, State, now

_ANSWER_SECONDS: Final = 60.0


class LocalEngine:
    """Runs a plan's command in its folder."""

    def start(self, plan: Plan, folder: Path) -> dict[str, Any]:
        """Start the command under a supervisor; return the identities of both.

        Raises InputError when the command cannot be run, MissingError on a system without /proc.
        """
        if not Path("/proc/self/stat").exists():
            raise MissingError("local jobs need Linux: their processes are followed through /proc")
        spec = {
            "job": plan.id,
            "command": list(plan.command),
            "environment": {
                **os.environ,
                **{name: each.value for name, each in plan.environment.items()},
                supervisor.MARK: plan.id,
            },
            "folder": str(folder),
            "log": str(folder / LOG),
            "exit": str(folder / EXIT),
            "stop": str(folder / STOP),
        }
        answer = _start_supervisor(spec)
        if "error" in answer:
            raise InputError(f"the command cannot be started: {answer['error']}")
        return answer

    def look(self, engine_id: Mapping[str, Any], folder: Path) -> Seen:
        """Return how a job stands, by its record, else by its processes."""
        ended = _ended(folder)
        if ended is not None:
            return ended
        if _is_elsewhere(engine_id):
            return Seen(None, note=f"it was started on {engine_id['host']}, and can be asked there only")
        if supervisor.is_alive(engine_id.get("supervisor")):
            return Seen(State.RUNNING)
        # The record may have been written after the first look for it.
        return _ended(folder) or _without_supervisor(engine_id)

    def stop(self, engine_id: Mapping[str, Any], folder: Path, firm_after_seconds: float) -> None:
        """Tell the supervisor to stop the job; without one, end the job's processes here."""
        if _is_elsewhere(engine_id):
            raise InputError(f"the job was started on {engine_id['host']}; stop it there")
        if not _signal(engine_id.get("supervisor"), signal.SIGTERM) and _ended(folder) is None:
            _end_orphans(engine_id["job"], firm_after_seconds)
            if _ended(folder) is None:
                record = {"code": 128 + signal.SIGTERM, "ended": now(), "signal": int(signal.SIGTERM), "stopped": True}
                write_record(folder / EXIT, record)

    def find(self, job_id: str, folder: Path) -> dict[str, Any] | None:
        """Return who runs the job, as its supervisor wrote it down."""
        return read_record(folder / supervisor.PROCESS)


def _start_supervisor(spec: dict[str, Any]) -> dict[str, Any]:
    words = [sys.executable, "-I", supervisor.__file__]
    try:
        done = subprocess.run(
            words,
            input=json.dumps(spec),
            capture_output=True,
            encoding="ascii",
            errors="backslashreplace",
            start_new_session=True,
            timeout=_ANSWER_SECONDS,
            check=False,
        )
        answer = json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise InputError(f"the job's supervisor did not answer within {_ANSWER_SECONDS:g} s") from error
    except ValueError as error:
        raise InputError(f"the job's supervisor did not start: {done.stderr.strip()[-300:]}") from error
    assert isinstance(answer, dict)
    return answer


def _is_elsewhere(engine_id: Mapping[str, Any]) -> bool:
    """Tell whether a job's processes are another machine's: neither its name nor its boot is this one's."""
    boot = (engine_id.get("supervisor") or {}).get("boot")
    return engine_id.get("host") != os.uname().nodename and boot != supervisor.boot()


def _without_supervisor(engine_id: Mapping[str, Any]) -> Seen:
    """Return what became of a job that has no supervisor any more and no record."""
    if (engine_id.get("supervisor") or {}).get("boot") != supervisor.boot():
        return Seen(State.LOST, reason="the machine was restarted while it ran, so how it ended is not known")
    left = list(_orphans(engine_id["job"]))
    if left:
        note = f"its supervisor was killed; {len(left)} of its processes still run, and jobs stop ends them"
        return Seen(State.RUNNING, note=note)
    return Seen(State.LOST, reason="its supervisor was killed before it could write down how the job ended")


def _ended(folder: Path) -> Seen | None:
    """Return how a job ended, by the record that its supervisor writes last; None without one."""
    record = read_record(folder / EXIT)
    if record is None:
        return None
    code, number = record.get("code"), record.get("signal")
    when = record.get("ended")
    how = f"exit code {code}" if number is None else f"killed by {_signal_name(number)}"
    if record.get("stopped"):
        by = "stopped" if (folder / STOP).exists() else "its supervisor was told to end"
        how += ", by force" if record.get("firm") else ""
        return Seen(State.STOPPED, exit_code=code, reason=f"{by} ({how})", when=when)
    if code == 0:
        return Seen(State.SUCCEEDED, exit_code=0, when=when)
    return Seen(State.FAILED, exit_code=code, reason=how, when=when)


def _signal_name(number: Any) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _signal(known: Any, number: int) -> bool:
    """Send a signal to the very process that is meant, never to another one that has its pid now."""
    try:
        handle = os.pidfd_open(known["pid"])
    except (OSError, TypeError, KeyError):
        return False
    try:
        if not supervisor.is_alive(known):
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _orphans(job_id: str) -> Iterator[int]:
    """Yield the processes that were started for a job, whoever their parent is now."""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and supervisor.has_variable(int(entry), supervisor.MARK, job_id):
            yield int(entry)


def _end_orphans(job_id: str, firm_after_seconds: float) -> None:
    """Send SIGTERM to what is left of a job, and SIGKILL until nothing is."""
    for pid in list(_orphans(job_id)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + firm_after_seconds
    while left := list(_orphans(job_id)):
        if time.monotonic() >= deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
