"""`validate_config`: every kind of source, what is laid over it, and which rules and release judge it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import skill_run
from skill_run import validate_config
from skill_run.bridge.recipes import releases_with
from skill_run.bridge.release import known_releases, load_release, newest_release
from skill_run.errors import BundleError, InputError
from skill_run.report.finding import ValidationReport
from skill_run.rules.validate import build_config, bundle_rules, judge, read_sources, release_of, rule_set

CP = "model.context_parallel_size"
MBS = "train.micro_batch_size"
RECIPE = "llama32_1b_sft_config"

NESTED = {
    "model": {"context_parallel_size": 2, "calculate_per_token_loss": True},
    "dataset": {"enable_offline_packing": True, "offline_packing_specs": {"packed_sequence_size": 4096}},
}
DOTTED = {
    CP: 2,
    "model.calculate_per_token_loss": True,
    "dataset.enable_offline_packing": True,
    "dataset.offline_packing_specs.packed_sequence_size": 4096,
}
YAML = """\
model:
  context_parallel_size: 2
  calculate_per_token_loss: true
dataset:
  enable_offline_packing: true
  offline_packing_specs:
    packed_sequence_size: 4096
"""
HOUSE_RULE = """\
id: house-wants-bf16
title: this team trains in bf16 only
severity: error
fires: {"*": never}
require: given.mixed_precision && mixed_precision == 'bf16_mixed'
message: mixed_precision is not bf16_mixed.
evidence: [{says: decided in the team}]
fails: [{mixed_precision: fp16_mixed}]
passes: [{mixed_precision: bf16_mixed}]
"""

Write = Callable[..., Path]


def rules_of(report: ValidationReport, level: str = "corruption") -> set[str]:
    return {finding.rule for finding in report.at_least(level)}  # type: ignore[arg-type]


def test_the_public_function_is_the_one_of_the_package() -> None:
    assert skill_run.validate_config is validate_config
    with pytest.raises(AttributeError, match="no attribute 'validate'"):
        _ = skill_run.validate


@pytest.mark.parametrize("source", [NESTED, DOTTED, YAML, json.dumps(NESTED), json.dumps(NESTED, indent=1)])
def test_one_config_in_any_form_has_the_same_findings(source: Any) -> None:
    report = validate_config(source, bridge="0.6.2")
    assert rules_of(report) == {"offline-pad-multiple-covers-cp"}
    assert report.upstream_validate == validate_config(YAML, bridge="0.6.2").upstream_validate


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_is_read_and_findings_point_into_the_file(config_file: Write, kind: type) -> None:
    path = config_file(YAML + "    pad_seq_to_mult: 2\n")
    report = validate_config(kind(path), bridge="0.6.2")
    finding = next(f for f in report.findings if f.rule == "offline-pad-multiple-covers-cp")
    assert finding.location is not None
    assert (finding.location.file, finding.location.line, finding.location.column) == (str(path), 8, 22)
    assert report.source == str(path)


def test_a_python_file_is_read_and_not_run(config_file: Write, tmp_path: Path) -> None:
    text = f"""\
from megatron.bridge.recipes.llama.llama3 import {RECIPE}
open({str(tmp_path / "ran")!r}, "w").write("it ran")

def main():
    cfg = {RECIPE}()
    cfg.model.context_parallel_size = 2
    cfg.train.micro_batch_size = 4
