"""Which release a config is judged by, and the reason that is given for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from skill_run.bridge.release import NO_DEFAULT, known_releases, load_release
from skill_run.bridge.version import (
    DISTRIBUTION,
    Evidence,
    choose,
    installed_version,
    made_for,
    normalise,
    recorded_for,
)
from skill_run.errors import InputError
from skill_run.report.finding import BridgeChoice
from skill_run.rules.validate import build_config, read_sources

NOTHING = Evidence((), None, ())
NEWEST = "0.6.2"
NOTHING_TELLS = "nothing in the input tells the release, so the newest recorded one is used (0.6.2)"


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide a Megatron-Bridge that happens to be installed where the tests run."""
    kept = [entry for entry in sys.path if not list(Path(entry or ".").glob("megatron_bridge-*.dist-info"))]
    monkeypatch.setattr(sys, "path", kept)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_installed: None) -> Callable[[str], None]:
    """Return a function that puts a distribution with a version on the import path."""

    def put(version: str) -> None:
        folder = tmp_path / "megatron_bridge-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: {version}\n", encoding="utf-8"
        )
        monkeypatch.syspath_prepend(tmp_path)

    return put


def choice_for(source: Any, **settings: Any) -> BridgeChoice:
    sources = read_sources(source, bridge=settings.get("bridge"), recipe=settings.get("recipe"))
    return build_config(sources, **settings).choice


def full_dump(version: str) -> dict[str, Any]:
    """Return what the library of a release would dump: every field of the sections that are always there."""
    release = load_release(version)
    data: dict[str, Any] = {"_target_": "megatron.bridge.training.config.ConfigContainer"}
    for name, spec in release.fields.items():
        section, _, leaf = name.partition(".")
        if leaf and section not in release.optional_sections and not spec.foreign and spec.default is not NO_DEFAULT:
            data.setdefault(section, {"_target_": f"megatron.bridge.{section}"})[leaf] = spec.default
    data["model"]["num_attention_heads"] = 8
    dataset = release.datasets["GPTDatasetConfig"]
    given = {name: spec.default for name, spec in dataset.items() if spec.default is not NO_DEFAULT}
    data["dataset"] = {"_target_": "megatron.bridge.training.config.GPTDatasetConfig", **given}
    return data


@pytest.mark.parametrize(
    ("asked", "version"),
    [
        ("0.6.2", "0.6.2"),
        (" 0.6.2 ", "0.6.2"),
        ("v0.6.2", "0.6.2"),
        ("0.6", "0.6"),
        ("0.6.2rc1", "0.6.2rc1"),
        ("0.6.2+cu128", "0.6.2+cu128"),
        ("main", "0.7.0.dev0"),
        ("MAIN", "0.7.0.dev0"),
        ("dev", "0.7.0.dev0"),
        ("0.7.dev", "0.7.0.dev0"),
        ("0.7.0.dev0", "0.7.0.dev0"),
    ],
)
def test_a_version_is_read_as_people_write_it(asked: str, version: str) -> None:
    assert normalise(asked) == version


@pytest.mark.parametrize(
    "asked", ["", "latest", "newest", "0.6.x", ">=0.6", "0.6.2 0.5.1", "\ud800", "9" * 5000, "r" * 9000]
)
def test_nonsense_is_refused_with_the_recorded_releases(asked: str) -> None:
    with pytest.raises(
        InputError, match=r"is not a Megatron-Bridge version; recorded releases are 0\.3\.1, .*and main$"
    ) as caught:
        normalise(asked)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("asked", [0.6, 6, ("0.6.2",), b"0.6.2"])
def test_a_version_that_is_not_text_is_refused(asked: Any) -> None:
    with pytest.raises(InputError, match=r"must be text such as '0\.6\.2'"):
        normalise(asked)


@pytest.mark.parametrize("version", known_releases())
def test_a_recorded_release_stands_for_itself(version: str) -> None:
    assert recorded_for(version) == (version, "")


