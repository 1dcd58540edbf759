"""Child processes that share the chunks of a data set; the parts come back in the order of the chunks."""

from __future__ import annotations

import contextlib
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from typing import Any, Final

from skill_run.errors import InputError, SkillRunError
from skill_run.pack.samples.flat import Part
from skill_run.pack.samples.frames import read_frame, write_frame
from skill_run.pack.samples.inputs import Item
from skill_run.pack.samples.work import Job

# Chunks that a child has ahead of the one that is waited for: what bounds memory.
_AHEAD: Final = 2


class DeadChildError(SkillRunError):
    """A tokenising process ended before its work was done."""

    exit_code = 1


def run_children(job: Job, items: Iterable[Item], workers: int) -> Generator[tuple[Item, Part]]:
    """Yield each chunk with its part, in order; at most `_AHEAD` chunks of each child are under way.

    Chunk number i always goes to child i % workers. Raises what a child raises, DeadChildError when one dies. Every
    child is ended when the iterator is, however that comes about.
    """
    children: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(workers):
            children.append(_start())
            _send(children[-1], job)
        for child in children:
            _receive(child)
        yield from _share(children, iter(items))
    finally:
        for child in children:
            _end(child)


def _share(children: list[subprocess.Popen[bytes]], items: Iterator[Item]) -> Iterator[tuple[Item, Part]]:
    waiting: deque[tuple[Item, subprocess.Popen[bytes]]] = deque()
    for number, item in enumerate(items):
        child = children[number % len(children)]
        _send(child, item)
        waiting.append((item, child))
        if len(waiting) >= _AHEAD * len(children):
            due, giver = waiting.popleft()
            yield due, _receive(giver)
    for due, giver in waiting:
        yield due, _receive(giver)


def _start() -> subprocess.Popen[bytes]:
    # -P: modules are never taken from the folder that the user stands in.
    command = [sys.executable, "-P", "-m", "skill_run.pack.samples.child"]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )


def _send(child: subprocess.Popen[bytes], value: Any) -> None:
    assert child.stdin is not None
    # What it said before it ended is still in its pipe, and is told when its answer is due.
    with contextlib.suppress(BrokenPipeError):
        write_frame(child.stdin, value)


def _receive(child: subprocess.Popen[bytes]) -> Any:
    assert child.stdout is not None
    frame = read_frame(child.stdout)
    if not frame:
        raise DeadChildError(f"a tokenising process ended in the midst of its work ({_ending(child)})")
    outcome, value = pickle.loads(frame)
    if outcome == "done":
        return value
    if isinstance(value, MemoryError):
        raise InputError("a tokenising process ran out of memory; use fewer workers") from value
    raise value


def _ending(child: subprocess.Popen[bytes]) -> str:
    code = child.wait()
    if code == -signal.SIGKILL:
        return "killed, most often for want of memory; use fewer workers"
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()
    child.wait()
