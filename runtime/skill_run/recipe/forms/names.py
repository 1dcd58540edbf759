"""Where a script for one release imports classes, recipes and forward steps from, and which class fits a field.

Source: the wheels of Megatron-Bridge 0.3.1, 0.4.2, 0.5.1 and 0.6.2; classes that moved are in migrations.json.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, NamedTuple

from skill_run.bridge.recipes import Recipe, catalogue
from skill_run.bridge.release import by_version, index, matches, read_data
from skill_run.errors import InputError

_TRAINING: Final = "megatron.bridge.training"
_MODELS: Final = "megatron.bridge.models"
_DIFFUSION: Final = "megatron.bridge.diffusion.models"
_BUILDERS: Final = "megatron.bridge.data.builders"

# Classes whose module is the same in every release that has them.
_HOMES: Final = {
    "ConfigContainer": {"*": f"{_TRAINING}.config"},
    "GPTDatasetConfig": {"*": f"{_TRAINING}.config"},
    "MockGPTDatasetConfig": {"*": f"{_TRAINING}.config"},
    "FaultToleranceConfig": {"*": f"{_TRAINING}.config"},
    "InProcessRestartConfig": {"*": f"{_TRAINING}.config"},
    "NVRxStragglerDetectionConfig": {"*": f"{_TRAINING}.config"},
    "CommOverlapConfig": {"*": f"{_TRAINING}.comm_overlap"},
    "LoRA": {"*": "megatron.bridge.peft.lora"},
    "VLMLoRA": {"*": "megatron.bridge.peft.lora"},
    "DoRA": {"*": "megatron.bridge.peft.dora"},
    "CanonicalLoRA": {"*": "megatron.bridge.peft.canonical_lora"},
    "PreloadedVLMConversationProvider": {"<0.6": "megatron.bridge.data.vlm_datasets"},
    "HFEnergonTaskEncoderConfig": {">=0.6.dev0": _BUILDERS},
    "QwenVLEnergonTaskEncoderConfig": {">=0.6.dev0": _BUILDERS},
    "NemotronOmniEnergonTaskEncoderConfig": {">=0.6.dev0": _BUILDERS},
    "AttnBackend": {"*": "megatron.core.transformer.enums"},
    "finetune": {"*": f"{_TRAINING}.finetune"},
    "pretrain": {"*": f"{_TRAINING}.pretrain"},
}
_SOURCES: Final = ("hf_dataset", "hf_validation_dataset", "hf_test_dataset", "source", "validation_source")
_IMPLIED: Final = {
    "comm_overlap": "CommOverlapConfig",
    "ft": "FaultToleranceConfig",
    "inprocess_restart": "InProcessRestartConfig",
    "nvrx_straggler": "NVRxStragglerDetectionConfig",
    "dataset.packed_sequence_specs": "PackedSequenceSpecs",
    "dataset.offline_packing_specs": "PackedSequenceSpecs",
    **{f"dataset.{name}": "HFDatasetSourceConfig" for name in (*_SOURCES, "test_source")},
}
# The arguments that a class has no default for and that every run can start from.
REQUIRED: Final = {"CommOverlapConfig": {"tp_comm_overlap": False}}

_STEPS: Final = {
    "flux": {"*": f"{_DIFFUSION}.flux.flux_step"},
    "wan": {"*": f"{_DIFFUSION}.wan.wan_step"},
    "qwen2_audio": {"*": f"{_TRAINING}.audio_lm_step"},
    "qwen_omni": {"*": f"{_MODELS}.qwen_omni.qwen3_omni_step"},
    "nemotron_omni": {"*": f"{_TRAINING}.nemotron_omni_step"},
    "qwen3_vl": {"<0.4": f"{_TRAINING}.vlm_step", "*": f"{_MODELS}.qwen_vl.qwen3_vl_step"},
}
_FORWARD_CLASSES: Final = {"flux": "FluxForwardStep", "wan": "WanForwardStep"}


class Symbol(NamedTuple):
    """A name and the module that it is imported from; `call` is what makes a forward step of a class."""

    module: str
    name: str
    call: str = ""


def home_of(name: str, bridge: str) -> Symbol:
    """Return where a release has a class or function; raises InputError when it has none of this name."""
    table = _HOMES.get(name) or _moved()["homes"].get(name, {})
    module = by_version(table, bridge)
    if module is None:
        raise InputError(f"Megatron-Bridge {bridge} has no class {name[:80]} that a script can set")
    return Symbol(str(module), name)


@cache
def _moved() -> dict[str, Any]:
    data: dict[str, Any] = read_data("migrations.json")
    return data


def processor_symbol(name: str, bridge: str) -> Symbol:
    """Return the function that reads a Hugging Face data set before 0.6; raises InputError for one not known."""
    short = name.rpartition(".")[2]
    module = _moved()["processors"].get(short)
    if module is None or matches(">=0.6.dev0", bridge):
        raise InputError(f"Megatron-Bridge {bridge} has no function {short[:80]} for process_example_fn")
    return Symbol(str(module), short)


def implied_class(written: str) -> str | None:
    """Return the class of a part that is null until it is made, by its written name; None for other parts."""
    return _IMPLIED.get(written)


def recipe_symbol(recipe: Recipe, bridge: str) -> Symbol:
    """Return where a recipe is imported from: its module, or the package of the family for a second name of it."""
    first = next((name for name, other in catalogue(bridge).items() if other.values is recipe.values), recipe.name)
    if first == recipe.name:
        return Symbol(recipe.module, recipe.name)
    return Symbol(".".join(recipe.module.split(".")[:4]), recipe.name)


def step_symbol(recipe: Recipe, bridge: str, dataset_type: str | None, mode: str) -> Symbol:
    """Return the forward step that fits a recipe's model and its data set.

    mode: `finetune` or `pretrain`, which the steps of video models are made with.
    """
    parts = recipe.module.split(".")
    family = parts[3] if len(parts) > 3 else ""
    if dataset_type is not None and dataset_type.startswith("Step37Flickr8k"):
        return Symbol(f"{_MODELS}.stepfun.step37_flickr8k_step", "forward_step")
    if family == "qwen_vl" and not recipe.name.startswith("qwen2"):
        family = "qwen3_vl"
    if family in _STEPS:
        module = str(by_version(_STEPS[family], bridge))
        name = _FORWARD_CLASSES.get(family, "forward_step")
        call = "" if name == "forward_step" else f'{name}(mode="{mode}")' if family == "wan" else f"{name}()"
        return Symbol(module, name, call)
    visual = family.endswith("_vl") or _reads_images(dataset_type, recipe, bridge)
    return Symbol(f"{_TRAINING}.{'vlm_step' if visual else 'gpt_step'}", "forward_step")


def _reads_images(dataset_type: str | None, recipe: Recipe, bridge: str) -> bool:
    """Tell whether a data set of conversations belongs to a model with an image encoder.

    A data set class that reads chat as well as images is no sign of its own when the recipe reads text.
    """
    conversations = [*by_version(index()["dataset_classes"]["in_batch"], bridge)]
    own = recipe.values.get("dataset.type")
    return dataset_type in conversations and own in conversations
