"""Child processes of a worker: none outlives it, not even those that its own children started."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Final

_SET_PARENT_DEATH_SIGNAL: Final = 1
_SET_CHILD_SUBREAPER: Final = 36
_PAUSE: Final = 0.01


def adopt_orphans() -> None:
    """Become the parent of grandchildren whose parent ends, where the system can do that (Linux)."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Let the kernel end this process when its parent ends, where the system can do that (Linux)."""
    _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def children() -> list[int]:
    """Return the process ids of this process's children, adopted ones included."""
    found: list[int] = []
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in path.read_text().split()]
    return found


def end_children() -> None:
    """Kill every child and wait for it, and go on until those are gone that were adopted or started meanwhile."""
    while True:
        found = children()
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in found:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        try:
            # Never waiting for one that was not killed: it may be an hour's work.
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not found:
            # The list can miss a child at the moment when another one ends.
            time.sleep(_PAUSE)


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
