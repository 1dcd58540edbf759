"""Generate a training setup from a card's workflow: pick the recipe, settle the settings, judge them, write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from skill_run.bridge.names import to_canonical
from skill_run.bridge.recipes import Recipe
from skill_run.bridge.version import Evidence, choose, made_for
from skill_run.config.model import Plain
from skill_run.errors import InputError
from skill_run.plan.gpus import gpu_rates
from skill_run.recipe.draft import Draft, Task
from skill_run.recipe.forms.written import written_settings
from skill_run.recipe.inputs import CHOOSE, checked_inputs, schema_of
from skill_run.recipe.pick import named_recipe, pick_recipe
from skill_run.recipe.request import Request, Settled, judged_with, sources_of
from skill_run.recipe.settings import kept, protected, settle
from skill_run.recipe.topology import SIZES
from skill_run.recipe.workflow import Workflow, find_workflow, workflows
from skill_run.report.finding import Finding, ValidationReport

Form = Literal["script", "python", "yaml", "overrides", "json"]
FORMS: Final = ("script", "python", "yaml", "overrides", "json")
_MOST_GPUS: Final = 2**20
MAX_ROUNDS: Final = 8


@dataclass(frozen=True, slots=True)
class GeneratedRecipe:
    """A setup in one form. settings: what it sets, in the release's names; reasons: (field, sentence).

    bad: the errors and corruptions that are left, which no fix of ours takes away; warnings: the rest worth reading.
    """

    text: str
    form: Form
    workflow: str
    recipe: str
    bridge: str
    gpus: int
    gpu: str
    settings: dict[str, Plain]
    reasons: tuple[tuple[str, str], ...]
    summary: dict[str, int]
    bad: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    next_commands: tuple[str, ...]
    draft: Draft
    report: ValidationReport

    @property
    def clean(self) -> bool:
        """Tell whether no error and no corruption is left."""
        return not self.bad

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-ready data."""
        return {
            "text": self.text,
            "form": self.form,
            "workflow": self.workflow,
            "recipe": self.recipe,
            "bridge": self.bridge,
            "gpus": self.gpus,
            "gpu": self.gpu,
            "settings": dict(self.settings),
            "reasons": [{"field": name, "because": text} for name, text in self.reasons],
            "summary": dict(self.summary),
            "findings": [finding.to_dict() for finding in (*self.bad, *self.warnings)],
            "next_commands": list(self.next_commands),
        }


def generate_recipe(
    workflow: str,
    *,
    model: str | None = None,
    recipe: str | None = None,
    gpus: int | None = None,
    gpu: str | None = None,
    bridge: str | None = None,
    inputs: Mapping[str, Any] | None = None,
    form: Form = "script",
    overrides: Sequence[str] = (),
) -> GeneratedRecipe:
    """Return a setup of a workflow that our own rules have judged.

    workflow: id of a card's workflow. model: Hugging Face id, or folder with config.json; recipe: name of the recipe
    function to start from (one of the two is needed). gpus: the world size, else the count in the recipe's name.
    inputs: by the names in `schema_of(workflow)`. overrides: `field=value` settings that win over everything.
    Raises InputError when the request cannot be met.
    """
    request = _request(workflow, model, recipe, gpus, gpu, bridge, inputs or {}, overrides)
    if form not in FORMS:
        raise InputError(f"the form must be one of {', '.join(FORMS)}, not {str(form)[:40]!r}")
    settled, report = judged(request, settle(request))
    draft = _draft(request, settled)
    bad = tuple(f for f in report.findings if f.severity in ("error", "corruption"))
    return GeneratedRecipe(
        text=render(draft, form),
        form=form,
        workflow=request.workflow.id,
        recipe=request.recipe.name,
        bridge=request.release,
        gpus=request.gpus,
        gpu=request.gpu,
        settings=written_settings(draft),
        reasons=_reasons(request, settled, picked=recipe is None),
        summary=report.summary,
        bad=bad,
        warnings=tuple(f for f in report.findings if f.severity == "warning"),
        next_commands=_next_commands(draft, form),
        draft=draft,
        report=report,
    )


def list_workflows() -> list[dict[str, str]]:
    """Return what workflows there are: id, title, skill, and the recorded releases each works on."""
    return [
        {"id": found.id, "title": found.title, "skill": found.skill, "releases": ", ".join(found.releases)}
        for found in workflows().values()
    ]


