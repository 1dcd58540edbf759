"""The recorded releases: what each knows, and how their versions compare."""

from __future__ import annotations

import pytest

from skill_run.bridge.release import (
    NO_DEFAULT,
    by_version,
    default_of,
    index,
    known_releases,
    load_release,
    matches,
    newest_release,
)

RELEASES = ("0.3.1", "0.4.2", "0.5.1", "0.6.2", "0.7.0.dev0")
KINDS = {"int", "bool", "str", "float", "dtype", "ints", "strs", "map", "specs", "any"}


def test_the_recorded_releases_come_oldest_first() -> None:
    assert known_releases() == RELEASES


def test_the_newest_release_is_published_and_recorded() -> None:
    assert newest_release() == "0.6.2"


@pytest.mark.parametrize(
    ("specifier", "version", "expected"),
    [
        ("*", "0.0.1", True),
        (">=0.6", "0.6.2", True),
        (">=0.6", "0.6.0", True),
        (">=0.6", "0.5.9", False),
        ("<0.6", "0.5.1", True),
        ("<0.6", "0.6.2", False),
        (">=0.6", "0.7.0.dev0", True),
        (">=0.7", "0.7.0.dev0", False),
        (">=0.7.dev0", "0.7.0.dev0", True),
        (">=0.4,<0.6", "0.5.1", True),
        (">=0.4,<0.6", "0.3.1", False),
    ],
)
def test_a_version_matches_a_specifier_and_development_versions_count(
    specifier: str, version: str, expected: bool
) -> None:
    assert matches(specifier, version) is expected


def test_the_first_matching_entry_of_a_table_wins() -> None:
    table = {"<0.4": "old", "<0.6": "middle", "*": "new"}
    assert [by_version(table, version) for version in RELEASES] == ["old", "middle", "middle", "new", "new"]


def test_a_table_without_a_matching_entry_gives_none() -> None:
    assert by_version({"<0.4": "old"}, "0.6.2") is None


@pytest.mark.parametrize(
    ("version", "core"),
    [("0.3.1", "0.16.1"), ("0.4.2", "0.17.0"), ("0.5.1", "0.18.0"), ("0.6.2", "0.19.2")],
)
def test_each_release_is_paired_with_its_core_release(version: str, core: str) -> None:
    assert load_release(version).core == core


@pytest.mark.parametrize("version", RELEASES)
def test_a_release_knows_its_own_version(version: str) -> None:
    assert load_release(version).version == version


@pytest.mark.parametrize("version", RELEASES)
def test_every_field_has_a_known_kind_and_a_section_of_its_release(version: str) -> None:
    release = load_release(version)
    assert {spec.kind for spec in release.fields.values()} <= KINDS
    assert {name.partition(".")[0] for name in release.fields} <= release.sections
    assert release.optional_sections < release.sections


@pytest.mark.parametrize("version", RELEASES)
def test_every_default_has_the_kind_that_its_field_declares(version: str) -> None:
    release = load_release(version)
    tables = {"": release.fields, "specs": release.specs, **release.datasets}
    types = {"int": (int,), "bool": (bool,), "str": (str,), "float": (float, int), "ints": (list,), "map": (dict,)}
    wrong = [
        (owner, name, spec.default)
        for owner, table in tables.items()
        for name, spec in table.items()
        if spec.default is not NO_DEFAULT
        and spec.default is not None
        and not isinstance(spec.default, types.get(spec.kind, (object,)))
    ]
    assert wrong == []


@pytest.mark.parametrize("version", RELEASES)
def test_a_field_without_question_mark_never_defaults_to_null(version: str) -> None:
    release = load_release(version)
    assert [name for name, spec in release.fields.items() if spec.default is None and not spec.nullable] == []


@pytest.mark.parametrize(
    ("version", "specs_field"),
    [("0.3.1", "packed_sequence_specs"), ("0.5.1", "packed_sequence_specs"), ("0.6.2", "offline_packing_specs")],
)
def test_packing_specs_are_found_under_the_name_of_the_release(version: str, specs_field: str) -> None:
    release = load_release(version)
    other = {"packed_sequence_specs", "offline_packing_specs"} - {specs_field}
    found = release.field(f"dataset.{specs_field}.pad_seq_to_mult")
    assert found is not None
    assert (found.kind, found.nullable, found.default) == ("int", True, 1)
    assert release.field(f"dataset.{other.pop()}.pad_seq_to_mult") is None
    assert release.field(f"dataset.{specs_field}.no_such_field") is None


@pytest.mark.parametrize(
    ("field", "dataset_type", "there"),
    [
        ("dataset.enable_offline_packing", "GPTSFTDatasetConfig", True),
        ("dataset.enable_offline_packing", "GPTDatasetConfig", False),
        ("dataset.enable_in_batch_packing", "DirectHFSFTDatasetConfig", True),
        ("dataset.enable_in_batch_packing", "GPTSFTDatasetConfig", False),
        ("dataset.enable_in_batch_packing", None, True),
        ("dataset.enable_in_batch_packing", "MyOwnDataset", True),
        ("dataset.no_such_field", None, False),
    ],
)
def test_a_dataset_field_depends_on_the_class_when_that_is_known(
    field: str, dataset_type: str | None, there: bool
) -> None:
    assert (load_release("0.6.2").field(field, dataset_type) is not None) is there


@pytest.mark.parametrize(
    ("field", "default"),
    [
        ("model.context_parallel_size", 1),
        ("ddp.average_in_collective", False),
        ("train.micro_batch_size", None),
        ("checkpoint.ckpt_format", "torch_dist"),
        ("validation.eval_iters", 100),
    ],
)
def test_the_dataclass_default_of_a_field_is_known(field: str, default: object) -> None:
    spec = load_release("0.6.2").field(field)
    assert spec is not None
    assert default_of(spec) == default


def test_a_field_that_must_be_given_has_no_default() -> None:
    spec = load_release("0.6.2").field("dataset.seq_length", "GPTSFTDatasetConfig")
    assert spec is not None
    assert spec.default is NO_DEFAULT


@pytest.mark.parametrize("version", RELEASES)
def test_written_names_are_sorted_and_all_of_them_are_fields(version: str) -> None:
    release = load_release(version)
    names = release.written_names()
    assert names == sorted(set(names))
    assert [name for name in names if release.field(name) is None] == []
    assert f"dataset.{release.specs_field}.packed_sequence_size" in names


@pytest.mark.parametrize("group", ["architecture_fields", "recipe_fields", "launch_fields", "at_least_one"])
def test_every_field_of_a_group_is_a_field_of_the_newest_release(group: str) -> None:
    release = load_release("0.7.0.dev0")
    assert [name for name in index()[group] if release.field(name) is None] == []


@pytest.mark.parametrize("group", list(index()["dataset_classes"]))
def test_every_dataset_class_of_a_group_exists_in_a_release_that_the_group_names(group: str) -> None:
    compatibility_names = {"FinetuningDatasetConfig"}
    for specifier, classes in index()["dataset_classes"][group].items():
        versions = [version for version in RELEASES if matches(specifier, version)]
        known = {cls for version in versions for cls in load_release(version).datasets}
        assert set(classes) - known <= compatibility_names