"""
    report = validate_config(config_file(text, "train.py"), bridge="0.6.2")
    assert {"offline-packing-needs-micro-batch-1", "offline-pad-multiple-covers-cp"} <= rules_of(report)
    assert RECIPE in report.base
    assert not (tmp_path / "ran").exists()


def test_a_launch_command_gives_recipe_ranks_and_overrides() -> None:
    command = f"torchrun --nproc_per_node 4 --nnodes 2 scripts/training/run_recipe.py --recipe {RECIPE} {MBS}=4"
    report = validate_config(command, bridge="0.6.2")
    assert rules_of(report) == {"offline-packing-needs-micro-batch-1", "global-batch-divisible"}
    assert (report.world_size, report.base) == (8, f"recipe {RECIPE} of 0.6.2")


def test_text_on_one_line_is_read_when_its_form_is_told() -> None:
    report = validate_config("model: {context_parallel_size: 2}", form="yaml", bridge="0.6.2")
    assert report.source == "<text>"
    with pytest.raises(InputError, match="not there"):
        validate_config("model: {context_parallel_size: 2}", bridge="0.6.2")


def test_overrides_are_laid_over_the_config_and_the_last_one_wins() -> None:
    clean = "dataset.offline_packing_specs.pad_seq_to_mult=4"
    assert rules_of(validate_config(NESTED, bridge="0.6.2", overrides=[clean])) == set()
    again = validate_config(NESTED, bridge="0.6.2", overrides=[clean, f"{CP}=4"])
    assert rules_of(again) == {"offline-pad-multiple-covers-cp"}


def test_overrides_alone_are_a_config() -> None:
    report = validate_config(None, bridge="0.6.2", overrides=["++model.context_parallel_size=4", "rng.seed=1"])
    assert report.source == "overrides"


def test_a_recipe_is_the_base_that_the_config_is_laid_over() -> None:
    report = validate_config({CP: 2}, bridge="0.6.2", recipe=RECIPE)
    assert {"cp-sft-needs-per-token-loss", "offline-pad-multiple-covers-cp"} <= rules_of(report)
    assert report.base == f"recipe {RECIPE} of 0.6.2"
    assert rules_of(validate_config(None, bridge="0.6.2", recipe=RECIPE)) == set()


def test_overrides_win_over_the_config_and_the_config_over_the_recipe() -> None:
    report = validate_config({CP: 2, MBS: 4}, bridge="0.6.2", recipe=RECIPE, overrides=[f"{CP}=1", f"{MBS}=1"])
    assert rules_of(report) == set()


def test_a_recipe_of_another_release_is_told_with_the_releases_that_have_it() -> None:
    name = "gemma3_vl_4b_finetune_config"
    report = validate_config(None, recipe=name, bridge="0.6.2")
    finding = next(finding for finding in report.findings if finding.rule == "unknown-recipe")
    assert name in finding.message
    assert "0.3.1" in finding.message
    assert report.upstream_validate == "raises"


def test_a_misspelt_recipe_is_told_with_the_nearest_one() -> None:
    report = validate_config(None, recipe="llama32_1b_sft_confg", bridge="0.6.2")
    assert f"did you mean {RECIPE}?" in next(f.message for f in report.findings if f.rule == "unknown-recipe")


def test_a_recipe_outside_the_catalogue_is_taken_for_the_users_own_and_nothing_is_guessed() -> None:
    report = validate_config(None, recipe="our_secret_project", bridge="0.6.2")
    assert rules_of(report, "warning") == {"base-config-unknown"}
    assert "our_secret_project" in report.base
    assert len(report.not_checked) > 100


@pytest.mark.parametrize("world_size", [1, 8, 2**62])
def test_the_world_size_is_taken(world_size: int) -> None:
    assert validate_config(NESTED, bridge="0.6.2", world_size=world_size).world_size == world_size


@pytest.mark.parametrize("world_size", [0, -1, True, 2**63, 1.5, "8"])
def test_a_world_size_that_is_no_count_is_refused(world_size: Any) -> None:
    with pytest.raises(InputError, match="world size must be a whole number of at least 1"):
        validate_config(NESTED, world_size=world_size)


def test_the_world_size_asked_for_wins_over_the_one_of_the_command() -> None:
    command = f"torchrun --nproc_per_node 4 scripts/training/run_recipe.py --recipe {RECIPE}"
    assert validate_config(command, bridge="0.6.2").world_size == 4
    assert validate_config(command, bridge="0.6.2", world_size=64).world_size == 64


def test_the_model_folder_decides_rules_about_the_architecture(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"num_attention_heads": 12, "num_key_value_heads": 4}), "utf-8")
    config = {"model.tensor_model_parallel_size": 8}
    without = validate_config(config, bridge="0.6.2")
    told = validate_config(config, bridge="0.6.2", model=str(tmp_path))
    assert len(told.not_checked) < len(without.not_checked)
    resolved = build_config(read_sources(config), bridge="0.6.2", model=str(tmp_path))
    assert resolved.get("model.num_attention_heads").value == 12


def test_a_model_id_tells_the_family() -> None:
    config = {CP: 2, "dataset.type": "GPTSFTDatasetConfig", "model.calculate_per_token_loss": True}
    assert "gemma-2-needs-cp-1" in rules_of(validate_config(config, bridge="0.6.2", model="google/gemma-2-9b"))
    other = validate_config(config, bridge="0.6.2", model="meta-llama/Llama-3.1-8B")
    assert "gemma-2-needs-cp-1" not in rules_of(other, "info")


def test_the_environment_decides_rules_about_variables() -> None:
    config = {"model.fine_grained_activation_offloading": True, "model.offload_modules": ["core_attn"]}
    name = "fine-grained-offload-needs-env"
    assert name in {entry.rule for entry in validate_config(config, bridge="0.6.2").not_checked}
    assert name in rules_of(validate_config(config, bridge="0.6.2", env={}))
    assert name not in rules_of(validate_config(config, bridge="0.6.2", env={"NVTE_CPU_OFFLOAD_V1": "1"}), "info")


def test_the_gpu_type_is_taken_in_any_case() -> None:
    sources = read_sources({CP: 1})
    assert build_config(sources, bridge="0.6.2", gpu="H100").gpu == "h100"
    assert build_config(sources, bridge="0.6.2").gpu is None


@pytest.mark.parametrize("version", known_releases())
def test_the_release_asked_for_judges_and_is_paired_with_its_core(version: str) -> None:
    report = validate_config({CP: 2}, bridge=version)
    assert (report.bridge.version, report.bridge.release) == (version, version)
    assert release_of(build_config(read_sources({CP: 2}), bridge=version)) == load_release(version).core


@pytest.mark.parametrize(
    ("asked", "version", "release"),
    [
        ("v0.6.2", "0.6.2", "0.6.2"),
        ("main", "0.7.0.dev0", "0.7.0.dev0"),
        ("0.5.4", "0.5.4", "0.5.1"),
        ("9", "9", "0.7.0.dev0"),
    ],
)
def test_a_version_as_people_write_it_is_understood(asked: str, version: str, release: str) -> None:
    choice = validate_config({CP: 2}, bridge=asked).bridge
    assert (choice.version, choice.release) == (version, release)


@pytest.mark.parametrize("asked", ["", "latest", "0.6.x", "\udcff"])
def test_a_version_that_is_none_is_refused_with_the_recorded_ones(asked: str) -> None:
    with pytest.raises(InputError, match=r"not a Megatron-Bridge version.*0\.6\.2"):
        validate_config({CP: 2}, bridge=asked)


def test_field_names_imply_the_release() -> None:
    old = validate_config({"dataset.packed_sequence_specs.pad_seq_to_mult": 1})
    new = validate_config({"dataset.offline_packing_specs.pad_seq_to_mult": 1})
    assert (old.bridge.release, new.bridge.release) == ("0.5.1", "0.6.2")
    assert "packed_sequence_specs" in old.bridge.because


def test_an_import_implies_the_release_and_a_wrong_one_is_told(config_file: Write) -> None:
    text = f"""\
