"""Parquet and Arrow files: columns in chunks of bounded size; schema faults as data, damage as one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packs import DATA, FILES, Rows, make_row, packed_rows, write_parquet
from pyarrow import ipc, parquet

import skill_run
from skill_run.errors import InputError
from skill_run.pack.arrow import read_arrow, read_parquet
from skill_run.pack.reader import CHUNK_ROWS, COLUMNS, MAX_ROW_TOKENS, Chunk

ROWS: Rows = [make_row([4, 8]), make_row([12]), make_row([4, 4, 4])]
LISTS = {name: pyarrow.array([row[name] for row in ROWS], pyarrow.list_(pyarrow.int64())) for name in COLUMNS}


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        list((read_arrow if path.suffix == ".arrow" else read_parquet)(path))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    return str(caught.value)


def rows_of(chunks: list[Chunk]) -> Rows:
    found: Rows = []
    for chunk in chunks:
        for row in range(chunk.rows):
            lists = {}
            for name, column in chunk.columns.items():
                assert column.values is not None
                lists[name] = column.values[column.offsets[row] : column.offsets[row + 1]].astype(int).tolist()
            found.append(lists)
    return found


def write_arrow(path: Path, table: Any, *, stream: bool = False, batch: int | None = None) -> Path:
    with (ipc.new_stream if stream else ipc.new_file)(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=batch)
    return path


@pytest.mark.parametrize("path", sorted(DATA.glob("0.6.2/*/*.parquet")), ids=lambda path: path.parent.name[-14:])
def test_upstreams_own_files_hold_the_rows_that_pyarrow_reads(path: Path) -> None:
    assert rows_of(list(read_parquet(path))) == parquet.read_table(path).to_pylist()


@pytest.mark.parametrize(
    "mask", [pyarrow.int8(), pyarrow.bool_(), pyarrow.float32(), pyarrow.uint64(), pyarrow.int64()]
)
def test_a_mask_of_any_number_type_is_read(tmp_path: Path, mask: Any) -> None:
    path = tmp_path / "a.parquet"
    table = pyarrow.table({**LISTS, "loss_mask": LISTS["loss_mask"].cast(pyarrow.list_(mask))})
    parquet.write_table(table, path)
    assert rows_of(list(read_parquet(path))) == ROWS


@pytest.mark.parametrize("large", [False, True])
def test_row_groups_and_large_lists_are_read_in_order(tmp_path: Path, large: bool) -> None:
    make = pyarrow.large_list if large else pyarrow.list_
    rows = [make_row([1 + number % 5]) for number in range(2 * CHUNK_ROWS + 7)]
    table = pyarrow.table({name: pyarrow.array([r[name] for r in rows], make(pyarrow.int32())) for name in COLUMNS})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2 * CHUNK_ROWS + 1)
    chunks = list(read_parquet(tmp_path / "a.parquet"))
    assert max(chunk.rows for chunk in chunks) <= CHUNK_ROWS
    assert [chunk.first_row for chunk in chunks] == np.cumsum([0, *(chunk.rows for chunk in chunks)])[:-1].tolist()
    assert rows_of(chunks) == rows


def test_other_columns_of_an_arrow_file_are_passed_over(tmp_path: Path) -> None:
    other = pyarrow.array(["a", "b", "a"]).dictionary_encode()
    path = write_arrow(tmp_path / "a.arrow", pyarrow.table({"x": other, **LISTS, "y": other}))
    assert rows_of(list(read_arrow(path))) == ROWS


@pytest.mark.parametrize("stream", [False, True])
def test_arrow_files_and_streams_are_read(tmp_path: Path, stream: bool) -> None:
    rows = [make_row([1 + number % 5, 3]) for number in range(CHUNK_ROWS + 7)]
    table = pyarrow.table({name: [row[name] for row in rows] for name in COLUMNS})
    path = write_arrow(tmp_path / "a.arrow", table, stream=stream)
    chunks = list(read_arrow(path))
    assert max(chunk.rows for chunk in chunks) <= CHUNK_ROWS
    assert rows_of(chunks) == rows


@FILES
@given(packed_rows(), st.integers(1, 3))
def test_rows_come_out_as_they_went_in(tmp_path_factory: pytest.TempPathFactory, rows: Rows, size: int) -> None:
    folder = tmp_path_factory.mktemp("rows")
    assert rows_of(list(read_parquet(write_parquet(folder / "a.parquet", rows, row_group_size=size)))) == rows
    table = pyarrow.table({name: [row[name] for row in rows] for name in COLUMNS})
    assert rows_of(list(read_arrow(write_arrow(folder / "a.arrow", table, batch=size)))) == rows


SCHEMA_FAULTS: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"loss_mask": None}, {"loss_mask": "is missing"}),
    (dict.fromkeys(COLUMNS), dict.fromkeys(COLUMNS, "is missing")),
    ({"input_ids": pyarrow.array([1, 2, 3])}, {"input_ids": "is int64, not a list of numbers"}),
    ({"seq_start_id": pyarrow.array([["0"]] * 3)}, {"seq_start_id": "holds string, not whole numbers"}),
    ({"input_ids": pyarrow.array([[0.5]] * 3)}, {"input_ids": "holds double, not whole numbers"}),
    ({"input_ids": pyarrow.array([[[1]]] * 3)}, {"input_ids": "holds list<item: int64>, not whole numbers"}),
    ({"loss_mask": pyarrow.array([[1], None, [1]])}, {"loss_mask": "holds null"}),
    ({"loss_mask": pyarrow.array([[1], [None], [1]])}, {"loss_mask": "holds null"}),
]


@pytest.mark.parametrize("form", ["parquet", "arrow"])
@pytest.mark.parametrize(("change", "faults"), SCHEMA_FAULTS, ids=[str(number) for number in range(len(SCHEMA_FAULTS))])
def test_a_column_that_cannot_be_used_is_a_fault_of_the_chunk(
    tmp_path: Path, form: str, change: dict[str, Any], faults: dict[str, str]
) -> None:
    columns = {"other": pyarrow.array(["x"] * 3), **LISTS, **change}
    table = pyarrow.table({name: column for name, column in columns.items() if column is not None})
    path = tmp_path / f"a.{form}"
    if form == "parquet":
        parquet.write_table(table, path)
        chunks = list(read_parquet(path))
    else:
        chunks = list(read_arrow(write_arrow(path, table)))
    assert [
        (chunk.rows, {name: told.replace("element", "item") for name, told in chunk.faults.items()}) for chunk in chunks
    ] == [(3, faults)]
    assert set(chunks[0].columns) == set(COLUMNS) - set(faults)


def test_a_column_that_is_there_twice_is_a_fault(tmp_path: Path) -> None:
    table = pyarrow.table([LISTS["input_ids"], LISTS["input_ids"]], names=["input_ids", "input_ids"])
    chunk = next(read_arrow(write_arrow(tmp_path / "a.arrow", table)))
    assert chunk.faults["input_ids"] == "is there 2 times"


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
@pytest.mark.parametrize("content", [b"x", b"PAR1", b"PAR1" + bytes(100) + b"PAR1", b"ARROW1\0\0" + b"\xff" * 64])
def test_what_is_no_such_file_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert "cannot be read as" in refused(tmp_path / name)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, name: str) -> None:
    path = write_parquet(tmp_path / "a.parquet", ROWS)
    if name == "a.arrow":
        path = write_arrow(tmp_path / name, pyarrow.table(LISTS))
    data = path.read_bytes()
    for length in range(1, len(data), 41):
        path.write_bytes(data[:length])
        refused(path)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("stream", [False, True])
def test_compressed_arrow_is_refused_before_it_is_unpacked(tmp_path: Path, stream: bool, compression: str) -> None:
    path = tmp_path / "a.arrow"
    table = pyarrow.table(LISTS)
    options = ipc.IpcWriteOptions(compression=compression)
    with (ipc.new_stream if stream else ipc.new_file)(str(path), table.schema, options=options) as writer:
        writer.write_table(table)
    assert "is compressed Arrow" in refused(path)


def test_an_arrow_file_whose_offsets_lead_outside_is_refused(tmp_path: Path) -> None:
    path = write_arrow(tmp_path / "a.arrow", pyarrow.table({"input_ids": LISTS["input_ids"]}))
    data = path.read_bytes()
    offsets = np.array(LISTS["input_ids"].offsets, dtype=np.int32).tobytes()
    assert data.count(offsets) == 1
    path.write_bytes(data.replace(offsets, np.array([0, 2**30, 2**30 + 1, 2**30 + 2], dtype=np.int32).tobytes()))
    assert "cannot be read as Arrow" in refused(path)


def test_a_row_of_more_tokens_than_any_pack_is_refused_by_its_footer(tmp_path: Path) -> None:
    count = MAX_ROW_TOKENS + 1
    zeros = pyarrow.array(np.zeros(count, dtype=np.int8))
    column = pyarrow.ListArray.from_arrays(pyarrow.array([0, count], pyarrow.int32()), zeros)
    table = pyarrow.table({"input_ids": column, "loss_mask": column, "seq_start_id": pyarrow.array([[0]])})
    path = tmp_path / "a.parquet"
    parquet.write_table(table, path)
    assert path.stat().st_size < 2**20
    assert f"claims {count} tokens in one row; no pack has more than {MAX_ROW_TOKENS}" in refused(path)


def test_a_changed_byte_in_the_footer_never_ends_the_process(tmp_path: Path) -> None:
    """pyarrow aborts when it is asked for the metadata of some damaged columns, so it must not be asked."""
    source = next(DATA.glob("0.6.2/*/training_128.idx.parquet"))
    code = (
        "import sys; from contextlib import suppress; from pathlib import Path\n"
        f"sys.path.insert(0, {str(Path(skill_run.__file__).parents[1])!r})\n"
        "from skill_run.errors import InputError\n"
        "from skill_run.pack.arrow import read_parquet\n"
        f"data, path = Path({str(source)!r}).read_bytes(), Path({str(tmp_path / 'a.parquet')!r})\n"
        "for at in range(len(data) - 8 - int.from_bytes(data[-8:-4], 'little'), len(data) - 8):\n"
        "    path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1:])\n"
        "    with suppress(InputError): list(read_parquet(path))\n"
        "print('alive')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "alive", done.stderr


def test_without_pyarrow_the_extra_is_named(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", ROWS)
    # A folder that comes first and holds a module of this name, which cannot be imported.
    (tmp_path / "pyarrow.py").write_text("raise ImportError('no pyarrow')", "utf-8")
    code = (
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(Path(skill_run.__file__).parents[1])!r}]\n"
        "from skill_run.errors import MissingError\n"
        "from skill_run.batch.inspect import inspect_batch\n"
        f"try: inspect_batch({str(path)!r})\n"
        "except MissingError as error: print(error.exit_code, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("3 ")
    assert "pip install 'skill-run[parquet]'" in done.stdout
