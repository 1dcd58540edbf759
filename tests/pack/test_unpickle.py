"""The machine that reads packed pickles: what numpy writes comes out right, anything else is refused and never run."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn
from packs import FUZZ

from skill_run.errors import InputError
from skill_run.pack.unpickle import Machine, Row, decode_integers

ROW = {"input_ids": [5, 300, 70000, 2], "loss_mask": [False, True, True, False], "seq_start_id": [0]}


def pickled(rows: Any, protocol: int = 4) -> bytes:
    """Return the pickle inside an array file of these rows."""
    array = np.empty(len(rows), dtype=object)
    array[:] = rows
    return pickle.dumps(array, protocol=protocol)


def read(data: bytes) -> list[Row]:
    return list(Machine(data, 0, "packed.npy").rows())


def refused(data: bytes) -> str:
    with pytest.raises(InputError) as caught:
        read(data)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 300
    return text


def as_lists(row: Row) -> dict[str, Any]:
    return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in row.items()}


numbers = st.lists(st.one_of(st.integers(0, 300), st.integers(-(2**63), 2**63 - 1)), max_size=30)
rows_of_numbers = st.lists(
    st.fixed_dictionaries(
        {
            "input_ids": numbers,
            "loss_mask": st.one_of(st.lists(st.booleans(), max_size=30), st.lists(st.integers(0, 1), max_size=30)),
            "seq_start_id": st.lists(st.integers(0, 2**20), max_size=5),
        }
    ),
    min_size=1,
    max_size=5,
)


@FUZZ
@given(rows_of_numbers, st.integers(2, 5))
def test_rows_come_out_as_they_went_in(rows: list[dict[str, Any]], protocol: int) -> None:
    assert [as_lists(row) for row in read(pickled(rows, protocol))] == rows


@pytest.mark.parametrize("count", [1, 999, 1000, 1001, 4096, 70_001])
def test_long_lists_come_out_right_across_batches_frames_and_windows(count: int) -> None:
    random = np.random.default_rng(count)
    rows = [
        {
            "input_ids": random.integers(0, top, count).tolist(),
            "loss_mask": (random.random(count) < 0.5).tolist(),
            "weights": random.random(count).tolist(),
        }
        for top in (200, 60_000, 200_000)
    ]
    assert [as_lists(row) for row in read(pickled(rows))] == rows


@FUZZ
@given(hn.arrays(np.int64, st.integers(0, 40), elements=st.integers(-(2**31), 2**31 - 1)), st.integers(0, 5))
def test_integer_steps_are_decoded_up_to_the_first_other_step(values: np.ndarray[Any, Any], cut: int) -> None:
    steps = [pickle.dumps(int(value), protocol=2)[2:-1] for value in values]
    plain = [step for step in steps if step[:1] in b"KMJ"]
    window = np.frombuffer(b"".join(plain) + b"e" + bytes(cut), np.uint8)
    found, taken = decode_integers(window)
    assert found.tolist() == [int(value) for value, step in zip(values, steps, strict=True) if step[:1] in b"KMJ"]
    assert taken == sum(map(len, plain))


def test_a_step_that_a_window_cuts_is_left_for_the_next_one() -> None:
    found, taken = decode_integers(np.frombuffer(b"K\x01M\x02\x00J\x03\x00", np.uint8))
    assert (found.tolist(), taken) == ([1, 2], 5)


def test_arrays_and_numpy_numbers_inside_rows_are_read() -> None:
    row = {
        "input_ids": np.array([1, 2, 3], dtype=">i4"),
        "loss_mask": [np.bool_(True), np.bool_(False), np.int64(1)],
        "seq_start_id": np.array([0], dtype=np.uint16),
        "weights": np.array([True, False]),
    }
    for protocol in (2, 4):
        assert as_lists(read(pickled([row], protocol))[0]) == {
            "input_ids": [1, 2, 3],
            "loss_mask": [1, 0, 1],
            "seq_start_id": [0],
            "weights": [True, False],
        }


def test_an_ordered_dict_is_a_row() -> None:
    ordered = OrderedDict((key, list(value)) for key, value in ROW.items())
    assert [as_lists(row) for row in read(pickled([ordered, ROW]))] == [ROW, ROW]


def test_old_numpy_names_are_understood() -> None:
    data = pickled([ROW], 2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert [as_lists(row) for row in read(data)] == [ROW]


def test_a_column_that_holds_no_numbers_is_named() -> None:
    row = {"input_ids": ["a", "b"], "loss_mask": None, "seq_start_id": [[0]], "x": "text", "y": []}
    assert as_lists(read(pickled([row]))[0]) == {
        "input_ids": "str",
        "loss_mask": "null",
        "seq_start_id": "list",
        "x": "str",
        "y": [],
    }


class Call:
    """An object whose pickle calls a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("place", ["row", "column", "item", "whole"])