from megatron.bridge.data.datasets.packed_sequence import PackedSequenceSpecs
from megatron.bridge.recipes.llama import {RECIPE}

cfg = {RECIPE}()
cfg.model.context_parallel_size = 1
"""
    path = config_file(text, "train.py")
    assert validate_config(path).bridge.release == "0.5.1"
    finding = next(f for f in validate_config(path, bridge="0.6.2").findings if f.rule == "wrong-import")
    assert "megatron.bridge.data.packing" in finding.message
    assert finding.location is not None
    assert finding.location.line == 1


def import_findings(statement: str, bridge: str) -> list[str]:
    source = f"{statement}\n\ncfg = {RECIPE}()\ncfg.rng.seed = 1\n"
    report = validate_config(source, form="python", bridge=bridge)
    return [finding.message for finding in report.findings if finding.rule == "wrong-import"]


@pytest.mark.parametrize(
    ("statement", "bridge", "instead"),
    [
        (
            "from megatron.bridge.data.packing import PackedSequenceSpecs",
            "0.5.1",
            "megatron.bridge.data.datasets.packed_sequence",
        ),
        ("import megatron.bridge.data.packing.gpt_sft", "0.5.1", "megatron.bridge.data.datasets.packed_sequence"),
        (
            "from megatron.bridge.data.datasets.sft import create_sft_dataset",
            "0.6.2",
            "GPTSFTDatasetBuilder from megatron.bridge.data.builders",
        ),
        ("from megatron.bridge.data.builders import GPTSFTDatasetConfig", "0.5.1", "FinetuningDatasetConfig from"),
        (
            "from megatron.bridge.data.builders.hf_dataset import HFDatasetConfig",
            "0.6.2",
            "GPTSFTDatasetConfig(hf_dataset=",
        ),
        ("from megatron.bridge.data.datasets.packed_sequence import anything", "main", "megatron.bridge.data.packing"),
    ],
)
def test_an_import_that_the_release_lacks_is_told_with_what_to_import_instead(
    statement: str, bridge: str, instead: str
) -> None:
    (message,) = import_findings(statement, bridge)
    assert "raises ModuleNotFoundError" in message
    assert f"use {instead}" in message


@pytest.mark.parametrize(
    ("statement", "bridge"),
    [
        ("from megatron.bridge.data.packing import PackedSequenceSpecs", "0.6.2"),
        ("from megatron.bridge.data.packing_of_ours import PackedSequenceSpecs", "0.5.1"),
        ("from our_team.specs import PackedSequenceSpecs", "0.5.1"),
        ("from megatron.bridge.data.datasets.packed_sequence import PackedSequenceSpecs", "0.5.1"),
        ("from megatron.bridge.data.builders.hf_dataset import HFDatasetConfig", "0.3.1"),
        ("from megatron.bridge.data.builders import DirectHFSFTDatasetConfig", "main"),
        ("from megatron.bridge.training.config import ConfigContainer", "0.4.2"),
    ],
)
def test_an_import_that_the_release_has_is_fine(statement: str, bridge: str) -> None:
    assert import_findings(statement, bridge) == []


def test_a_recipe_that_only_some_releases_have_implies_one_of_them() -> None:
    name = "gemma3_vl_4b_finetune_config"
    choice = validate_config(None, recipe=name).bridge
    assert choice.release in releases_with(name)
    assert newest_release() not in releases_with(name)
    assert choice.because.startswith(f"implied by the input: recipe {name}; it does not fit ")


def test_house_rules_beside_the_config_are_found(config_file: Write) -> None:
    path = config_file("mixed_precision: fp16_mixed\n")
    assert "house-wants-bf16" not in rules_of(validate_config(path))
    config_file(HOUSE_RULE, ".skill-run/rules/house-wants-bf16.yaml")
    report = validate_config(path)
    finding = next(finding for finding in report.findings if finding.rule == "house-wants-bf16")
    assert (finding.skill, finding.message) == ("house", "mixed_precision is not bf16_mixed.")


def test_house_rules_above_the_config_are_found_up_to_the_root_of_the_repository(config_file: Write) -> None:
    path = config_file("mixed_precision: fp16_mixed\n", "experiments/long/conf.yaml")
    config_file(HOUSE_RULE, ".skill-run/rules/house-wants-bf16.yaml")
    assert "house-wants-bf16" in rules_of(validate_config(str(path)))
    (path.parent / ".git").mkdir()
    assert "house-wants-bf16" not in rules_of(validate_config(str(path)))


def test_house_rules_of_a_folder_asked_for_are_used_for_any_source(config_file: Write) -> None:
    folder = config_file(HOUSE_RULE, "shared/house-wants-bf16.yaml").parent
    for source in ({"mixed_precision": "fp16_mixed"}, "mixed_precision: fp16_mixed\n"):
        assert "house-wants-bf16" in rules_of(validate_config(source, rules=folder))
        assert "house-wants-bf16" in rules_of(validate_config(source, rules=str(folder)))
        assert "house-wants-bf16" not in rules_of(validate_config({"mixed_precision": "bf16_mixed"}, rules=folder))


def test_house_rules_beside_the_working_folder_hold_for_a_config_that_is_no_file(
    config_file: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config_file(HOUSE_RULE, ".skill-run/rules/house-wants-bf16.yaml")
    monkeypatch.chdir(tmp_path)
    assert "house-wants-bf16" in rules_of(validate_config({"mixed_precision": "fp16_mixed"}))


def test_a_wrong_house_rule_is_told_with_file_and_line(config_file: Write) -> None:
    config_file(HOUSE_RULE.replace("bf16_mixed'", "bf16_mixed"), ".skill-run/rules/house-wants-bf16.yaml")
    with pytest.raises(BundleError, match=r"house-wants-bf16\.yaml:5: .*does not compile"):
        validate_config(config_file("mixed_precision: fp16_mixed\n"))


def test_a_rule_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a folder of rule files"):
        validate_config({CP: 1}, rules=tmp_path / "nothing")


def test_the_rules_of_the_bundle_are_compiled_once() -> None:
    assert rule_set(None, None) is bundle_rules()


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (None, "nothing to validate"),
        ("", "directory"),
        ("no/such/file.yaml", "not there"),
        ("a\0b", "not there"),
        ("x" * 5000, "not there"),
        ("\n", "empty"),
        ("- a\n- b\n", "top level must be a mapping"),
        ("model: [\n", "not valid YAML"),
        ("{\n", "not valid JSON"),
        ("a: &a [*a]\n", "contains itself"),
        ("model: {context_parallel_size: two}\n", "must be a whole number"),
        ("model: 16\nrng: {seed: 1}\n", "model is 16, but it must be a mapping"),
        ("a: !!python/object/apply:os.system [ls]\n", "tag"),
        ({1: 2}, "is not text"),
        ({"model": {"x": object()}}, "not plain config data"),
        ({CP: "two"}, "must be a whole number"),
    ],
)
def test_a_source_that_cannot_be_read_is_refused_in_one_sentence(source: Any, told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        validate_config(source)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_an_empty_recipe_name_is_refused() -> None:
    with pytest.raises(InputError, match="recipe name is empty"):
        validate_config(None, recipe=" ")


def test_a_file_that_is_not_text_or_too_large_is_refused(tmp_path: Path) -> None:
    binary, large = tmp_path / "binary.yaml", tmp_path / "large.yaml"
    binary.write_bytes(b"model: \xff\xfe\n")
    large.write_text("# " + "x" * (5 * 1024 * 1024), "utf-8")
    with pytest.raises(InputError, match="not UTF-8"):
        validate_config(binary)
    with pytest.raises(InputError, match="larger than"):
        validate_config(large)


def test_a_cyclic_or_deep_mapping_is_refused() -> None:
    cyclic: dict[str, Any] = {}
    cyclic["model"] = cyclic
    with pytest.raises(InputError, match="nested deeper"):
        validate_config(cyclic)


def test_the_same_call_gives_the_same_report() -> None:
    first, second = (validate_config(YAML, bridge="0.6.2", world_size=8).to_dict() for _ in range(2))
    assert first == second


def test_the_summary_counts_findings_and_what_was_not_checked() -> None:
    report = validate_config(YAML, bridge="0.6.2")
    assert report.summary["corruption"] == 1
    assert report.summary["not_checked"] == len(report.not_checked) > 0
    assert report.rules_checked > 100
    assert report == judge(YAML, rules=bundle_rules(), bridge="0.6.2")
