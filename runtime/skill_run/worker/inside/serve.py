"""Read a request, run the task, send its events and its one result or error."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping
from typing import Any, Final

from skill_run.worker.inside.errors import RankFailure, RefusedError
from skill_run.worker.inside.processes import adopt_orphans, end_children

# Task name -> module that has `run(request, channel) -> dict`.
TASKS: Final = {
    "probe": "skill_run.worker.inside.probe",
    "parity": "skill_run.worker.inside.parity",
    "throughput": "skill_run.worker.inside.throughput",
    "rehearse": "skill_run.worker.inside.rehearse",
    "oracle": "skill_run.worker.inside.oracle",
    "bridge-parity": "skill_run.worker.inside.bridge_parity",
    "launch_preview": "skill_run.worker.inside.launch_preview",
}
EXIT_FAILED: Final = 1
_SWEEPS: Final = 50


class Channel:
    """The line-by-line way back to the tool; everything else that is printed goes to the log."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    @classmethod
    def take_standard_output(cls) -> Channel:
        """Keep standard output for events, and let file descriptor 1 lead to the log."""
        kept = os.dup(1)
        os.set_inheritable(kept, False)
        os.dup2(2, 1)
        return cls(kept)

    def send(self, event: str, **values: Any) -> None:
        """Send one event; values must be JSON-ready. Non-finite numbers arrive as null."""
        line = json.dumps({"event": event, **_finite(values)}, allow_nan=False).encode("ascii") + b"\n"
        with self._lock:
            while line:
                line = line[os.write(self._descriptor, line) :]

    def progress(self, text: str, done: int, total: int) -> None:
        """Tell what is being done: `done` of `total` steps are finished."""
        self.send("progress", text=text, done=done, total=total)


def serve(task: str) -> int:
    """Run one task for the process at the other end of standard input; return the exit code."""
    channel = Channel.take_standard_output()
    adopt_orphans()
    told = json.loads(_first_line(0))
    request = told["request"]
    os.environ.update(told["environment"])
    watcher = threading.Thread(target=_end_with_standard_input, daemon=True)
    watcher.start()
    try:
        return _answer(task, request, channel)
    except BrokenPipeError:
        # The tool is gone: the thread ends this process when it has cleared up.
        watcher.join()
        return EXIT_FAILED
    finally:
        end_children()


def _answer(task: str, request: Mapping[str, Any], channel: Channel) -> int:
    """Run the task and send its result or error; return the exit code."""
    try:
        _have_scratch()
        module = importlib.import_module(TASKS[task])
        result: Mapping[str, Any] = module.run(request, channel)
        channel.send("result", result=dict(result))
        return 0
    except RefusedError as error:
        channel.send("error", kind=error.kind, message=str(error))
    except RankFailure as error:
        channel.send("error", kind=error.kind, message=str(error), detail=error.detail)
    except ModuleNotFoundError as error:
        channel.send("error", kind="missing", message=f"the worker's environment has no module {error.name}")
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(last.filename)}:{last.lineno}"
        sentence = f"the worker failed at {place}: {type(error).__name__}: {str(error)[:500]}"
        channel.send("error", kind="failed", message=sentence, detail=traceback.format_exc()[-4000:])
    return EXIT_FAILED


def _have_scratch() -> None:
    """Make a folder for scratch where the tool's cannot be seen, as in a container; it goes with the container."""
    if not os.path.isdir(os.environ["SKILL_RUN_SCRATCH"]):
        os.environ["SKILL_RUN_SCRATCH"] = tempfile.mkdtemp(prefix="skill-run-")


def _first_line(descriptor: int) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        part = os.read(descriptor, 2**16)
        if not part:
            break
        data += part
    return data


def _end_with_standard_input() -> None:
    """End this process and its ranks when the tool is gone or wants no more.

    A tool that is there sends a line before it closes the pipe, and removes the scratch folder itself.
    """
    there = False
    while os.read(0, 2**10):
        there = True
    end_children()
    if not there:
        _clear_up(os.environ["SKILL_RUN_SCRATCH"])
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(EXIT_FAILED)


def _clear_up(scratch: str) -> None:
    """Remove the folder while the task, which runs on in the main thread, may start ranks and write into it."""
    for _ in range(_SWEEPS):
        shutil.rmtree(scratch, ignore_errors=True)
        end_children()
        if not os.path.isdir(scratch):
            return


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def say(text: str) -> None:
    """Write a line into the worker's log."""
    print(text, file=sys.stderr, flush=True)
