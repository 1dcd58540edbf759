"""What names, folders and metadata of packed files tell, and the fingerprint that 0.6 puts into them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from packs import DATA

from skill_run.pack.folder import Metadata, Told, expected_fingerprints, fingerprint, metadata_file, read_told
from skill_run.rules.validate import build_config, read_sources

ENTRY = {"dataset_max_seqlen": 50, "max_samples_per_bin": 5, "min_packed_seqlen": 100, "pack_size": 128}


def folder(tmp_path: Path, name: str = "tok_pad_seq_to_mult8", *files: str) -> list[Path]:
    (tmp_path / name).mkdir()
    found = [tmp_path / name / file for file in files or ("training_128.idx.parquet",)]
    for path in found:
        path.touch()
    return found


@pytest.mark.parametrize(
    ("name", "multiple", "expected"),
    [
        ("0.3.1/tiny-wordlevel_pad_seq_to_mult4/training_128.npy", 4, None),
        ("0.6.2/tiny-wordlevel_pad_seq_to_mult1_sft_65a850537fa8/training_128.idx.parquet", 1, "65a850537fa8"),
    ],
)
def test_upstreams_own_folders_tell_multiple_size_and_fingerprint(
    name: str, multiple: int, expected: str | None
) -> None:
    told = read_told([DATA / name])
    assert (told.pack_size, told.pad_multiple, told.fingerprint) == (128, multiple, expected)
    assert told.metadata is not None
    assert told.metadata.pack_sizes == (128,)
    assert told.metadata_fault is None


@pytest.mark.parametrize(
    ("file", "size"),
    [
        ("training_4096.npy", 4096),
        ("validation_4096.idx.parquet", 4096),
        ("train_4096.pq", 4096),
        ("shard_0001.parquet", None),
        ("training_x.parquet", None),
        ("mytraining_4096.parquet", None),
    ],
)
def test_a_file_name_tells_the_pack_size(tmp_path: Path, file: str, size: int | None) -> None:
    assert read_told(folder(tmp_path, "any", file)).pack_size == size


def test_files_that_disagree_tell_nothing(tmp_path: Path) -> None:
    paths = folder(tmp_path, "a_pad_seq_to_mult4", "training_128.npy", "training_256.npy")
    assert read_told(paths) == Told(pad_multiple=4)
    other = folder(tmp_path, "b_pad_seq_to_mult8", "training_128.npy")
    assert read_told([paths[0], *other]) == Told(pack_size=128)


def test_no_multiple_is_written_as_none(tmp_path: Path) -> None:
    assert read_told(folder(tmp_path, "a_pad_seq_to_multNone_sft_0123456789ab")) == Told(128, None, "0123456789ab")


def test_metadata_is_taken_over_all_its_splits(tmp_path: Path) -> None:
    paths = folder(tmp_path)
    other = {"dataset_max_seqlen": 60, "max_samples_per_bin": 3, "min_packed_seqlen": 40, "pack_size": 128}
    (paths[0].parent / "128_metadata.jsonl").write_text(json.dumps([ENTRY, other]), "utf-8")
    assert read_told(paths).metadata == Metadata("128_metadata.jsonl", 5, 60, 40, (128,))


def test_metadata_of_another_size_belongs_to_other_packs(tmp_path: Path) -> None:
    paths = folder(tmp_path)
    (paths[0].parent / "256_metadata.jsonl").write_text(json.dumps([ENTRY]), "utf-8")
    assert metadata_file(paths) is None


def test_metadata_tells_the_pack_size_of_files_whose_name_does_not(tmp_path: Path) -> None:
    paths = folder(tmp_path, "packs", "shard_0.parquet")
    (paths[0].parent / "128_metadata.jsonl").write_text(json.dumps([ENTRY]), "utf-8")
    assert read_told(paths).pack_size == 128


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "[1]", "[{}]", json.dumps([{**ENTRY, "pack_size": "128"}]), "[" * 100_000, "\0"]
)
def test_metadata_that_cannot_be_read_is_a_fault_and_no_error(tmp_path: Path, text: str) -> None:
    paths = folder(tmp_path)
    (paths[0].parent / "128_metadata.jsonl").write_text(text, "utf-8")
    told = read_told(paths)
    assert told.metadata is None
    assert told.metadata_fault


def test_a_metadata_file_that_is_huge_is_a_fault(tmp_path: Path) -> None:
    paths = folder(tmp_path)
    (paths[0].parent / "128_metadata.jsonl").write_text(" " * (2**20 + 1), "utf-8")
    assert read_told(paths).metadata_fault


# The fingerprints of two folders that 0.6.2 made, and the options it made them with.
REAL = {"65a850537fa8": {}, "387e432be16e": {"pad_to_max_length": True}}
CONFIG = {
    "dataset.type": "GPTSFTDatasetConfig",
    "dataset.dataset_root": "/data",
    "dataset.seq_length": 128,
    "dataset.seed": 1234,
    "dataset.enable_offline_packing": True,
    "dataset.offline_packing_specs.packed_sequence_size": 128,
}


def fingerprints_of(settings: dict[str, Any], bridge: str = "0.6.2") -> tuple[str, ...]:
    return expected_fingerprints(build_config(read_sources(settings, bridge=bridge), bridge=bridge))


@pytest.mark.parametrize(("name", "options"), REAL.items())
def test_the_fingerprint_is_the_one_that_upstream_made(name: str, options: dict[str, Any]) -> None:
    assert fingerprint(128, 1234, options) == name
    assert any(name in path.name for path in (DATA / "0.6.2").iterdir())
    assert name in fingerprints_of({**CONFIG, "dataset.dataset_kwargs": options})


def test_no_options_and_empty_ones_are_both_expected() -> None:
    assert fingerprints_of({**CONFIG, "dataset.dataset_kwargs": {}}) == (
        fingerprint(128, 1234, None),
        fingerprint(128, 1234, {}),
    )


def test_the_longest_sequence_counts_only_when_it_is_set() -> None:
    cap = "dataset.offline_packing_specs.max_single_sequence_length"
    options = {"pad_to_max_length": True}
    settings = {**CONFIG, "dataset.dataset_kwargs": options}
    assert fingerprints_of({**settings, cap: 64}) == (fingerprint(128, 1234, options, 64),)
    assert fingerprint(128, 1234, options, 64) != fingerprint(128, 1234, options)


@pytest.mark.parametrize(
    ("change", "bridge"),
    [
        ({"dataset.preprocessing.type": "ChatSFTPreprocessingConfig"}, "0.6.2"),
        ({"dataset.hf_dataset.path": "squad"}, "0.6.2"),
        ({"dataset.seed": None}, "0.6.2"),
        ({}, "0.5.1"),
    ],
)
def test_a_config_that_does_not_tell_everything_has_no_expected_fingerprint(
    change: dict[str, Any], bridge: str
) -> None:
    settings = {**CONFIG, "dataset.dataset_kwargs": {"pad_to_max_length": True}, **change}
    assert fingerprints_of({key: value for key, value in settings.items() if value is not None}, bridge) == ()