def describe_inputs(workflow: str) -> dict[str, Any]:
    """Return the JSON Schema of a workflow's inputs."""
    return schema_of(find_workflow(workflow))


def render(draft: Draft, form: Form) -> str:
    """Return a draft in one of the forms."""
    if form == "script":
        from skill_run.recipe.forms.script import render_script

        return render_script(draft)
    if form == "python":
        from skill_run.recipe.forms.python_form import render_python

        return render_python(draft)
    if form == "yaml":
        from skill_run.recipe.forms.yaml_form import render_yaml

        return render_yaml(draft)
    if form == "json":
        from skill_run.recipe.forms.json_form import render_json

        return render_json(draft)
    from skill_run.recipe.forms.overrides import render_overrides

    return render_overrides(draft)


def judged(request: Request, settled: Settled) -> tuple[Settled, ValidationReport]:
    """Judge the settings by our own rules, with their own fixes taken where an error or corruption is left.

    Fixes that change the training itself come last. What the workflow is about and what the user gave stays.
    """
    report = _report(request, settled)
    stays = protected(request)
    for semantic in (False, True):
        for _ in range(MAX_ROUNDS):
            if not _take_fixes(request, settled, report, stays, semantic=semantic):
                break
            settled = kept(request, settled)
            report = _report(request, settled)
    return settled, report


def _take_fixes(
    request: Request, settled: Settled, report: ValidationReport, stays: frozenset[str], *, semantic: bool
) -> bool:
    """Take the fixes of the worst findings; return whether any setting changed."""
    kind = str(settled.settings.get("dataset.type") or request.recipe.values.get("dataset.type") or "") or None
    changed = False
    for finding in report.at_least("corruption"):
        if finding.fix_is_semantic and not semantic:
            continue
        fix = {to_canonical(name, request.release, kind): value for name, value in finding.fix.items()}
        if stays.isdisjoint(fix) and any(settled.settings.get(name, ...) != value for name, value in fix.items()):
            for name, value in fix.items():
                settled.set(name, value, finding.title)
            changed = True
    return changed


def _report(request: Request, settled: Settled) -> ValidationReport:
    from skill_run.rules.validate import bundle_rules, judge_sources

    return judge_sources(
        sources_of(request.recipe, request.release, settled.settings), bundle_rules(), **judged_with(request)
    )


def _request(
    workflow: str,
    model: str | None,
    recipe: str | None,
    gpus: int | None,
    gpu: str | None,
    bridge: str | None,
    inputs: Mapping[str, Any],
    overrides: Sequence[str],
) -> Request:
    found = find_workflow(workflow)
    release = choose(made_for(bridge) if bridge else None, Evidence([], None, [], False)).release
    if release not in found.releases:
        raise InputError(
            f"{found.id} does not work on Megatron-Bridge {release}; it works on {', '.join(found.releases)}"
        )
    values = checked_inputs(found, inputs)
    if model is None and recipe is None:
        raise InputError("say what to start from: a model (id or folder) or a recipe")
    if gpus is not None and (isinstance(gpus, bool) or not isinstance(gpus, int) or not 1 <= gpus <= _MOST_GPUS):
        raise InputError(f"the number of GPUs must be a whole number from 1 on, not {str(gpus)[:40]!r}")
    kind = gpu.lower() if gpu else None
    start = _start(found, model, recipe, release, gpus, kind, values)
    world = gpus or start.gpus
    if world is None:
        raise InputError(f"say on how many GPUs it runs: {start.name} does not tell")
    kind = kind or next((part for part in start.name.split("_") if part in ("h100", "gb200", "b200", "gb300")), "h100")
    gpu_rates(kind)
    return Request(
        workflow=found,
        task=_start_task(start, found, picked=recipe is None),
        recipe=start,
        release=release,
        inputs=values,
        gpus=world,
        gpu=kind,
        model=model if recipe is None else None,
        overrides=tuple(overrides),
    )


