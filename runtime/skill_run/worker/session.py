"""Run one task in a worker's interpreter: a JSON request in, JSON events out, and no process left behind.

The child is `inside/boot.py` in a session of its own. It reads the request from standard input and ends itself when
that is closed, so it cannot outlive this process, however this process ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

from skill_run.errors import EXIT_FINDINGS, InputError, MissingError, SkillRunError
from skill_run.report.safe import clip, flow
from skill_run.worker.environments import Worker

BOOT: Final = Path(__file__).parent / "inside" / "boot.py"
# Longest time without any event, in seconds: importing Megatron on a busy machine takes up to 85.
SILENCE_SECONDS: Final = 240.0
_LONGEST_LINE: Final = 2**26
_LOG_TAIL: Final = 4000
# With less than this left on the disk, what failed there failed for want of room.
_ROOM: Final = 2**20
# Programs make sockets in $TMPDIR, whose paths may have 108 bytes.
_LONGEST_TMPDIR: Final = 64

Event = Mapping[str, Any]


class WorkerFailure(SkillRunError):
    """The worker did not finish: what was to be proved is not proved. `log` ends what its processes printed."""

    exit_code = EXIT_FINDINGS

    def __init__(self, sentence: str, log: str = "") -> None:
        super().__init__(sentence)
        self.log = log


def run_task(
    worker: Worker,
    task: str,
    request: Mapping[str, Any],
    *,
    on_event: Callable[[Event], None] | None = None,
    environment: Mapping[str, str] | None = None,
    silence: float = SILENCE_SECONDS,
) -> dict[str, Any]:
    """Run `task` (a key of TASKS in inside/serve.py) in the worker and return its result.

    on_event: called with each event that is no result, such as {"event": "progress", "done": 2, "total": 9}.
    environment: variables set for the worker beside this process's own; silence: seconds without an event after which
    the worker counts as hung and is ended.
    Raises InputError for a request that the worker refuses, MissingError when the worker cannot be started or lacks
    something, WorkerFailure when it dies, hangs or fails. In every case all its processes are ended first.
    """
    with _scratch() as scratch:
        log_path = Path(scratch) / "worker.log"
        variables = {**_ALWAYS, **_places(scratch), **(environment or {}), "SKILL_RUN_SCRATCH": scratch}
        with open(log_path, "wb") as log:
            child = _start(worker, task, scratch, log, variables)
        try:
            # A container gets no variables from its client, so they are sent as well.
            told = _converse(child, worker, {"request": dict(request), "environment": variables}, on_event, silence)
        finally:
            _end(child)
        try:
            return _outcome(told, child, worker, _tail(log_path))
        except WorkerFailure as failure:
            if shutil.disk_usage(scratch).free < _ROOM:
                raise _no_room(os.path.dirname(scratch), "is full") from failure
            raise


@contextlib.contextmanager
def _scratch() -> Iterator[str]:
    """Make a folder for the files of one task, and remove it; MissingError where there can be none."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="skill-run-", ignore_cleanup_errors=True)
    except OSError as error:
        raise _no_room("the folder for temporary files", f"cannot be written ({error.strerror})") from error
    with folder as scratch:
        yield scratch


def _places(scratch: str) -> dict[str, str]:
    """Return the variables that keep a worker's files, and what it takes from the hub, in its scratch folder."""
    found = {"HF_HOME": f"{scratch}/hub", "HF_HUB_CACHE": f"{scratch}/hub/hub"}
    if len(scratch) <= _LONGEST_TMPDIR:
        found["TMPDIR"] = scratch
    return found


def _no_room(place: str, what: str) -> MissingError:
    return MissingError(f"{place} {what}; make room there, or let $TMPDIR name another folder")


def _start(
    worker: Worker, task: str, scratch: str, log: IO[bytes], variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_DROPPED)}
    try:
        return subprocess.Popen(
            [*worker.command, "-s", "-P", str(BOOT), task],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**kept, **variables},
            cwd=scratch,
            start_new_session=True,
        )
    except OSError as error:
        raise MissingError(
            f"worker {worker.name} cannot be started: {clip(flow(worker.command[0]), 200)}: {error.strerror}"
        ) from error


