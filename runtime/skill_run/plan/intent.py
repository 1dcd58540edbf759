"""What is known of the run that a plan is for: from options, a recipe, a config; nothing of it is required."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from skill_run.bridge import recipes
from skill_run.bridge.release import index
from skill_run.bridge.version import Evidence, choose
from skill_run.config.config import Config
from skill_run.config.model import State
from skill_run.errors import InputError
from skill_run.plan.from_config import run_from
from skill_run.plan.layout import Run
from skill_run.plan.shape import ModelShape, shape_of
from skill_run.report.finding import BridgeChoice

DEFAULT_GPU: Final = "h100"
_FIXED: Final = {
    "tp": "model.tensor_model_parallel_size",
    "pp": "model.pipeline_model_parallel_size",
    "vpp": "model.virtual_pipeline_model_parallel_size",
    "cp": "model.context_parallel_size",
    "ep": "model.expert_model_parallel_size",
    "etp": "model.expert_tensor_parallel_size",
    "sp": "model.sequence_parallel",
    "cp_comm_type": "model.cp_comm_type",
    "recompute": "model.recompute_granularity",
}
_PACK: Final = "dataset.offline_packing_specs.packed_sequence_size"
_SINGLE: Final = "dataset.offline_packing_specs.max_single_sequence_length"
_MULTIPLE: Final = "dataset.offline_packing_specs.pad_seq_to_mult"
_ADAPTERS: Final = {"lora": "lora", "dora": "dora", "canonicallora": "canonical_lora"}


@dataclass(frozen=True, slots=True)
class Intent:
    """What a plan starts from.

    shape: None without a model. fixed: parallel sizes that the user or the config decided (see choose.FIXABLE). run:
    what is trained; its tokens_per_row is replaced for each pack size. slots: tokens of a step, pack size x packs.
    seq_length, pad_seq_to_mult: the config's limit of a sample and its alignment, when it sets them. base: canonical
    fields that recipe and config set.
    """

    bridge: BridgeChoice
    shape: ModelShape | None
    recipe: str | None
    config: str | None
    gpus: int | None
    gpu: str
    fixed: Mapping[str, Any]
    run: Run
    slots: int | None
    pack_size: int | None
    seq_length: int | None
    pad_seq_to_mult: int | None
    base: Mapping[str, Any]


def read_intent(
    *,
    bridge: str | None = None,
    model: str | Path | None = None,
    recipe: str | None = None,
    config: str | Path | Mapping[str, Any] | None = None,
    gpus: int | None = None,
    gpu: str | None = None,
    peft: str | None = None,
    fixed: Mapping[str, Any] | None = None,
) -> Intent:
    """Return what a recipe and a config say, with what the user fixed laid over it.

    A config's own parallel sizes count as decided; a recipe's do not, since the plan chooses better ones for the GPUs
    that there are. Raises InputError when one of them cannot be read or is not known.
    """
    decided = {name: value for name, value in (fixed or {}).items() if value is not None}
    if recipe is None and config is None:
        choice = choose(bridge, Evidence((), None, ()))
        run = Run(tokens_per_row=1, peft=peft, bridge=choice.version)
        shape = shape_of(model) if model is not None else None
        return Intent(choice, shape, None, None, gpus, gpu or DEFAULT_GPU, decided, run, None, None, None, None, {})
    held = _build(bridge, model, recipe, config, gpus, gpu)
    found = recipes.find_recipe(held.recipe, held.config.release.version) if held.recipe else None
    _known(held.recipe, found, held.config)
    values = _values(held.config)
    run = run_from(values, bridge=held.config.version, peft=peft or _adapter(held.config, found))
    fixed_there = _fixed(values, held.config) if config is not None else {}
    size = (
        _whole(values.get(_PACK)) or _whole(values.get("dataset.seq_length")) or _whole(values.get("model.seq_length"))
    )
    rows = run.global_batch_size
    return Intent(
        bridge=held.config.choice,
        shape=_shape(model, held.config, found),
        recipe=held.recipe,
        config=None if config is None else held.name,
        gpus=gpus or held.config.world_size or (found.gpus if found is not None else None),
        gpu=gpu or held.config.gpu or _gpu_in(held.recipe) or DEFAULT_GPU,
        fixed={**fixed_there, **decided},
        run=replace(run, micro_batch_size=1, packed=True),
        slots=size * rows if size and rows else None,
        pack_size=_whole(values.get(_PACK)),
        seq_length=_sample_limit(values) if config is not None else None,
        pad_seq_to_mult=_whole(values.get(_MULTIPLE)) if config is not None else None,
        base={name: value for name, value in values.items() if held.config.get(name).state is State.SET},
    )


@dataclass(frozen=True, slots=True)
class _Held:
    config: Config
    recipe: str | None
    name: str


def _build(
    bridge: str | None,
    model: str | Path | None,
    recipe: str | None,
    config: str | Path | Mapping[str, Any] | None,
    gpus: int | None,
    gpu: str | None,
) -> _Held:
    from skill_run.rules.validate import build_config, read_sources

    source = Path(config) if isinstance(config, str) else config
    sources = read_sources(source, bridge=bridge, recipe=recipe)
    built = build_config(
        sources,
        bridge=bridge,
        recipe=recipe,
        model=str(model) if model is not None else None,
        world_size=gpus,
        gpu=gpu,
    )
    named = recipe or next((item.recipe for item in sources if item.recipe), None)
    return _Held(built, named, sources[0].name)


def _known(name: str | None, found: recipes.Recipe | None, config: Config) -> None:
    """Refuse a recipe name that the release does not have, with the nearest one."""
    if name is None or found is not None:
        return
    having = recipes.releases_with(name)
    near = recipes.nearest_recipe(name, config.release.version)
    where = f"; it is in {', '.join(having)}" if having else f"; did you mean {near}?" if near else ""
    raise InputError(f"Megatron-Bridge {config.version} has no recipe {name[:100]}{where}")


def _values(config: Config) -> dict[str, Any]:
    names = {*config.values, *_FIXED.values(), _PACK, _MULTIPLE, _SINGLE}
    found = {name: config.get(name) for name in names}
    return {name: value.value for name, value in found.items() if value.state is not State.UNKNOWN}


def _fixed(values: Mapping[str, Any], config: Config) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, field in _FIXED.items():
        value = values.get(field)
        if config.get(field).state is not State.SET or value is None:
            continue
        if isinstance(value, list):
            value = value[0] if value else None
        if value is not None:
            found[name] = value
    return found


def _shape(model: str | Path | None, config: Config, recipe: recipes.Recipe | None) -> ModelShape | None:
    named = config.get("checkpoint.pretrained_checkpoint")
    told = recipe.hf_model if recipe is not None else None
    if model is None and told is None:
        path = named.value if named.state is State.SET and isinstance(named.value, str) else None
        if path is None or not (Path(path) / "config.json").is_file():
            return None
        return shape_of(path)
    try:
        return shape_of(model, told)
    except InputError:
        if model is not None:
            raise
        return None


def _adapter(config: Config, recipe: recipes.Recipe | None) -> str | None:
    value = config.get("peft.type")
    if value.state is State.SET and isinstance(value.value, str):
        name = value.value.rpartition(".")[2].lower()
        return _ADAPTERS.get(name, "lora")
    return "lora" if recipe is not None and recipe.kind == "peft" else None


def _gpu_in(recipe: str | None) -> str | None:
    """Return the kind of GPU in a recipe's name, such as h100 in qwen3_8b_sft_8gpu_h100_bf16_config."""
    known = index()["gpu_memory_gib"]
    return next((word for word in (recipe or "").split("_") if word in known), None)


def _sample_limit(values: Mapping[str, Any]) -> int | None:
    """Return a limit of samples that a config sets apart from the pack size, None when they go together."""
    single = _whole(values.get(_SINGLE))
    whole = _whole(values.get("dataset.seq_length"))
    return single or (whole if whole != _whole(values.get(_PACK)) else None)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
