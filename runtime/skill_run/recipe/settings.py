"""Settle what a run sets over its recipe: the layout, the workflow's settings, and what the user gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from skill_run.bridge.names import exists, to_canonical, to_written
from skill_run.bridge.recipes import Recipe
from skill_run.bridge.release import index, load_release, matches
from skill_run.config.config import Config
from skill_run.config.model import Assignment, Plain, Source, State, Unknown
from skill_run.config.overrides import read_overrides
from skill_run.errors import InputError
from skill_run.plan.admitted import release_problems
from skill_run.plan.choose import choose_layout
from skill_run.plan.from_config import layout_from
from skill_run.plan.layout import Layout, Run, problems
from skill_run.plan.shape import ModelShape, shape_of
from skill_run.recipe.draft import Draft, Task
from skill_run.recipe.inputs import CHOOSE, COMMON
from skill_run.recipe.workflow import Workflow, evaluate, inputs_in, is_derived
from skill_run.rules.derived import Facts, NeedsValue
from skill_run.rules.validate import build_config

SIZES: Final[Mapping[str, tuple[str, str]]] = {
    "tensor_parallel": ("tp", "model.tensor_model_parallel_size"),
    "pipeline_parallel": ("pp", "model.pipeline_model_parallel_size"),
    "virtual_pipeline": ("vpp", "model.virtual_pipeline_model_parallel_size"),
    "context_parallel": ("cp", "model.context_parallel_size"),
    "expert_parallel": ("ep", "model.expert_model_parallel_size"),
    "expert_tensor_parallel": ("etp", "model.expert_tensor_parallel_size"),
    "sequence_parallel": ("sp", "model.sequence_parallel"),
    "cp_comm_type": ("cp_comm_type", "model.cp_comm_type"),
}
_EXPERT_TP: Final = "model.expert_tensor_parallel_size"
# Sizes of which null and 1 mean the same; ETP is not one: unset, it is TP before 0.6.
_ONE_OR_NULL: Final = frozenset(path for short, path in SIZES.values() if short in ("tp", "pp", "vpp", "cp", "ep"))
_WIDTH: Final = "dataset.offline_packing_specs.packed_sequence_size"
_MULTIPLE: Final = "dataset.offline_packing_specs.pad_seq_to_mult"
_HIERARCHY: Final = "model.hierarchical_context_parallel_sizes"
_DIRECT: Final = {
    "micro_batch_size": "train.micro_batch_size",
    "global_batch_size": "train.global_batch_size",
    "train_iters": "train.train_iters",
    "pretrained_checkpoint": "checkpoint.pretrained_checkpoint",
    "save": "checkpoint.save",
}
# What Megatron Core's data set of pretraining has no default for.
_PRETRAINING: Final[Mapping[str, Plain]] = {
    "dataset.random_seed": 1234,
    "dataset.reset_position_ids": False,
    "dataset.reset_attention_mask": False,
    "dataset.eod_mask_loss": False,
    "dataset.split": "9999,8,2",
    "dataset.dataloader_type": "single",
}
_PLACEHOLDER: Final = "/path/to/checkpoint"
_ADAPTERS: Final = {"lora": "LoRA", "dora": "DoRA"}
# Set whatever is known of them: what a run must have right is worth a line even where a recipe has it.
_PINNED: Final = frozenset(
    {"checkpoint.load", "dataset.hf_dataset", "model.calculate_per_token_loss", "ddp.average_in_collective"}
)


@dataclass(slots=True)
class Settled:
    """Canonical settings in the order in which they were decided, why, and the layout's sentences."""

    settings: dict[str, Plain] = field(default_factory=dict)
    comments: dict[str, str] = field(default_factory=dict)

    def set(self, name: str, value: Plain, why: str | None = None) -> None:
        """Set a field; an earlier reason goes with the earlier value."""
        self.comments.pop(name, None)
        self.settings[name] = value
        if why:
            self.comments[name] = why


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for, checked. auto: sizes that are not given are chosen; model: where the shape is read from."""

    workflow: Workflow
    task: Task
    recipe: Recipe
    release: str
    inputs: Mapping[str, Plain]
    gpus: int
    gpu: str
    model: str | None = None
    overrides: Sequence[str] = ()

    @property
    def auto(self) -> bool:
        """Tell whether sizes that were not given are chosen although nobody said so."""
        return self.model is not None and not {"tensor_parallel", "pipeline_parallel", "context_parallel"} <= set(
            self.inputs
        )


def settle(request: Request) -> Settled:
    """Return everything to set over the recipe, and why. Raises InputError when the topology is impossible."""
    found = Settled()
    values = _input_values(request)
    _take_layout(request, values, found)
    _take_batch(request, values, found)
    later = {}
    told = {*request.inputs, *(entry.name for entry in COMMON)}
    for name, expression in request.workflow.settings_for(request.release).items():
        if is_derived(expression):
            later[name] = expression
        elif name in index()["architecture_fields"] and inputs_in(expression).isdisjoint(told):
            # The recipe's model has its own.
            continue
        elif not (name in found.settings and inputs_in(expression) & set(SIZES)):
            found.set(name, evaluate(expression, values, _no_derived))
    if _keeps_packing(request):
        found.settings.setdefault(_WIDTH, values["seq_length"])
        # 0.4 does not tell its reader of the multiple, and rows of one width need none without CP.
        lost = matches(">=0.4,<0.5", request.release)
        later.setdefault(_MULTIPLE, f"derived.{'cp' if lost else 'pad'}_multiple")
    _take_given(request, found)
    _take_context_parallel_loss(request, found)
    _take_graphs(request, found)
    _take_data(request, found)
    given = overrides_of(request)
    config = resolved(request, {**found.settings, **given})
    for name, expression in later.items():
        try:
            value = evaluate(expression, values, Facts(config).derived)
        except NeedsValue as lacking:
            raise InputError(
                f"{name} cannot be told without {', '.join(lacking.needs)}; set it with --set"
            ) from lacking
        found.set(name, value, _why_multiple(config) if name.endswith("pad_seq_to_mult") else None)
    for name, value in given.items():
        found.set(name, value, "as given")
    return kept(request, found)


def _keeps_packing(request: Request) -> bool:
    """Tell whether the recipe packs offline and the workflow, which is not about data, lets it."""
    return request.workflow.task == "any" and isinstance(request.recipe.values.get(_WIDTH), int)


def _no_derived(name: str) -> Plain:
    raise InputError(f"{name} is not known yet")


def _input_values(request: Request) -> dict[str, Plain]:
    """Return a value for every input of the card: what was given, else the recipe's batch, else the card's default."""
    values: dict[str, Plain] = {own["name"]: own["default"] for own in request.workflow.inputs}
    held = request.recipe.values
    if isinstance(held.get("train.global_batch_size"), int):
        values["global_batch_size"] = held["train.global_batch_size"]
    values |= request.inputs
    values.setdefault("seq_length", held.get("model.seq_length") or held.get("dataset.seq_length") or 4096)
    return values


def _take_layout(request: Request, values: dict[str, Plain], found: Settled) -> None:
    """Settle the parallel sizes, as chosen or as given over the recipe's, and put them among the inputs too."""
    fixed = {SIZES[name][0]: value for name, value in request.inputs.items() if name in SIZES and value != CHOOSE}
    for name, expression in request.workflow.settings_for(request.release).items():
        used = inputs_in(expression)
        short = next((short for short, path in SIZES.values() if path == name), None)
        if short and isinstance(expression, str) and not used & set(SIZES) and not is_derived(expression):
            fixed[short] = evaluate(expression, values, _no_derived)
    asked = any(request.inputs.get(name) == CHOOSE for name in (*SIZES, "recompute"))
    shape = _shape(request, required=asked)
    if (asked or request.auto) and shape is not None:
        fields = _choose(request, shape, fixed, values, found)
    else:
        fields = _overlaid(request, fixed, values)
    if fields["model.expert_model_parallel_size"] == 1:
        fields.pop(_EXPERT_TP, None)
    elif fields.get(_EXPERT_TP) is None:
        fields[_EXPERT_TP] = 1
    own = request.workflow.settings_for(request.release).get(_HIERARCHY)
    if own is not None:
        fields[_HIERARCHY] = evaluate(own, values, _no_derived)
    elif fields.get("model.cp_comm_type") == "a2a+p2p" and fields.get(_HIERARCHY) is None:
        raise InputError("a2a+p2p needs two group sizes; use the workflow two-level-cp, or let the sizes be chosen")
    for name, value in fields.items():
        found.settings[name] = value
    for name, (_, path) in SIZES.items():
        if path in fields:
            values[name] = fields[path]
    _check_world(request, layout_from(fields), shape, values)


