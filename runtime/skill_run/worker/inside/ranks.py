"""Run a function on N ranks, as forks of this process: heavy modules are imported once, and every child is reaped."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from skill_run.worker.inside.errors import RankFailure, RefusedError
from skill_run.worker.inside.processes import die_with_parent, end_children

# Longest time in which no rank says or finishes anything, in seconds.
SILENCE_SECONDS: Final = 180.0
# What the others get when one rank has failed, in seconds: their own errors are often the consequence.
_GRACE_SECONDS: Final = 1.0

Tell = Callable[[Any], None]


def run_ranks(
    size: int,
    function: Callable[[int, Tell], Any],
    *,
    silence: float = SILENCE_SECONDS,
    on_tell: Callable[[int, Any], None] | None = None,
) -> list[Any]:
    """Call function(rank, tell) in `size` forked processes and return what each returned, by rank.

    Results and what is told must be JSON-ready. `tell` also shows that the rank is alive. The variables that torchrun
    sets are set. Raises RankFailure for the first rank that raises, dies or hangs for `silence` seconds; all processes
    that the ranks started are ended before this returns or raises.
    """
    port = _free_port()
    readers: dict[int, int] = {}
    pids: dict[int, int] = {}
    try:
        for rank in range(size):
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(reader)
                _child(rank, size, port, function, writer)
            os.close(writer)
            readers[rank], pids[rank] = reader, pid
        return _collect(readers, pids, silence, on_tell)
    finally:
        for reader in readers.values():
            os.close(reader)
        end_children()


def start_gloo(rank: int, size: int, name: str = "ranks", timeout: float = SILENCE_SECONDS) -> None:
    """Make the default process group of gloo over a file, so that no port can be taken by somebody else."""
    import torch.distributed as dist

    store = dist.FileStore(os.path.join(os.environ["SKILL_RUN_SCRATCH"], f"{name}-{os.getppid()}-{_STARTS[0]}"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout))


# How many groups of ranks this process has started: their files must differ.
_STARTS = [0]


def _free_port() -> int:
    _STARTS[0] += 1
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _child(rank: int, size: int, port: int, function: Callable[[int, Tell], Any], writer: int) -> None:
    """Run the function in this forked process, which ends here."""
    code = 1

    def send(kind: str, value: Any) -> None:
        line = json.dumps({kind: value}).encode("ascii") + b"\n"
        while line:
            line = line[os.write(writer, line) :]

    try:
        die_with_parent()
        # The tool's interrupt reaches the whole session; the parent decides what becomes of its ranks.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(size),
            LOCAL_WORLD_SIZE=str(size),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )
        send("result", function(rank, lambda value: send("tell", value)))
        code = 0
    except BaseException as error:
        trace = traceback.extract_tb(error.__traceback__)
        place = f"{os.path.basename(trace[-1].filename)}:{trace[-1].lineno}" if trace else "start"
        with contextlib.suppress(Exception):
            told = {"type": type(error).__name__, "message": str(error)[:2000], "place": place}
            send(
                "error",
                {
                    **told,
                    "kind": error.kind if isinstance(error, RefusedError) else "",
                    "detail": traceback.format_exc()[-6000:],
                },
            )
    finally:
        # No clean-up of the parent's objects in a fork of it.
        os._exit(code)


def _collect(
    readers: dict[int, int], pids: dict[int, int], silence: float, on_tell: Callable[[int, Any], None] | None
) -> list[Any]:
    results: dict[int, Any] = {}
    pending = dict.fromkeys(readers, b"")
    failure: RankFailure | None = None
    # Ranks that told an error of their own before they ended.
    spoken: set[int] = set()
    end = time.monotonic() + silence
    with selectors.DefaultSelector() as selector:
        for rank, reader in readers.items():
            selector.register(reader, selectors.EVENT_READ, rank)
        while selector.get_map():
            ready = selector.select(max(0.0, end - time.monotonic()))
            if not ready:
                if failure is not None:
                    raise failure
                waiting = ", ".join(str(rank) for rank in sorted(set(readers) - set(results)))
                raise RankFailure(
                    f"rank {waiting} did nothing for {silence:.0f} seconds: the ranks hang and were ended"
                )
            for key, _ in ready:
                rank = key.data
                data = os.read(readers[rank], 2**16)
                if not data:
                    selector.unregister(readers[rank])
                    if rank not in results and rank not in spoken:
                        # A rank that dies comes first, as errors of the others are the consequence.
                        end = time.monotonic() + _GRACE_SECONDS if failure is None else end
                        died = RankFailure(f"rank {rank} {_ending(pids[rank])}", rank)
                        failure = died if failure is None or failure.rank in spoken else failure
                    continue
                *lines, pending[rank] = (pending[rank] + data).split(b"\n")
                for line in lines:
                    told = json.loads(line)
                    if "result" in told:
                        results[rank] = told["result"]
                    elif "error" in told:
                        spoken.add(rank)
                        failure = failure or _failed(rank, told["error"])
                        end = min(end, time.monotonic() + _GRACE_SECONDS)
                    elif on_tell is not None:
                        on_tell(rank, told["tell"])
                if failure is None:
                    end = time.monotonic() + silence
    if failure is not None:
        raise failure
    return [results[rank] for rank in sorted(results)]


def _failed(rank: int, error: dict[str, str]) -> RankFailure:
    if error["kind"]:
        return RankFailure(error["message"], rank, error["detail"], error["kind"])
    sentence = f"rank {rank} failed at {error['place']}: {error['type']}: {error['message'][:600]}"
    return RankFailure(sentence, rank, error["detail"])


def _ending(pid: int) -> str:
    """Return how a child ended, in words."""
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        return "ended without a result"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"was killed by {signal.Signals(number).name}"
    return f"ended with exit code {os.waitstatus_to_exitcode(status)} without a result"
