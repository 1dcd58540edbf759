"""What a workflow asks for: shared inputs and its own, their JSON Schema, and the check of what was given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from skill_run.config.model import Plain
from skill_run.errors import InputError
from skill_run.plan.layout import CP_COMM_TYPES
from skill_run.recipe.workflow import Workflow

CHOOSE: Final = "choose"
_LARGEST: Final = 2**31
_WORDS: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Input:
    """One input. kind: int, bool, str, or size (a whole number or `choose`). enum: the only values, if any."""

    name: str
    kind: str
    description: str
    default: Plain = None
    enum: tuple[str, ...] = ()
    least: int = 1


# Inputs of every workflow. Without a value, a size is chosen (with a model) or the recipe's own (with a recipe).
COMMON: Final = (
    Input("seq_length", "int", "Sequence length and width of a pack, in tokens."),
    Input("tensor_parallel", "size", "GPUs that share one layer (TP)."),
    Input("pipeline_parallel", "size", "Stages (PP)."),
    Input("virtual_pipeline", "size", "Chunks of layers in each stage (VPP)."),
    Input("context_parallel", "size", "GPUs that share one sequence (CP)."),
    Input("expert_parallel", "size", "GPUs that the experts are spread over (EP)."),
    Input("expert_tensor_parallel", "size", "GPUs that share one expert (ETP)."),
    Input("sequence_parallel", "bool", "Split activations between TP ranks (SP)."),
    Input("cp_comm_type", "str", "How CP ranks exchange keys and values.", enum=(*CP_COMM_TYPES, "allgather")),
    Input("recompute", "str", "Activations to compute again.", enum=("none", "selective", "full", CHOOSE)),
    Input("peft", "str", "Adapters to train instead of all weights.", "none", ("none", "lora", "dora")),
    Input("micro_batch_size", "int", "Rows per forward pass and replica."),
    Input("global_batch_size", "int", "Rows per optimizer step."),
    Input("train_iters", "int", "Optimizer steps."),
    Input("data", "str", "Folder with the data, or a Hugging Face id."),
    Input("pretrained_checkpoint", "str", "Checkpoint that the weights are read from."),
    Input("save", "str", "Folder that checkpoints are written to."),
)


def inputs_of(workflow: Workflow) -> dict[str, Input]:
    """Return the inputs of a workflow by name: the shared ones, with the card's own in their place or behind them."""
    found = {entry.name: entry for entry in COMMON if entry.name != "peft" or workflow.task != "pretrain"}
    for own in workflow.inputs:
        shared = found.get(own["name"])
        kind = shared.kind if shared else own["type"]
        enum = shared.enum if shared else ()
        found[own["name"]] = Input(own["name"], kind, own["description"], own["default"], enum)
    return found


def schema_of(workflow: Workflow) -> dict[str, Any]:
    """Return the JSON Schema of a workflow's inputs."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": workflow.title,
        "type": "object",
        "additionalProperties": False,
        "properties": {name: _schema(entry) for name, entry in inputs_of(workflow).items()},
    }


def _schema(entry: Input) -> dict[str, Any]:
    whole = {"type": "integer", "minimum": entry.least, "maximum": _LARGEST}
    kinds: dict[str, dict[str, Any]] = {
        "int": whole,
        "bool": {"type": "boolean"},
        "str": {"type": "string", "minLength": 1},
        "size": {"anyOf": [whole, {"const": CHOOSE}]},
    }
    found = {"description": entry.description, **kinds[entry.kind]}
    if entry.enum:
        found = {"description": entry.description, "enum": list(entry.enum)}
    return found if entry.default is None else {**found, "default": entry.default}


def checked_inputs(workflow: Workflow, given: Mapping[str, Any]) -> dict[str, Plain]:
    """Return what was given with its type checked; text of a number or truth value counts as such.

    Inputs that are None are as good as absent. Raises InputError.
    """
    known = inputs_of(workflow)
    lost = sorted(str(name) for name in given if name not in known)
    if lost:
        raise InputError(f"{workflow.id} has no input {lost[0][:60]!r}; it has {', '.join(known)}")
    return {name: _checked(known[name], value) for name, value in given.items() if value is not None}


def _checked(entry: Input, value: object) -> Plain:
    shown = f"{str(value)[:60]!r}"
    if entry.enum:
        if value not in entry.enum:
            raise InputError(f"{entry.name} must be one of {', '.join(entry.enum)}, not {shown}")
        return str(value)
    if entry.kind == "str":
        if not isinstance(value, str) or not value or not value.isprintable():
            raise InputError(f"{entry.name} must be printable text, not {shown}")
        return value
    if entry.kind == "bool":
        found = _WORDS.get(value.lower(), value) if isinstance(value, str) else value
        if not isinstance(found, bool):
            raise InputError(f"{entry.name} must be true or false, not {shown}")
        return found
    if entry.kind == "size" and value == CHOOSE:
        return CHOOSE
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 12 else value
    if isinstance(number, bool) or not isinstance(number, int) or not entry.least <= number <= _LARGEST:
        choice = f" or {CHOOSE}" if entry.kind == "size" else ""
        raise InputError(f"{entry.name} must be a whole number from {entry.least} on{choice}, not {shown}")
    return number