def test_a_payload_anywhere_in_a_pickle_never_runs(tmp_path: Path, place: str, protocol: int) -> None:
    mark = tmp_path / "ran"
    payload = Call(os.system, f"touch {mark}")
    rows: Any = {
        "row": [ROW, payload],
        "column": [{**ROW, "loss_mask": payload}],
        "item": [{**ROW, "loss_mask": [1, payload]}],
        "whole": payload,
    }[place]
    data = pickle.dumps(rows, protocol=protocol) if place == "whole" else pickled(rows, protocol)
    told = refused(data)
    assert "nothing in it was run" in told
    assert not mark.exists()
    # The payload is real: read by pickle itself, it runs.
    pickle.loads(data)
    assert mark.exists()


@pytest.mark.parametrize(
    "payload",
    [
        Call(eval, "1"),
        Call(getattr, [], "append"),
        Call(__import__, "os"),
        Call(bytearray, 10**9),
        Call(np.frombuffer, b"12345678"),
        Call(np.zeros, 10**9),
        Call(io.StringIO),
        Call(OrderedDict, [("a", 1)]),
        Call(dict, [("a", 1)]),
        Call(list, (1,)),
    ],
    ids=str,
)
def test_a_call_that_packed_files_do_not_make_is_refused(payload: Call) -> None:
    refused(pickled([{**ROW, "x": payload}]))


def craft(body: bytes) -> bytes:
    return b"\x80\x04" + body + b"."


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"\x80\x63.",
        craft(b""),
        craft(b"e"),
        craft(b"u"),
        craft(b"a"),
        craft(b"]a"),
        craft(b"s"),
        craft(b"t"),
        craft(b"\x94"),
        craft(b"]K\x01K\x02u"),
        craft(b"}(K\x01u"),
        craft(b"}(K\x01K\x02u"),
        craft(b"](Na"),
        craft(b"h\x05"),
        craft(b"]q\x05"),
        craft(b"]r\xff\xff\xff\x7f"),
        craft(b"]j\xff\xff\xff\xff"),
        craft(b"\x8b\xff\xff\xff\x7f"),
        craft(b"\x8a\xff" + bytes(255)),
        craft(b"X\xff\xff\xff\xff"),
        craft(b"\x8d" + b"\xff" * 8),
        craft(b"\x8e" + b"\xff" * 8),
        craft(b"B\xff\xff\xff\xff"),
        craft(b"\x8c\x02\xff\xff"),
        craft(b"cos\nsystem\n"),
        craft(b"c" + b"x" * 70_000),
        craft(b"cnumpy\ndtype\n)R"),
        craft(b"cnumpy\ndtype\n(X\x01\x00\x00\x00VtR"),
        craft(b"cnumpy\ndtype\n(X\x02\x00\x00\x00i8tRNb"),
        craft(b"ccollections\nOrderedDict\nK\x01R"),
        craft(b"K\x01K\x02R"),
        craft(b"(" * 300_000),
        craft(b"}" * 300_000),
        craft(b"]" + b"0" * 10),
        craft(b"]\x81"),
        craft(b"P1\n"),
        craft(b"\x82\x01"),
        craft(b"\x97"),
    ],
    ids=lambda data: repr(data[:12]),
)
def test_a_pickle_that_is_no_packed_file_is_refused(data: bytes) -> None:
    refused(data)


def test_a_list_that_two_rows_share_is_refused() -> None:
    shared = [1, 2, 3]
    assert "one list in two rows" in refused(pickled([{**ROW, "input_ids": shared}, {**ROW, "input_ids": shared}]))
    assert "one list in two rows" in refused(pickled([ROW, ROW]))


def test_a_row_that_holds_itself_is_no_endless_loop() -> None:
    row: dict[str, Any] = dict(ROW)
    row["loss_mask"] = row
    assert as_lists(read(pickled([row]))[0]) == {**ROW, "loss_mask": "dict"}


def test_a_row_longer_than_any_pack_is_refused_before_it_is_built() -> None:
    # 17 million truth values in one list, each a single byte of the file.
    body = b"](" + b"\x88" * (2**24 + 1) + b"e"
    assert "no pack has that many" in refused(craft(body))


def test_an_array_that_claims_more_than_it_holds_is_refused() -> None:
    good = pickled([{**ROW, "input_ids": np.arange(3)}])
    assert as_lists(read(good)[0])["input_ids"] == [0, 1, 2]
    claim = struct.pack("<BI", ord("J"), 10**9)
    bad = good.replace(b"K\x01K\x03\x85", b"K\x01" + claim + b"\x85")
    assert bad != good
    refused(bad)


@FUZZ
@given(rows_of_numbers, st.data())
def test_a_pickle_cut_anywhere_is_refused(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    whole = pickled(rows)
    length = data.draw(st.integers(0, len(whole) - 1))
    refused(whole[:length])


@FUZZ
@given(rows_of_numbers, st.data())
def test_a_pickle_with_changed_bytes_gives_rows_or_a_sentence(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    whole = bytearray(pickled(rows))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = read(bytes(whole))
    except InputError:
        return
    assert all(isinstance(row, dict) for row in found)


@FUZZ
@given(st.binary(max_size=200))
def test_random_bytes_give_rows_or_a_sentence(data: bytes) -> None:
    with contextlib.suppress(InputError):
        assert isinstance(read(craft(data)), list)
