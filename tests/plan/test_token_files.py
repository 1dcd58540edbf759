from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from skill_run.batch.load import load_source
from skill_run.errors import InputError
from skill_run.pack.facts import facts_dataset
from skill_run.pack.reader import Dataset
from skill_run.plan.lengths import Lengths
from skill_run.plan.token_files import read_packed, read_parquet_lengths

PACKED = Path(__file__).parents[1] / "pack" / "data"


def listed(lengths: Lengths) -> list[int]:
    return list(np.repeat(lengths.values, lengths.counts).tolist())


def table(path: Path, **columns: object) -> Path:
    parquet.write_table(pyarrow.table(columns), path)
    return path


@pytest.mark.parametrize("column", ["input_ids", "tokens", "token_ids"])
@pytest.mark.parametrize("kind", [pyarrow.list_(pyarrow.int32()), pyarrow.large_list(pyarrow.int64())])
def test_token_lists_are_counted_without_their_tokens(tmp_path: Path, column: str, kind: pyarrow.DataType) -> None:
    rows = pyarrow.array([[1, 2, 3], [4], [5, 6, 7]], kind)

    found = read_parquet_lengths(table(tmp_path / "it.parquet", **{column: rows, "text": ["a", "b", "c"]}), "it")

    assert (listed(found), found.kind) == ([1, 3, 3], "tokens")


def test_a_column_of_lengths_and_a_histogram_are_read(tmp_path: Path) -> None:
    plain = read_parquet_lengths(table(tmp_path / "a.parquet", length=[4, 7, 4]), "it")
    counted = read_parquet_lengths(table(tmp_path / "b.parquet", length=[4, 7], count=[2, 1]), "it")

    assert listed(plain) == listed(counted) == [4, 4, 7]
    assert (plain.kind, counted.kind) == ("lengths", "histogram")


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"text": ["a"]}, "it has the columns text; input_ids, tokens, token_ids or length is needed"),
        ({"input_ids": ["a"]}, "column input_ids is string, not lists of token ids"),
        ({"tokens": [[1.5]]}, "column tokens is list<.*double>, not lists of token ids"),
        ({"tokens": pyarrow.array([[1], None])}, "column tokens has rows without a value"),
        ({"tokens": pyarrow.array([[1], []])}, "0 is no length"),
        ({"length": [1.5]}, "column length is double, not whole numbers"),
        ({"length": pyarrow.array([4, None])}, "column length has rows without a value"),
        ({"length": [4, 0]}, "0 is no length"),
        ({"length": pyarrow.array([], pyarrow.int64())}, "holds no lengths"),
    ],
)
def test_a_parquet_file_without_lengths_is_refused(tmp_path: Path, columns: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read_parquet_lengths(table(tmp_path / "it.parquet", **columns), "it")


def test_a_parquet_file_cut_short_is_refused(tmp_path: Path) -> None:
    path = table(tmp_path / "it.parquet", length=[4, 7])
    path.write_bytes(path.read_bytes()[:-20])

    with pytest.raises(InputError, match="it"):
        read_parquet_lengths(path, "it")


@pytest.mark.parametrize("path", sorted(PACKED.glob("*/*/training_*.*")), ids=lambda path: path.parent.name[-20:])
def test_sequences_of_upstreams_own_packed_files_are_samples_again(path: Path) -> None:
    dataset = load_source(path)
    assert isinstance(dataset, Dataset)

    found = read_packed(dataset, "it")

    multiple = 4 if "mult4" in str(path) else 1
    assert (found.kind, found.padded_to) == ("packed", multiple)
    assert all((length - 1) % multiple == 0 for length in found.values.tolist())
    assert bool(found.notes) == (multiple > 1)


def test_rows_without_usable_boundaries_are_refused_with_their_place() -> None:
    dataset = facts_dataset([{"input_ids": [1, 2, 3], "loss_mask": [0, 0, 0], "seq_start_id": [1]}], "it")
    assert dataset is not None

    with pytest.raises(InputError, match=r"no usable boundaries in seq_start_id.*; skill-run inspect tells more"):
        read_packed(dataset, "it")


def test_lengths_of_packs_are_not_those_of_samples() -> None:
    dataset = facts_dataset({"packed_sequence_size": 8, "pack_lengths": [8, 7]}, "it")
    assert dataset is not None

    with pytest.raises(InputError, match="lengths of packs, not of the samples"):
        read_packed(dataset, "it")
