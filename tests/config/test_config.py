"""What a resolved config says of a field: set, unset with a default, or unknown with a reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from skill_run.bridge.release import NO_DEFAULT, index, known_releases, load_release
from skill_run.config.config import Config
from skill_run.config.model import Plain, State
from skill_run.rules.validate import build_config, read_sources

SET, UNSET, UNKNOWN = State.SET, State.UNSET, State.UNKNOWN


def resolved(source: Any, overrides: Sequence[str] = (), *, bridge: str = "0.6.2") -> Config:
    return build_config(read_sources(source, bridge=bridge, overrides=overrides), bridge=bridge)


def state(config: Config, field: str) -> tuple[State, Plain]:
    found = config.get(field)
    return found.state, found.value


@pytest.mark.parametrize(
    ("field", "default"),
    [
        ("model.context_parallel_size", 1),
        ("model.sequence_parallel", False),
        ("ddp.average_in_collective", False),
        ("validation.eval_iters", 100),
        ("checkpoint.ckpt_format", "torch_dist"),
        ("dataset.offline_packing_specs.pad_seq_to_mult", None),
        ("peft.type", None),
    ],
)
def test_a_field_that_is_not_set_has_the_default_of_the_release(field: str, default: Plain) -> None:
    assert state(resolved({"train.micro_batch_size": 1}), field) == (UNSET, default)


def test_packing_specs_have_their_defaults_once_any_of_them_is_set() -> None:
    config = resolved({"dataset.offline_packing_specs.packed_sequence_size": 4096})
    assert state(config, "dataset.offline_packing_specs.pad_seq_to_mult") == (UNSET, 1)


@pytest.mark.parametrize(("bridge", "default"), [("0.3.1", None), ("0.5.1", None), ("0.6.2", False)])
def test_the_packing_switch_is_null_in_releases_without_it(bridge: str, default: Plain) -> None:
    config = resolved(
        {"model.sequence_parallel": True, "dataset": {"_target_": "x.GPTSFTDatasetConfig"}}, bridge=bridge
    )
    assert state(config, "dataset.enable_offline_packing") == (UNSET, default)


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ("model.num_layers", "comes from the model's provider or Hugging Face config"),
        ("model.num_attention_heads", "comes from the model's provider or Hugging Face config"),
        ("model.num_moe_experts", "comes from the model's provider or Hugging Face config"),
        ("model.seq_length", "comes from the model's provider or Hugging Face config"),
        ("model.cuda_graph_modules", "may be set by the recipe"),
        ("train.micro_batch_size", "is given when the run is launched"),
        ("train.global_batch_size", "is given when the run is launched"),
        ("dataset.seq_length", "is given when the run is launched"),
        ("dataset.type", "the class is not named"),
        ("model.type", "the class is not named"),
    ],
)
def test_what_a_partial_config_leaves_to_others_is_unknown_with_a_reason(field: str, reason: str) -> None:
    found = resolved({"model.context_parallel_size": 2}).get(field)
    assert (found.state, found.reason) == (UNKNOWN, reason)


@pytest.mark.parametrize("field", index()["architecture_fields"])
def test_architecture_is_unknown_until_it_is_given(field: str) -> None:
    assert resolved({"train.micro_batch_size": 1}).get(field).state is UNKNOWN


def test_given_architecture_is_set() -> None:
    assert state(resolved({"model.num_layers": 32}), "model.num_layers") == (SET, 32)


def full_dump(bridge: str, **changes: dict[str, Any]) -> dict[str, Any]:
    """Return a config with every field of the sections that are always there, as the library dumps it."""
    release = load_release(bridge)
    data: dict[str, Any] = {"_target_": "megatron.bridge.training.config.ConfigContainer"}
    for name, spec in release.fields.items():
        section, _, leaf = name.partition(".")
        if leaf and section not in release.optional_sections and not spec.foreign and spec.default is not NO_DEFAULT:
            data.setdefault(section, {})[leaf] = spec.default
    data["dataset"] = {"_target_": "megatron.bridge.training.config.GPTDatasetConfig"}
    data["model"]["num_attention_heads"] = 32
    for section, values in changes.items():
        data[section].update(values)
    return data


@pytest.mark.parametrize("bridge", known_releases())
def test_a_full_dump_leaves_nothing_to_the_model_or_the_launcher(bridge: str) -> None:
    config = resolved(full_dump(bridge, model={"num_layers": 4}), bridge=bridge)
    assert (config.base, config.final, config.base_text) == ("complete", True, "the input is a full config")
    assert state(config, "model.num_layers") == (SET, 4)
    assert config.get("model.num_moe_experts").state is not UNKNOWN
    assert config.get("train.micro_batch_size").state is not UNKNOWN
    assert config.remarks == []


@pytest.mark.parametrize("bridge", known_releases())
def test_what_a_full_dump_lacks_is_null_or_default_and_never_unknown(bridge: str) -> None:
    dump = full_dump(bridge)
    dump["model"].pop("num_moe_experts", None)
    dump["model"].pop("context_parallel_size")
    config = resolved(dump, bridge=bridge)
    assert state(config, "model.num_moe_experts") == (UNSET, None)
    assert state(config, "model.context_parallel_size") == (UNSET, 1)


def test_a_container_of_a_few_fields_is_no_full_dump() -> None:
    config = resolved({"_target_": "x.ConfigContainer", "model": {"context_parallel_size": 2}})
    assert config.base == "defaults"
    assert config.final
    assert config.get("model.num_layers").state is UNKNOWN
    assert state(config, "train.micro_batch_size") == (UNSET, None)


NULLS = """dataset:
  _target_: x.GPTSFTDatasetConfig
  offline_packing_specs: null
