"""Names of other releases and misspelt ones: the remark, the fix, and what upstream does with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from skill_run.bridge.release import index
from skill_run.config.config import Config
from skill_run.config.model import Location, Plain, Remark, State
from skill_run.config.unknown import MAX_UNKNOWN_NAMES
from skill_run.rules.validate import build_config, read_sources


def resolved(source: Any, overrides: Sequence[str] = (), *, bridge: str = "0.6.2") -> Config:
    return build_config(read_sources(source, bridge=bridge, overrides=overrides), bridge=bridge)


def state(config: Config, field: str) -> tuple[State, Plain]:
    found = config.get(field)
    return found.state, found.value


def remark(config: Config) -> Remark:
    assert len(config.remarks) == 1, config.remarks
    return config.remarks[0]


SET = State.SET
# (old name, canonical name, releases that write the old one)
RENAMED = [
    ("dataset.packed_sequence_specs.pad_seq_to_mult", "dataset.offline_packing_specs.pad_seq_to_mult", "0.5.1"),
    ("dataset.pack_sequences_in_batch", "dataset.enable_in_batch_packing", "0.5.1"),
    ("train.eval_iters", "validation.eval_iters", "0.3.1"),
    ("train.eval_interval", "validation.eval_interval", "0.3.1"),
    ("train.skip_train", "validation.skip_train", "0.3.1"),
    ("dist.lazy_init", "dist.lazy_mpu_init", "0.3.1"),
    ("model.cuda_graph_scope", "model.cuda_graph_modules", "0.4.2"),
]
STILL_READ = {
    "dist.lazy_init",
    "model.cuda_graph_scope",
    "train.eval_iters",
    "train.eval_interval",
    "train.skip_train",
}
EXAMPLE: dict[str, Plain] = {
    "pad_seq_to_mult": 8,
    "eval_iters": 8,
    "eval_interval": 8,
    "cuda_graph_modules": ["attn"],
}


def example(canonical: str) -> Plain:
    return EXAMPLE.get(canonical.rpartition(".")[2], True)


def test_every_recorded_rename_is_covered_here() -> None:
    covered = {(old.removesuffix(".pad_seq_to_mult"), new.removesuffix(".pad_seq_to_mult")) for old, new, _ in RENAMED}
    covered.add(("dataset.sequence_length", "dataset.seq_length"))
    assert {(rename["old"], rename["new"]) for rename in index()["renames"]} == covered


@pytest.mark.parametrize(("old", "canonical", "last"), RENAMED)
def test_an_old_name_in_an_old_release_sets_the_canonical_field(old: str, canonical: str, last: str) -> None:
    config = resolved({old: example(canonical)}, bridge=last)
    assert state(config, canonical) == (SET, example(canonical))
    assert config.get(canonical).written == old
    assert config.written(canonical) == old
    assert config.remarks == []


@pytest.mark.parametrize(("old", "canonical", "last"), RENAMED)
def test_a_new_name_in_an_old_release_is_reported_and_fixed_to_the_old_one(old: str, canonical: str, last: str) -> None:
    config = resolved({canonical: example(canonical)}, bridge=last)
    told = remark(config)
    assert told.rule == "renamed-field"
    assert told.fields == (canonical,)
    assert told.fix == {old: example(canonical)}
    assert f"not of {last}; this release calls it {old}." in told.message
    assert canonical not in config.values


@pytest.mark.parametrize("bridge", ["0.6.2", "0.7.0.dev0"])
@pytest.mark.parametrize(("old", "canonical", "last"), [entry for entry in RENAMED if entry[0] not in STILL_READ])
def test_an_old_name_in_a_new_release_is_reported_and_fixed_to_the_new_one(
    old: str, canonical: str, last: str, bridge: str
) -> None:
    config = resolved({old: example(canonical)}, bridge=bridge)
    told = remark(config)
    assert told.rule == "renamed-field"
    assert told.fields == (old,)
    assert told.fix[canonical] == example(canonical)
    assert told.message.endswith("Upstream drops it without an error, so the setting has no effect.")
    assert canonical not in config.values


@pytest.mark.parametrize("old", ["dist.lazy_init", "model.cuda_graph_scope"])
def test_an_old_name_that_a_new_release_still_reads_sets_the_canonical_field(old: str) -> None:
    canonical = next(new for name, new, _ in RENAMED if name == old)
    config = resolved({old: example(canonical)}, bridge="0.6.2")
    assert state(config, canonical) == (SET, example(canonical))
    assert config.remarks == []


@pytest.mark.parametrize("field", ["train.eval_iters", "train.eval_interval", "train.skip_train"])
def test_a_field_that_was_copied_to_another_section_is_still_a_field_of_its_own(field: str) -> None:
    value = True if field.endswith("train") else 8
    config = resolved({field: value}, bridge="0.6.2")
    assert state(config, field) == (SET, value)
    assert config.remarks == []


def test_packing_specs_of_an_older_release_are_fixed_as_one_with_the_switch() -> None:
    specs = {"packed_sequence_size": 4096, "pad_seq_to_mult": 8}
    told = remark(resolved({"dataset": {"packed_sequence_specs": specs}}))
    assert told.fields == tuple(f"dataset.packed_sequence_specs.{name}" for name in specs)
    assert told.fix == {
        "dataset.offline_packing_specs.packed_sequence_size": 4096,
        "dataset.offline_packing_specs.pad_seq_to_mult": 8,
        "dataset.enable_offline_packing": True,
    }
    assert told.message.startswith(
        "dataset.packed_sequence_specs is a name of Megatron-Bridge 0.3.1 to 0.5.1, not of 0.6.2; write "
    )


def test_null_packing_specs_of_an_older_release_do_not_switch_packing_on() -> None:
    told = remark(resolved({"dataset.packed_sequence_specs": None}))
    assert told.fix == {"dataset.offline_packing_specs": None}


def test_the_old_name_gives_way_where_the_new_one_is_set_too() -> None:
    source = {
        "dataset.packed_sequence_specs.packed_sequence_size": 2048,
        "dataset.offline_packing_specs.packed_sequence_size": 4096,
    }
    config = resolved(source)
    assert remark(config).fix == {}
    assert state(config, "dataset.offline_packing_specs.packed_sequence_size") == (SET, 4096)


@pytest.mark.parametrize(
    ("dataset_type", "given", "length"),
    [
        ("GPTDatasetConfig", {"sequence_length": 4096}, 4096),
        ("GPTDatasetConfig", {"seq_length": 4096}, 4096),
        ("FinetuningDatasetConfig", {"seq_length": 4096}, 4096),
    ],
)
def test_both_spellings_of_the_length_are_read_before_0_6(
    dataset_type: str, given: dict[str, int], length: int
) -> None:
    config = resolved({"dataset": {"_target_": f"x.{dataset_type}", **given}}, bridge="0.5.1")
    assert state(config, "dataset.seq_length") == (SET, length)
    assert config.remarks == []


def test_the_old_spelling_of_the_length_is_still_read_in_0_6() -> None:
    config = resolved({"dataset": {"_target_": "x.GPTDatasetConfig", "sequence_length": 4096}})
    assert state(config, "dataset.seq_length") == (SET, 4096)


DROPPED = "Upstream drops it without an error, so the setting has no effect."
KEY_ERROR = "Hydra stops with a key error; adding '+' would only hide it, since the value is then skipped."
SKIPPED = "The override is accepted, then skipped with a logged warning only."


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("model.context_paralel_size", "model.context_parallel_size"),
        ("train.micro_batchsize", "train.micro_batch_size"),
        ("context_parallel_size", "model.context_parallel_size"),
        ("model.micro_batch_size", "train.micro_batch_size"),
        ("mdoel.context_parallel_size", "model.context_parallel_size"),
    ],
)
def test_a_misspelt_name_is_reported_with_the_field_that_was_meant(misspelt: str, meant: str) -> None:
    config = resolved({misspelt: 4})
    told = remark(config)
    assert (told.rule, told.fields, told.fix, told.fires) == ("unknown-field", (misspelt,), {meant: 4}, "never")
    assert told.message == f"Megatron-Bridge 0.6.2 has no field {misspelt}; did you mean {meant}? {DROPPED}"
    assert meant not in config.values


def test_a_misspelt_name_is_not_moved_over_a_value_that_is_set() -> None:
    told = remark(resolved({"model.context_parallel_size": 2, "model.context_paralel_size": 4}))
    assert told.fix == {}


@pytest.mark.parametrize("name", ["train.foo_bar", "xyz", "my.own.section", "model.", ".", "model..x"])
def test_a_name_that_resembles_none_is_reported_without_a_fix(name: str) -> None:
    told = remark(resolved({name: 1}))
    assert (told.rule, told.fix) == ("unrecognised-field", {})
    assert told.message == f"Megatron-Bridge 0.6.2 has no field {name}. {DROPPED}"


@pytest.mark.parametrize(
    ("token", "fires", "fate"),
    [
        ("model.context_paralel_size=4", "construct", KEY_ERROR),
        ("+model.context_paralel_size=4", "never", SKIPPED),
        ("++model.context_paralel_size=4", "never", SKIPPED),
    ],
)
def test_the_fate_of_an_unknown_name_depends_on_the_kind_of_override(token: str, fires: str, fate: str) -> None:
    told = remark(resolved(None, [token]))
    assert (told.rule, told.fires, told.location) == ("unknown-field", fires, Location(column=1))
    assert told.message.endswith(fate)


def test_a_field_of_another_dataset_class_is_reported_as_such() -> None:
    told = remark(resolved({"dataset": {"_target_": "x.GPTDatasetConfig", "dataset_root": "/data"}}))
    assert told.rule == "unknown-field"
    assert told.message.startswith(
        "GPTDatasetConfig of Megatron-Bridge 0.6.2 has no field dataset_root, though other dataset classes do."
    )


def test_a_field_that_was_dropped_names_the_releases_that_had_it() -> None:
    told = remark(resolved({"ddp.preserve_fp32_weights": True}))
    assert told.rule == "renamed-field"
    assert told.fix == {}
    assert told.message.startswith("ddp.preserve_fp32_weights is a name of Megatron-Bridge 0.3.1, not of 0.6.2. ")


@pytest.mark.parametrize(
    "given",
    [
        {"dataset.dataset_kwargs.anything": 1},
        {"dataset": {"dataset_kwargs": {"a": {"b": 1}}}},
        {"env_vars": {"NCCL_DEBUG": "INFO"}},
        {"tokenizer.hf_tokenizer_kwargs.use_fast": True},
        {"peft.my_own_option": 1},
        {"model._private": 1},
        {"model": {"_target_": "x.MyOwnProvider", "my_own_field": 1}},
        {"dataset": {"_target_": "x.MyOwnDataset", "my_own_field": 1}},
        {"dataset.enable_in_batch_packing": True, "dataset.type": "GPTSFTDatasetConfig"},
    ],
)
def test_names_that_may_belong_to_open_fields_or_own_classes_are_let_pass(given: dict[str, Any]) -> None:
    assert resolved(given).remarks == []


def test_a_misspelt_field_of_an_own_provider_is_still_reported() -> None:
    told = remark(resolved({"model": {"_target_": "x.MyOwnProvider", "context_paralel_size": 2}}))
    assert told.fix == {"model.context_parallel_size": 2}


def test_many_unknown_names_are_reported_one_by_one_up_to_a_limit() -> None:
    remarks = resolved({f"train.own_{number}": 1 for number in range(MAX_UNKNOWN_NAMES + 7)}).remarks
    assert [found.fields for found in remarks[:2]] == [("train.own_0",), ("train.own_1",)]
    assert len(remarks) == MAX_UNKNOWN_NAMES + 1
    assert remarks[-1].message.startswith("7 more names are not in this release; ")


def test_as_many_unknown_names_as_the_limit_leave_nothing_out() -> None:
    assert len(resolved({f"train.own_{number}": 1 for number in range(MAX_UNKNOWN_NAMES)}).remarks) == MAX_UNKNOWN_NAMES
