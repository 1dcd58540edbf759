"""Turn what a batch file or mapping holds into numpy arrays, whatever it was: tensors, arrays, lists, numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from skill_run.errors import InputError

MAX_ELEMENTS: Final = 2**27
MAX_DEPTH: Final = 8


def plain_array(value: Any, name: str) -> Any:
    """Return tensors and array-likes as numpy arrays, rectangular number lists as int or float arrays.

    Anything else (text, null, ragged lists, mappings) comes back as it is. Raises InputError for object arrays and for
    more than MAX_ELEMENTS elements.
    """
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        value = _from_tensor(value, name)
    if isinstance(value, np.ndarray):
        if value.dtype == object or value.dtype.kind not in "biuf":
            raise InputError(f"{name} holds {value.dtype} values; a batch holds numbers and truth values only")
        if value.size > MAX_ELEMENTS:
            raise InputError(f"{name} has {value.size} elements, which is more than one batch can hold")
        return value
    if isinstance(value, np.generic):
        return value.item()
    return value


def _from_tensor(value: Any, name: str) -> NDArray[Any]:
    tensor = value.detach().cpu()
    try:
        return np.asarray(tensor.numpy())
    except TypeError:
        # numpy has no bfloat16; float32 holds every value of it.
        return np.asarray(tensor.float().numpy())
    except RuntimeError as error:
        raise InputError(f"{name} is a tensor that cannot be read as an array: {str(error).splitlines()[0]}") from error


def number_rows(value: Any, name: str) -> tuple[list[NDArray[Any]], str | None, int]:
    """Return an array-like of one or two dimensions as rows, with its dtype (None for lists) and its dimensions.

    Ragged lists of lists are rows of different length. Raises InputError when it holds anything but numbers.
    """
    if isinstance(value, np.ndarray):
        if value.ndim > 2:
            raise InputError(f"{name} has {value.ndim} dimensions; at most 2 are expected (rows, entries)")
        rows = list(value) if value.ndim == 2 else [value.reshape(-1)]
        return rows, str(value.dtype), value.ndim
    if isinstance(value, bool | int | float):
        return [_numbers([value], name)], None, 0
    if not isinstance(value, list | tuple):
        raise InputError(f"{name} is {type(value).__name__}; a list of numbers or an array is needed")
    nested = bool(value) and all(isinstance(item, list | tuple) for item in value)
    rows = [_numbers(item, name) for item in value] if nested else [_numbers(value, name)]
    return rows, None, 2 if nested else 1


def _numbers(items: Any, name: str) -> NDArray[Any]:
    if any(isinstance(item, bool) or not isinstance(item, int | float) for item in items) and not all(
        isinstance(item, bool) for item in items
    ):
        raise InputError(f"{name} holds something that is not a number")
    try:
        found = np.asarray(items, dtype=bool if items and isinstance(items[0], bool) else None)
    except (ValueError, OverflowError) as error:
        raise InputError(f"{name} holds numbers that do not fit an array") from error
    if found.dtype == object:
        raise InputError(f"{name} holds numbers beyond 64 bits")
    return found


def integers(row: NDArray[Any], name: str) -> NDArray[np.int64]:
    """Return a row as int64; InputError when it holds fractions, NaN or numbers beyond 63 bits."""
    if row.dtype.kind == "f":
        if not np.all(np.isfinite(row)) or np.any(row != np.floor(row)) or np.any(np.abs(row) > 2**53):
            raise InputError(f"{name} holds fractions, NaN or infinity; boundaries are whole numbers")
    elif row.dtype.kind == "u" and row.size and int(row.max()) > 2**63 - 1:
        raise InputError(f"{name} holds numbers beyond 63 bits")
    return np.asarray(row, dtype=np.int64)


def check_mapping(batch: Mapping[Any, Any], depth: int = 0) -> dict[str, Any]:
    """Return a batch mapping with text keys and plain arrays; nested mappings are kept, to a bounded depth."""
    if depth > MAX_DEPTH:
        raise InputError(f"the batch is nested deeper than {MAX_DEPTH} levels")
    found: dict[str, Any] = {}
    for key, value in batch.items():
        if not isinstance(key, str):
            raise InputError(f"the batch has the key {key!r:.60}, which is not text")
        found[key] = check_mapping(value, depth + 1) if isinstance(value, Mapping) else plain_array(value, key)
    return found