# What would put other modules into the worker than its environment has.
_DROPPED: Final = ("PYTHON", "TORCH_", "SKILL_RUN_RELEASE")
# Ranks are processes, so each uses one thread; compiling tiny models costs more than running them.
_ALWAYS: Final = {
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONWARNINGS": "ignore",
}


def _converse(
    child: subprocess.Popen[bytes],
    worker: Worker,
    told: Mapping[str, Any],
    on_event: Callable[[Event], None] | None,
    silence: float,
) -> dict[str, Any] | None:
    """Send what the task is to know and read events until the last one; None when the child ends without one."""
    assert child.stdin is not None
    assert child.stdout is not None
    unsent = json.dumps(told).encode("ascii") + b"\n"
    to_child, from_child = child.stdin.fileno(), child.stdout.fileno()
    # A worker that reads nothing must not hold the tool.
    os.set_blocking(to_child, False)
    lines = _Lines()
    heard = time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(from_child, selectors.EVENT_READ)
        selector.register(to_child, selectors.EVENT_WRITE)
        while True:
            ready = selector.select(max(0.0, heard + silence - time.monotonic()))
            if not ready:
                raise WorkerFailure(f"worker {worker.name} was silent for {silence:.0f} seconds and was ended")
            if any(key.fd == to_child for key, _ in ready):
                unsent = _written(to_child, unsent)
                if not unsent:
                    selector.unregister(to_child)
            if not any(key.fd == from_child for key, _ in ready):
                continue
            data = os.read(from_child, 2**16)
            if not data:
                return None
            heard = time.monotonic()
            for line in lines.take(data):
                event = _parsed(line)
                if event.get("event") in ("result", "error"):
                    return event
                if on_event is not None and event:
                    on_event(event)
            if lines.held > _LONGEST_LINE:
                raise WorkerFailure(f"worker {worker.name} sent an answer that is too long to be one")


class _Lines:
    """Puts the lines of a stream together again. held: bytes of the line that has not ended."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.held = 0

    def take(self, data: bytes) -> list[bytes]:
        """Return the lines that end in `data`."""
        *whole, rest = data.split(b"\n")
        if whole:
            whole[0] = b"".join([*self._parts, whole[0]])
            self._parts, self.held = [], 0
        self._parts.append(rest)
        self.held += len(rest)
        return whole


def _written(descriptor: int, data: bytes) -> bytes:
    """Write what a pipe takes now and return the rest, nothing when nobody reads it any more."""
    try:
        return data[os.write(descriptor, data[: 2**16]) :]
    except BlockingIOError:
        return data
    except BrokenPipeError:
        return b""


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}


def _outcome(told: dict[str, Any] | None, child: subprocess.Popen[bytes], worker: Worker, log: str) -> dict[str, Any]:
    if told is None:
        last = [line.strip() for line in log.splitlines() if line.strip()][-1:]
        said = f"; it said: {clip(flow(last[0]), 300)}" if last else ""
        raise WorkerFailure(f"worker {worker.name} ended without an answer ({_ending(child.returncode)}){said}", log)
    if told["event"] == "result" and isinstance(told.get("result"), dict):
        result: dict[str, Any] = told["result"]
        return result
    sentence = str(told.get("message") or f"worker {worker.name} sent no answer that can be read")
    if told.get("kind") == "input":
        raise InputError(sentence)
    if told.get("kind") == "missing":
        raise MissingError(sentence)
    raise WorkerFailure(sentence, str(told.get("detail") or log))


def _ending(code: int | None) -> str:
    if code is None:
        return "it did not end"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"ended by {signal.Signals(-code).name}"
    return f"exit code {code}"


def _end(child: subprocess.Popen[bytes]) -> None:
    """End every process of the child's session, and the child's pipes."""
    if child.stdin is not None:
        # Without this word it takes the tool for dead, and clears up after it.
        _written(child.stdin.fileno(), b"\n")
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        # Closing standard input asks it to end; it ends its ranks first.
        child.wait(timeout=2.0)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _tail(path: Path) -> str:
    with contextlib.suppress(OSError), open(path, "rb") as stream:
        stream.seek(0, os.SEEK_END)
        stream.seek(max(0, stream.tell() - _LOG_TAIL))
        return stream.read().decode("utf-8", "replace")
    return ""
