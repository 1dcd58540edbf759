"""The MCP tools for jobs: preview a launch, start it with the token of that preview, follow, list and stop jobs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import anyio
import anyio.from_thread
import anyio.to_thread
from mcp.server.mcpserver import Context
from pydantic import Field

from skill_run import mcp_job_models as models
from skill_run.errors import InputError
from skill_run.report.safe import clip, flow, printable, show_value, strict

if TYPE_CHECKING:
    from skill_run.jobs.model import Job, Plan
    from skill_run.jobs.service import Jobs
    from skill_run.launch.options import LaunchOptions
    from skill_run.launch.plan import Inputs
    from skill_run.roots import Roots

MAX_LISTED: Final = 50
MAX_LOG_LINES: Final = 100
MAX_WAIT_SECONDS: Final = 60
MAX_SETTINGS: Final = 20
MAX_TEXTS: Final = 20
TEXT_LIMIT: Final = 600
SCRIPT_LIMIT: Final = 8000
_LOG_BYTES: Final = 64 * 1024
_LOOK: Final = 0.5
# Variables that make a program run code of somebody's choice.
_LOADERS: Final = re.compile(r"(LD|DYLD|PYTHON|BASH|GIT|SLURM|SBATCH|SKILL_RUN)_?\w*|PATH|ENV|IFS|SHELL|PROMPT_COMMAND")


class JobTools:
    """The tools of one server. roots: what it may read, and where jobs may be told to put their folders."""

    def __init__(self, roots: Roots) -> None:
        self.roots = roots

    async def launch_training(
        self,
        context: Context[Any, Any],
        confirm_token: Annotated[
            str, Field(description="Token of a preview: starts that very plan. Give nothing else with it.")
        ] = "",
        config_path: Annotated[str, Field(description="Config file in a folder the server may read.")] = "",
        config_text: Annotated[str, Field(description="The config itself: YAML, JSON or Python.")] = "",
        recipe: Annotated[str, Field(description="Recipe function that the rest is laid over.")] = "",
        overrides: Annotated[
            list[str] | None, Field(description="Hydra-style `section.field=value`, laid over the config.")
        ] = None,
        bridge: Annotated[str, Field(description="Megatron-Bridge version of the training environment.")] = "",
        engine: Annotated[Literal["local", "slurm"], Field(description="What runs the job.")] = "local",
        launcher: Annotated[
            Literal["torchrun", "srun", "fork"] | None, Field(description="What starts the ranks.")
        ] = None,
        cpu: Annotated[bool, Field(description="Run made small in the CPU worker; the default without GPUs.")] = False,
        nodes: Annotated[int, Field(ge=1, description="Number of nodes.")] = 1,
        gpus_per_node: Annotated[int | None, Field(ge=1, description="GPUs, and ranks, of a node.")] = None,
        gpu: Annotated[str, Field(description="Kind of GPU, such as h100.")] = "",
        name: Annotated[str, Field(description="Name of the job.")] = "",
        folder: Annotated[str, Field(description="Where the job's own folder is made; nodes must share it.")] = "",
        account: Annotated[str, Field(description="Slurm account.")] = "",
        partition: Annotated[str, Field(description="Slurm partition.")] = "",
        gres: Annotated[str, Field(description="Slurm resources instead of gpus_per_node.")] = "",
        time: Annotated[str, Field(description="Slurm time limit, such as 04:00:00.")] = "",
        requeue: Annotated[bool, Field(description="Start again from the last checkpoint.")] = False,
        container_image: Annotated[str, Field(description="Container of the ranks (pyxis).")] = "",
        container_mounts: Annotated[list[str] | None, Field(description="Mounts, as HOST:CONTAINER.")] = None,
        packed_data: Annotated[str, Field(description="Shared folder for packed data.")] = "",
        resume: Annotated[str, Field(description="Checkpoint folder to go on from.")] = "",
        from_scratch: Annotated[bool, Field(description="Random weights are meant.")] = False,
        env: Annotated[dict[str, str | int] | None, Field(description="Environment variables.")] = None,
        allow: Annotated[
            list[str] | None, Field(description="Rules whose findings the user accepts; ask the user. Recorded.")
        ] = None,
        fix: Annotated[bool, Field(description="Set what findings' fixes say, where training stays the same.")] = False,
        data_path: Annotated[str, Field(description="On CPUs: folder with training.jsonl.")] = "",
        iters: Annotated[int, Field(ge=1, le=1000, description="On CPUs: training steps.")] = 20,
    ) -> models.LaunchAnswer:
        """Preview the launch of a training run; start it with the token that the preview returns.

        The first call validates the config (errors and corruption refuse it) and returns the plan: commands or batch
        script, environment with reasons, ranks, outputs, what is resumed, cost. Nothing starts. Show the plan to the
        user; when they agree, call again with confirm_token only. A token starts exactly the plan that was previewed,
        once, within 15 minutes; any change needs a new preview. Follow the job with get_job.
        """
        given = {key: value for key, value in locals().items() if key not in ("self", "context", "confirm_token")}
        if confirm_token:
            _refuse_company(given)
            return await anyio.to_thread.run_sync(_confirm, confirm_token)
        if not (config_path or config_text or recipe):
            raise InputError("nothing to launch: give config_path, config_text or recipe")
        told = _progress(context)
        return await anyio.to_thread.run_sync(lambda: self._preview(given, told))

    def _preview(self, given: Mapping[str, Any], told: Callable[[Mapping[str, Any]], None]) -> models.LaunchAnswer:
        from skill_run.launch.plan import make_preview
        from skill_run.launch.token import VALID_SECONDS, make_token

        preview = make_preview(self._inputs(given), self._options(given), on_event=told)
        jobs = _jobs()
        job = jobs.create(preview.plan)
        token = make_token(jobs.state_folder, job.id, job.plan_digest)
        return _answer(job, preview.plan, token, VALID_SECONDS)

    def _inputs(self, given: Mapping[str, Any]) -> Inputs:
        from skill_run.config.read import form_of_text
        from skill_run.launch.plan import Inputs
        from skill_run.rules.validate import read_sources

        if given["config_path"] and given["config_text"]:
            raise InputError("give config_path or config_text, not both")
        path = self.roots.find(given["config_path"]) if given["config_path"] else None
        text = given["config_text"] or None
        sources = read_sources(
            path or text,
            bridge=given["bridge"] or None,
            recipe=given["recipe"] or None,
            overrides=given["overrides"] or (),
            form=form_of_text(text) if text is not None else None,
        )
        # House rules are looked for in the roots only.
        rules = self.roots.house_folder(path)
        return Inputs(sources, bridge=given["bridge"] or None, recipe=given["recipe"] or None, rules=rules)

    def _options(self, given: Mapping[str, Any]) -> LaunchOptions:
        from skill_run.launch.options import LaunchOptions

        wrong = next((name for name in given["env"] or {} if _LOADERS.fullmatch(name)), None)
        if wrong is not None:
            raise InputError(f"{wrong[:80]} decides which code runs, so it is not set from here")
        texts = ("gpu", "name", "account", "partition", "gres", "time", "container_image")
        places = {"folder": "folder", "packed_data": "packed_data", "resume": "resume", "data_path": "data"}
        found: dict[str, Any] = {
            option: str(self.roots.find(given[name])) for name, option in places.items() if given[name]
        }
        same = ("engine", "launcher", "nodes", "requeue", "from_scratch", "fix", "iters")
        found |= {name: given[name] for name in same}
        found |= {name: given[name] or None for name in texts}
        return LaunchOptions(
            **found,
            device="cpu" if given["cpu"] else None,
            ranks_per_node=given["gpus_per_node"],
            container_mounts=tuple(given["container_mounts"] or ()),
            env={key: str(value) for key, value in (given["env"] or {}).items()},
            allow=tuple(given["allow"] or ()),
        )

    async def get_job(
        self,
        context: Context[Any, Any],
        job: Annotated[str, Field(description="Id or name of the job.")],
        wait_seconds: Annotated[
            int, Field(ge=0, le=MAX_WAIT_SECONDS, description="Longest time to wait for its end.")
        ] = 0,
        log_lines: Annotated[int, Field(ge=0, le=MAX_LOG_LINES, description="Last lines of the log to return.")] = 0,
    ) -> models.JobReport:
        """Tell how a job stands now: state by its engine, newest figures, likely cause when it failed.

        With wait_seconds it waits for the end and reports each step as progress; call again while it runs.
        """
        jobs = _jobs()
        found = await anyio.to_thread.run_sync(jobs.get, job)
        step = -1
        with anyio.move_on_after(wait_seconds):
            while found.state in ("queued", "running"):
                figures = found.metrics or {}
                if figures.get("step", 0) != step:
                    step = figures.get("step", 0)
                    await context.report_progress(step, _train_iters(found), f"{found.state}, {_told(figures)}")
                await anyio.sleep(_LOOK)
                found = await anyio.to_thread.run_sync(jobs.get, found.id)
        return await anyio.to_thread.run_sync(_report, found, log_lines)

    def list_jobs(
        self,
        states: Annotated[list[models.JobState] | None, Field(description="Only jobs in these states.")] = None,
        limit: Annotated[int, Field(ge=1, le=MAX_LISTED, description="Most jobs to list.")] = 20,
    ) -> models.JobList:
        """List jobs as they stand now, the newest first."""
        from skill_run.jobs.model import State

        wanted = None if states is None else {State(state) for state in states}
        return models.JobList(jobs=[_entry(job) for job in _jobs().list(states=wanted, limit=limit)])

    def stop_job(
        self,
        job: Annotated[str, Field(description="Id or name of the job.")],
        firm_after_seconds: Annotated[
            int, Field(ge=0, le=3600, description="Grace for saving a checkpoint; after it the job is killed.")
        ] = 60,
    ) -> models.JobReport:
        """Stop a job: it is asked to save a checkpoint and end, and is killed when the grace is over.

        Ask the user first. It returns at once; get_job tells when it has ended. Asking twice is asking once.
        """
        return _report(_jobs().stop(job, firm_after_seconds=float(firm_after_seconds)), 0)


def _jobs() -> Jobs:
    from skill_run.jobs.service import Jobs

    return Jobs()


def _refuse_company(given: Mapping[str, Any]) -> None:
    usual = {"engine": "local", "nodes": 1, "iters": 20}
    other = next((name for name, value in given.items() if value and value != usual.get(name)), None)
    if other is not None:
        raise InputError(f"a token starts the plan as it was previewed; to change {other}, preview again without it")


def _confirm(token: str) -> models.LaunchAnswer:
    from skill_run.launch.token import check_token, job_of

    jobs = _jobs()
    job = jobs.get(job_of(token))
    check_token(jobs.state_folder, token, job.plan_digest)
    plan = jobs.plan(job.id)
    return _answer(jobs.start(job.id), plan, "", 0)


def _progress(context: Context[Any, Any]) -> Callable[[Mapping[str, Any]], None]:
    """Return a function for a worker thread that passes a worker's progress on to the client."""

    def told(event: Mapping[str, Any]) -> None:
        if event.get("event") == "progress":
            text = str(event.get("text", ""))[:200]
            anyio.from_thread.run(context.report_progress, event.get("done", 0), event.get("total"), text)

    return told


