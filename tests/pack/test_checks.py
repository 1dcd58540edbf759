"""Each rule of a packed dataset: silent on sound packs, told by name and place when exactly this is broken."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packs import DATA, END, FILES, Rows, make_row, packed_rows, write_npy, write_parquet

from skill_run.batch.inspect import InspectionReport, Run, inspect_batch
from skill_run.batch.load import load_source
from skill_run.bundle.load import load_rules
from skill_run.pack.inspect import inspect_dataset
from skill_run.pack.reader import Dataset

FORMS = ["parquet", "npy"]


def report_on(path: Path, run: Run | None = None, **options: Any) -> InspectionReport:
    dataset = load_source(path)
    assert isinstance(dataset, Dataset)
    return inspect_dataset(dataset, str(path), run or Run(), **options)


def written(folder: Path, rows: Rows, form: str, name: str = "packs") -> Path:
    path = folder / f"{name}.{form}"
    return write_parquet(path, rows) if form == "parquet" else write_npy(path, rows)


def told(report: InspectionReport) -> dict[str, str]:
    return {finding.rule: finding.message for finding in report.findings}


def judged(folder: Path, rows: Rows, form: str = "parquet", **run: Any) -> dict[str, str]:
    return told(report_on(written(folder, rows, form), Run(**run)))


# One way to break each rule that looks at single rows: what it does to a row, the part of the message that tells it,
# and what is known of the run.
Break = Callable[[dict[str, list[int]]], None]


def negative_token(row: dict[str, list[int]]) -> None:
    row["input_ids"][0] = -100


def mask_of_two(row: dict[str, list[int]]) -> None:
    row["loss_mask"][-1] = 2


def short_mask(row: dict[str, list[int]]) -> None:
    row["loss_mask"].pop()


def long_mask(row: dict[str, list[int]]) -> None:
    row["loss_mask"].append(1)


def late_start(row: dict[str, list[int]]) -> None:
    row["seq_start_id"][0] = 1


def no_start(row: dict[str, list[int]]) -> None:
    row["seq_start_id"].clear()


def repeated_start(row: dict[str, list[int]]) -> None:
    row["seq_start_id"].append(row["seq_start_id"][-1])


def falling_start(row: dict[str, list[int]]) -> None:
    row["seq_start_id"] += [3, 1]


def outer_start(row: dict[str, list[int]]) -> None:
    row["seq_start_id"].append(len(row["input_ids"]))


def negative_start(row: dict[str, list[int]]) -> None:
    row["seq_start_id"].insert(1, -5)


def off_grid(row: dict[str, list[int]]) -> None:
    row["input_ids"].insert(0, 7)
    row["loss_mask"].insert(0, 0)
    row["seq_start_id"][1:] = [start + 1 for start in row["seq_start_id"][1:]]


def empty_sequence(row: dict[str, list[int]]) -> None:
    row["seq_start_id"].append(len(row["input_ids"]))
    row["input_ids"].append(END)
    row["loss_mask"].append(0)


def long_sequence(row: dict[str, list[int]]) -> None:
    row["input_ids"][:0] = [7] * 400
    row["loss_mask"][:0] = [0] * 400
    row["seq_start_id"][1:] = [start + 400 for start in row["seq_start_id"][1:]]


def untrained(row: dict[str, list[int]]) -> None:
    row["loss_mask"] = [0] * len(row["loss_mask"])


def trained_on_last_only(row: dict[str, list[int]]) -> None:
    """The last mask value of each sequence is dropped at run time, so it trains nothing."""
    ends = {*row["seq_start_id"][1:], len(row["input_ids"])}
    row["loss_mask"] = [int(at + 1 in ends) for at in range(len(row["loss_mask"]))]


BREAKS: list[tuple[Break, str, str, dict[str, Any]]] = [
    (negative_token, "dataset-token-ids-not-negative", "first -100 in row {row}, token 0", {}),
    (mask_of_two, "dataset-mask-is-0-or-1", "first 2 in row {row}", {}),
    (short_mask, "dataset-mask-matches-tokens", "first row {row}", {}),
    (long_mask, "dataset-mask-matches-tokens", "first row {row}", {}),
    (late_start, "dataset-starts-at-zero", "first row {row}", {}),
    (no_start, "dataset-starts-at-zero", "first row {row}", {}),
    (repeated_start, "dataset-starts-increase", "first row {row}", {}),
    (falling_start, "dataset-starts-increase", "first row {row}", {}),
    (outer_start, "dataset-starts-within-row", "first row {row}", {}),
    (negative_start, "dataset-starts-within-row", "first row {row}: -5 in a row", {}),
    (off_grid, "dataset-lengths-fit-cp", "first row {row}, sequence 0", {"cp": 2}),
    (off_grid, "dataset-lengths-fit-multiple", "first row {row}, sequence 0", {"pad_multiple": 4}),
    (empty_sequence, "dataset-no-empty-sequence", "first row {row}", {}),
    (long_sequence, "dataset-row-fits-pack", "first row {row}", {"pack_size": 400}),
    (long_sequence, "dataset-sequence-fits-limit", "first row {row}, sequence 0", {"seq_length": 300}),
    (untrained, "dataset-row-is-trained", "first row {row}", {}),
    (trained_on_last_only, "dataset-row-is-trained", "first row {row}", {}),
]
# What necessarily goes with another break: a negative start is also a falling one, and so on.
ALONG = {
    "negative_start": {"dataset-starts-increase"},
    "falling_start": {"dataset-starts-increase"},
    "long_sequence": {"dataset-row-fits-pack", "dataset-sequence-fits-limit"},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("change", "rule", "place", "run"), BREAKS, ids=[f"{b[0].__name__}-{b[1]}" for b in BREAKS])
def test_exactly_the_broken_rule_is_told(
    tmp_path_factory: pytest.TempPathFactory, form: str, change: Break, rule: str, place: str, run: dict[str, Any]
) -> None:
    folder = tmp_path_factory.mktemp("packs")

    @FILES
    @given(packed_rows(), st.data())
    def check(rows: Rows, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(rows) - 1))
        broken = copy.deepcopy(rows)
        change(broken[at])
        assert set(judged(folder, rows, form, **run)) <= {"dataset-low-fill"}
        found = judged(folder, broken, form, **run)
        assert place.format(row=at) in found[rule]
        assert set(found) - {rule, "dataset-low-fill"} <= ALONG.get(change.__name__, set())

    check()


def test_every_dataset_rule_of_the_card_is_known_here() -> None:
    here = {rule for _, rule, _, _ in BREAKS}
    elsewhere = {
        "dataset-built-for-config",
        "dataset-columns",
        "dataset-loss-on-padding",
        "dataset-low-fill",
        "dataset-metadata-covers-packs",
        "dataset-npy-deprecated",
    }
    assert {rule.id for rule in load_rules() if rule.computed == "dataset"} == here | elsewhere


@FILES
@given(packed_rows(multiple=8))
def test_a_stored_row_is_longer_than_the_pack_by_one_token_a_sequence(
    tmp_path_factory: pytest.TempPathFactory, rows: Rows
) -> None:
    folder = tmp_path_factory.mktemp("packs")
    widest = max(len(row["input_ids"]) - len(row["seq_start_id"]) for row in rows)
    assert "dataset-row-fits-pack" not in judged(folder, rows, pack_size=widest)
    assert "dataset-row-fits-pack" in judged(folder, rows, pack_size=widest - 1)


def test_the_same_fault_in_many_rows_is_told_once_with_its_number(tmp_path: Path) -> None:
    rows = [make_row([4]) for _ in range(50)]
    for row in rows[10:]:
        untrained(row)
    report = report_on(written(tmp_path, rows, "parquet"))
    assert [finding.message.split(". ")[0] for finding in report.findings] == [
        "40 of 50 rows train no token, first row 10."[:-1]
    ]


def test_a_fault_names_its_file_when_there_are_several(tmp_path: Path) -> None:
    bad = make_row([4])
    untrained(bad)
    written(tmp_path, [make_row([4])], "parquet", "a")
    written(tmp_path, [make_row([4]), bad], "parquet", "b")
    assert "first row 1 of b.parquet" in told(report_on(tmp_path))["dataset-row-is-trained"]


def test_a_multiple_off_the_grid_of_cp_is_not_told_twice(tmp_path: Path) -> None:
    rows = [make_row([6, 10, 12])]
    found = judged(tmp_path, rows, cp=2, pad_multiple=4)
    assert "2 of 3 sequences" in found["dataset-lengths-fit-cp"]
    assert "dataset-lengths-fit-multiple" not in found


@pytest.mark.parametrize("cp", [None, 1])
def test_without_context_parallelism_any_length_fits(tmp_path: Path, cp: int | None) -> None:
    assert judged(tmp_path, [make_row([3, 5])], cp=cp) == {}


# Padding


def padded(trained: bool) -> Rows:
    rows = [make_row([8, 12], padding=[3, 0]), make_row([8], padding=[1])]
    if trained:
        rows[0]["loss_mask"][5:8] = [1, 1, 1]
    return rows


def test_loss_on_padding_is_a_fault_from_0_7_on(tmp_path: Path) -> None:
    found = judged(tmp_path, padded(trained=True), bridge="0.7.0.dev0")
    assert "1 of 3 sequences have loss on the padding" in found["dataset-loss-on-padding"]
    assert "row 0, sequence 0 with 3 such tokens" in found["dataset-loss-on-padding"]
    assert judged(tmp_path, padded(trained=False), bridge="0.7.0.dev0") == {}


@pytest.mark.parametrize("bridge", [None, "0.6.2", "0.3.1"])
def test_loss_on_padding_is_a_note_where_a_batch_masks_it(tmp_path: Path, bridge: str | None) -> None:
    report = report_on(written(tmp_path, padded(trained=True), "parquet"), Run(bridge=bridge))
    assert "dataset-loss-on-padding" not in told(report)
    assert any("covers 3 padding tokens" in note for note in report.notes)


def test_repeated_end_tokens_of_packs_without_alignment_are_no_padding(tmp_path: Path) -> None:
    rows = [make_row([7, 5], padding=[3, 0])]
    rows[0]["loss_mask"] = [1] * len(rows[0]["loss_mask"])
    report = report_on(written(tmp_path, rows, "parquet"), Run(bridge="0.7.0.dev0"))
    assert told(report) == {}
    assert "padding_share" not in report.statistics


def test_without_a_common_end_token_padding_cannot_be_told(tmp_path: Path) -> None:
    row = make_row([8, 8, 8])
    for number, end in enumerate([*row["seq_start_id"][1:], len(row["input_ids"])]):
        row["input_ids"][end - 1] = 50 + number
    assert "padding_share" not in report_on(written(tmp_path, [row], "parquet")).statistics


# Columns


@pytest.mark.parametrize("name", ["input_ids", "loss_mask", "seq_start_id"])
def test_a_missing_column_is_a_fault(tmp_path: Path, name: str) -> None:
    rows: Any = [make_row([4]), make_row([8])]
    for row in rows:
        del row[name]
    table = pyarrow.table({key: [row[key] for row in rows] for key in rows[0]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    for path in (tmp_path / "a.parquet", write_npy(tmp_path / "a.npy", rows)):
        found = told(report_on(path))
        assert f"{name} is missing in 2 rows, first row 0" in found["dataset-columns"]
        assert set(found) == {"dataset-columns"}


# What only the whole dataset shows


def test_npy_packs_are_deprecated_from_0_4_on(tmp_path: Path) -> None:
    rows = [make_row([4])]
    assert "dataset-npy-deprecated" in judged(tmp_path, rows, "npy", bridge="0.4.2")
    assert judged(tmp_path, rows, "npy", bridge="0.3.1") == {}
    assert judged(tmp_path, rows, "npy") == {}
    assert judged(tmp_path, rows, "parquet", bridge="0.6.2") == {}


def test_loosely_filled_packs_are_told_for_information(tmp_path: Path) -> None:
    rows = [make_row([8, 8]), make_row([8])]
    report = report_on(written(tmp_path, rows, "parquet"), Run(pack_size=20))
    assert [(finding.rule, finding.severity) for finding in report.findings] == [("dataset-low-fill", "info")]
    assert "60.0 % full" in report.findings[0].message
    assert "dataset-low-fill" not in judged(tmp_path, rows, pack_size=15)


METADATA = (
    '[{{"dataset_max_seqlen": {longest}, "max_samples_per_bin": {most}, "packing_factor": 2.0, '
    '"packing_efficiency": 90.0, "pack_size": {size}, "min_packed_seqlen": {narrowest}}}]'
)
FITS = {"longest": 8, "most": 2, "size": 16, "narrowest": 8}


def with_metadata(folder: Path, rows: Rows, text: str) -> InspectionReport:
    (folder / "16_metadata.jsonl").write_text(text, "utf-8")
    return report_on(written(folder, rows, "parquet", "training_16"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"longest": 7}, "dataset_max_seqlen is 7 but a sequence has 8 tokens"),
        ({"most": 1}, "max_samples_per_bin is 1 but a pack has 2 sequences"),
        ({"narrowest": 9}, "min_packed_seqlen is 9 but a pack has only 8 tokens"),
        ({"size": 32}, "pack_size is 32 but the file name says 16"),
    ],
)
def test_metadata_that_packs_exceed_is_a_fault(tmp_path: Path, change: dict[str, int], message: str) -> None:
    rows = [make_row([8, 8]), make_row([8])]
    found = told(with_metadata(tmp_path, rows, METADATA.format(**{**FITS, **change})))
    assert message in found["dataset-metadata-covers-packs"]


def test_metadata_larger_than_needed_is_right(tmp_path: Path) -> None:
    rows = [make_row([8, 8]), make_row([8])]
    for change in ({}, {"longest": 9}, {"most": 9}, {"narrowest": 1}):
        found = told(with_metadata(tmp_path, rows, METADATA.format(**{**FITS, **change})))
        assert "dataset-metadata-covers-packs" not in found


def test_metadata_that_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    found = told(with_metadata(tmp_path, [make_row([8, 8])], "[]"))
    assert "is not the array of objects" in found["dataset-metadata-covers-packs"]


def in_folder(tmp_path: Path, name: str = "tok_pad_seq_to_mult8_sft_0123456789ab") -> Path:
    (tmp_path / name).mkdir()
    return written(tmp_path / name, [make_row([8, 8])], "parquet", "training_16")


@pytest.mark.parametrize(
    ("run", "fingerprints", "message", "field"),
    [
        ({"pad_multiple": 16}, (), "pad_seq_to_mult 8 by their folder, 16 in the config", "pad_seq_to_mult"),
        ({"pack_size": 18}, (), "16 tokens per pack by their name, 18 in the config", "packed_sequence_size"),
        ({"pad_multiple": 8}, ("ffffffffffff",), "fingerprint 0123456789ab by their folder", "packed_train_data_path"),
    ],
)
def test_packs_built_for_another_config_are_told(
    tmp_path: Path, run: dict[str, Any], fingerprints: tuple[str, ...], message: str, field: str
) -> None:
    report = report_on(in_folder(tmp_path), Run(**run), fingerprints=fingerprints)
    (finding,) = [finding for finding in report.findings if finding.rule == "dataset-built-for-config"]
    assert message in finding.message
    assert f"dataset.offline_packing_specs.{field}" in finding.fields


def test_packs_built_for_this_config_are_not_told(tmp_path: Path) -> None:
    run = Run(pad_multiple=8, pack_size=16)
    assert told(report_on(in_folder(tmp_path), run, fingerprints=("ffffffffffff", "0123456789ab"))) == {}


def test_fields_have_the_names_of_the_release(tmp_path: Path) -> None:
    report = report_on(in_folder(tmp_path), Run(bridge="0.5.1", pad_multiple=16))
    fields = {field for finding in report.findings for field in finding.fields}
    assert "dataset.packed_sequence_specs.packed_train_data_path" in fields


def test_packs_made_with_another_multiple_are_pinned_to_the_path_in_the_config(tmp_path: Path) -> None:
    path = DATA / "0.6.2" / "tiny-wordlevel_pad_seq_to_mult1_sft_387e432be16e" / "training_128.idx.parquet"
    config = {
        "model.context_parallel_size": 2,
        "dataset.enable_offline_packing": True,
        "dataset.offline_packing_specs.packed_sequence_size": 128,
        "dataset.offline_packing_specs.pad_seq_to_mult": 4,
        "dataset.offline_packing_specs.packed_train_data_path": str(path),
    }
    report = inspect_batch(path, config=config, bridge="0.6.2")
    assert {finding.rule: finding.severity for finding in report.findings} == {
        "dataset-lengths-fit-cp": "corruption",
        "dataset-built-for-config": "warning",
    }
    assert report.findings[0].fields[0] == "dataset.offline_packing_specs.packed_train_data_path"
    assert "19 of 24 sequences" in report.findings[0].message
