"""Settle the parallel sizes of a generation: chosen, given or the recipe's own, and refused where they cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from skill_run.bridge.release import matches
from skill_run.config.model import Plain
from skill_run.errors import InputError
from skill_run.plan.admitted import release_problems
from skill_run.plan.choose import choose_layout
from skill_run.plan.from_config import layout_from
from skill_run.plan.layout import Layout, Run, problems
from skill_run.plan.shape import ModelShape, shape_of
from skill_run.recipe.inputs import CHOOSE
from skill_run.recipe.request import Request, Settled, keeps_packing
from skill_run.recipe.workflow import evaluate, inputs_in, is_derived

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
_HIERARCHY: Final = "model.hierarchical_context_parallel_sizes"


def take_layout(request: Request, values: dict[str, Plain], found: Settled) -> None:
    """Settle the parallel sizes, as chosen or as given over the recipe's, and put them among the inputs too."""
    fixed = {SIZES[name][0]: value for name, value in request.inputs.items() if name in SIZES and value != CHOOSE}
    for name, expression in request.workflow.settings_for(request.release).items():
        used = inputs_in(expression)
        short = next((short for short, path in SIZES.values() if path == name), None)
        if short and isinstance(expression, str) and not used & set(SIZES) and not is_derived(expression):
            fixed[short] = evaluate(expression, values, no_derived)
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
        fields[_HIERARCHY] = evaluate(own, values, no_derived)
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
    packed = request.workflow.packs_offline or keeps_packing(request)
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
    packed = request.workflow.packs_offline or keeps_packing(request)
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


def no_derived(name: str) -> Plain:
    raise InputError(f"{name} is not known yet")
