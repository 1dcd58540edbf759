"""Run one local job: start its command, end everything that it started, and write down how it ended.

`python supervisor.py` reads a JSON object on standard input, starts the job in a session of its own, answers with one
JSON line and leaves; the supervisor itself lives as long as the job. This file needs Linux and the standard library
only, and works under any Python from 3.9 on.

SIGTERM stops the job: its ranks get SIGTERM (where none can be told apart, the command's process group), so that they
save a checkpoint, and what is left after `firm_after_seconds` of stop.json gets SIGKILL.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

# What the processes of a job can be known by, whatever became of their parents.
MARK = "SKILL_RUN_JOB"
PROCESS = "process.json"
DEFAULT_GRACE_SECONDS = 60.0
# For what a finished command left running, such as a service that still sends figures.
_AFTERMATH_SECONDS = 5.0
# For a launcher to see that its ranks have ended, which old ones look for every 5 s.
_LAUNCHER_SECONDS = 10.0
# Room that is set aside for each record, so that a full disk hides neither who runs the job nor how it ended.
_RECORD_BYTES = 1024
_SET_CHILD_SUBREAPER = 36
_SIGNALS = (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP)


def identity(pid: int) -> dict[str, Any] | None:
    """Return what tells a process from every other one, before and after it: pid, start time, boot; None when gone.

    A process that ended and that nobody waited for is gone too. The start time is field 22 of /proc/PID/stat, in clock
    ticks since the boot.
    """
    try:
        # The name may hold spaces and brackets; the fields after it do not.
        values = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        state, start = values[0], int(values[19])
    except (OSError, IndexError, ValueError):
        return None
    return None if state in "ZX" else {"pid": pid, "start": start, "boot": boot()}


def boot() -> str:
    """Return the id that the kernel drew when it started."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def is_alive(known: Any) -> bool:
    """Tell whether the very process that `identity` was taken of is still there."""
    try:
        return bool(known) and identity(known["pid"]) == {key: known[key] for key in ("pid", "start", "boot")}
    except (TypeError, KeyError):
        return False


def descendants(root: int) -> list[int]:
    """Return the pids of all processes below `root` that have not ended, parents before children."""
    below: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                text = Path(f"/proc/{entry}/stat").read_text(encoding="ascii", errors="replace")
                values = text.rpartition(")")[2].split()
                if values[0] not in "ZX":
                    below.setdefault(int(values[1]), []).append(int(entry))
    found, waiting = [], [root]
    while waiting:
        children = below.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


def ranks(pids: list[int]) -> list[int]:
    """Return those of `pids` that a launcher such as torchrun started as ranks: the topmost with LOCAL_RANK set.

    What a rank starts itself, such as workers that load data, must not be signalled: the rank would fail of it.
    """
    marked = {pid for pid in pids if has_variable(pid, "LOCAL_RANK")}
    return [pid for pid in pids if pid in marked and _parent(pid) not in marked]


def has_variable(pid: int, name: str, value: str | None = None) -> bool:
    """Tell whether a process was started with a variable of the environment, or with this value of it."""
    try:
        block = b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    sought = b"\0" + os.fsencode(name) + b"="
    return sought in block if value is None else sought + os.fsencode(value) + b"\0" in block


