"""The MCP tool that verifies: started as a job at once, then asked for progress and the report."""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import anyio
from mcp.server.mcpserver import Context
from pydantic import Field

from skill_run import mcp_models as models
from skill_run.errors import InputError, SkillRunError

if TYPE_CHECKING:
    from skill_run.roots import Roots
    from skill_run.verify.parity import ParityReport

KEPT_JOBS: Final = 8
MAX_WAIT_SECONDS: Final = 60
MAX_NOTES: Final = 20
# How often a waiting call looks for news, in seconds.
_LOOK: Final = 0.2


@dataclass(slots=True)
class _Job:
    """One verification in a thread of its own; its worker processes end with the server."""

    id: str
    checks: list[models.Check] = field(default_factory=list)
    parity: ParityReport | None = None
    done: int = 0
    total: int = 0
    doing: str = "starting"
    error: str = ""
    ended: threading.Event = field(default_factory=threading.Event)

    def take(self, event: Mapping[str, Any]) -> None:
        """Note a worker's progress."""
        if event.get("event") == "progress":
            self.doing = str(event.get("text", ""))[:200]
            self.done, self.total = int(event.get("done", 0)), int(event.get("total", 0))

    @property
    def state(self) -> models.JobState:
        """Where the job is."""
        if not self.ended.is_set():
            return "running"
        passed = not self.error and all(check.passed for check in self.checks)
        return "passed" if passed and (self.parity is None or self.parity.passed) else "failed"

    def report(self) -> models.Verification:
        """Return the job as an answer of bounded size."""
        running = not self.ended.is_set()
        return models.Verification(
            job=self.id,
            state=self.state,
            doing=self.doing if running else "",
            done=self.done,
            total=self.total,
            checks=list(self.checks),
            parity=None if self.parity is None else _parity(self.parity),
            message=self.error,
        )


class Verification:
    """The tool of one server. roots: what it may read."""

    def __init__(self, roots: Roots) -> None:
        self.roots = roots
        self._lock = threading.Lock()
        self._jobs: OrderedDict[str, _Job] = OrderedDict()

    async def verify_skill(
        self,
        context: Context[Any, Any],
        parity: Annotated[
            bool,
            Field(description="Also compare packed with unpacked training on the real Megatron-Core; needs a worker."),
        ] = True,
        config_path: Annotated[
            str,
            Field(description="Compare at this config's shape and layout, made small; only the comparison is run."),
        ] = "",
        recipe: Annotated[str, Field(description="Recipe function instead of, or below, the config.")] = "",
        data_path: Annotated[
            str, Field(description="Packed dataset to take sequence lengths and boundaries from.")
        ] = "",
        cp: Annotated[int | None, Field(ge=1, description="Context parallel size of the comparison.")] = None,
        tp: Annotated[int | None, Field(ge=1, description="Tensor parallel size of the comparison.")] = None,
        sp: Annotated[bool | None, Field(description="Sequence parallelism in the comparison.")] = None,
        job: Annotated[str, Field(description="Ask for this verification, which was started before.")] = "",
        wait_seconds: Annotated[
            int, Field(ge=0, le=MAX_WAIT_SECONDS, description="Longest time to wait for the end of it.")
        ] = 5,
    ) -> models.Verification:
        """Prove that this installation judges right, and that packed training with context parallelism is right.

        Call it before GPU hours are spent. It starts a job and returns its id; call again with `job` until `state` is
        no longer "running" (about a minute). With config_path, recipe, data_path, cp, tp or sp only the comparison of
        packed with unpacked training runs, at that shape. `passed` means that losses, gradients and optimizer steps
        agree and that faults put in on purpose were caught. Nothing of the user's is changed.
        """
        if job:
            found = self._find(job)
        else:
            asked: dict[str, Any] = {"cp": cp, "tp": tp, "sp": sp, "recipe": recipe or None}
            asked |= {"config": self.roots.find(config_path) if config_path else None}
            asked |= {"data": self._data(data_path) if data_path else None}
            options = {name: value for name, value in asked.items() if value is not None}
            found = self._start(_proof(options) if options else _checks(parity))
        await _wait(found, wait_seconds, context)
        return found.report()

    def _data(self, path: str) -> Path:
        """Return the real path of packed data, none of whose files leads out of the roots."""
        from skill_run.mcp_inspection import check_files

        found = self.roots.find(path)
        if found.suffix != ".json":
            check_files(self.roots, str(found))
        return found

    def _find(self, name: str) -> _Job:
        with self._lock:
            found = self._jobs.get(name)
        if found is None:
            raise InputError("there is no such verification in this server; start one without `job`")
        return found

    def _start(self, work: Callable[[_Job], None]) -> _Job:
        with self._lock:
            running = next((job for job in self._jobs.values() if not job.ended.is_set()), None)
            if running is not None:
                raise InputError(f"verification {running.id} is still running; ask for it with job={running.id}")
            job = _Job(f"verify-{uuid.uuid4().hex[:8]}")
            self._jobs[job.id] = job
            while len(self._jobs) > KEPT_JOBS:
                self._jobs.popitem(last=False)
        threading.Thread(target=_run, args=(job, work), daemon=True).start()
        return job


