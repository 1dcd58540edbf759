"""The MCP tool that verifies: started as a job at once, then asked for progress and the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from mcp.server.mcpserver import Context
from pydantic import Field

from skill_run import mcp_models as models
from skill_run.mcp_background import MAX_WAIT_SECONDS, BackgroundJob, BackgroundJobs, wait_for

if TYPE_CHECKING:
    from skill_run.roots import Roots
    from skill_run.verify.parity import ParityReport

MAX_NOTES: Final = 20


@dataclass(slots=True)
class _Job(BackgroundJob):
    """One verification; its worker processes end with the server."""

    checks: list[models.Check] = field(default_factory=list)
    parity: ParityReport | None = None

    @property
    def state(self) -> models.JobState:
        """Where the job is."""
        if self.running:
            return "running"
        passed = not self.error and all(check.passed for check in self.checks)
        return "passed" if passed and (self.parity is None or self.parity.passed) else "failed"

    def report(self) -> models.Verification:
        """Return the job as an answer of bounded size."""
        return models.Verification(
            job=self.id,
            state=self.state,
            doing=self.doing if self.running else "",
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
        self._jobs = BackgroundJobs("verification", "verify", _Job)

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
            found = self._jobs.find(job)
        else:
            asked: dict[str, Any] = {"cp": cp, "tp": tp, "sp": sp, "recipe": recipe or None}
            asked |= {"config": self.roots.find(config_path) if config_path else None}
            asked |= {"data": self._data(data_path) if data_path else None}
            options = {name: value for name, value in asked.items() if value is not None}
            found = self._jobs.start(_proof(options) if options else _checks(parity))
        await wait_for(found, wait_seconds, context)
        return found.report()

    def _data(self, path: str) -> Path:
        """Return the real path of packed data, none of whose files leads out of the roots."""
        from skill_run.mcp_inspection import check_files

        found = self.roots.find(path)
        if found.suffix != ".json":
            check_files(self.roots, str(found))
        return found


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
