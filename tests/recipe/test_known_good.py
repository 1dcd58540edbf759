"""Configs that upstream ran, generated from what a user would ask for: the result has the very same settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skill_run.bridge.recipes import catalogue, find_recipe
from skill_run.config.model import State
from skill_run.errors import InputError
from skill_run.recipe.generate import GeneratedRecipe, generate_recipe
from skill_run.recipe.request import resolved_draft

ROWS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "known_good.json").read_text())
FIELDS = {
    "seq_length": "model.seq_length",
    "mbs": "train.micro_batch_size",
    "gbs": "train.global_batch_size",
    "tp": "model.tensor_model_parallel_size",
    "pp": "model.pipeline_model_parallel_size",
    "vpp": "model.virtual_pipeline_model_parallel_size",
    "cp": "model.context_parallel_size",
    "ep": "model.expert_model_parallel_size",
    "etp": "model.expert_tensor_parallel_size",
    "sp": "model.sequence_parallel",
    "cp_comm_type": "model.cp_comm_type",
    "recompute_granularity": "model.recompute_granularity",
    "recompute_method": "model.recompute_method",
    "recompute_num_layers": "model.recompute_num_layers",
    "recompute_modules": "model.recompute_modules",
    "packed_sequence_size": "dataset.offline_packing_specs.packed_sequence_size",
    "pad_seq_to_mult": "dataset.offline_packing_specs.pad_seq_to_mult",
}
ARCHITECTURE = {"recompute_method", "recompute_num_layers", "recompute_modules"}


def workflow_of(row: dict[str, Any]) -> str:
    if row["task"] == "pretrain":
        return "long-context-pretrain"
    return "offline-packed-sft" if row["packing"] == "offline" else "in-batch-packed-sft"


def inputs_of(row: dict[str, Any]) -> dict[str, Any]:
    names = {
        "seq_length": "seq_length",
        "mbs": "micro_batch_size",
        "gbs": "global_batch_size",
        "tp": "tensor_parallel",
        "pp": "pipeline_parallel",
        "cp": "context_parallel",
        "ep": "expert_parallel",
        "etp": "expert_tensor_parallel",
        "sp": "sequence_parallel",
        "cp_comm_type": "cp_comm_type",
    }
    found = {name: row[key] for key, name in names.items() if row[key] is not None}
    found |= {"virtual_pipeline": row["vpp"] or 1, "recompute": row["recompute_granularity"] or "none"}
    if row["task"] == "peft":
        found["peft"] = row["peft"].lower()
    if workflow_of(row) == "in-batch-packed-sft":
        found["pack"] = row["packing"] == "in_batch"
    return found


def overrides_of(row: dict[str, Any]) -> list[str]:
    """What a user who wants exactly this sets by name: how to recompute, and the sizes of a pack."""
    names = ["packed_sequence_size", "pad_seq_to_mult"] if row["packing"] == "offline" else []
    names += [name for name in sorted(ARCHITECTURE) if row["recompute_granularity"]]
    given = {FIELDS[name]: row[name] for name in names if row[name] is not None}
    return [f"{field}={json.dumps(value).replace(chr(34), '')}" for field, value in given.items()]


def generated(row: dict[str, Any]) -> GeneratedRecipe:
    asked = {
        "gpus": row["num_gpus"],
        "gpu": row["gpu"],
        "bridge": row["version"],
        "inputs": inputs_of(row),
        "overrides": overrides_of(row),
        "form": "script",
    }
    try:
        return generate_recipe(workflow_of(row), model=row["model"], **asked)
    except InputError:
        # A newer model than the release's recipes: its cards name the recipe of the model before.
        release = "0.7.0.dev0" if row["version"] == "main" else row["version"]
        if find_recipe(row["recipe"], release) is not None:
            return generate_recipe(workflow_of(row), recipe=row["recipe"], **asked)
        stem = row["recipe"].partition(f"_{row['task']}_")[0]
        before = next(r.hf_model for r in catalogue(release).values() if r.name.startswith(stem + "_") and r.hf_model)
        return generate_recipe(workflow_of(row), model=before, **asked)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_a_config_that_upstream_ran_is_generated_from_its_intent(row: dict[str, Any]) -> None:
    found = generated(row)
    config = resolved_draft(found.draft)
    different = {}
    for key, field in FIELDS.items():
        if row[key] is None and key not in ("vpp", "recompute_granularity"):
            continue
        held = config.get(field)
        value = held.value[0] if key == "cp_comm_type" and isinstance(held.value, list) else held.value
        if held.state is State.UNKNOWN and row[key] in (None, 1, False):
            continue
        if value != row[key] and not (key in ("vpp", "etp") and {value, row[key]} <= {None, 1}):
            different[field] = (row[key], value, held.state)
    assert different == {}
    assert config.dataset_type == row["dataset_type"]
    assert config.is_given("peft") == (row["peft"] is not None)
    assert config.world_size == row["num_gpus"]
    assert not found.report.at_least("error"), found.report.findings