peft: null
comm_overlap:
"""


@pytest.mark.parametrize(
    ("field", "line"),
    [
        ("dataset.offline_packing_specs", 3),
        ("dataset.offline_packing_specs.pad_seq_to_mult", 3),
        ("peft", 4),
        ("peft.dim", 4),
        ("comm_overlap", 5),
        ("comm_overlap.tp_comm_overlap", 5),
    ],
)
def test_a_null_section_makes_its_fields_null_at_its_own_place(field: str, line: int) -> None:
    config = resolved(NULLS)
    assert state(config, field) == (SET, None)
    assert config.get(field).location.line == line
    assert config.is_given(field) is False


@pytest.mark.parametrize(
    ("source", "overrides"),
    [
        ("comm_overlap: null\ncomm_overlap.tp_comm_overlap: true\n", []),
        ("comm_overlap: null\n", ["++comm_overlap.tp_comm_overlap=true"]),
    ],
)
def test_a_value_below_a_null_section_brings_the_section_back(source: str, overrides: list[str]) -> None:
    config = resolved(source, overrides)
    assert config.is_given("comm_overlap") is True
    assert state(config, "comm_overlap.tp_comm_overlap") == (SET, True)


def test_null_after_values_takes_them_away() -> None:
    config = resolved("dataset.offline_packing_specs.pad_seq_to_mult: 4\ndataset.offline_packing_specs: null\n")
    assert config.is_given("dataset.offline_packing_specs") is False
    assert state(config, "dataset.offline_packing_specs.pad_seq_to_mult") == (SET, None)


@pytest.mark.parametrize("empty", ["{}", "{_target_: x.CommOverlapConfig}"])
def test_an_empty_section_changes_no_default(empty: str) -> None:
    config = resolved(f"comm_overlap: {empty}\nmodel: {{}}\n")
    assert state(config, "model.context_parallel_size") == (UNSET, 1)
    assert not [held for name, held in config.values.items() if name.startswith("model.")]


@pytest.mark.parametrize(
    ("given", "expected"),
    [({"peft.dim": 8}, True), ({"peft": None}, False), ({"mixed_precision": "bf16_mixed"}, None)],
)
def test_a_section_is_given_when_anything_below_it_is(given: dict[str, Any], expected: bool | None) -> None:
    config = resolved(given)
    assert config.is_given("peft") is (False if expected is None else expected)
    assert config.is_given("mixed_precision") is (expected is None)


def test_what_the_provider_of_a_family_sets_is_unknown() -> None:
    found = resolved({"model": {"_target_": "x.MistralModelProvider"}}).get("model.cp_comm_type")
    assert (found.state, found.reason) == (UNKNOWN, "is set by the mistral provider or recipe")


@pytest.mark.parametrize("version", ["0.6.0", "0.6.2"])
def test_rules_are_selected_by_the_version_of_the_user(version: str) -> None:
    config = resolved({"train.micro_batch_size": 1}, bridge=version)
    assert (config.version, config.release.version) == (version, "0.6.2")


def test_what_code_may_have_changed_below_a_section_is_unknown() -> None:
    config = resolved({"train.micro_batch_size": 1})
    config.unknown_prefixes["comm_overlap"] = "comes from argparse"
    for field in ("comm_overlap", "comm_overlap.tp_comm_overlap"):
        assert (config.get(field).state, config.get(field).reason) == (UNKNOWN, "comes from argparse")
        assert config.is_given(field) is None
    assert config.get("comm_overlap_other").state is not UNKNOWN


def test_the_sections_above_a_value_are_given_and_no_others() -> None:
    config = resolved({"dataset.offline_packing_specs.pad_seq_to_mult": 4})
    assert config.is_given("dataset.offline_packing_specs") is True
    assert config.is_given("dataset") is True
    assert config.is_given("peft") is False


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ({"_target_": "x.ConfigContainer", "train": {"manual_gc": True}}, "the dataset class is not named"),
        (
            {"_target_": "x.ConfigContainer", "dataset": {"_target_": "x.GPTSFTDatasetConfig"}},
            "has no default and is not set",
        ),
    ],
)
def test_a_length_that_a_whole_config_does_not_give_is_unknown(source: dict[str, Any], reason: str) -> None:
    found = resolved(source).get("dataset.seq_length")
    assert (found.state, found.reason) == (UNKNOWN, reason)