@pytest.mark.parametrize(
    ("version", "release", "why"),
    [
        ("0.6.0", "0.6.2", "0.6.0 is not recorded, 0.6.2 of the same series is used"),
        ("0.6", "0.6.2", "0.6 is not recorded, 0.6.2 of the same series is used"),
        ("0.6.9", "0.6.2", "0.6.9 is not recorded, 0.6.2 of the same series is used"),
        ("0.3.0", "0.3.1", "0.3.0 is not recorded, 0.3.1 of the same series is used"),
        ("0.4.0.post1", "0.4.2", "0.4.0.post1 is not recorded, 0.4.2 of the same series is used"),
        ("0.2.0", "0.3.1", "0.2.0 is older than every recorded release, 0.3.1 is used"),
        ("0", "0.3.1", "0 is older than every recorded release, 0.3.1 is used"),
        ("9.9", "0.7.0.dev0", "9.9 is not recorded, 0.7.0.dev0 is the newest recorded release not above it"),
        ("0.7.0", "0.7.0.dev0", "0.7.0 is not recorded, 0.7.0.dev0 is the newest recorded release not above it"),
        ("0.5.0.dev0", "0.4.2", "0.5.0.dev0 is not recorded, 0.4.2 is the newest recorded release not above it"),
    ],
)
def test_another_version_is_judged_by_the_nearest_recorded_release(version: str, release: str, why: str) -> None:
    assert recorded_for(version) == (release, why)


@pytest.mark.parametrize(
    ("asked", "version", "release", "because"),
    [
        ("0.5.1", "0.5.1", "0.5.1", "asked for"),
        ("v0.5.1", "0.5.1", "0.5.1", "asked for"),
        ("main", "0.7.0.dev0", "0.7.0.dev0", "asked for"),
        ("0.6.0", "0.6.0", "0.6.2", "0.6.0 is not recorded, 0.6.2 of the same series is used"),
        ("0.2.0", "0.2.0", "0.3.1", "0.2.0 is older than every recorded release, 0.3.1 is used"),
        ("9.9", "9.9", "0.7.0.dev0", "9.9 is not recorded, 0.7.0.dev0 is the newest recorded release not above it"),
    ],
)
def test_the_version_asked_for_is_taken_and_a_stand_in_is_told(
    asked: str, version: str, release: str, because: str
) -> None:
    assert choose(asked, NOTHING) == BridgeChoice(version, release, because)


@pytest.mark.usefixtures("nothing_installed")
def test_without_the_library_no_version_is_installed() -> None:
    assert installed_version() is None


@pytest.mark.parametrize(
    ("installed", "version", "release", "because"),
    [
        ("0.5.1", "0.5.1", "0.5.1", "megatron-bridge 0.5.1 is installed"),
        (
            "0.6.0",
            "0.6.0",
            "0.6.2",
            "megatron-bridge 0.6.0 is installed; 0.6.0 is not recorded, 0.6.2 of the same series is used",
        ),
        ("0.7.0.dev0", "0.7.0.dev0", "0.7.0.dev0", "megatron-bridge 0.7.0.dev0 is installed"),
        ("not-a-version", NEWEST, NEWEST, "megatron-bridge not-a-version is installed"),
    ],
)
def test_the_installed_version_is_taken_from_its_metadata(
    install: Callable[[str], None], installed: str, version: str, release: str, because: str
) -> None:
    install(installed)
    assert choose(None, NOTHING) == BridgeChoice(version, release, because)


def test_the_version_asked_for_beats_the_installed_one(install: Callable[[str], None]) -> None:
    install("0.5.1")
    assert choose("0.6.2", NOTHING) == BridgeChoice("0.6.2", "0.6.2", "asked for")


