"""Every renamed field, moved class and moved module of the release data, in every form of config."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
import yaml

from skill_run.bridge.release import index, known_releases, load_release, matches
from skill_run.recipe.migrate import migrate_config
from skill_run.recipe.migrate.python.imports import fate_of
from skill_run.recipe.migrate.steps import can_import, data, home_of, recipe_after

RENAMES = index()["renames"]
# A value of the right type for each renamed field.
VALUES: dict[str, Any] = {
    "dataset.packed_sequence_specs": {"packed_sequence_size": 4096, "pad_seq_to_mult": 2},
    "dataset.pack_sequences_in_batch": True,
    "train.eval_iters": 7,
    "train.eval_interval": 9,
    "train.skip_train": True,
    "dist.lazy_init": True,
    "model.cuda_graph_scope": ["attn"],
    "dataset.sequence_length": 4096,
}


def sides(rename: dict[str, Any]) -> tuple[str, str]:
    """Return the newest release with the old name and the oldest published one with the new name."""
    having = [version for version in known_releases() if matches(rename["bridge"], version)]
    lacking = [version for version in known_releases() if not matches(rename["bridge"], version)]
    return having[-1], lacking[0]


def config_of(rename: dict[str, Any]) -> dict[str, Any]:
    section, _, leaf = rename["old"].partition(".")
    tree: dict[str, Any] = {section: {leaf: VALUES[rename["old"]]}}
    if "datasets" in rename:
        tree["dataset"]["type"] = rename["datasets"][0]
    return tree


def held(tree: dict[str, Any], path: str) -> Any:
    section, _, leaf = path.partition(".")
    return tree.get(section, {}).get(leaf)


@pytest.mark.parametrize("rename", RENAMES, ids=lambda rename: rename["old"])
@pytest.mark.parametrize("form", ["mapping", "yaml", "json"])
def test_a_renamed_field_moves_with_its_value_and_back_again(rename: dict[str, Any], form: str) -> None:
    before, after = sides(rename)
    tree = config_of(rename)
    source: Any = tree
    if form == "yaml":
        source = yaml.safe_dump(tree, sort_keys=False)
    elif form == "json":
        source = json.dumps(tree, indent=2) + "\n"
    options: dict[str, Any] = {} if form == "mapping" else {"form": form}
    moved = migrate_config(source, to=after, bridge=before, **options)
    back = migrate_config(moved.text, to=before, bridge=after, **options)
    read = moved.text if form == "mapping" else yaml.safe_load(moved.text)  # type: ignore[arg-type]
    assert held(read, rename["new"]) == VALUES[rename["old"]]
    assert held(read, rename["old"]) is None
    assert not moved.manual
    returned = back.text if form == "mapping" else yaml.safe_load(back.text)  # type: ignore[arg-type]
    assert returned == tree


@pytest.mark.parametrize("rename", RENAMES, ids=lambda rename: rename["old"])
def test_a_renamed_field_moves_in_an_override_token(rename: dict[str, Any]) -> None:
    before, after = sides(rename)
    value = VALUES[rename["old"]]
    suffix, text = (".pad_seq_to_mult", "2") if isinstance(value, dict) else ("", json.dumps(value).replace(" ", ""))
    tokens = [f"++{rename['old']}{suffix}={text}"]
    if "datasets" in rename:
        tokens.append(f"dataset.type={rename['datasets'][0]}")
    moved = migrate_config(None, overrides=tokens, to=after, bridge=before)
    assert isinstance(moved.text, str)
    assert moved.text.splitlines()[0] == f"++{rename['new']}{suffix}={text}"


@pytest.mark.parametrize("rename", RENAMES, ids=lambda rename: rename["old"])
def test_a_renamed_field_moves_as_an_attribute_in_python(rename: dict[str, Any]) -> None:
    before, after = sides(rename)
    section, _, leaf = rename["old"].partition(".")
    made = f"    cfg.dataset = {rename['datasets'][0]}({leaf}=64)\n" if "datasets" in rename else ""
    bound = f"from megatron.bridge.training.config import {rename['datasets'][0]}\n" if made else ""
    value = "PackedSequenceSpecs()" if isinstance(VALUES[rename["old"]], dict) else repr(VALUES[rename["old"]])
    text = (
        "from megatron.bridge.recipes.llama import llama32_1b_sft_config\n"
        f"from {home_of('PackedSequenceSpecs', before)} import PackedSequenceSpecs\n{bound}\n\n"
        f"def build():\n    cfg = llama32_1b_sft_config()\n{made}"
        f"    cfg.{section}.{leaf} = {value}  # kept\n    return cfg\n"
    )
    moved = migrate_config(text, to=after, bridge=before, form="python")
    assert isinstance(moved.text, str)
    assert f"cfg.{rename['new']} = {value}  # kept" in moved.text
    ast.parse(moved.text)
    again = migrate_config(moved.text, to=after, form="python")
    assert again.text == moved.text


@pytest.mark.parametrize("row", index()["moved_classes"], ids=lambda row: f"{row['symbol']} {row['bridge']}")
def test_an_import_of_a_moved_class_resolves_in_the_target_or_is_listed(row: dict[str, Any]) -> None:
    module = row["old"] or row["new"]
    before, after = ("0.5.1", "0.6.2") if row["old"] else ("0.6.2", "0.5.1")
    text = f"from {module} import {row['symbol']}\n\ncfg = {row['symbol']}\n"
    moved = migrate_config(text, to=after, bridge=before, form="python")
    assert isinstance(moved.text, str)
    fate = fate_of(module, row["symbol"], before, after)
    listed = [item for item in moved.manual if item.what.startswith("from ")]
    assert bool(listed) == fate.lost
    if not fate.lost:
        assert f"from {fate.module} import {fate.name}" in moved.text
        assert can_import(fate.module, fate.name, after)


@pytest.mark.parametrize(
    "row", [r for r in index()["moved_modules"] if r["old"] and r["new"]], ids=lambda row: str(row["old"])
)
def test_a_moved_module_is_imported_from_its_new_place(row: dict[str, Any]) -> None:
    moved = migrate_config(f"import {row['old']} as here\n", to="0.6.2", bridge="0.5.1", form="python")
    assert moved.text == f"import {row['new']} as here\n"
    back = migrate_config(moved.text, to="0.5.1", bridge="0.6.2", form="python")
    assert isinstance(back.text, str)
    assert back.text.endswith(" as here\n")


def test_recorded_homes_are_modules_that_the_release_has() -> None:
    for symbol, homes in data()["symbols"].items():
        for version in known_releases():
            home = home_of(symbol, version)
            if home is not None and any(matches(specifier, version) for specifier in homes):
                assert can_import(home, symbol, version), (symbol, version)


def test_dataset_moves_name_classes_and_fields_of_the_release_data() -> None:
    old, new = load_release("0.5.1").datasets, load_release("0.6.2").datasets
    for row in data()["datasets"]:
        assert row["old"] in old
        assert row["new"] in new
        assert set(row["fields"]) <= set(old[row["old"]])
        assert set(row["fields"].values()) <= set(new[row["new"]])


def test_a_recipe_with_an_alias_goes_back_to_the_name_that_the_older_release_has() -> None:
    assert recipe_after("llama32_1b_sft_1gpu_h100_bf16_config", "0.6.2", "0.5.1") == (
        "llama32_1b_sft_config",
        "megatron.bridge.recipes.llama.llama3",
    )
    assert recipe_after("qwen2_audio_7b_finetune_config", "0.5.1", "0.6.2") is None