def _answer(job: Job, plan: Plan, token: str, seconds: int) -> models.LaunchAnswer:
    from skill_run.launch.sbatch import BATCH
    from skill_run.launch.variables import reasons

    extra = plan.extra
    settings = [
        f"{each['field']}: {show_value(each['old'])} -> {show_value(each['value'])} ({each['why']})"
        for each in extra["settings"]
    ]
    return models.LaunchAnswer(
        job=job.id,
        state=job.state.value,
        confirm_token=token,
        valid_seconds=seconds,
        summary=_summary(plan),
        device=extra["device"],
        ranks=list(extra["arithmetic"]),
        commands=[printable(clip(shlex.join(step), 2000)) for step in extra["steps"]],
        batch_script=clip(plan.files.get(BATCH, ""), SCRIPT_LIMIT),
        environment=[
            models.EnvironmentVariable(name=name, value=printable(clip(value, TEXT_LIMIT)), reason=reason)
            for name, value, reason in reasons(plan.environment)
        ],
        outputs=dict(plan.outputs),
        resumes_from=plan.resumes_from or "",
        gpu_hours=plan.gpu_hours,
        accepted=[each.rule for each in plan.allowed],
        settings=[clip(text, TEXT_LIMIT) for text in settings[:MAX_SETTINGS]],
        settings_left_out=max(0, len(settings) - MAX_SETTINGS),
        warnings=_bounded(extra["warnings"]),
        notes=_bounded(extra["notes"]),
    )