class Reserved:
    """A JSON file for which room is set aside, so that it can be written when the disk has become full."""

    def __init__(self, path: str) -> None:
        """Set the room aside; OSError when there is none."""
        self._path = path
        self._handle = os.open(f"{path}.reserved", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.pwrite(self._handle, b" " * _RECORD_BYTES, 0)

    def write(self, value: dict[str, Any]) -> None:
        """Write the value under the file's last name in one step."""
        # Within the room that was set aside; JSON may end in white space.
        os.pwrite(self._handle, json.dumps(value).encode("ascii").ljust(_RECORD_BYTES - 1) + b"\n", 0)
        os.fsync(self._handle)
        os.replace(f"{self._path}.reserved", self._path)

    def give_up(self) -> None:
        """Remove what was set aside."""
        os.unlink(f"{self._path}.reserved")


class Supervisor:
    """The life of one job."""

    def __init__(self, spec: dict[str, Any]) -> None:
        """Take what to run: job, command, environment, folder, log, exit, stop (names of files)."""
        self._spec = spec
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self._command = 0
        self._status: int | None = None
        self._ended = ""
        self._stopping = False
        self._targets: list[int] = []
        self._told: set[int] = set()
        self._whole_group_told = False
        self._deadline: float | None = None
        self._launcher_until: float | None = None
        self._firm = False
        self._record = Reserved(spec["exit"])
        self._process = Reserved(os.path.join(spec["folder"], PROCESS))
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def start(self) -> dict[str, Any]:
        """Start the command and return who runs it; OSError when it cannot be started."""
        log = os.open(self._spec["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            started = subprocess.Popen(
                self._spec["command"],
                env=self._spec["environment"],
                cwd=self._spec["folder"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=self._like_a_fresh_login,
            )
        finally:
            os.close(log)
        # A Popen that is collected would reap the command itself.
        self._started = started
        self._command = started.pid
        who = {
            "job": self._spec["job"],
            "host": os.uname().nodename,
            "supervisor": identity(os.getpid()),
            "command": identity(started.pid) or {"pid": started.pid},
        }
        self._process.write(who)
        return who

    def follow(self) -> None:
        """Stay until the command and all that it started have ended, then write the record."""
        while True:
            self._reap()
            left = descendants(os.getpid())
            if self._status is not None and not left:
                break
            self._act(left)
            got = self._wait()
            if got == signal.SIGTERM:
                self._take_stop()
        self._write_record()

    def give_up(self) -> None:
        """Remove what was set aside for a job that could not be started."""
        self._record.give_up()
        self._process.give_up()

    def _like_a_fresh_login(self) -> None:
        # What a shell with job control or nohup ignores would be ignored by the ranks as well.
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _wait(self) -> int | None:
        if self._deadline is None:
            return signal.sigwaitinfo(_SIGNALS).si_signo
        # A process that is no child of this one ends without telling, so look again soon.
        found = signal.sigtimedwait(_SIGNALS, min(0.25, max(0.0, self._deadline - time.monotonic())) + 0.01)
        return None if found is None else found.si_signo

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._command:
                self._status = status
                self._ended = datetime.now(timezone.utc).isoformat(timespec="milliseconds")  # noqa: UP017

    def _take_stop(self) -> None:
        asked = time.monotonic() + self._grace()
        self._deadline = asked if self._deadline is None else min(asked, self._deadline)
        if self._stopping or self._status is not None:
            return
        self._stopping = True
        self._targets = ranks(descendants(os.getpid()))
        self._told.update(self._targets)
        for pid in self._targets:
            _kill(pid, signal.SIGTERM)
        if not self._targets:
            self._tell_group()

    def _grace(self) -> float:
        try:
            found = json.loads(Path(self._spec["stop"]).read_text(encoding="utf-8"))
            return max(0.0, float(found["firm_after_seconds"]))
        except (OSError, ValueError, KeyError, TypeError):
            return DEFAULT_GRACE_SECONDS

    def _act(self, left: list[int]) -> None:
        if self._status is not None:
            self._end_what_is_left(left)
        if self._stopping and self._status is None and not set(self._targets) & set(left):
            self._end_launcher(left)
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._firm = self._firm or self._status is None
            for pid in left:
                _kill(pid, signal.SIGKILL)

    def _end_launcher(self, left: list[int]) -> None:
        """Let a launcher end by itself once its ranks have; tell it to when it stays, or starts them again."""
        if self._launcher_until is None:
            self._launcher_until = time.monotonic() + _LAUNCHER_SECONDS
        if time.monotonic() >= self._launcher_until or ranks(left):
            self._tell_group()

    def _end_what_is_left(self, left: list[int]) -> None:
        """Tell what a finished command left running to end: ranks first, and what they started after them."""
        if self._deadline is None:
            self._deadline = time.monotonic() + _AFTERMATH_SECONDS
        for pid in set(ranks(left) or left) - self._told:
            self._told.add(pid)
            _kill(pid, signal.SIGTERM)

    def _tell_group(self) -> None:
        if not self._whole_group_told:
            self._whole_group_told = True
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._command, signal.SIGTERM)

    def _write_record(self) -> None:
        assert self._status is not None
        number = os.WTERMSIG(self._status) if os.WIFSIGNALED(self._status) else None
        code = os.WEXITSTATUS(self._status) if number is None else 128 + number
        record = {
            "code": code,
            "ended": self._ended,
            "signal": number,
            "stopped": self._stopping,
            "firm": self._firm,
        }
        self._record.write(record)


def _parent(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return int(text.rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _supervise(spec: dict[str, Any], answer: int) -> None:
    """Be the supervisor, in a process that no terminal and no parent can end."""
    os.setsid()
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for handle in (0, 1, 2):
        os.dup2(nothing, handle)
    supervisor = Supervisor(spec)
    try:
        told = supervisor.start()
    except OSError as error:
        supervisor.give_up()
        name = error.filename or spec["command"][0]
        os.write(answer, json.dumps({"error": f"{name}: {error.strerror}"}).encode("ascii"))
        return
    os.write(answer, json.dumps(told).encode("ascii"))
    os.close(answer)
    supervisor.follow()


def main() -> int:
    """Start a supervisor and hand on its answer."""
    spec = json.load(sys.stdin)
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(reading)
        try:
            _supervise(spec, writing)
        except OSError as error:
            # The answer may have been given already, or its reader may be gone.
            with contextlib.suppress(OSError):
                os.write(writing, json.dumps({"error": f"{error.filename}: {error.strerror}"}).encode("ascii"))
            os._exit(1)
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as stream:
        answer = stream.read()
    sys.stdout.write(answer.decode("ascii"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
