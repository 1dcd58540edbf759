"""A worker whose task does what a test asks for. Started as `python odd_tasks.py ... TASK`, like any worker."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from skill_run.worker.inside import serve
from skill_run.worker.inside.errors import RankFailure, RefusedError
from skill_run.worker.inside.ranks import Tell, run_ranks

# Holds what it inherits open until somebody kills it, in a session of its own.
STAYS = [sys.executable, "-c", "import signal; signal.pause()"]


def run(request: Mapping[str, Any], channel: serve.Channel) -> dict[str, Any]:
    """Do what request["do"] names."""
    if "alive" in request:
        # Whoever reads this pipe sees its end when the last process that inherited it is gone.
        os.set_inheritable(os.open(request["alive"], os.O_WRONLY), True)
    return DO[request["do"]](request, channel)


def answer(request: Mapping[str, Any], channel: serve.Channel) -> dict[str, Any]:
    channel.progress("half", 1, 2)
    print("printed, not told")
    scratch = os.environ["SKILL_RUN_SCRATCH"]
    return {
        "request": dict(request),
        "scratch": os.path.isdir(scratch),
        "variable": os.environ.get("ODD"),
        "python": [key for key in os.environ if key == "PYTHONPATH"],
        "number": float("nan"),
        "folder": scratch,
        "temporary": os.environ.get("TMPDIR"),
        "hub": os.environ["HF_HUB_CACHE"].removesuffix("/hub/hub"),
        "release": os.environ.get("SKILL_RUN_RELEASE"),
    }


def refuse(request: Mapping[str, Any], channel: serve.Channel) -> dict[str, Any]:
    raise RefusedError(f"this is {request['kind']}", request["kind"])


def fail(request: Mapping[str, Any], channel: serve.Channel) -> dict[str, Any]:
    raise ZeroDivisionError("by zero")


def lack(request: Mapping[str, Any], channel: serve.Channel) -> dict[str, Any]:
    import no_such_module  # type: ignore[import-not-found]

    return dict(no_such_module.result)


def wait(request: Mapping[str, Any], channel: serve.Channel) -> dict[str, Any]:
    signal.pause()
    return {}


def again(request: Mapping[str, Any], channel: serve.Channel) -> dict[str, Any]:
    """Start ranks without end, whatever becomes of them, and write into the scratch folder."""
    while True:
        write_some(-1, print)
        with contextlib.suppress(RankFailure):
            run_ranks(2, write_some)


def write_some(rank: int, tell: Tell) -> Any:
    with contextlib.suppress(OSError), open(os.path.join(os.environ["SKILL_RUN_SCRATCH"], f"rank-{rank}"), "w") as file:
        file.write("some")


def die(request: Mapping[str, Any], channel: serve.Channel) -> dict[str, Any]:
    print("about to die", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def leave(request: Mapping[str, Any], channel: serve.Channel) -> dict[str, Any]:
    subprocess.Popen(STAYS, close_fds=False, start_new_session=True)
    return {"left": True}


def ranks(request: Mapping[str, Any], channel: serve.Channel) -> dict[str, Any]:
    told: list[list[Any]] = []
    results = run_ranks(
        request["size"],
        lambda rank, tell: RANKS[request["rank_1"]](rank, tell) if rank == 1 else alive(rank, tell, request),
        silence=request.get("silence", 60.0),
        on_tell=lambda rank, value: told.append([rank, value]),
    )
    return {"results": results, "told": sorted(told), "children": leftover()}


def leftover() -> int:
    from skill_run.worker.inside.processes import children

    return len(children())


def alive(rank: int, tell: Tell, request: Mapping[str, Any]) -> Any:
    """Be the rank that nothing is wrong with: it waits for the others when one of them is to fail."""
    tell("started")
    if request["rank_1"] not in ("alive", "leave"):
        signal.pause()
    return [rank, os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["MASTER_ADDR"]]


def raise_error(rank: int, tell: Tell) -> Any:
    raise ValueError("no good")


def refuse_rank(rank: int, tell: Tell) -> Any:
    raise RefusedError("the data is too short")


def kill_rank(rank: int, tell: Tell) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def exit_rank(rank: int, tell: Tell) -> Any:
    os._exit(3)


def hang_rank(rank: int, tell: Tell) -> Any:
    signal.pause()


def leave_child(rank: int, tell: Tell) -> Any:
    # As Megatron's checkpoint writers: a child of the rank's child, which outlives both.
    script = f"import subprocess; subprocess.Popen({STAYS!r}, close_fds=False, start_new_session=True)"
    subprocess.run([sys.executable, "-c", script], close_fds=False, check=True)
    return rank


DO = {
    "again": again, "answer": answer, "refuse": refuse, "fail": fail, "lack": lack, "wait": wait, "die": die,
    "leave": leave, "ranks": ranks,
}  # fmt: skip
RANKS = {
    "alive": lambda rank, tell: alive(rank, tell, {"rank_1": "alive"}),
    "raise": raise_error,
    "refuse": refuse_rank,
    "kill": kill_rank,
    "exit": exit_rank,
    "hang": hang_rank,
    "leave": leave_child,
}

if __name__ == "__main__":
    sys.modules["odd_tasks"] = sys.modules["__main__"]
    serve.TASKS["odd"] = "odd_tasks"  # type: ignore[index]
    print("a line that is no event", flush=True)
    sys.exit(serve.serve(sys.argv[-1]))
