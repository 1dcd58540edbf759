"""Settle what a run sets over its recipe: the layout, the workflow's settings, and what the user gave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from skill_run.bridge.names import exists
from skill_run.bridge.release import index, matches
from skill_run.config.config import Config
from skill_run.config.model import Plain, State
from skill_run.errors import InputError
from skill_run.plan.from_config import layout_from
from skill_run.recipe.inputs import COMMON
from skill_run.recipe.request import WIDTH, Request, Settled, keeps_packing, overrides_of, resolved
from skill_run.recipe.topology import SIZES, no_derived, take_layout
from skill_run.recipe.workflow import evaluate, inputs_in, is_derived
from skill_run.rules.derived import Facts, NeedsValue

# Sizes of which null and 1 mean the same; ETP is not one: unset, it is TP before 0.6.
_ONE_OR_NULL: Final = frozenset(path for short, path in SIZES.values() if short in ("tp", "pp", "vpp", "cp", "ep"))
_MULTIPLE: Final = "dataset.offline_packing_specs.pad_seq_to_mult"
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
# Settings of hub data, which upstream refuses beside a folder and which recipes set without the catalogue's knowing.
_NOT_FROM_THE_HUB: Final[dict[str, Plain]] = {
    "dataset.hf_validation_proportion": None,
    "dataset.hf_rewrite": False,
}
_PINNED: Final = frozenset(
    {
        "checkpoint.load",
        "dataset.hf_dataset",
        "model.calculate_per_token_loss",
        "ddp.average_in_collective",
        *_NOT_FROM_THE_HUB,
    }
)


def settle(request: Request) -> Settled:
    """Return everything to set over the recipe, and why. Raises InputError when the topology is impossible."""
    found = Settled()
    values = _input_values(request)
    take_layout(request, values, found)
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
            found.set(name, evaluate(expression, values, no_derived))
    if keeps_packing(request):
        found.settings.setdefault(WIDTH, values["seq_length"])
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


def _input_values(request: Request) -> dict[str, Plain]:
    """Return a value for every input of the card: what was given, else the recipe's batch, else the card's default."""
    values: dict[str, Plain] = {own["name"]: own["default"] for own in request.workflow.inputs}
    held = request.recipe.values
    if isinstance(held.get("train.global_batch_size"), int):
        values["global_batch_size"] = held["train.global_batch_size"]
    values |= request.inputs
    values.setdefault("seq_length", held.get("model.seq_length") or held.get("dataset.seq_length") or 4096)
    return values


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
        for name, value in _NOT_FROM_THE_HUB.items():
            found.set(name, value)
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
