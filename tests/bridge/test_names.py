"""Canonical names and the names each release writes, in both directions; suggestions for misspelt names."""

from __future__ import annotations

import re

import pytest

from skill_run.bridge import names
from skill_run.bridge.release import index, known_releases, load_release, matches

# (canonical, old, first release with the canonical name, dataset class that the rename is limited to)
RENAMES = [
    ("dataset.offline_packing_specs", "dataset.packed_sequence_specs", "0.6.2", None),
    ("dataset.enable_in_batch_packing", "dataset.pack_sequences_in_batch", "0.6.2", None),
    ("validation.eval_iters", "train.eval_iters", "0.4.2", None),
    ("validation.eval_interval", "train.eval_interval", "0.4.2", None),
    ("validation.skip_train", "train.skip_train", "0.4.2", None),
    ("dist.lazy_mpu_init", "dist.lazy_init", "0.4.2", None),
    ("model.cuda_graph_modules", "model.cuda_graph_scope", "0.5.1", None),
    ("dataset.seq_length", "dataset.sequence_length", "0.6.2", "GPTDatasetConfig"),
    ("dataset.seq_length", "dataset.sequence_length", "0.6.2", "MockGPTDatasetConfig"),
]


def releases_before(first: str) -> list[str]:
    return [version for version in known_releases() if known_releases().index(version) < known_releases().index(first)]


def releases_from(first: str) -> list[str]:
    return [version for version in known_releases() if version not in releases_before(first)]


OLD = [(new, old, cls, version) for new, old, first, cls in RENAMES for version in releases_before(first)]
NEW = [(new, old, cls, version) for new, old, first, cls in RENAMES for version in releases_from(first)]


def test_every_recorded_rename_is_covered_here() -> None:
    recorded = {(rename["new"], rename["old"]) for rename in index()["renames"]}
    assert recorded == {(new, old) for new, old, _, _ in RENAMES}


@pytest.mark.parametrize(("canonical", "old", "dataset_type", "version"), OLD)
def test_an_older_release_writes_the_old_name_and_reads_it_as_the_canonical_one(
    canonical: str, old: str, dataset_type: str | None, version: str
) -> None:
    assert names.to_written(canonical, version, dataset_type) == old
    assert names.to_canonical(old, version, dataset_type) == canonical


@pytest.mark.parametrize(("canonical", "old", "dataset_type", "version"), NEW)
def test_a_newer_release_writes_the_canonical_name(
    canonical: str, old: str, dataset_type: str | None, version: str
) -> None:
    assert names.to_written(canonical, version, dataset_type) == canonical
    assert names.to_canonical(canonical, version, dataset_type) == canonical


@pytest.mark.parametrize(("canonical", "old", "dataset_type", "version"), OLD)
def test_the_name_an_older_release_writes_is_one_of_its_fields(
    canonical: str, old: str, dataset_type: str | None, version: str
) -> None:
    release = load_release(version)
    inside = f"{old}.packed_sequence_size" if old.endswith("_specs") else old
    assert release.field(inside, dataset_type) is not None


@pytest.mark.parametrize("version", releases_before("0.6.2"))
def test_a_rename_of_the_specs_carries_the_fields_below_them(version: str) -> None:
    old, new = "dataset.packed_sequence_specs.pad_seq_to_mult", "dataset.offline_packing_specs.pad_seq_to_mult"
    assert names.to_canonical(old, version) == new
    assert names.to_written(new, version) == old


@pytest.mark.parametrize("version", known_releases())
def test_a_longer_name_that_only_starts_alike_is_not_renamed(version: str) -> None:
    assert names.to_canonical("dataset.packed_sequence_specs_file", version) == "dataset.packed_sequence_specs_file"
    assert names.to_written("train.eval_iters_extra", version) == "train.eval_iters_extra"


@pytest.mark.parametrize("dataset_type", [None, "FinetuningDatasetConfig", "HFDatasetConfig"])
def test_seq_length_keeps_its_name_where_the_rename_is_limited_to_other_classes(dataset_type: str | None) -> None:
    assert names.to_written("dataset.seq_length", "0.5.1", dataset_type) == "dataset.seq_length"


@pytest.mark.parametrize("version", known_releases())
def test_every_written_name_survives_the_way_to_canonical_and_back(version: str) -> None:
    aliases = {alias["name"] for alias in index()["aliases"] if matches(alias["bridge"], version)}
    changed = [
        name
        for name in load_release(version).written_names()
        if name not in aliases and names.to_written(names.to_canonical(name, version), version) != name
    ]
    assert changed == []


@pytest.mark.parametrize(
    ("alias", "of", "version"),
    [
        ("model.cuda_graph_scope", "model.cuda_graph_modules", "0.5.1"),
        ("model.cuda_graph_scope", "model.cuda_graph_modules", "0.6.2"),
        ("dataset.sequence_length", "dataset.seq_length", "0.6.2"),
        ("dist.lazy_init", "dist.lazy_mpu_init", "0.4.2"),
        ("dist.lazy_init", "dist.lazy_mpu_init", "0.7.0.dev0"),
    ],
)
def test_an_old_name_that_is_still_read_is_an_alias(alias: str, of: str, version: str) -> None:
    assert names.is_alias(alias, version)
    assert names.to_canonical(alias, version) == of


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("dataset.packed_sequence_specs", "0.6.2"),
        ("dataset.pack_sequences_in_batch", "0.6.2"),
        ("dist.lazy_init", "0.3.1"),
        ("model.cuda_graph_scope", "0.4.2"),
    ],
)
def test_a_name_that_is_gone_or_not_yet_replaced_is_no_alias(name: str, version: str) -> None:
    assert not names.is_alias(name, version)


