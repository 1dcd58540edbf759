"""Lengths of a parity run: the awkward ones by default, else those of the user's data."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from skill_run.errors import InputError
from skill_run.verify.lengths import LARGEST_PACK, MOST_SEQUENCES, Packs, default_packs, packs_of


def fits(packs: Packs) -> bool:
    multiple = packs.pad_seq_to_mult
    used = [sum(-(-sequence["length"] // multiple) * multiple for sequence in pack) for pack in packs.packs]
    return all(0 < tokens <= packs.pack_size for tokens in used)


@pytest.mark.parametrize("multiple", [1, 2, 3, 4, 6, 8, 12, 16])
def test_the_default_mix_has_one_token_odd_lengths_and_lengths_on_the_grid(multiple: int) -> None:
    packs = default_packs(multiple)
    lengths = [sequence["length"] for pack in packs.packs for sequence in pack]
    assert len(packs.packs) == 2
    assert fits(packs)
    assert packs.pack_size % multiple == 0
    assert 1 in lengths
    assert any(length % 2 and length > 1 for length in lengths)
    assert any(length % multiple == 0 and length > 1 for length in lengths)
    assert all(1 <= sequence["trained"] <= sequence["length"] for pack in packs.packs for sequence in pack)
    # Prompts are masked in some of them.
    assert any(sequence["trained"] < sequence["length"] for pack in packs.packs for sequence in pack)


def packed_file(
    folder: Path, rows: list[list[int]], *, trained: int = 1, starts: list[list[int]] | None = None
) -> Path:
    """Write a packed dataset whose rows hold sequences of these run-time lengths.

    trained: the whole loss mask; starts: wrong places of the sequences.
    """
    starts = starts or [[sum(length + 1 for length in row[:at]) for at in range(len(row))] for row in rows]
    tokens = [[7] * sum(length + 1 for length in row) for row in rows]
    masks = [[trained] * len(row) for row in tokens]
    table = pyarrow.table(
        {
            "input_ids": pyarrow.array(tokens, pyarrow.list_(pyarrow.int32())),
            "loss_mask": pyarrow.array(masks, pyarrow.list_(pyarrow.int8())),
            "seq_start_id": pyarrow.array(starts, pyarrow.list_(pyarrow.int32())),
        }
    )
    path = folder / "training_4096.idx.parquet"
    parquet.write_table(table, path)
    return path


def test_packs_of_a_packed_file_have_its_boundaries(tmp_path: Path) -> None:
    packs = packs_of(packed_file(tmp_path, [[24, 36, 16], [8, 12], [4, 4, 4, 4, 4]]), 4)
    assert sorted([s["length"] for s in pack] for pack in packs.packs) == [[4, 4, 4, 4, 4], [24, 36, 16]]
    # What the file pads is what is tried.
    assert packs.pad_seq_to_mult == 1
    assert packs.pack_size == 76


def test_long_packs_are_made_smaller_and_keep_what_is_off_the_grid(tmp_path: Path) -> None:
    rows = [[1024, 999, 2048, 25]]
    packs = packs_of(packed_file(tmp_path, rows), 4)
    lengths = [sequence["length"] for sequence in packs.packs[0]]
    assert sum(lengths) <= LARGEST_PACK + 4 * len(lengths)
    assert [length % 4 for length in lengths] == [length % 4 for length in rows[0]]
    assert "scaled by" in packs.notes[1]


@pytest.mark.parametrize("rows", [[[24, 32]], [[2424, 3200, 48]], [[16, 160]], [[1600, 16, 33]]])
def test_what_missed_the_grid_of_a_larger_cp_misses_that_of_the_smaller(tmp_path: Path, rows: list[list[int]]) -> None:
    packs = packs_of(packed_file(tmp_path, rows), 4, grid=(16, 4))
    lengths = [sequence["length"] for sequence in packs.packs[0]]
    assert [length % 4 == 0 for length in lengths] == [length % 16 == 0 for length in rows[0]]
    assert sum(lengths) <= packs.pack_size <= LARGEST_PACK + 4 * len(lengths)


def test_data_without_a_trained_token_proves_nothing_and_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no token in .* is trained on"):
        packs_of(packed_file(tmp_path, [[24, 36]], trained=0), 4)


def test_broken_rows_are_told_whether_or_not_others_are_left(tmp_path: Path) -> None:
    mixed = packs_of(packed_file(tmp_path, [[8, 8], [8, 8]], starts=[[0, 9], [9, 0]]), 4)
    assert len(mixed.packs) == 1
    assert mixed.notes[-1].startswith("skill-run inspect finds faults in it (dataset-starts-")
    with pytest.raises(InputError, match=r"no sequences .*: seq_start_id of 1 of 1 rows points outside the row"):
        packs_of(packed_file(tmp_path, [[8, 8]], starts=[[0, 90]]), 4)


def test_of_a_row_with_very_many_sequences_some_are_taken(tmp_path: Path) -> None:
    packs = packs_of(packed_file(tmp_path, [[4] * 5000]), 4)
    assert len(packs.packs[0]) == MOST_SEQUENCES
    assert packs.pack_size <= LARGEST_PACK


@pytest.mark.parametrize("told", [[100, 30, 30, 7], {"100": 1, "30": 2, "7": 1}, {"lengths": [100, 30, 7]}])
def test_lengths_are_drawn_from_a_list_or_a_histogram(tmp_path: Path, told: object) -> None:
    path = tmp_path / "lengths.json"
    path.write_text(json.dumps(told), "utf-8")
    packs = packs_of(path, 4)
    drawn = {sequence["length"] for pack in packs.packs for sequence in pack}
    assert fits(packs)
    assert drawn <= {100, 30, 7}
    assert packs_of(path, 4) == packs


def test_a_histogram_of_long_sequences_is_made_smaller(tmp_path: Path) -> None:
    path = tmp_path / "lengths.json"
    path.write_text(json.dumps({"131072": 3, "4096": 40}), "utf-8")
    packs = packs_of(path, 8)
    assert fits(packs)
    assert packs.pack_size <= LARGEST_PACK + 8


def test_a_histogram_of_very_many_sequences_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lengths.json"
    path.write_text(json.dumps({str(length): 10**9 for length in range(1, 20_000)}), "utf-8")
    assert fits(packs_of(path, 4))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"lengths": []}',
        '{"a": 1}',
        "[-1]",
        "[0]",
        "[true]",
        '"x"',
        '{"0": 5}',
        '{"5": 0}',
        '{"\\u00b2": 1}',
        f'{{"{"9" * 5000}": 1}}',
        f"[{'9' * 5000}]",
        f"[{10**30}]",
        "[NaN]",
        "[" * 100_000,
    ],
)
def test_what_gives_no_lengths_is_refused_in_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lengths.json"
    path.write_text(text, "utf-8")
    with pytest.raises(InputError) as told:
        packs_of(path, 4)
    assert "\n" not in str(told.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing"):
        packs_of(tmp_path / "nothing.parquet", 4)