def test_the_installed_version_beats_what_the_input_implies(install: Callable[[str], None]) -> None:
    install("0.6.2")
    evidence = Evidence(["dataset.packed_sequence_specs.pad_seq_to_mult"], "HFDatasetConfig", ())
    assert choose(None, evidence).release == "0.6.2"


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize(
    "names",
    [(), ("model.context_parallel_size",), ("no.such.field", "my.own.field"), ("model.context_parallel_size",) * 3],
)
def test_names_that_every_release_or_none_has_tell_nothing(names: Sequence[str]) -> None:
    assert choose(None, Evidence(names, None, ())) == BridgeChoice(NEWEST, NEWEST, NOTHING_TELLS)


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize(
    ("names", "release", "told_by"),
    [
        (
            ["dataset.packed_sequence_specs.packed_sequence_size"],
            "0.5.1",
            "dataset.packed_sequence_specs.packed_sequence_size",
        ),
        (["dataset.pack_sequences_in_batch"], "0.5.1", "dataset.pack_sequences_in_batch"),
        (
            ["dataset.offline_packing_specs.packed_sequence_size"],
            NEWEST,
            "dataset.offline_packing_specs.packed_sequence_size",
        ),
        (["dataset.enable_in_batch_packing"], NEWEST, "dataset.enable_in_batch_packing"),
        (["dist.lazy_init"], "0.3.1", "dist.lazy_init"),
        (["dist.eval_context_parallel_size"], NEWEST, "dist.eval_context_parallel_size"),
        (["dataset.source_weights"], "0.7.0.dev0", "dataset.source_weights"),
        (["dist.lazy_init", "no.such.field"], "0.3.1", "dist.lazy_init"),
    ],
)
def test_the_release_is_implied_by_names_and_the_reason_names_one(names: list[str], release: str, told_by: str) -> None:
    choice = choose(None, Evidence(names, None, ()))
    assert (choice.version, choice.release) == (release, release)
    assert choice.because.startswith(f"implied by the input: field {told_by}; it does not fit ")
    assert release not in choice.because


@pytest.mark.usefixtures("nothing_installed")
def test_most_names_win_when_they_disagree() -> None:
    old = ["dataset.packed_sequence_specs.packed_sequence_size", "dataset.pack_sequences_in_batch"]
    assert choose(None, Evidence([*old, "dataset.enable_offline_packing"], None, ())).release == "0.5.1"


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize(
    ("dataset_type", "release"),
    [
        ("HFDatasetConfig", "0.5.1"),
        ("GPTSFTDatasetConfig", NEWEST),
        ("EnergonProvider", "0.5.1"),
        ("GPTDatasetConfig", NEWEST),
    ],
)
def test_the_release_is_implied_by_the_dataset_class(dataset_type: str, release: str) -> None:
    assert choose(None, Evidence((), dataset_type, ())).release == release


@pytest.mark.usefixtures("nothing_installed")
def test_a_class_of_the_users_own_tells_nothing() -> None:
    assert choose(None, Evidence((), "MyDatasetConfig", ())).because == NOTHING_TELLS


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize(
    ("hints", "release"),
    [
        ([("<0.6", "the flag --packed_sequence")], "0.5.1"),
        ([("<0.4", "the flag --old")], "0.3.1"),
        ([(">=0.4,<0.5", "a flag")], "0.4.2"),
        ([(">=0.7.dev0", "a flag")], "0.7.0.dev0"),
        ([("*", "anything")], NEWEST),
    ],
)
def test_a_hint_restricts_the_releases(hints: list[tuple[str, str]], release: str) -> None:
    assert choose(None, Evidence((), None, hints)).release == release


