"""Where a script for one release imports classes, recipes and forward steps from, and which class fits a field.

Source: the wheels of Megatron-Bridge 0.3.1, 0.4.2, 0.5.1 and 0.6.2; classes that moved are in migrations.json.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, NamedTuple

from skill_run.bridge.recipes import Recipe, catalogue
from skill_run.bridge.release import by_version, index, matches, read_data
from skill_run.errors import InputError
from skill_run.recipe.draft import Draft

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
    "get_mixed_precision_config": {"*": f"{_TRAINING}.mixed_precision"},
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
        raise InputError(f"Megatron-Bridge {bridge} has no class {name[:80]} that a script can make")
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


def step_symbol(draft: Draft, dataset_type: str | None, mode: str) -> Symbol:
    """Return the forward step that fits a draft's model and its data set; text goes through the GPT step.

    mode: `finetune` or `pretrain`, which the step of video models is made with. DeepSeek V4 gives each context parallel
    rank one piece of the sequence instead of two, which its own step does (deepseek_v4_step.py of 0.6.2).
    """
    recipe, bridge = draft.recipe, draft.bridge
    parts = recipe.module.split(".")
    family = parts[3] if len(parts) > 3 else ""
    if recipe.name.startswith("deepseek_v4") and _splits_sequences(draft):
        return Symbol(f"{_MODELS}.deepseek.deepseek_v4_step", "forward_step")
    if family == "qwen_vl" and not recipe.name.startswith("qwen2"):
        family = "qwen3_vl"
    if _is_text(dataset_type, family):
        return Symbol(f"{_TRAINING}.gpt_step", "forward_step")
    if dataset_type is not None and dataset_type.startswith("Step37Flickr8k"):
        return Symbol(f"{_MODELS}.stepfun.step37_flickr8k_step", "forward_step")
    if family not in _STEPS:
        return Symbol(f"{_TRAINING}.vlm_step", "forward_step")
    module = str(by_version(_STEPS[family], bridge))
    name = _FORWARD_CLASSES.get(family, "forward_step")
    call = "" if name == "forward_step" else f'{name}(mode="{mode}")' if family == "wan" else f"{name}()"
    return Symbol(module, name, call)


def _splits_sequences(draft: Draft) -> bool:
    field = "model.context_parallel_size"
    size = draft.settings.get(field, draft.recipe.values.get(field))
    return isinstance(size, int) and size > 1


def _is_text(dataset_type: str | None, family: str) -> bool:
    classes = index()["dataset_classes"]
    if dataset_type is None:
        return family not in _STEPS and not family.endswith("_vl")
    return dataset_type in [*classes["text_sft"]["*"], *classes["gpt"]["*"]]
