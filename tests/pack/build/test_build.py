"""build_packs: files in every release's layout, the same whatever the way there, and nothing half-made."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from skill_run import inspect_batch
from skill_run.errors import InputError
from skill_run.pack.build import build_packs
from skill_run.pack.build.run import _told_kwargs
from skill_run.pack.folder import fingerprint
from skill_run.pack.samples import SampleOptions

Tokens = Callable[..., Path]
EOS = {"eos_id": 2}


def table(report: Any) -> Any:
    return pq.read_table(report.splits[0].file)


def _samples(report: Any) -> list[Any]:
    found = []
    for row in table(report).to_pylist():
        starts = [*row["seq_start_id"], len(row["input_ids"])]
        found += [(row["input_ids"][a:b], row["loss_mask"][a:b]) for a, b in pairwise(starts)]
    return sorted(found)


@pytest.mark.parametrize("bridge", ["0.3.1", "0.4.2", "0.5.1", "0.6.2", "main"])
def test_files_of_every_release_are_clean_for_inspect(tokens: Tokens, tmp_path: Path, bridge: str) -> None:
    report = build_packs(tokens(), tmp_path / "out", pack_size=128, cp=2, bridge=bridge, sample_options=EOS)
    found = inspect_batch(Path(report.splits[0].file), bridge=report.bridge, cp=2)
    told = {finding.rule for finding in found.at_least("corruption")}
    assert told <= {"dataset-loss-on-padding"}
    assert report.splits[0].counts.samples == 200


def test_the_samples_of_a_file_are_those_of_the_data(tokens: Tokens, tmp_path: Path) -> None:
    data = tokens(50)
    report = build_packs(data, tmp_path / "out", pack_size=128, bridge="0.6.2", sample_options=EOS)
    given = sorted(json.loads(line)["input_ids"] for line in data.read_text("utf-8").splitlines())
    assert [ids for ids, _ in _samples(report)] == given
    told = report.to_dict()
    assert told["samples"] == 50
    assert 0 < told["splits"][0]["fill"] <= 1


def test_the_same_bytes_come_out_whatever_the_number_of_workers(tokens: Tokens, tmp_path: Path) -> None:
    data = tokens(300)
    made = [
        build_packs(data, tmp_path / f"out{workers}", pack_size=128, workers=workers, sample_options=EOS)
        for workers in (1, 2)
    ]
    one, two = (Path(report.splits[0].file).read_bytes() for report in made)
    assert one == two


def test_a_second_call_makes_nothing_and_other_settings_do_not_overwrite(tokens: Tokens, tmp_path: Path) -> None:
    data = tokens()
    first = build_packs(data, tmp_path / "out", pack_size=128, sample_options=EOS)
    again = build_packs(data, tmp_path / "out", pack_size=128, sample_options=EOS)
    assert (first.splits[0].made, again.splits[0].made) == (True, False)
    assert again.splits[0].counts == first.splits[0].counts
    with pytest.raises(InputError, match="--overwrite replaces it"):
        build_packs(data, tmp_path / "out", pack_size=128, max_sequences=2, sample_options=EOS)
    other = build_packs(data, tmp_path / "out", pack_size=128, max_sequences=2, overwrite=True, sample_options=EOS)
    assert other.splits[0].sequences_max <= 2


def test_tokens_are_kept_for_another_pack_size_when_asked_for(tokens: Tokens, tmp_path: Path) -> None:
    data = tokens()
    for size in (128, 256):
        build_packs(data, tmp_path / "out", pack_size=size, seq_length=64, keep_tokens=True, sample_options=EOS)
    assert len(list((tmp_path / "out").glob(".skill-run-pack-*"))) == 1


def test_an_interrupted_run_leaves_no_file_and_the_next_one_goes_on(tokens: Tokens, tmp_path: Path) -> None:
    data = tokens()

    def stop(event: Any) -> None:
        if event["text"] == "writing packs":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_packs(data, tmp_path / "out", pack_size=128, sample_options=EOS, on_progress=stop)
    assert not list((tmp_path / "out").rglob("*.parquet"))
    assert not list((tmp_path / "out").rglob("*.part"))
    events: list[str] = []
    report = build_packs(
        data,
        tmp_path / "out",
        pack_size=128,
        sample_options=EOS,
        on_progress=lambda event: events.append(event["text"]),
    )
    assert report.splits[0].made
    assert not [text for text in events if text.endswith("samples read")]
    assert not list((tmp_path / "out").glob(".skill-run-pack-*"))


def test_both_splits_of_a_folder_are_packed_with_one_metadata_file(tokens: Tokens, tmp_path: Path) -> None:
    folder = tokens(80).parent
    tokens(20, name="validation.jsonl")
    report = build_packs(folder, tmp_path / "out", pack_size=128, bridge="0.6.2", sample_options=EOS)
    assert [split.split for split in report.splits] == ["training", "validation"]
    assert len(json.loads(Path(report.metadata_file).read_text("utf-8"))) == 2
    assert report.settings["dataset.offline_packing_specs.packed_val_data_path"] == report.splits[1].file


def test_settings_speak_the_names_of_the_release(tokens: Tokens, tmp_path: Path) -> None:
    old = build_packs(tokens(), tmp_path / "old", pack_size=128, bridge="0.5.1", sample_options=EOS)
    assert "dataset.packed_sequence_specs.packed_sequence_size" in old.settings
    assert old.settings["dataset.packed_sequence_specs.tokenizer_model_name"] == "unknown_tokenizer"
    assert "dataset.enable_offline_packing" not in old.settings


def test_the_multiple_follows_the_layout(tokens: Tokens, tmp_path: Path) -> None:
    report = build_packs(tokens(), tmp_path / "o", pack_size=144, cp=2, tp=3, sp=True, sample_options=EOS)
    assert report.pad_seq_to_mult == 12
    lengths = [len(ids) - 1 for ids, _ in _samples(report)]
    assert np.all(np.asarray(lengths) % 12 == 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pack_size": 0}, "the pack size must be"),
        ({"pack_size": 126, "cp": 2}, "no multiple of pad_seq_to_mult 4"),
        ({"pack_size": 128, "seq_length": 256}, "longer than the pack"),
        ({"pack_size": 128, "algorithm": "best"}, "no packing algorithm 'best'"),
        ({"pack_size": 128, "compat": True, "balance": True}, "compat excludes"),
        ({"pack_size": 128, "refuse": ("bad",)}, "cannot be refused"),
        ({"pack_size": 32, "refuse": ("truncated", "dropped")}, "which is refused; nothing was written"),
        ({"pack_size": 128, "cp": 0}, "at least 1"),
        ({"pack_size": "128"}, "the pack size must be"),
        ({"pack_size": 128, "seed": -1}, "the seed must be"),
        ({"pack_size": 128, "bridge": "0.2"}, "older than 0.3.1"),
        ({"pack_size": 128, "sample_options": {"eos_id": -5}}, "eos_id must be a token id"),
        ({"pack_size": 128, "sample_options": {"shape": 1}}, "no option shape"),
        ({"pack_size": 128, "cp": 2, "sample_options": {}}, "end-of-text token"),
    ],
)
def test_what_cannot_be_packed_is_told_in_one_sentence_and_nothing_is_written(
    tokens: Tokens, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        build_packs(tokens(), tmp_path / "out", **{"sample_options": EOS, **options})
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize("text", ["", "\n", '{"input_ids": []}\n'])
def test_empty_data_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "empty.jsonl").write_text(text, "utf-8")
    with pytest.raises(InputError):
        build_packs(tmp_path / "empty.jsonl", tmp_path / "out", pack_size=64, sample_options=EOS)
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_single_sample_makes_one_pack(tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text('{"input_ids": [5, 6, 7], "loss_mask": [1, 1, 1]}\n', "utf-8")
    report = build_packs(tmp_path / "one.jsonl", tmp_path / "out", pack_size=64, sample_options=EOS)
    assert report.splits[0].packs == 1


def test_a_file_in_place_of_the_folder_is_refused(tokens: Tokens, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("", "utf-8")
    with pytest.raises(InputError, match="is a file"):
        build_packs(tokens(), tmp_path / "out", pack_size=64, sample_options=EOS)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"prompt_column": "question"}, {"prompt_template": "{question} {output}", "truncation_field": "question"}),
        ({"kind": "chat"}, {"chat": True, "use_hf_tokenizer_chat_template": True}),
        ({}, {}),
    ],
)
def test_how_samples_are_read_is_among_the_settings(options: dict[str, Any], expected: dict[str, Any]) -> None:
    told = _told_kwargs(SampleOptions(**options), options.get("kind", "prompt-completion"))
    assert {name: told[name] for name in expected} == expected


def test_the_configs_dataset_kwargs_decide_how_samples_are_read(tokens: Tokens, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="virtual_tokens"):
        build_packs(tokens(), tmp_path / "o", pack_size=64, dataset_kwargs={"virtual_tokens": 3}, sample_options=EOS)


def test_dataset_kwargs_of_a_config_are_hashed_as_they_are(tokens: Tokens, tmp_path: Path) -> None:
    given = {"chat_loss_mode": "assistant", "prompt_template": "{input} {output}"}
    report = build_packs(tokens(), tmp_path / "o", pack_size=64, dataset_kwargs=given, sample_options=EOS)
    assert Path(report.splits[0].file).parent.name.endswith(f"_sft_{fingerprint(64, 0, given)}")


def test_a_loss_that_is_refused_in_one_split_keeps_the_other_from_being_written(tokens: Tokens, tmp_path: Path) -> None:
    folder = tokens(30, longest=40).parent
    tokens(30, longest=200, name="validation.jsonl")
    with pytest.raises(InputError, match="which is refused; nothing was written") as refused:
        build_packs(folder, tmp_path / "out", pack_size=64, refuse=("dropped",), sample_options=EOS)
    assert refused.value.exit_code == 1
    assert not list((tmp_path / "out").rglob("*.parquet"))


def test_refusing_losses_of_a_file_that_is_there_reads_nothing_again(tokens: Tokens, tmp_path: Path) -> None:
    data = tokens(30, longest=40)
    build_packs(data, tmp_path / "out", pack_size=64, sample_options=EOS)
    again = build_packs(data, tmp_path / "out", pack_size=64, refuse=("dropped",), sample_options=EOS)
    assert not again.splits[0].made
    assert not list((tmp_path / "out").glob(".skill-run-pack-*"))


def test_data_that_are_no_path_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="named by a path, not by a value of type NoneType"):
        build_packs(None, tmp_path / "out", pack_size=64)  # type: ignore[arg-type]
