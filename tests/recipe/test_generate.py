"""Every workflow on every release over drawn topologies: our rules and the real validate() take what is generated."""

from __future__ import annotations

import ast
import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest

from skill_run.errors import InputError
from skill_run.recipe.generate import FORMS, GeneratedRecipe, generate_recipe, render
from skill_run.recipe.request import resolved_draft
from skill_run.recipe.workflow import Workflow, workflows
from skill_run.rules.validate import validate_config
from skill_run.worker import oracle
from skill_run.worker.environments import Worker
from skill_run.worker.session import run_task

PAIRS = [(found, release) for found in workflows().values() for release in found.releases]
DRAWS = 20
TEXT = ("Qwen/Qwen3-8B", "meta-llama/Meta-Llama-3-8B", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen2.5-7B")
VISION = (
    "Qwen/Qwen3-VL-8B-Instruct",
    "Qwen/Qwen3-VL-30B-A3B-Instruct",
    "google/gemma-3-4b-it",
    "Qwen/Qwen2.5-VL-7B-Instruct",
)
MODELS: dict[str, tuple[str, ...]] = {
    "in-batch-packed-sft": VISION,
    "moe-layout": ("Qwen/Qwen3-30B-A3B",),
    "energon-in-batch-packed-sft": ("Qwen/Qwen3-VL-8B-Instruct",),
    "energon-native-packed-sft": ("Qwen/Qwen3-VL-8B-Instruct",),
    "mlp-graphs-on-packed-data": ("Qwen/Qwen3-8B", "meta-llama/Meta-Llama-3-8B", "Qwen/Qwen2.5-7B"),
    "two-level-cp": ("meta-llama/Meta-Llama-3-8B", "Qwen/Qwen3-4B"),
    "long-context-pretrain": ("meta-llama/Meta-Llama-3-8B", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-4B"),
    "expert-overlap": ("Qwen/Qwen3-30B-A3B",),
}
NO_STAGES = {"energon-native-packed-sft", "expert-overlap"}
LEVELS = ["none", "selective", "full"]
PRETRAINED = {"0.3.1": "llama31_8b_pretrain_config", "0.4.2": "llama3_8b_pretrain_config"}
ADAPTERS_ONLY = {"energon-in-batch-packed-sft", "energon-native-packed-sft"}

# What recipes give to their data sets and the catalogue does not record.
SOURCE = {"_target_": "megatron.bridge.data.sources.hf.HFDatasetSourceConfig", "dataset_name": "cord_v2"}
ENCODER = {
    "_target_": "megatron.bridge.data.builders.energon.QwenVLEnergonTaskEncoderConfig",
    "hf_processor_path": "Qwen/Qwen3-VL-8B-Instruct",
}
CHAT = {"_target_": "megatron.bridge.data.sft_processing.ChatSFTPreprocessingConfig"}
FROM_RECIPES: dict[str, dict[str, Any]] = {
    "GPTDatasetConfig": {
        "random_seed": 1234,
        "reset_position_ids": False,
        "reset_attention_mask": False,
        "eod_mask_loss": False,
        "split": "9999,8,2",
    },
    "DirectHFSFTDatasetConfig": {"source": SOURCE, "preprocessing": CHAT},
    "EnergonDatasetConfig": {"path": "/data", "task_encoder": ENCODER},
}


def drawn(workflow: Workflow, release: str) -> Iterator[GeneratedRecipe]:
    """Yield setups of topologies that the workflow, model and release admit; others are refused with a sentence."""
    source = random.Random(f"{workflow.id} {release}")
    while True:
        inputs: dict[str, Any] = {
            "seq_length": source.choice([4096, 8192, 32768, 65536]),
            "tensor_parallel": source.choice([1, 2, 4]),
            "pipeline_parallel": source.choice([1] if workflow.id in NO_STAGES else [1, 1, 2, 4]),
            "expert_parallel": source.choice([2, 8] if workflow.id == "expert-overlap" else [1, 1, 2, 8]),
            "recompute": source.choice(["none", "selective"] if workflow.id == "expert-overlap" else LEVELS),
        }
        # Before 0.5 packs cannot be cut, and recipes for finetuning pack.
        start = PRETRAINED.get(release) if workflow.task == "any" and workflow.id != "moe-layout" else None
        if workflow.task != "pretrain" and not start:
            adapters = workflow.id in ADAPTERS_ONLY or source.random() < 0.3
            inputs["peft"] = "lora" if adapters else "none"
        if workflow.id != "two-level-cp":
            inputs["context_parallel"] = source.choice([1, 2, 4])
        try:
            yield generate_recipe(
                workflow.id,
                model=None if start else source.choice(MODELS.get(workflow.id, TEXT)),
                recipe=start,
                gpus=source.choice([8, 16, 32, 64]),
                gpu="h100",
                bridge=release,
                inputs=inputs,
            )
        except InputError as error:
            yield error  # type: ignore[misc]


def accepted(workflow: Workflow, release: str) -> list[GeneratedRecipe]:
    found = []
    for made in itertools.islice(drawn(workflow, release), 600):
        if isinstance(made, GeneratedRecipe):
            found.append(made)
        if len(found) == DRAWS:
            break
    return found


@pytest.fixture(scope="module")
def setups() -> dict[tuple[str, str], list[GeneratedRecipe]]:
    return {(workflow.id, release): accepted(workflow, release) for workflow, release in PAIRS}


@pytest.mark.parametrize(("workflow", "release"), [(found.id, release) for found, release in PAIRS])
def test_every_drawn_topology_is_generated_without_an_error_or_corruption(
    setups: dict[tuple[str, str], list[GeneratedRecipe]], workflow: str, release: str
) -> None:
    found = setups[workflow, release]
    assert len(found) == DRAWS
    bad = [
        (made.draft.recipe.name, made.settings, [(f.rule, f.message) for f in made.bad]) for made in found if made.bad
    ]
    assert bad == []


@pytest.fixture(scope="module")
def answers(
    bridge_worker: Worker, setups: dict[tuple[str, str], list[GeneratedRecipe]]
) -> list[tuple[GeneratedRecipe, dict[str, Any]]]:
    """What the real validate() of 0.6.2 says of every setup for it, asked in one run."""
    made = [found for (_, release), several in setups.items() if release == "0.6.2" for found in several]
    cases = []
    for found in made:
        config = resolved_draft(found.draft)
        tree = oracle._as_resolved(config, oracle._assumed(config))
        if (tree["model"].get("expert_model_parallel_size") or 1) > 1:
            # Recipes take these from the model's own config, which is on the hub.
            tree["model"] = {"num_moe_experts": 128, "moe_grouped_gemm": True, **tree["model"]}
        tree["dataset"] = {**FROM_RECIPES.get(str(config.dataset_type), {}), **tree["dataset"]}
        if config.dataset_type == "GPTDatasetConfig":
            tree["dataset"].setdefault("sequence_length", tree["model"]["seq_length"])
        cases.append({"config": tree, "infer": True, "world_size": found.gpus, "env": found.draft.env})
    return list(zip(made, run_task(bridge_worker, "oracle", {"cases": cases})["cases"], strict=True))


def test_the_real_validate_accepts_every_drawn_setup(
    answers: list[tuple[GeneratedRecipe, dict[str, Any]]],
) -> None:
    refused = [(found.workflow, found.settings, answer) for found, answer in answers if answer["outcome"] != "passes"]
    assert refused == []
    assert len(answers) >= DRAWS * 10


def test_the_real_classes_have_every_field_that_a_setup_sets(
    answers: list[tuple[GeneratedRecipe, dict[str, Any]]],
) -> None:
    assert [(found.workflow, answer["dropped"]) for found, answer in answers if answer["dropped"]] == []


@pytest.mark.parametrize("form", FORMS)
def test_every_form_reads_back_as_the_same_config(
    setups: dict[tuple[str, str], list[GeneratedRecipe]], form: str
) -> None:
    for several in setups.values():
        for found in several[:3]:
            if form not in ("script", "python") and needs_code(found):
                with pytest.raises(InputError, match="ask for the form script or python"):
                    render(found.draft, form)  # type: ignore[arg-type]
                continue
            text = render(found.draft, form)  # type: ignore[arg-type]
            if form in ("script", "python"):
                ast.parse(text)
            told = read_back(found, text, form)
            assert not told.at_least("corruption"), (found.workflow, text, told.at_least("corruption"))


def needs_code(found: GeneratedRecipe) -> bool:
    """Tell whether the setup replaces or adds an object of the config."""
    held, settings = found.draft.recipe.values, found.draft.settings
    added = any(name.startswith("comm_overlap.") for name in settings) and not any(
        name.startswith("comm_overlap.") for name in held
    )
    return added or "dataset.type" in settings


def read_back(found: GeneratedRecipe, text: str, form: str) -> Any:
    """Judge a text as a user would: the form, over the recipe, for the release and GPUs."""
    asked: dict[str, Any] = {"bridge": found.bridge, "world_size": found.gpus, "gpu": found.gpu}
    if form == "overrides":
        return validate_config(None, recipe=found.recipe, overrides=text.splitlines(), **asked)
    if form in ("script", "python"):
        return validate_config(text, form="python", **asked)
    return validate_config(text, recipe=found.recipe, form=form, **asked)  # type: ignore[arg-type]


FLAT = {"tensor_parallel": 1, "pipeline_parallel": 1, "context_parallel": 1}


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"workflow": "packing"}, "there is no workflow 'packing'"),
        ({"model": None}, "say what to start from"),
        ({"model": "Qwen/Nope-8B"}, "has no sft recipe for Qwen/Nope-8B"),
        ({"model": None, "recipe": "qwen3_8b_sft_confg"}, "did you mean qwen3_8b_sft_config?"),
        ({"gpus": 0}, "the number of GPUs must be a whole number from 1 on"),
        ({"gpus": 6, "inputs": {"tensor_parallel": 4}}, "no layout of Qwen/Qwen3-8B on 6 GPUs"),
        ({"inputs": {"tensor_parallel": "many"}}, "tensor_parallel must be a whole number from 1 on or choose"),
        ({"inputs": {"colour": 1}}, "has no input 'colour'"),
        ({"inputs": {"peft": "qlora"}}, "peft must be one of none, lora, dora"),
        ({"inputs": {"data": "a\nb"}}, "data must be printable text"),
        (
            {"inputs": {"seq_length": 100, "context_parallel": 8, "tensor_parallel": 1, "pipeline_parallel": 1}},
            "2 x CP",
        ),
        ({"bridge": "newest of all"}, "newest of all"),
        ({"gpu": "tpu"}, "is not a known kind of GPU"),
        ({"form": "toml"}, "the form must be one of"),
        ({"workflow": "energon-native-packed-sft"}, "does not work on Megatron-Bridge 0.6.2"),
        ({"overrides": ["nonsense"]}, "nonsense"),
        ({"inputs": {"global_batch_size": 7, **FLAT}}, "a global batch of 7 cannot be divided"),
    ],
)
def test_what_cannot_be_met_is_refused_with_one_sentence(asked: dict[str, Any], told: str) -> None:
    request = {"workflow": "offline-packed-sft", "model": "Qwen/Qwen3-8B", "gpus": 16, "bridge": "0.6.2", **asked}
    with pytest.raises(InputError) as refused:
        generate_recipe(request.pop("workflow"), **request)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_a_user_types_stays_text_in_python() -> None:
    sly = '/data/x"); import os; os.system("true'
    found = generate_recipe(
        "offline-packed-sft",
        model="Qwen/Qwen3-8B",
        gpus=8,
        bridge="0.6.2",
        inputs={"data": sly, "save": sly, "pretrained_checkpoint": sly},
    )
    texts = [node.value for node in ast.walk(ast.parse(found.text)) if isinstance(node, ast.Constant)]
    assert texts.count(sly) == 3
    assert not any(isinstance(node, ast.Name) and node.id == "os" for node in ast.walk(ast.parse(found.text)))


def test_sizes_that_stay_the_recipes_are_told_and_chosen_ones_are_not() -> None:
    asked: dict[str, Any] = {"recipe": "qwen3_8b_sft_32k_config", "gpus": 8, "bridge": "0.6.2"}
    own = dict(generate_recipe("offline-packed-sft", **asked).reasons)
    assert own["model.context_parallel_size"] == '2 is the recipe\'s own; "choose" has it chosen'
    chosen = generate_recipe("offline-packed-sft", **asked, inputs={"context_parallel": "choose"})
    assert not [text for _, text in chosen.reasons if "the recipe's own" in text]
