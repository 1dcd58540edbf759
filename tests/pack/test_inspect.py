"""Whole datasets: upstream's own files are clean, public reports get their verdict, hostile ones one sentence."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from packs import DATA, make_row, write_npy, write_parquet
from pyarrow import parquet

from skill_run.batch.inspect import InspectionReport, Sequence, inspect_batch
from skill_run.errors import InputError
from skill_run.pack.inspect import SHOWN_ROWS, SHOWN_SEQUENCES

FOLDERS = sorted(path for path in DATA.glob("*/*") if path.is_dir())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_upstreams_own_packs_are_clean(folder: Path) -> None:
    release = folder.parent.name
    report = inspect_batch(folder, bridge=release)
    assert report.findings == ()
    assert report.path == "packed_dataset"
    assert report.generation == ("<=0.5" if release == "0.3.1" else ">=0.6")
    assert (report.statistics["files"], report.statistics["pack_size"]) == (2, 128)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_upstreams_own_packs_fit_cp_2_when_they_were_padded_for_it(folder: Path) -> None:
    report = inspect_batch(folder, cp=2, bridge=folder.parent.name)
    expected = [] if "mult4" in folder.name else ["dataset-lengths-fit-cp"]
    assert [finding.rule for finding in report.findings] == expected


def test_the_figures_of_a_real_file_are_those_of_its_metadata() -> None:
    folder = DATA / "0.6.2" / "tiny-wordlevel_pad_seq_to_mult4_sft_387e432be16e"
    training = json.loads((folder / "128_metadata.jsonl").read_text("utf-8"))[0]
    report = inspect_batch(folder / "training_128.idx.parquet")
    figures = report.to_dict()["summary"]
    assert figures["fill"] == pytest.approx(training["packing_efficiency"] / 100, abs=1e-4)
    assert figures["sequences"] / figures["rows"] == pytest.approx(training["packing_factor"], abs=0.01)
    assert figures["sequences_per_pack"]["max"] == training["max_samples_per_bin"]
    assert figures["sequence_length"]["max"] == training["dataset_max_seqlen"]
    assert figures["lowest_fill"] == pytest.approx(training["min_packed_seqlen"] / 128, abs=1e-4)
    assert figures["alignment"] == 4
    assert report.tokens == round(figures["fill"] * 128 * figures["rows"])


def test_masks_as_truth_values_are_those_of_0_4_and_0_5(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", [make_row([4])], mask=pyarrow.bool_())
    assert inspect_batch(path).generation == "<=0.5"
    assert inspect_batch(write_parquet(path, [make_row([4])])).generation == ">=0.6"
    assert inspect_batch(write_parquet(path, [make_row([4])], mask=pyarrow.int32())).generation == "unknown"


def test_without_a_known_pack_size_fill_is_relative_to_the_widest_row(tmp_path: Path) -> None:
    report = inspect_batch(write_parquet(tmp_path / "a.parquet", [make_row([8]), make_row([4])]))
    assert report.to_dict()["summary"]["fill"] == 0.75
    assert "pack_size" not in report.statistics
    assert any("widest row (8 tokens)" in note for note in report.notes)


def test_the_report_is_plain_json() -> None:
    text = json.dumps(inspect_batch(FOLDERS[0]).to_dict(), allow_nan=False)
    assert json.loads(text)["source"] == str(FOLDERS[0])


def test_a_dataset_in_several_forms_has_the_same_figures(tmp_path: Path) -> None:
    rows = [make_row([4, 8], padding=[2, 0]), make_row([12])]
    paths = [write_parquet(tmp_path / "a.parquet", rows), write_npy(tmp_path / "a.npy", rows)]
    (tmp_path / "a.json").write_text(json.dumps(rows), "utf-8")
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    arrow = tmp_path / "a.arrow"
    with pyarrow.ipc.new_file(str(arrow), (table := parquet.read_table(paths[0])).schema) as writer:
        writer.write_table(table)
    figures = [
        dict(inspect_batch(path).statistics) for path in (*paths, arrow, tmp_path / "a.json", tmp_path / "a.jsonl")
    ]
    assert all(found == figures[0] for found in figures)


# Public reports, as lengths only


def report_of(tmp_path: Path, data: Any, **options: Any) -> InspectionReport:
    path = tmp_path / "facts.json"
    path.write_text(json.dumps(data), "utf-8")
    return inspect_batch(path, **options)


def test_packs_reused_after_cp_was_switched_on_are_told(tmp_path: Path) -> None:
    config = {
        "model.context_parallel_size": 2,
        "dataset.offline_packing_specs.packed_sequence_size": 4096,
        "dataset.offline_packing_specs.pad_seq_to_mult": 4,
    }
    rows = [{"seq_start_id": [0, 7, 18], "input_ids_len": 31}]
    report = report_of(tmp_path, {"file_rows": rows}, config=config)
    (finding,) = report.at_least("corruption")
    assert finding.rule == "dataset-lengths-fit-cp"
    assert finding.fields[0].endswith("packed_train_data_path")
    assert "2 of 3 sequences" in finding.message
    assert "row 0, sequence 0 with 6 tokens" in finding.message
    assert report.statistics["alignment"] == 2


def test_a_sample_longer_than_the_pack_is_told(tmp_path: Path) -> None:
    report = report_of(tmp_path, {"packed_sequence_size": 150000, "stored_lengths": [1200, 150002, 98000]})
    (finding,) = report.findings
    assert (finding.rule, finding.severity, finding.fields[0]) == ("dataset-sequence-fits-limit", "warning", "sample 1")
    assert "1 of 3 samples" in finding.message
    assert "150001 tokens" in finding.message
    assert report_of(tmp_path, {"packed_sequence_size": 150000, "stored_lengths": [150001]}).findings == ()


def test_one_loose_pack_among_full_ones_is_fine(tmp_path: Path) -> None:
    lengths = [449280, 334080, 448768, 448512, 449792, 448256, 449536, 449792]
    report = report_of(tmp_path, {"packed_sequence_size": 450000, "pack_lengths": lengths})
    assert report.findings == ()
    summary = report.to_dict()["summary"]
    assert (summary["rows"], summary["fill"], summary["lowest_fill"]) == (8, 0.9661, 0.7424)


def test_a_pack_longer_than_the_pack_size_is_told(tmp_path: Path) -> None:
    report = report_of(tmp_path, {"packed_sequence_size": 100, "pack_lengths": [100, 101]})
    assert [finding.rule for finding in report.findings] == ["dataset-row-fits-pack"]


def test_the_pack_size_of_lengths_may_come_from_the_config(tmp_path: Path) -> None:
    config = {"dataset.enable_offline_packing": True, "dataset.offline_packing_specs.packed_sequence_size": 10}
    assert report_of(tmp_path, {"stored_lengths": [12]}, config=config).findings
    assert not report_of(tmp_path, {"stored_lengths": [12]}).findings


# Hostile


def test_a_dataset_without_rows_is_refused(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", [])
    with pytest.raises(InputError, match="holds no packed rows"):
        inspect_batch(path)


def test_a_row_of_very_many_sequences_lists_only_some(tmp_path: Path) -> None:
    count = SHOWN_SEQUENCES + 5
    row = {"input_ids": [5] * (2 * count), "loss_mask": [1] * (2 * count), "seq_start_id": list(range(0, 2 * count, 2))}
    report = inspect_batch(write_parquet(tmp_path / "a.parquet", [row, row]))
    assert len(report.sequences) == SHOWN_SEQUENCES
    assert report.summary["sequences"] == 2 * count


def test_rows_without_tokens_are_findings_and_no_error(tmp_path: Path) -> None:
    rows: Any = [
        {"input_ids": [], "loss_mask": [], "seq_start_id": []},
        {"input_ids": [], "loss_mask": [], "seq_start_id": [0]},
    ]
    for path in (write_parquet(tmp_path / "a.parquet", rows), write_npy(tmp_path / "a.npy", rows)):
        report = inspect_batch(path, cp=2, bridge="0.3.1")
        assert {finding.rule for finding in report.findings} == {"dataset-starts-at-zero", "dataset-starts-within-row"}


@pytest.mark.parametrize("name", ["training_128.idx.parquet", "training_128.npy"])
def test_damage_anywhere_gives_a_report_or_one_sentence(tmp_path: Path, name: str) -> None:
    data = next(DATA.rglob(name)).read_bytes()
    path = tmp_path / name
    for at in range(0, len(data), 61):
        changed = bytearray(data)
        changed[at] ^= 0x55
        path.write_bytes(changed)
        with contextlib.suppress(InputError):
            inspect_batch(path, cp=2, bridge="main")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_first_rows_are_listed_as_they_are_at_run_time(folder: Path) -> None:
    report = inspect_batch(folder)
    by_row: dict[int, list[Sequence]] = {}
    for sequence in report.sequences:
        by_row.setdefault(sequence.row, []).append(sequence)
    assert sorted(by_row) == list(range(min(report.rows, SHOWN_ROWS)))
    for members in by_row.values():
        starts = [sequence.start for sequence in members]
        assert starts == [sum(s.physical for s in members[:at]) for at in range(len(members))]
    note = f"the pack map and the list of sequences show the first {SHOWN_ROWS} rows; the figures are of all rows"
    assert (note in report.notes) == (report.rows > SHOWN_ROWS)
    if report.rows <= SHOWN_ROWS:
        assert len(report.sequences) == report.summary["sequences"]
        assert sum(sequence.physical for sequence in report.sequences) == report.tokens


def test_packs_made_with_other_options_than_the_config_has_are_named() -> None:
    folder = DATA / "0.6.2" / "tiny-wordlevel_pad_seq_to_mult1_sft_65a850537fa8"
    config = {
        "dataset.type": "GPTSFTDatasetConfig",
        "dataset.seq_length": 96,
        "dataset.seed": 1234,
        "dataset.enable_offline_packing": True,
        "dataset.dataset_kwargs": {"chat": True},
        "dataset.offline_packing_specs.packed_sequence_size": 128,
        "dataset.offline_packing_specs.pad_seq_to_mult": 1,
    }
    report = inspect_batch(folder, bridge="0.6.2", config=config)
    message = next(finding.message for finding in report.findings if finding.rule == "dataset-built-for-config")
    assert "options with the fingerprint 65a850537fa8 by their folder" in message


def test_rows_in_memory_are_inspected_as_those_of_a_file(tmp_path: Path) -> None:
    held = {"rows": [{"input_ids": [5, 6, 7, 8], "loss_mask": [0, 1, 1, 1], "seq_start_id": [0, 2]}]}
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(held), "utf-8")
    assert inspect_batch(held).summary == {**inspect_batch(path).summary, "files": 0}
    assert inspect_batch(held).path == "packed_dataset"
