from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from skill_run.batch.arrays import MAX_DEPTH, check_mapping, integers, number_rows, plain_array
from skill_run.errors import InputError


class _Tensor:
    """What the code needs of a torch tensor. numpy: the answer of `.numpy()`, or the error it raises."""

    def __init__(self, answer: Any, exact: Any = None) -> None:
        self._answer = answer
        self._exact = exact

    def detach(self) -> _Tensor:
        return self

    def cpu(self) -> _Tensor:
        return self

    def float(self) -> _Tensor:
        return _Tensor(self._exact)

    def numpy(self) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def test_tensors_become_arrays() -> None:
    assert plain_array(_Tensor(np.array([1, 2])), "tokens").tolist() == [1, 2]


def test_a_tensor_of_a_dtype_that_numpy_lacks_goes_through_float32() -> None:
    tensor = _Tensor(TypeError("Got unsupported ScalarType BFloat16"), np.array([1.5], np.float32))
    assert plain_array(tensor, "loss_mask").tolist() == [1.5]


def test_a_tensor_that_cannot_be_read_is_one_sentence() -> None:
    with pytest.raises(InputError, match="tokens is a tensor that cannot be read as an array: sparse"):
        plain_array(_Tensor(RuntimeError("sparse\nmore")), "tokens")


@pytest.mark.parametrize("value", [None, "text", True, 3, 2.5])
def test_plain_values_stay_as_they_are(value: Any) -> None:
    assert plain_array(value, "key") is value


def test_numpy_numbers_become_python_numbers() -> None:
    assert type(plain_array(np.int32(4), "max_seqlen")) is int


@pytest.mark.parametrize("value", [np.array([{}], dtype=object), np.array(["a"]), np.array([1j])])
def test_arrays_that_hold_no_numbers_are_refused(value: Any) -> None:
    with pytest.raises(InputError, match="a batch holds numbers and truth values only"):
        plain_array(value, "tokens")


def test_an_array_that_no_batch_can_hold_is_refused() -> None:
    huge = np.broadcast_to(np.int8(0), (2**20, 2**20))
    with pytest.raises(InputError, match="more than one batch can hold"):
        plain_array(huge, "tokens")


@pytest.mark.parametrize(
    ("value", "rows", "dtype", "dimensions"),
    [
        (np.array([1, 2], np.int32), [[1, 2]], "int32", 1),
        (np.array([[1, 2], [3, 4]], np.int64), [[1, 2], [3, 4]], "int64", 2),
        (np.array(7), [[7]], "int64", 0),
        ([1, 2], [[1, 2]], None, 1),
        ([[1, 2], [3]], [[1, 2], [3]], None, 2),
        ([], [[]], None, 1),
        (5, [[5]], None, 0),
        ([True, False], [[True, False]], None, 1),
    ],
)
def test_numbers_of_up_to_two_dimensions_are_rows(
    value: Any, rows: list[list[int]], dtype: str | None, dimensions: int
) -> None:
    found, kind, count = number_rows(value, "key")
    assert [row.tolist() for row in found] == rows
    assert (kind, count) == (dtype, dimensions)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.zeros((1, 1, 1)), "3 dimensions"),
        ("text", "str; a list of numbers"),
        ({1, 2}, "set; a list of numbers"),
        (["a"], "not a number"),
        ([1, None], "not a number"),
        ([1, [2]], "not a number"),
        ([True, 2], "not a number"),
        ([2**70], "beyond 64 bits"),
        ([[1], [[2]]], "not a number"),
    ],
)
def test_anything_but_numbers_is_refused(value: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        number_rows(value, "key")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([0.5], "fractions, NaN or infinity"),
        ([math.nan], "fractions, NaN or infinity"),
        ([math.inf], "fractions, NaN or infinity"),
        ([1e300], "fractions, NaN or infinity"),
        (np.array([2**64 - 1], np.uint64), "beyond 63 bits"),
    ],
)
def test_boundaries_that_are_no_whole_numbers_are_refused(values: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        integers(number_rows(values, "cu_seqlens_q")[0][0], "cu_seqlens_q")


def test_whole_floats_are_whole_numbers() -> None:
    assert integers(np.array([0.0, 4.0]), "cu_seqlens_q").tolist() == [0, 4]


def test_a_batch_needs_text_keys() -> None:
    with pytest.raises(InputError, match="the key 5, which is not text"):
        check_mapping({5: [1]})


def test_nested_mappings_are_read_to_a_depth() -> None:
    assert check_mapping({"metadata": {"cu": [1]}})["metadata"]["cu"] == [1]
    deep: dict[str, Any] = {}
    for _ in range(MAX_DEPTH + 1):
        deep = {"inner": deep}
    with pytest.raises(InputError, match="nested deeper"):
        check_mapping(deep)


def test_a_mapping_that_holds_itself_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["again"] = loop
    with pytest.raises(InputError, match="nested deeper"):
        check_mapping(loop)
