"""The footer of a Parquet file, read without pyarrow: the same numbers, or one sentence."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packs import DATA, FUZZ, make_row, write_parquet
from pyarrow import parquet

from skill_run.errors import InputError
from skill_run.pack.footer import MAX_FOOTER_BYTES, Thrift, read_row_groups


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_row_groups(path)
    return str(caught.value)


@pytest.mark.parametrize("path", sorted(DATA.glob("0.6.2/*/*.parquet")), ids=lambda path: path.parent.name[-14:])
def test_the_numbers_are_those_that_pyarrow_reads(path: Path) -> None:
    expected = parquet.read_metadata(path)
    found = read_row_groups(path)
    assert len(found) == expected.num_row_groups
    for index, group in enumerate(found):
        assert group.rows == expected.row_group(index).num_rows
        for number in range(expected.num_columns):
            column = expected.row_group(index).column(number)
            name = column.path_in_schema.partition(".")[0]
            assert group.values[name] == column.num_values
            assert group.compressed[name] == column.total_compressed_size


def test_many_row_groups_and_other_columns_are_read(tmp_path: Path) -> None:
    rows = [make_row([4]) for _ in range(40)]
    path = write_parquet(tmp_path / "a.parquet", rows, row_group_size=1)
    assert [group.rows for group in read_row_groups(path)] == [1] * 40
    nested = pyarrow.table(
        {"a": [{"b": 1.5, "c": [True]}], "m": pyarrow.array([[("k", 1)]], pyarrow.map_("string", "int8"))}
    )
    parquet.write_table(nested, path, compression="zstd", version="1.0")
    (group,) = read_row_groups(path)
    assert group.values == {"a": 2, "m": 2}


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1PAR1", bytes(100), b"PAR1" + b"\xff\xff\xff\x7fPAR1"])
def test_a_file_without_a_footer_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.parquet").write_bytes(content)
    assert "cannot be read as Parquet" in refused(tmp_path / "a.parquet")


def test_a_footer_larger_than_any_needs_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    with path.open("wb") as stream:
        stream.truncate(2 * MAX_FOOTER_BYTES)
        stream.seek(2 * MAX_FOOTER_BYTES)
        stream.write((MAX_FOOTER_BYTES + 1).to_bytes(4, "little") + b"PAR1")
    assert "which no packed file needs" in refused(path)


def footer(path: Path, body: bytes) -> Path:
    path.write_bytes(b"PAR1" + body + len(body).to_bytes(4, "little") + b"PAR1")
    return path


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x49",
        b"\x49\xfc\xff\xff\xff\xff\x0f",
        b"\x49\x1c\x00\x00",
        b"\x46\x02\x00",
        b"\x45" + b"\xff" * 20,
        b"\x4d\x00",
        b"\x1c" * 100,
        b"\x19\x19" * 100,
        b"\x48\x7f",
        b"\x4b\x7f",
    ],
    ids=repr,
)
def test_a_damaged_footer_is_refused(tmp_path: Path, body: bytes) -> None:
    assert "its footer is damaged" in refused(footer(tmp_path / "a.parquet", body))


def test_a_footer_without_row_groups_has_none(tmp_path: Path) -> None:
    assert read_row_groups(footer(tmp_path / "a.parquet", b"\x15\x02\x00")) == []


@FUZZ
@given(st.binary(max_size=300))
def test_random_bytes_are_a_structure_or_end_too_soon(data: bytes) -> None:
    with contextlib.suppress(IndexError):
        assert isinstance(Thrift(data).structure(), dict)
