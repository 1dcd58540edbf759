"""What the real Megatron-Bridge 0.6.2 says of migrated configs and scripts; one run of the worker for each kind."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from skill_run.bridge import names
from skill_run.bridge.recipes import Recipe, catalogue
from skill_run.config.read import read_source
from skill_run.recipe.migrate import Migration, migrate_config
from skill_run.rules.validate import build_config
from skill_run.worker import oracle
from skill_run.worker.environments import Worker
from skill_run.worker.session import run_task

DATA = Path(__file__).parent / "data"
# Upstream's card of 0.5.1: fine-tuning recipes that pack by default.
COUNT = 90
SQUAD = {
    "_target_": "megatron.bridge.data.builders.hf_dataset.HFDatasetConfig",
    "dataset_name": "rajpurkar/squad",
    "process_example_fn": {
        "_target_": "megatron.bridge.data.hf_processors.squad.process_squad_example",
        "_call_": False,
    },
    "seed": 5678,
    "num_workers": 1,
    "do_validation": True,
    "do_test": False,
    "val_proportion": 0.1,
    "rewrite": False,
}


def packed_recipes(version: str) -> dict[str, Recipe]:
    """Return the fine-tuning recipes of a release that pack offline by default."""
    return {
        name: recipe
        for name, recipe in catalogue(version).items()
        if recipe.kind in ("sft", "peft") and recipe.values.get("dataset.enable_offline_packing") is True
    }


def recipe_config(recipe: Recipe, version: str) -> dict[str, Any]:
    """Return what a recipe of a release before 0.6 sets, with its dataset written out as its SQuAD helper makes it."""
    tree: dict[str, Any] = {}
    for canonical, value in recipe.values.items():
        if canonical in ("dataset.enable_offline_packing", "dataset.type"):
            continue
        node = tree
        *parents, leaf = names.to_written(canonical, version, "HFDatasetConfig").split(".")
        for parent in parents:
            node = node.setdefault(parent, {})
        # The catalogue keeps one name as a list of one.
        node[leaf] = value[0] if leaf == "cp_comm_type" and isinstance(value, list) else value
    tree["dataset"] = {**SQUAD, **tree["dataset"]}
    return tree


@pytest.fixture(scope="module")
def recipes() -> dict[str, Migration]:
    found = {}
    for name, recipe in packed_recipes("0.5.1").items():
        text = yaml.safe_dump(recipe_config(recipe, "0.5.1"), sort_keys=False)
        found[name] = migrate_config(text, to="0.6.2", form="yaml")
    return found


def test_every_packed_fine_tuning_recipe_of_0_5_1_migrates_to_0_6_2_without_an_error(
    recipes: dict[str, Migration],
) -> None:
    assert len(recipes) == COUNT
    left = {name: migration.manual for name, migration in recipes.items() if migration.manual}
    errors = {
        name: [finding.rule for finding in migration.report.at_least("error")]
        for name, migration in recipes.items()
        if migration.report is None or migration.report.at_least("error")
    }
    assert left == {}
    assert errors == {}
    assert all(migration.from_version == "0.5.1" for migration in recipes.values())


@pytest.fixture(scope="module")
def answers(bridge_worker: Worker, recipes: dict[str, Migration]) -> dict[str, dict[str, Any]]:
    """What the real validate() says of each migrated recipe, on the fewest GPUs that its layout takes."""
    cases = []
    for migration in recipes.values():
        source = read_source(str(migration.text), bridge="0.6.2", form="yaml")
        config = build_config([source], bridge="0.6.2")
        made = oracle._as_resolved(config, oracle._assumed(config))
        if (made["model"].get("expert_model_parallel_size") or 1) > 1:
            # Recipes take these from the model's own config, which is on the hub.
            made["model"] = {"num_moe_experts": 128, "moe_grouped_gemm": True, **made["model"]}
        case = {"config": made, "infer": True}
        cases.append({**case, "world_size": oracle._smallest_world(config), "env": {}})
    told = run_task(bridge_worker, "oracle", {"cases": cases})["cases"]
    return dict(zip(recipes, told, strict=True))


def test_the_real_validate_accepts_every_migrated_recipe(answers: dict[str, dict[str, Any]]) -> None:
    refused = {name: answer for name, answer in answers.items() if answer["outcome"] != "passes"}
    assert refused == {}


def test_the_real_classes_have_every_field_that_a_migrated_recipe_sets(answers: dict[str, dict[str, Any]]) -> None:
    assert {name: answer["dropped"] for name, answer in answers.items() if answer["dropped"]} == {}


@pytest.fixture(scope="module")
def scripts(bridge_worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What became of each script of the data folder, migrated and then run in the worker up to validate()."""
    folder = tmp_path_factory.mktemp("scripts")
    paths = []
    for script in sorted(DATA.glob("*.py.txt")):
        bridge = "0.3.1" if script.name.startswith("whole") else "0.5.1"
        text = migrate_config(script.read_text(), to="0.6.2", bridge=bridge, form="python").text
        paths.append(folder / script.name.removesuffix(".txt"))
        paths[-1].write_text(str(text))
    command = [*bridge_worker.command, str(Path(__file__).with_name("run_scripts.py")), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-2000:]
    found: dict[str, dict[str, Any]] = json.loads(lines[0].removeprefix("RESULT "))
    return found


def test_the_real_0_6_2_builds_and_accepts_every_migrated_script(scripts: dict[str, dict[str, Any]]) -> None:
    assert {name: told["message"] for name, told in scripts.items() if told["outcome"] != "passes"} == {}
    assert len(scripts) == len(list(DATA.glob("*.py.txt")))


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("packed_cp2", {"packs": True, "pad": 4, "eval_iters": 2}),
        ("class_based", {"packs": True, "pad": 8, "eval_iters": 4}),
        ("partial_and_replace", {"packs": True, "pad": 4}),
        ("both_releases", {"packs": True, "eval_iters": 3}),
        ("hub_datasets", {"packs": True, "dataset": "GPTSFTDatasetConfig"}),
        ("whole_container", {"packs": True, "eval_iters": 2, "etp": 2}),
        ("conversations", {"in_batch": True, "dataset": "DirectHFSFTDatasetConfig"}),
    ],
)
def test_a_migrated_script_builds_what_it_was_written_for(
    scripts: dict[str, dict[str, Any]], script: str, expected: dict[str, Any]
) -> None:
    assert {name: scripts[script][name] for name in expected} == expected