def _shape(request: Request, *, required: bool) -> ModelShape | None:
    try:
        return shape_of(request.model, request.recipe.hf_model)
    except InputError:
        if not required and not request.model:
            return None
        try:
            return shape_of(None, request.recipe.hf_model)
        except InputError:
            if required:
                raise
            return None


def _choose(
    request: Request, shape: ModelShape, fixed: dict[str, Plain], values: Mapping[str, Plain], found: Settled
) -> dict[str, Plain]:
    level = request.inputs.get("recompute")
    if level is not None and level != CHOOSE:
        fixed = {**fixed, "recompute": level}
    choice = choose_layout(shape, gpus=request.gpus, gpu=request.gpu, run=_run(request, values), fixed=fixed)  # type: ignore[arg-type]
    for name, _, sentence in choice.reasons:
        path = next((path for short, path in SIZES.values() if short == name), name)
        found.comments[path if "." in path else f"model.{path}"] = sentence
    return dict(choice.fields)


def _run(request: Request, values: Mapping[str, Plain]) -> Run:
    micro = values.get("micro_batch_size") or 1
    peft = request.inputs.get("peft")
    batch = request.inputs.get("global_batch_size")
    packed = request.workflow.packs_offline or _keeps_packing(request)
    assert isinstance(micro, int)
    return Run(
        tokens_per_row=values["seq_length"] if isinstance(values["seq_length"], int) else 4096,
        micro_batch_size=1 if packed else micro,
        global_batch_size=batch if isinstance(batch, int) else None,
        packed=packed or values.get("pack") is True,
        task="pretrain" if request.task == "pretrain" else "sft",
        peft=str(peft) if peft not in (None, "none") else None,
        bridge=request.release,
    )