def _summary(plan: Plan) -> str:
    where = "on CPUs, made small" if plan.extra["device"] == "cpu" else "on GPUs"
    cost = "" if plan.gpu_hours is None else f", at most {plan.gpu_hours:g} GPU-hours"
    start = f"resumes from {plan.resumes_from}" if plan.resumes_from else "starts from the beginning"
    what = plan.recipe or plan.name
    return flow(f"{what} with {plan.world_size} ranks {where} by {plan.engine}/{plan.extra['launcher']}{cost}; {start}")


def _bounded(texts: list[str]) -> list[str]:
    return [flow(clip(text, TEXT_LIMIT)) for text in texts[:MAX_TEXTS]]


def _entry(job: Job) -> models.JobEntry:
    figures = job.metrics or {}
    return models.JobEntry(
        job=job.id,
        name=printable(clip(job.name, 200)),
        state=job.state.value,
        engine=job.plan.engine,
        created=job.created,
        ended=job.ended or "",
        step=figures.get("step"),
        loss=strict(figures.get("loss")),
    )


def _report(job: Job, log_lines: int) -> models.JobReport:
    from skill_run.jobs.metrics import padding_share

    figures = dict(job.metrics or {})
    return models.JobReport(
        job=job.id,
        name=printable(clip(job.name, 200)),
        state=job.state.value,
        engine=job.plan.engine,
        folder=job.plan.folder,
        created=job.created,
        started=job.started or "",
        ended=job.ended or "",
        exit_code=job.exit_code,
        reason=flow(clip(job.reason, TEXT_LIMIT)),
        note=flow(clip(job.note, TEXT_LIMIT)),
        diagnosis=_diagnosis(job),
        metrics=strict(figures),
        padding_share=padding_share(figures),
        log=_last_lines(Path(job.plan.folder), log_lines),
        outputs=dict(job.plan.outputs),
    )


def _diagnosis(job: Job) -> str:
    if job.state.value != "failed":
        return ""
    from skill_run.jobs.diagnose import diagnose

    found = diagnose(job)
    parts = (found.summary, found.cause, f"Fix: {found.fix}" if found.fix else "")
    return flow(clip(" ".join(part for part in parts if part), 2 * TEXT_LIMIT))


def _last_lines(folder: Path, count: int) -> list[str]:
    from skill_run.jobs.folder import LOG

    if count == 0:
        return []
    try:
        with (folder / LOG).open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - _LOG_BYTES))
            lines = stream.read(_LOG_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [printable(clip(line, 300)) for line in lines[-count:]]


def _train_iters(job: Job) -> float | None:
    from skill_run.jobs.folder import read_record

    found = (read_record(Path(job.plan.folder) / "evidence.json") or {}).get("train_iters")
    return float(found) if isinstance(found, int) else None


def _told(figures: Mapping[str, Any]) -> str:
    if "step" not in figures:
        return "no step yet"
    loss = figures.get("loss")
    return f"step {figures['step']}" + (f", loss {loss:.4f}" if isinstance(loss, float) else "")