@pytest.mark.parametrize(
    ("canonical", "version", "expected"),
    [
        ("dataset.enable_offline_packing", "0.6.2", True),
        ("dataset.enable_offline_packing", "0.5.1", False),
        ("dataset.offline_packing_specs.pad_seq_to_mult", "0.3.1", True),
        ("dataset.offline_packing_specs.max_single_sequence_length", "0.5.1", False),
        ("dataset.dataset_kwargs.anything", "0.3.1", True),
        ("dist.eval_context_parallel_size", "0.4.2", False),
        ("dist.eval_context_parallel_size", "0.5.1", True),
        ("validation.eval_iters", "0.3.1", True),
    ],
)
def test_a_canonical_field_exists_only_in_releases_that_have_it(canonical: str, version: str, expected: bool) -> None:
    assert names.exists(canonical, version) is expected


def test_a_canonical_field_exists_only_on_dataset_classes_that_have_it() -> None:
    assert names.exists("dataset.enable_in_batch_packing", "0.6.2", "DirectHFSFTDatasetConfig")
    assert not names.exists("dataset.enable_in_batch_packing", "0.6.2", "GPTSFTDatasetConfig")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dataset.dataset_kwargs", True),
        ("dataset.dataset_kwargs.a.b", True),
        ("dataset.dataset_kwargs_file", False),
        ("env_vars.NCCL_DEBUG", True),
        ("tokenizer.hf_tokenizer_kwargs.x", True),
        ("model.context_parallel_size", False),
    ],
)
def test_names_inside_free_form_fields_are_free(name: str, expected: bool) -> None:
    assert names.is_free_form(name) is expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("dataset.packed_sequence_specs.pad_seq_to_mult", ["0.3.1", "0.4.2", "0.5.1"]),
        ("dataset.enable_offline_packing", ["0.6.2", "0.7.0.dev0"]),
        ("dist.lazy_init", ["0.3.1"]),
        ("model.context_parallel_size", list(known_releases())),
        ("model.no_such_field", []),
    ],
)
def test_the_releases_that_have_a_written_name_are_listed(written: str, expected: list[str]) -> None:
    assert names.other_releases(written) == expected


@pytest.mark.parametrize("version", known_releases())
@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("model.context_paralel_size", "model.context_parallel_size"),
        ("model.tensor_model_parallel_sizes", "model.tensor_model_parallel_size"),
        ("train.micro_batchsize", "train.micro_batch_size"),
        ("train.micro_batch_sizes", "train.micro_batch_size"),
        ("ddp.average_in_colective", "ddp.average_in_collective"),
        ("mdoel.context_parallel_size", "model.context_parallel_size"),
        ("datset.seq_length", "dataset.seq_length"),
        ("context_parallel_size", "model.context_parallel_size"),
        ("model.micro_batch_size", "train.micro_batch_size"),
        ("train.context_parallel_size", "model.context_parallel_size"),
        ("model.average_in_collective", "ddp.average_in_collective"),
        ("train.calculate_per_token_loss", "model.calculate_per_token_loss"),
        ("scheduler.lr", "optimizer.lr"),
    ],
)
def test_a_misspelt_or_misplaced_name_suggests_the_field_that_was_meant(
    misspelt: str, meant: str, version: str
) -> None:
    assert names.nearest(misspelt, version) == meant


@pytest.mark.parametrize("version", known_releases())
def test_misspelt_packing_specs_suggest_the_spelling_of_the_release(version: str) -> None:
    field = load_release(version).specs_field
    assert names.nearest(f"dataset.{field}.pad_seq_to_mul", version) == f"dataset.{field}.pad_seq_to_mult"


@pytest.mark.parametrize("written", ["", ".", "xyz", "model.", "model.pack", "a.b.c.d", "\ud800", "x" * 500])
def test_a_name_that_is_close_to_nothing_gets_no_suggestion(written: str) -> None:
    assert names.nearest(written, "0.6.2") is None


@pytest.mark.parametrize("version", known_releases())
def test_a_real_name_is_its_own_nearest_name(version: str) -> None:
    sample = load_release(version).written_names()[::25]
    assert [name for name in sample if names.nearest(name, version) != name] == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.context_parallel_size", "int"),
        ("model.cp_comm_type", "strs"),
        ("model.hierarchical_context_parallel_sizes", "ints"),
        ("dataset.offline_packing_specs", "specs"),
        ("dataset.offline_packing_specs.pad_seq_to_mult", "int"),
        ("dataset.dataset_kwargs.pad_to_max_length", "bool"),
        ("dataset.type", "str"),
        ("peft.type", "str"),
        ("mixed_precision", "str"),
        ("peft", "map"),
        ("hf.rope_scaling.factor", "float"),
        ("dist.lazy_mpu_init", "bool"),
    ],
)
def test_the_type_of_a_canonical_name_is_known(name: str, kind: str) -> None:
    spec = names.canonical_field(name)
    assert spec is not None
    assert spec.kind == kind


@pytest.mark.parametrize("name", ["model.no_such_field", "no_such_section", "train.type", "dataset.dataset_kwargs.x"])
def test_a_name_that_is_nowhere_has_no_type(name: str) -> None:
    assert names.canonical_field(name) is None


def test_canonical_names_never_use_an_old_spelling() -> None:
    old = re.compile(r"packed_sequence_specs|pack_sequences_in_batch|cuda_graph_scope|lazy_init")
    fields = [name for group in ("architecture_fields", "recipe_fields", "launch_fields") for name in index()[group]]
    hints = [hint["field"] for hint in index()["dataset_hints"]]
    assert [name for name in [*fields, *hints] if old.search(name)] == []