def _overlaid(request: Request, fixed: Mapping[str, Plain], values: Mapping[str, Plain]) -> dict[str, Plain]:
    """Return the recipe's sizes with the given ones in their place, and the workflow's own where neither says."""
    held = request.recipe.values
    fields: dict[str, Plain] = {}
    for name, (short, path) in SIZES.items():
        own = next((entry["default"] for entry in request.workflow.inputs if entry["name"] == name), None)
        value = fixed.get(short, own if own is not None else held.get(path))
        if isinstance(value, list):
            value = value[0] if value else None
        fields[path] = None if short == "vpp" and value == 1 else value
    for path in (path for short, path in SIZES.values() if short in ("tp", "pp", "cp", "ep")):
        fields[path] = fields[path] or 1
    if "sp" not in fixed and "tp" in fixed:
        fields["model.sequence_parallel"] = fields["model.tensor_model_parallel_size"] != 1
    if fields["model.context_parallel_size"] == 1 and "cp_comm_type" not in fixed:
        del fields["model.cp_comm_type"]
    level = request.inputs.get("recompute")
    if level is not None and level != CHOOSE:
        fields |= _recompute(str(level), held)
    return fields


def _recompute(level: str, held: Mapping[str, Plain]) -> dict[str, Plain]:
    full = level == "full"
    fields: dict[str, Plain] = {
        "model.recompute_granularity": None if level == "none" else level,
        "model.recompute_method": held.get("model.recompute_method") or "uniform" if full else None,
        "model.recompute_num_layers": held.get("model.recompute_num_layers") or 1 if full else None,
    }
    if level == "none" and held.get("model.recompute_modules"):
        fields["model.recompute_modules"] = None
    return fields


def _check_world(request: Request, layout: Layout, shape: ModelShape | None, values: Mapping[str, Plain]) -> None:
    """Refuse sizes that the GPUs, the model or the row cannot be divided by."""
    dense, experts = layout.tp * layout.pp * layout.cp, layout.ep * layout.etp * layout.pp
    why = []
    if request.gpus % dense:
        why.append(f"{request.gpus} GPUs cannot be divided by TP x PP x CP = {dense}")
    if layout.ep > 1 and request.gpus % experts:
        why.append(f"{request.gpus} GPUs cannot be divided by EP x ETP x PP = {experts}")
    length = values["seq_length"]
    if isinstance(length, int) and layout.cp > 1 and length % (2 * layout.cp):
        why.append(f"{length} tokens cannot be divided by 2 x CP = {2 * layout.cp}")
    packed = request.workflow.packs_offline or _keeps_packing(request)
    if packed and layout.cp > 1 and matches("<0.5", request.release):
        why.append(f"Megatron-Bridge {request.release} cuts packed samples at wrong places with CP > 1")
    if shape is not None and not why:
        # A recipe may lay out its stages by hand, so stages are not divided here.
        flat = replace(layout, pp=1, vpp=None, last_stage_layers=None)
        run = _run(request, values)
        why += [*problems(shape, flat, run, world_size=0), *release_problems(shape, layout, run)]
    if why:
        shown = layout if layout.ep > 1 else replace(layout, etp=1)
        raise InputError(f"{shown} is not possible: {'; '.join(why)}")


