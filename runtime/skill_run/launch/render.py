"""The plan of a launch as text: everything that would happen, and why, on one page."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from skill_run.jobs.model import Plan
from skill_run.launch.sbatch import BATCH
from skill_run.launch.variables import reasons
from skill_run.report.safe import printable, show_value
from skill_run.report.wording import count

_MOST_SETTINGS: Final = 12


def render_plan(plan: Plan, *, verbose: bool = False) -> str:
    """Return the plan as text; verbose: with every setting, and the text of every file that the launch itself makes."""
    return "\n".join(printable(line) for line in _lines(plan, verbose))


def _lines(plan: Plan, verbose: bool) -> Iterator[str]:
    extra = plan.extra
    on = f"the worker {extra['worker']} on CPUs" if extra["worker"] else "GPUs"
    yield f"Plan of job {plan.id} ({plan.name}): {plan.engine}, {extra['launcher']}, on {on}"
    yield f"  Megatron-Bridge {plan.bridge}" + (f", recipe {plan.recipe}" if plan.recipe else "")
    found = ", ".join(f"{number} {severity}" for severity, number in extra["findings"].items() if number)
    yield f"  checked: {found or 'no findings'}"
    for each in plan.allowed:
        yield f"  accepted: {each.rule}, by {each.by} at {each.at}"
    yield "Ranks"
    yield from (f"  {line}" for line in extra["arithmetic"])
    yield "Cost"
    yield f"  {_cost(plan)}"
    yield "Commands" if plan.engine == "local" else f"Commands (inside {BATCH}, through srun)"
    yield from (f"  {number}. {shlex.join(step)}" for number, step in enumerate(extra["steps"], 1))
    if plan.engine == "slurm":
        yield f"  submitted by: {shlex.join(plan.command)}, in the job's folder"
        yield f"--- {BATCH}"
        yield from plan.files[BATCH].rstrip("\n").split("\n")
        yield "---"
    else:
        # A batch script has its variables in it.
        yield "Environment"
        yield from (f"  {name}={shlex.quote(value)}  # {reason}" for name, value, reason in reasons(plan.environment))
    yield "Checkpoints"
    yield f"  saved in {plan.outputs['checkpoints']}"
    yield f"  starts from: {plan.resumes_from or 'the beginning; no checkpoint of training is loaded'}"
    if extra["settings"]:
        yield from _settings(extra["settings"], verbose)
    yield "Files"
    yield f"  folder: {plan.folder}"
    yield f"  written before the start: {', '.join(sorted(plan.files))}"
    yield from (f"  {what}: {path}" for what, path in plan.outputs.items() if what != "checkpoints")
    for title, texts in (("Warnings", extra["warnings"]), ("Notes", extra["notes"])):
        if texts:
            yield title
            yield from (f"  {text}" for text in texts)


def _cost(plan: Plan) -> str:
    if plan.extra["device"] == "cpu":
        return "no GPU"
    if plan.gpu_hours is None:
        bound = "; --time bounds it" if plan.engine == "slurm" else ""
        return f"not known: {count(plan.world_size, 'GPU')}, for as long as the run takes{bound}"
    limit = plan.extra["time"]
    return f"at most {plan.gpu_hours:g} GPU-hours: {count(plan.world_size, 'GPU')} for {limit}"


def _settings(settings: Sequence[Mapping[str, Any]], verbose: bool) -> Iterator[str]:
    yield f"Set by the plan, after the config and its overrides ({count(len(settings), 'field')})"
    shown = settings if verbose else settings[:_MOST_SETTINGS]
    for each in shown:
        yield f"  {each['field']}: {show_value(each['old'])} -> {show_value(each['value'])}  ({each['why']})"
    if len(shown) < len(settings):
        yield f"  and {len(settings) - len(shown)} more; --verbose lists them"
