"""Work that a tool starts in a thread of its own and is asked for again: one at a time, ending with the server."""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import anyio
from mcp.server.mcpserver import Context

from skill_run.errors import InputError, SkillRunError

KEPT_JOBS: Final = 8
MAX_WAIT_SECONDS: Final = 60
# How often a waiting call looks for news, in seconds.
_LOOK: Final = 0.2


@dataclass(slots=True)
class BackgroundJob:
    """One piece of work: how far it is, and why it failed."""

    id: str
    done: int = 0
    total: int = 0
    doing: str = "starting"
    error: str = ""
    ended: threading.Event = field(default_factory=threading.Event)

    def take(self, event: Mapping[str, Any]) -> None:
        """Note the progress that an event tells."""
        if event.get("event") == "progress":
            self.doing = str(event.get("text", ""))[:200]
            self.done, self.total = int(event.get("done", 0)), int(event.get("total", 0))

    @property
    def running(self) -> bool:
        """Whether the work goes on."""
        return not self.ended.is_set()


Job = TypeVar("Job", bound=BackgroundJob)


class BackgroundJobs(Generic[Job]):
    """The jobs of one tool, of which one runs at a time and the last few are kept. what: as messages call one."""

    def __init__(self, what: str, prefix: str, make: Callable[[str], Job]) -> None:
        self._what = what
        self._prefix = prefix
        self._make = make
        self._lock = threading.Lock()
        self._jobs: OrderedDict[str, Job] = OrderedDict()

    def find(self, name: str) -> Job:
        """Return a job by its id; InputError when this server has none of that name."""
        with self._lock:
            found = self._jobs.get(name)
        if found is None:
            raise InputError(f"there is no such {self._what} in this server; start one without `job`")
        return found

    def start(self, work: Callable[[Job], None]) -> Job:
        """Start work in a thread and return its job; InputError while another one runs."""
        with self._lock:
            running = next((job for job in self._jobs.values() if job.running), None)
            if running is not None:
                raise InputError(f"{self._what} {running.id} is still running; ask for it with job={running.id}")
            job = self._make(f"{self._prefix}-{uuid.uuid4().hex[:8]}")
            self._jobs[job.id] = job
            while len(self._jobs) > KEPT_JOBS:
                self._jobs.popitem(last=False)
        threading.Thread(target=_run, args=(job, work), daemon=True).start()
        return job


def _run(job: Job, work: Callable[[Job], None]) -> None:
    try:
        work(job)
    except SkillRunError as error:
        job.error = str(error)
    except Exception as error:
        job.error = f"internal error ({type(error).__name__}: {str(error)[:200]})"
    finally:
        job.ended.set()


async def wait_for(job: BackgroundJob, seconds: int, context: Context[Any, Any]) -> None:
    """Wait for a job's end for at most `seconds`, and pass its progress on to the client."""
    told = (-1, "")
    with anyio.move_on_after(seconds):
        while job.running:
            if (job.done, job.doing) != told:
                told = (job.done, job.doing)
                await context.report_progress(job.done, job.total or None, job.doing)
            await anyio.sleep(_LOOK)