def _run(job: _Job, work: Callable[[_Job], None]) -> None:
    try:
        work(job)
    except SkillRunError as error:
        job.error = str(error)
    except Exception as error:
        job.error = f"internal error ({type(error).__name__}: {str(error)[:200]})"
    finally:
        job.ended.set()


def _checks(parity: bool) -> Callable[[_Job], None]:
    def work(job: _Job) -> None:
        from skill_run.verify.run import run_checks

        for result in run_checks(parity=parity, on_event=job.take):
            job.checks.append(models.Check(**result.to_dict()))

    return work


def _proof(options: Mapping[str, Any]) -> Callable[[_Job], None]:
    def work(job: _Job) -> None:
        from skill_run.verify.parity import ParityOptions, prove_parity

        job.parity = prove_parity(ParityOptions(**options), on_event=job.take)

    return work


async def _wait(job: _Job, seconds: int, context: Context[Any, Any]) -> None:
    """Wait for the job's end for at most `seconds`, and pass its progress on to the client."""
    told = (-1, "")
    with anyio.move_on_after(seconds):
        while not job.ended.is_set():
            if (job.done, job.doing) != told:
                told = (job.done, job.doing)
                await context.report_progress(job.done, job.total or None, job.doing)
            await anyio.sleep(_LOOK)


def _parity(report: ParityReport) -> models.Parity:
    notes = [str(note)[:300] for note in report.result.get("notes", ())]
    return models.Parity(
        passed=report.passed,
        worker=report.worker,
        changes=[*report.changes, *report.shape.changes][:MAX_NOTES],
        assumed=report.shape.assumed[:MAX_NOTES],
        layouts=[_layout(layout) for layout in report.layouts],
        controls=[_control(control) for control in report.controls],
        notes=notes[:MAX_NOTES],
    )


def _layout(layout: Mapping[str, Any]) -> models.ParityLayout:
    worst = layout.get("worst") or {}
    leak = layout.get("leak")
    diagnosis = layout.get("diagnosis") or {}
    return models.ParityLayout(
        layout=dict(layout["layout"]),
        passed=bool(layout["passed"]),
        loss_error=layout.get("loss_error"),
        gradient_error=layout.get("gradient_error"),
        worst_tensor=str(worst.get("tensor", ""))[:200],
        tolerance=layout.get("tolerance"),
        leaks=None if leak is None else not leak.get("passed"),
        diagnosis=str(diagnosis.get("sentence", ""))[:500],
    )


def _control(control: Mapping[str, Any]) -> models.ParityControl:
    diagnosis = control.get("diagnosis") or {}
    return models.ParityControl(
        name=str(control["name"]),
        caught=bool(control["caught"]) and bool(control["right_diagnosis"]),
        gradient_error=control.get("gradient_error"),
        diagnosis=str(diagnosis.get("sentence", ""))[:500],
    )
