"""Drafts for the tests of the forms: named ones of each kind, and drawn ones with any setting that a release has."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from skill_run.bridge import names
from skill_run.bridge.recipes import catalogue
from skill_run.bridge.release import FieldSpec, known_releases, load_release, matches
from skill_run.recipe.draft import Draft

RELEASES = known_releases()
NEW = ">=0.6.dev0"
_PACKING = {
    "dataset.enable_offline_packing": True,
    "dataset.offline_packing_specs.packed_sequence_size": 8192,
    "dataset.offline_packing_specs.pad_seq_to_mult": 4,
    "dataset.dataset_kwargs.pad_to_max_length": True,
}
_ONE_GPU = {"model.tensor_model_parallel_size": 1, "model.pipeline_model_parallel_size": 1}
_IMAGES = {"train.micro_batch_size": 2}
_CONTEXT = {
    "model.context_parallel_size": 2,
    "model.seq_length": 8192,
    "model.calculate_per_token_loss": True,
    "ddp.average_in_collective": False,
    "train.micro_batch_size": 1,
    "validation.eval_iters": 2,
    "checkpoint.pretrained_checkpoint": "/checkpoints/base",
    "checkpoint.load": None,
}


def text_recipe(bridge: str, kind: str) -> str:
    """Return a recipe for text of a release."""
    if kind == "pretrain":
        found = catalogue(bridge).items()
        return next(name for name, recipe in found if recipe.kind == kind and recipe.module.split(".")[3] == "qwen")
    return f"llama32_1b_{kind}_config"


def local_data(bridge: str) -> dict[str, Any]:
    """Return the settings of a folder of JSONL files as data set."""
    made = {"dataset.dataset_root": "/data/sft", "dataset.seq_length": 8192, "dataset.do_test": False}
    if not matches(NEW, bridge):
        return {"dataset.type": "FinetuningDatasetConfig", **made, **_PACKING}
    preprocessing = {
        "dataset.preprocessing.type": "PromptCompletionSFTPreprocessingConfig",
        "dataset.preprocessing.prompt_column": "input",
        "dataset.preprocessing.completion_column": "output",
        "dataset.preprocessing.separator": " ",
    }
    return {"dataset.type": "GPTSFTDatasetConfig", **made, **preprocessing, **_PACKING}


def hub_data(bridge: str) -> dict[str, Any]:
    """Return the settings of a Hugging Face data set."""
    made = {"dataset.seq_length": 8192, "dataset.do_test": False, **_PACKING}
    if matches(NEW, bridge):
        source = {"dataset.hf_dataset.dataset_name": "squad", "dataset.hf_validation_proportion": 0.1}
        return {"dataset.type": "GPTSFTDatasetConfig", **made, **source}
    source = {"dataset.dataset_name": "rajpurkar/squad", "dataset.process_example_fn": "process_squad_example"}
    return {"dataset.type": "HFDatasetConfig", **made, **source}


def conversations(bridge: str) -> dict[str, Any]:
    """Return the settings of a data set of chat with images."""
    made = {"dataset.seq_length": 8192, "dataset.enable_in_batch_packing": True}
    if matches(NEW, bridge):
        source = {"dataset.source.dataset_name": "cord_v2", "dataset.hf_processor_path": "Qwen/Qwen3-VL-8B-Instruct"}
        kind = {"dataset.preprocessing.type": "ChatSFTPreprocessingConfig"}
        return {"dataset.type": "DirectHFSFTDatasetConfig", **made, **source, **kind}
    source = {"dataset.maker_name": "make_cord_v2_dataset", "dataset.hf_processor_path": "Qwen/Qwen3-VL-8B-Instruct"}
    if not names.exists("dataset.enable_in_batch_packing", bridge, "HFDatasetConversationProvider"):
        made.pop("dataset.enable_in_batch_packing")
    return {"dataset.type": "HFDatasetConversationProvider", **made, **source}


def energon(bridge: str) -> dict[str, Any]:
    """Return the settings of an Energon data set, whose encoder is a config from 0.6 on."""
    made = {"dataset.path": "/data/energon", "dataset.seq_length": 8192, "dataset.micro_batch_size": 2}
    made["dataset.num_workers"] = 2
    if not matches(NEW, bridge):
        return {"dataset.path": "/data/energon", "dataset.seq_length": 8192}
    encoder = {
        "dataset.task_encoder.type": "QwenVLEnergonTaskEncoderConfig",
        "dataset.task_encoder.hf_processor_path": "Qwen/Qwen3-VL-8B-Instruct",
    }
    return {"dataset.type": "EnergonDatasetConfig", **made, **encoder, "dataset.enable_in_batch_packing": True}


def image_recipe(bridge: str, part: str = "peft") -> str:
    """Return a recipe for images of a release: its last kind is called finetune in 0.3."""
    found = [name for name in catalogue(bridge) if name.startswith("qwen3_vl_8b_") and part in name]
    return found[0] if found else next(name for name in catalogue(bridge) if name.startswith("qwen3_vl_8b_"))


def named_drafts(bridge: str) -> dict[str, Draft]:
    """Return one draft of each kind for a release."""

    def made(recipe: str, task: Any, settings: dict[str, Any]) -> Draft:
        comments = {name: f"why {name} is set" for name in settings}
        return Draft(bridge, "sft", "A run", task, catalogue(bridge)[recipe], settings, comments, 8, env={"A": "1"})

    start = {"checkpoint.pretrained_checkpoint": "/checkpoints/base", "model.seq_length": 8192}
    lora = {**start, "peft.dim": 16, "peft.target_modules": ["linear_qkv", "linear_proj"]}
    dora = {"peft.type": "DoRA", **lora, "peft.alpha": 32}
    blend = {"dataset.blend": [["/data/a", "/data/b"], [0.5, 0.5]], "dataset.split": "99,1,0"}
    sft, peft = text_recipe(bridge, "sft"), text_recipe(bridge, "peft")
    found = {
        "recipe_data": made(sft, "sft", {**_CONTEXT, **_PACKING, "dataset.seq_length": 8192}),
        "local": made(sft, "sft", {**_CONTEXT, **local_data(bridge)}),
        "hub": made(sft, "sft", {**_CONTEXT, **hub_data(bridge)}),
        "overlap": made(sft, "sft", {"comm_overlap.tp_comm_overlap": True, "model.attention_backend": "flash"}),
        "dtypes": made(sft, "sft", {"model.params_dtype": "torch.bfloat16", "mixed_precision": "bf16_mixed"}),
        "precision": made(
            sft, "sft", {"mixed_precision.grad_reduce_in_fp32": True, "comm_overlap.tp_comm_overlap": True}
        ),
        "lora": made(peft, "peft", {**lora, **local_data(bridge)}),
        "dora": made(peft, "peft", {**dora, **local_data(bridge)}),
        "pretrain": made(
            text_recipe(bridge, "pretrain"), "pretrain", {**blend, **_ONE_GPU, "model.context_parallel_size": 2}
        ),
        "images": made(image_recipe(bridge), "peft", {**start, **_IMAGES, **conversations(bridge)}),
    }
    if any("energon" in name for name in catalogue(bridge)):
        found["energon"] = made(image_recipe(bridge, "energon"), "peft", {**start, **_IMAGES, **energon(bridge)})
    return found


text = st.text(max_size=12)
scalars = st.one_of(st.booleans(), st.integers(1, 99), text)
_KINDS: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(1, 10**6),
    "bool": st.booleans(),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "str": text,
    "strs": st.lists(text, min_size=1, max_size=3),
    "ints": st.lists(st.integers(0, 64), min_size=1, max_size=3),
    "dtype": st.sampled_from(["torch.bfloat16", "torch.float32"]),
    "any": st.one_of(scalars, st.lists(scalars, max_size=3)),
}
# Objects, functions, and names that have their own way into a script.
_LEFT_OUT = (
    *("model.attention_backend", "model.activation_func", "dataset.sequence_length", "dataset.offline_packing_specs"),
    *("dataset.enable_offline_packing", "dataset.process_example_fn", "mixed_precision"),
    *("dataset.preprocessing", "dataset.source", "dataset.validation_source", "dataset.test_source"),
    *("dataset.hf_dataset", "dataset.hf_validation_dataset", "dataset.hf_test_dataset", "dataset.task_encoder"),
)


def _values(spec: FieldSpec) -> st.SearchStrategy[Any]:
    made = _KINDS[spec.kind]
    return st.none() | made if spec.nullable else made


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    """Draw a draft: any recipe of any release, with settings in sections that it surely has."""
    bridge = draw(st.sampled_from(RELEASES))
    release = load_release(bridge)
    recipe = catalogue(bridge)[draw(st.sampled_from(sorted(catalogue(bridge))))]
    sections = [name for name in sorted(release.sections - release.optional_sections) if name != "env_vars"]
    fields = {
        names.to_canonical(name, bridge): spec
        for name, spec in release.fields.items()
        if name.split(".")[0] in sections and name.count(".") == 1 and not spec.foreign and spec.kind in _KINDS
    }
    chosen = draw(st.lists(st.sampled_from(sorted(set(fields) - set(_LEFT_OUT))), max_size=8, unique=True))
    chosen = [name for name in chosen if not names.is_alias(names.to_written(name, bridge), bridge)]
    settings = {name: draw(_values(fields[name])) for name in chosen}
    cls = draw(st.none() | st.sampled_from(sorted(release.datasets)))
    if cls is not None:
        own = {names.to_canonical(f"dataset.{name}", bridge, cls): spec for name, spec in release.datasets[cls].items()}
        kept = {name: spec for name, spec in own.items() if spec.kind in _KINDS and name not in _LEFT_OUT}
        kept = {name: spec for name, spec in kept.items() if not name.split(".")[1].startswith("_")}
        found = draw(st.lists(st.sampled_from(sorted(kept)), max_size=5, unique=True))
        settings |= {"dataset.type": cls, **{name: draw(_values(kept[name])) for name in found}}
        if f"dataset.{release.specs_field}" in {f"dataset.{name}" for name in release.datasets[cls]}:
            settings |= draw(st.just({}) | st.just(dict(_PACKING)))
    comments = draw(st.dictionaries(st.sampled_from(sorted({*settings, "model"})), text, max_size=3))
    return Draft(
        bridge, "w", draw(text), "sft", recipe, settings, comments, draw(st.integers(1, 64)), env={"A": draw(text)}
    )