@pytest.mark.usefixtures("nothing_installed")
def test_the_reason_repeats_the_hint_that_decided() -> None:
    because = choose(None, Evidence((), None, [("<0.6", "the flag --packed_sequence")])).because
    assert because == "implied by the input: the flag --packed_sequence; it does not fit 0.6.2, 0.7.0.dev0"


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize(
    ("line", "release", "module"),
    [
        (
            "from megatron.bridge.data.datasets.packed_sequence import PackedSequenceSpecs",
            "0.5.1",
            "megatron.bridge.data.datasets.packed_sequence",
        ),
        ("from megatron.bridge.data.packing import PackedSequenceSpecs", NEWEST, "megatron.bridge.data.packing"),
        ("from megatron.bridge.data.builders import GPTSFTDatasetConfig", NEWEST, "megatron.bridge.data.builders"),
    ],
)
def test_the_release_is_implied_by_an_import(line: str, release: str, module: str) -> None:
    text = f"{line}\nfrom megatron.bridge.recipes.llama import llama3_8b_sft_config\ncfg = llama3_8b_sft_config()\n"
    choice = choice_for(text)
    assert choice.release == release
    assert choice.because.startswith(f"implied by the input: import of {module}; it does not fit ")


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize(
    ("recipe", "release", "others"),
    [
        ("gemma2_27b_pretrain_config", "0.4.2", "0.3.1, 0.5.1, 0.6.2, 0.7.0.dev0"),
        ("gemma3_vl_4b_finetune_config", "0.3.1", "0.4.2, 0.5.1, 0.6.2, 0.7.0.dev0"),
        ("deepseek_v2_pretrain_config", "0.5.1", "0.4.2, 0.6.2, 0.7.0.dev0"),
        ("deepseek_v3_pretrain_256gpu_b200_bf16_config", NEWEST, "0.3.1, 0.4.2, 0.5.1, 0.7.0.dev0"),
    ],
)
def test_the_release_is_implied_by_a_recipe_that_only_some_have(recipe: str, release: str, others: str) -> None:
    choice = choice_for(None, recipe=recipe)
    assert choice == BridgeChoice(release, release, f"implied by the input: recipe {recipe}; it does not fit {others}")


@pytest.mark.usefixtures("nothing_installed")
def test_a_release_between_two_that_have_the_recipe_is_not_chosen() -> None:
    # The catalogues of 0.4.2 and of main have this name, the one of 0.6.2 does not.
    assert choice_for(None, recipe="nemotron_3_super_pretrain_config").release in ("0.4.2", "0.7.0.dev0")


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize("recipe", ["gemma2_27b_sft_config", "my_own_recipe_config"])
def test_a_recipe_that_all_or_none_have_tells_nothing(recipe: str) -> None:
    assert choice_for(None, recipe=recipe).because == NOTHING_TELLS


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize("version", known_releases())
def test_a_full_dump_is_told_by_its_whole_set_of_fields(version: str) -> None:
    choice = choice_for(full_dump(version))
    assert (choice.version, choice.release) == (version, version)
    assert choice.because.startswith("implied by the input: ")


@pytest.mark.usefixtures("nothing_installed")
def test_fields_that_a_full_dump_lacks_count_against_a_release() -> None:
    dump = full_dump("0.4.2")
    shared = {name for name in load_release("0.4.2").fields if name in load_release("0.7.0.dev0").fields}
    for name in list(load_release("0.4.2").fields):
        section, _, leaf = name.partition(".")
        if name not in shared and section in dump:
            dump[section].pop(leaf, None)
    assert choice_for(dump).release == "0.4.2"


@pytest.mark.usefixtures("nothing_installed")
def test_fields_that_a_partial_config_lacks_count_for_nothing() -> None:
    names = ["model.context_parallel_size", "train.micro_batch_size"]
    assert choose(None, Evidence(names, None, (), complete=False)).release == NEWEST


@pytest.mark.parametrize("asked", ["0.3.0", "0.3.1", "0.6", "main", "9.9"])
def test_something_is_made_for_every_release_since_the_oldest_recorded_series(asked: str) -> None:
    assert made_for(asked) == normalise(asked)


@pytest.mark.parametrize("asked", ["0.2", "0.2.9", "0.0.1"])
def test_nothing_is_made_for_a_release_older_than_every_recorded_one(asked: str) -> None:
    with pytest.raises(InputError, match=r"is older than 0\.3\.1, the oldest release that is known here"):
        made_for(asked)