def _start_task(recipe: Recipe, workflow: Workflow, *, picked: bool) -> Task:
    """Return what a recipe trains; InputError when the workflow is for something else."""
    kinds: dict[str, Task] = {"pretrain": "pretrain", "peft": "peft", "lora": "peft"}
    task = kinds.get(recipe.kind, "sft")
    if picked and workflow.task == "pretrain":
        return "pretrain"
    if workflow.task != "any" and (task == "pretrain") != (workflow.task == "pretrain"):
        raise InputError(f"{workflow.id} is for {workflow.task}, and {recipe.name} is a {recipe.kind} recipe")
    return task


def _start(
    workflow: Workflow,
    model: str | None,
    recipe: str | None,
    release: str,
    gpus: int | None,
    gpu: str | None,
    values: Mapping[str, Plain],
) -> Recipe:
    adapters = values.get("peft", "none") != "none"
    if recipe is None:
        assert model is not None
        task: Task = "pretrain" if workflow.task == "pretrain" else "peft" if adapters else "sft"
        length = values.get("seq_length")
        return pick_recipe(
            model,
            task,
            release,
            gpus=gpus,
            gpu=gpu,
            seq_length=length if isinstance(length, int) else None,
            classes=workflow.classes_for(release),
        )
    found = named_recipe(recipe, release)
    held, wanted = found.values.get("dataset.type"), workflow.classes_for(release)
    if wanted and held not in wanted:
        raise InputError(f"{workflow.id} works with data of {' or '.join(wanted)}, and {found.name} has {held}")
    if "peft" in values and adapters != ("peft.type" in found.values):
        other = "trains adapters" if "peft.type" in found.values else "trains all weights"
        raise InputError(f"{found.name} {other}, so peft cannot be {values['peft']}; name another recipe")
    return found


def _draft(request: Request, settled: Settled) -> Draft:
    data = request.inputs.get("data")
    return Draft(
        bridge=request.release,
        workflow=request.workflow.id,
        title=request.workflow.title,
        task=request.task,
        recipe=request.recipe,
        settings=dict(settled.settings),
        comments=dict(settled.comments),
        world_size=request.gpus,
        gpu=request.gpu,
        data=str(data) if data is not None else None,
        env=_environment(request, settled),
    )


def _environment(request: Request, settled: Settled) -> dict[str, str]:
    """Return variables to set: the recipe's own, and the connections that overlap needs on Hopper and older."""
    env = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "TORCH_NCCL_AVOID_RECORD_STREAMS": "1"}
    sizes = ("model.tensor_model_parallel_size", "model.context_parallel_size")
    split = any(settled.settings.get(name, request.recipe.values.get(name, 1)) not in (None, 1) for name in sizes)
    fsdp = settled.settings.get("dist.use_megatron_fsdp", request.recipe.values.get("dist.use_megatron_fsdp")) is True
    if split and not fsdp and request.gpu in ("h100", "h200", "a100"):
        env["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    return {**env, **request.recipe.env}


def _reasons(request: Request, settled: Settled, *, picked: bool) -> tuple[tuple[str, str], ...]:
    start = request.recipe
    first = (
        [("recipe", f"{start.name} is the nearest of {request.release} for the model, task and GPUs")] if picked else []
    )
    return (*first, *_kept_sizes(request, settled), *settled.comments.items())


def _kept_sizes(request: Request, settled: Settled) -> list[tuple[str, str]]:
    """Say which sizes are the recipe's own, where none is chosen: they may not be what a reader expects."""
    if request.auto or CHOOSE in request.inputs.values():
        return []
    found = []
    for name, (_, path) in SIZES.items():
        own = request.recipe.values.get(path)
        said = name in request.inputs or path in settled.settings or path in settled.comments
        if name.endswith("_parallel") and not said and own not in (None, 1, False):
            found.append((path, f'{own} is the recipe\'s own; "choose" has it chosen'))
    return found


def _next_commands(draft: Draft, form: Form) -> tuple[str, ...]:
    if form in ("script", "python"):
        check = f"skill-run validate train.py --bridge {draft.bridge} --world-size {draft.world_size}"
        return check, f"skill-run launch train.py --bridge {draft.bridge}"
    options = f"--recipe {draft.recipe.name} --bridge {draft.bridge} --world-size {draft.world_size}"
    if form == "overrides":
        # A substitution would split values in quotes at their spaces.
        return (f"xargs -a overrides.txt skill-run validate {options}",)
    return (f"skill-run validate config.{form} {options}",)