def _take_batch(request: Request, values: dict[str, Plain], found: Settled) -> None:
    """Settle the batch: a global batch that nobody gave becomes a multiple of what one step takes."""
    layout = layout_from(found.settings)
    micro = 1 if request.workflow.packs_offline else values.get("micro_batch_size") or 1
    held = request.recipe.values.get("train.micro_batch_size")
    if "micro_batch_size" not in values and not request.workflow.packs_offline and isinstance(held, int):
        micro = held
    rows = (micro if isinstance(micro, int) else 1) * layout.data_parallel(request.gpus)
    batch = values.get("global_batch_size") or request.recipe.values.get("train.global_batch_size")
    if not isinstance(batch, int):
        return
    if batch % rows and "global_batch_size" in request.inputs:
        raise InputError(f"a global batch of {batch} cannot be divided by micro batch x data parallel = {rows}")
    if batch % rows:
        batch = -(-batch // rows) * rows
        found.comments["train.global_batch_size"] = f"a multiple of micro batch x data parallel = {rows}"
    values["global_batch_size"] = batch
    found.settings["train.global_batch_size"] = batch


def _take_given(request: Request, found: Settled) -> None:
    for name, path in _DIRECT.items():
        if name in request.inputs:
            found.set(path, request.inputs[name])
    if "seq_length" in request.inputs:
        found.settings.setdefault("model.seq_length", request.inputs["seq_length"])
        found.settings.setdefault("dataset.seq_length", request.inputs["seq_length"])
    adapter = _ADAPTERS.get(str(request.inputs.get("peft")))
    if adapter is not None:
        found.set("peft.type", adapter)
    if request.task != "pretrain":
        if "pretrained_checkpoint" not in request.inputs:
            found.set("checkpoint.pretrained_checkpoint", _PLACEHOLDER, "replace it by the folder of your weights")
        found.set("checkpoint.load", None, "the recipe's folder would be resumed from silently")


def _take_graphs(request: Request, found: Settled) -> None:
    """Turn the recipe's graphs off under full recompute, unless the workflow is about them."""
    graphs = request.recipe.values.get("model.cuda_graph_impl")
    full = found.settings.get("model.recompute_granularity") == "full"
    if full and graphs not in (None, "none") and "model.cuda_graph_impl" not in found.settings:
        found.set("model.cuda_graph_impl", "none", "layers that are computed again cannot be replayed from graphs")


def _take_context_parallel_loss(request: Request, found: Settled) -> None:
    cp = found.settings.get("model.context_parallel_size", 1)
    if request.task != "pretrain" and isinstance(cp, int) and cp > 1:
        found.set("model.calculate_per_token_loss", True, "with CP some ranks hold prompt tokens only")
        found.set("ddp.average_in_collective", False, "goes with the loss per token")


def _take_data(request: Request, found: Settled) -> None:
    """Set where the data are; the data set object is replaced where the recipe's own cannot take a folder."""
    held, data = request.recipe.values.get("dataset.type"), request.inputs.get("data")
    wanted = found.settings.get("dataset.type")
    if request.task == "pretrain" and request.recipe.kind != "pretrain":
        held = "GPTDatasetConfig"
        found.set("dataset.type", held, "the recipe is for finetuning")
        for name, value in _PRETRAINING.items():
            found.set(name, value)
    elif wanted == held:
        found.settings.pop("dataset.type", None)
    elif wanted is not None:
        raise InputError(f"{request.recipe.name} reads its data with {held}, and {request.workflow.id} needs {wanted}")
    if data is None:
        return
    if held == "GPTSFTDatasetConfig":
        folder = is_folder(str(data))
        if not folder:
            raise InputError(f"{str(data)[:100]} is not a folder; its columns are not known, so give a folder of JSONL")
        found.set("dataset.dataset_root", data)
        found.set("dataset.hf_dataset", None, "the data come from dataset_root")
    elif held in ("HFDatasetConfig", "FinetuningDatasetConfig"):
        found.set("dataset.type", "FinetuningDatasetConfig", "reads a folder of JSONL; the recipe reads from the hub")
        found.set("dataset.dataset_root", data)
    elif held in ("EnergonDatasetConfig", "EnergonProvider"):
        found.set("dataset.path", data)
    elif held == "GPTDatasetConfig":
        found.set("dataset.blend", [[data], None])
    else:
        raise InputError(f"the data of {request.recipe.name} ({held}) cannot be given as a folder; edit the script")


def is_folder(data: str) -> bool:
    """Tell whether data are a path, not an id such as org/name on the hub."""
    return data.startswith(("/", ".", "~", "$")) or data.count("/") != 1


def _why_multiple(config: Config) -> str:
    facts = Facts(config)
    return f"each sample is cut into 2 x CP chunks and sharded over TP with SP (TP {facts.tp}, CP {facts.cp})"


def protected(request: Request) -> frozenset[str]:
    """Return the fields that no fix may change: what the workflow is about, and what the user gave."""
    own = {name for name, value in request.workflow.settings_for(request.release).items() if not is_derived(value)}
    sizes = {path for name, (_, path) in SIZES.items() if name in request.inputs}
    given = {path for name, path in _DIRECT.items() if name in request.inputs}
    return frozenset(own | sizes | given | set(overrides_of(request)))


def overrides_of(request: Request) -> dict[str, Plain]:
    """Return the user's own `field=value` settings by canonical name."""
    found: dict[str, Plain] = {}
    if not request.overrides:
        return found
    kind = request.recipe.values.get("dataset.type")
    for assignment in read_overrides(list(request.overrides), name="--set").assignments:
        if isinstance(assignment.value, Unknown):
            raise InputError(f"the value of {assignment.path} must be plain: it {assignment.value.reason}")
        found[to_canonical(assignment.path, request.release, str(kind) if kind else None)] = assignment.value
    return found


def kept(request: Request, found: Settled) -> Settled:
    """Leave out what the release does not have and what the recipe or Megatron's default says already."""
    base = resolved(request, {})
    replaced = found.settings.get("dataset.type")
    kind = str(replaced or request.recipe.values.get("dataset.type") or "") or None
    given = overrides_of(request)
    left = {
        name: value
        for name, value in found.settings.items()
        if name in given
        or (
            (exists(name, request.release, kind) or name in ("dataset.type", "peft.type"))
            and (name in _PINNED or (replaced and name.startswith("dataset.")) or not _says(base, name, value))
        )
    }
    comments = {name: text for name, text in found.comments.items() if name in left}
    return Settled(left, comments)


def _says(base: Config, name: str, value: Plain) -> bool:
    """Tell whether the config has a value already; a size that no recipe names is Megatron's default."""
    held = base.get(name)
    if held.state is not State.UNKNOWN:
        same = (
            held.value == value or held.value == [value] or (name in _ONE_OR_NULL and {held.value, value} <= {None, 1})
        )
        return same and isinstance(held.value, bool) == isinstance(value, bool)
    plain = value is None or (name == "model.sequence_parallel" and not value) or (name in _ONE_OR_NULL and value == 1)
    return name not in base.values and plain


def sources_of(recipe: Recipe, release: str, settings: Mapping[str, Plain]) -> list[Source]:
    """Return what our own reader makes of a recipe with these settings over it."""
    replaced = settings.get("dataset.type")
    kind = str(replaced or recipe.values.get("dataset.type") or "") or None
    assigned: list[Assignment] = []
    if replaced is not None:
        module = load_release(release).imports.get(str(replaced), str(replaced))
        assigned.append(Assignment("dataset", {"_target_": module}))
    assigned += [
        Assignment(to_written(name, release, kind), value) for name, value in settings.items() if name != "dataset.type"
    ]
    start = Source(form="recipe", name=recipe.name, recipe=recipe.name)
    return [start, Source(form="overrides", name="generated", assignments=assigned)]


def resolved(request: Request, settings: Mapping[str, Plain]) -> Config:
    """Return the config of the recipe with these settings over it."""
    return build_config(sources_of(request.recipe, request.release, settings), **judged_with(request))


def resolved_draft(draft: Draft) -> Config:
    """Return the config that a draft comes to."""
    return build_config(
        sources_of(draft.recipe, draft.bridge, draft.settings),
        bridge=draft.bridge,
        recipe=draft.recipe.name,
        world_size=draft.world_size,
        gpu=draft.gpu,
    )


def judged_with(request: Request) -> dict[str, Any]:
    """Return the arguments with which a config of this request is built."""
    return {"bridge": request.release, "recipe": request.recipe.name, "world_size": request.gpus, "gpu": request.gpu}
