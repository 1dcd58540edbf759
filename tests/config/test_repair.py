"""What run_recipe.py of 0.6 changes before it validates, and that nobody else gets it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from skill_run.config.config import Config
from skill_run.config.model import Plain, State
from skill_run.rules.validate import build_config, read_sources

SFT = "dataset._target_=megatron.bridge.data.builders.GPTSFTDatasetConfig"
CP2 = "model.context_parallel_size=2"
PACKED = [
    "dataset.enable_offline_packing=true",
    "++dataset.offline_packing_specs.packed_sequence_size=4096",
]
PAD = "dataset.offline_packing_specs.pad_seq_to_mult"


def launched(words: Sequence[str], *, bridge: str = "0.6.2", script: str = "scripts/training/run_recipe.py") -> Config:
    line = " ".join(["torchrun --nproc_per_node=8", script, "--recipe gemma2_2b_sft_config", *words])
    return build_config(read_sources(line, bridge=bridge), bridge=bridge)


def value(config: Config, field: str) -> Plain:
    found = config.get(field)
    assert found.state is State.SET
    return found.value


def by_script(config: Config, field: str) -> bool:
    return config.get(field).reason == "run_recipe.py"


@pytest.mark.parametrize("script", ["run_recipe.py", "scripts/training/run_recipe.py", "./run_recipe.py"])
@pytest.mark.parametrize("bridge", ["0.6.2", "0.6.0", "main"])
def test_with_context_parallelism_the_launcher_sets_the_loss_switches(script: str, bridge: str) -> None:
    config = launched([CP2, "ddp.average_in_collective=true"], script=script, bridge=bridge)
    assert value(config, "model.calculate_per_token_loss") is True
    assert value(config, "ddp.average_in_collective") is False


def test_the_switches_keep_the_place_where_the_user_set_them() -> None:
    config = launched([CP2, "ddp.average_in_collective=true"])
    assert config.get("ddp.average_in_collective").location.column is not None


@pytest.mark.parametrize("bridge", ["0.3.1", "0.4.2", "0.5.1"])
def test_older_launchers_change_nothing(bridge: str) -> None:
    config = launched([CP2, "ddp.average_in_collective=true"], bridge=bridge)
    assert value(config, "ddp.average_in_collective") is True
    assert not by_script(config, "model.calculate_per_token_loss")


def test_another_script_changes_nothing() -> None:
    config = launched([CP2, "ddp.average_in_collective=true"], script="my_run_recipe.py")
    assert not any(held.reason == "run_recipe.py" for held in config.values.values())


def test_overrides_without_a_launch_line_change_nothing() -> None:
    sources = read_sources(None, recipe="gemma2_2b_sft_config", overrides=[CP2], bridge="0.6.2")
    config = build_config(sources, recipe="gemma2_2b_sft_config", bridge="0.6.2")
    assert not any(held.reason == "run_recipe.py" for held in config.values.values())


def test_without_context_parallelism_the_switches_stay() -> None:
    config = launched(["model.context_parallel_size=1", "ddp.average_in_collective=true"])
    assert value(config, "ddp.average_in_collective") is True


def test_a_dataset_that_is_not_for_fine_tuning_keeps_the_switches() -> None:
    recipe = "deepseek_v3_pretrain_1024gpu_h100_bf16_config"
    line = f"torchrun run_recipe.py --recipe {recipe} {CP2} ddp.average_in_collective=true"
    config = build_config(read_sources(line, bridge="0.6.2"), bridge="0.6.2")
    assert config.dataset_type == "GPTDatasetConfig"
    assert value(config, "ddp.average_in_collective") is True


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([CP2, f"{PAD}=1"], 4),
        (["model.context_parallel_size=4", f"{PAD}=1"], 8),
        ([CP2, f"{PAD}=4"], 4),
        ([CP2, f"{PAD}=6"], 12),
        ([CP2, f"{PAD}=16"], 16),
        ([CP2, f"{PAD}=0"], 4),
        ([CP2, f"{PAD}=1", "model.tensor_model_parallel_size=4", "model.sequence_parallel=true"], 8),
        ([CP2, f"{PAD}=1", "model.tensor_model_parallel_size=4", "model.sequence_parallel=false"], 4),
        ([CP2, f"{PAD}=1", "model.tensor_model_parallel_size=1", "model.sequence_parallel=true"], 4),
        (["model.context_parallel_size=3", f"{PAD}=4"], 12),
    ],
)
def test_packs_are_aligned_to_the_smallest_common_multiple(words: list[str], expected: int) -> None:
    config = launched([*PACKED, "model.tensor_model_parallel_size=1", "model.sequence_parallel=false", *words])
    assert value(config, PAD) == expected
    assert by_script(config, PAD)


def test_packs_are_left_alone_when_packing_is_off() -> None:
    config = launched([CP2, f"{PAD}=1", "dataset.enable_offline_packing=false"])
    assert value(config, PAD) == 1


def test_the_length_of_the_dataset_replaces_the_length_of_the_model() -> None:
    config = launched(["dataset.seq_length=8192", "model.seq_length=4096"])
    assert value(config, "model.seq_length") == 8192


def test_an_override_of_the_model_length_that_loses_is_remarked_on() -> None:
    remarks = launched(["dataset.seq_length=8192", "model.seq_length=4096"]).remarks
    (told,) = [remark for remark in remarks if remark.rule != "launcher-repairs-config"]
    assert (told.rule, told.fields) == ("override-has-no-effect", ("model.seq_length",))
    assert told.message == (
        "run_recipe.py sets model.seq_length to dataset.seq_length (8192) after all overrides, so "
        "model.seq_length=4096 has no effect; override dataset.seq_length."
    )
    assert told.location.column is not None


@pytest.mark.parametrize(
    "words", [["dataset.seq_length=8192", "model.seq_length=8192"], ["dataset.seq_length=8192"], []]
)
def test_lengths_that_agree_are_no_cause_for_a_remark(words: list[str]) -> None:
    assert not [told for told in launched(words).remarks if told.rule == "override-has-no-effect"]


def test_packs_become_as_long_as_the_sequences() -> None:
    config = launched([*PACKED, "dataset.seq_length=8192"])
    assert value(config, "dataset.offline_packing_specs.packed_sequence_size") == 8192


def test_packs_are_not_aligned_to_a_context_parallel_size_that_nobody_knows() -> None:
    line = f"torchrun run_recipe.py --recipe my_own_recipe_config {SFT} {PACKED[0]} {PAD}=1"
    config = build_config(read_sources(line, bridge="0.6.2"), bridge="0.6.2")
    assert value(config, PAD) == 1


def test_a_length_that_nobody_knows_replaces_nothing() -> None:
    line = "torchrun run_recipe.py --recipe my_own_recipe_config model.seq_length=4096"
    config = build_config(read_sources(line, bridge="0.6.2"), bridge="0.6.2")
    assert value(config, "model.seq_length") == 4096


def test_an_unknown_context_parallel_size_changes_nothing() -> None:
    line = f"torchrun run_recipe.py --recipe my_own_recipe_config {SFT} ddp.average_in_collective=true"
    config = build_config(read_sources(line, bridge="0.6.2"), bridge="0.6.2")
    assert value(config, "ddp.average_in_collective") is True


def test_what_the_launcher_repairs_is_told_with_the_values_to_write_down() -> None:
    config = launched([CP2, SFT, *PACKED, f"++{PAD}=1", "dataset.seq_length=4096"])
    remark = next(remark for remark in config.remarks if remark.rule == "launcher-repairs-config")
    assert remark.fix[PAD] == 4
    assert remark.fix["model.calculate_per_token_loss"] is True
    assert f"{PAD} from 1 to 4" in remark.message


def test_nothing_is_told_where_the_launcher_changes_nothing() -> None:
    right = ["model.calculate_per_token_loss=true", "ddp.average_in_collective=false"]
    config = launched([CP2, SFT, *right, *PACKED, f"++{PAD}=4", "dataset.seq_length=4096"])
    assert not [remark for remark in config.remarks if remark.rule == "launcher-repairs-config"]
