"""Lines that are tokenised already: ids with a loss mask, the place where the answer starts, or labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from skill_run.pack.samples.sample import BadSampleError

IDS: Final = "input_ids"
LOSS: Final = "loss_mask"
START: Final = "answer_start_idx"
LABELS: Final = "labels"
_IGNORED: Final = -100
_LARGEST: Final = 2**31 - 1

Ids = NDArray[np.int32]
Mask = NDArray[np.uint8]


def token_sample(row: Mapping[str, Any], limit: int | None) -> tuple[Ids, Mask, bool]:
    """Return ids, stored loss mask and whether that mask ends open (`Sample.ends_open`).

    `loss_mask` and `labels` lie over the tokens, as a data set of upstream returns them, and are moved to the labels
    here (fill_packing_strategy, data/packing/algorithms.py of 0.6.2); labels of -100 are not trained. limit: size of
    the vocabulary, where it is known. Raises BadSampleError.
    """
    ids = _integers(row, IDS)
    check_ids(ids, limit)
    if row.get(LOSS) is not None:
        return ids.astype(np.int32), _moved(_mask(row[LOSS], ids.size)), False
    if row.get(START) is not None:
        return ids.astype(np.int32), _from_start(row[START], ids.size), True
    if row.get(LABELS) is not None:
        return ids.astype(np.int32), _moved(_from_labels(_integers(row, LABELS), ids)), False
    raise BadSampleError(f"there is none of {LOSS}, {START} and {LABELS}, so nothing tells what is trained")


def check_ids(ids: NDArray[np.integer[Any]], limit: int | None) -> None:
    """Raise BadSampleError for an id that no tokenizer, or not the given one, can have."""
    if not ids.size:
        return
    low, high = int(ids.min()), int(ids.max())
    if low < 0:
        raise BadSampleError(f"token id {low} is negative")
    if high > _LARGEST or (limit is not None and high >= limit):
        size = _LARGEST + 1 if limit is None else limit
        raise BadSampleError(f"token id {high} is too large: the vocabulary has {size}")


def _integers(row: Mapping[str, Any], key: str) -> NDArray[np.integer[Any]]:
    if key not in row:
        raise BadSampleError(f"there is no '{key}'")
    value = row[key]
    if isinstance(value, list) and not value:
        return np.empty(0, dtype=np.int64)
    found = _array(value, key)
    if found.dtype.kind not in "iu":
        raise BadSampleError(f"'{key}' is no list of whole numbers")
    return found


def _array(value: Any, key: str) -> NDArray[Any]:
    try:
        found = np.array(value) if isinstance(value, list | np.ndarray) else np.empty(())
    except (ValueError, OverflowError):
        found = np.empty(())
    if found.ndim != 1 or found.dtype.kind not in "biuf":
        raise BadSampleError(f"'{key}' is no list of numbers")
    return found


def _mask(value: Any, size: int) -> Mask:
    if isinstance(value, list) and not value and not size:
        return np.empty(0, dtype=np.uint8)
    found = _array(value, LOSS)
    if found.size != size:
        raise BadSampleError(f"'{LOSS}' has {found.size} values for {size} tokens")
    if ((found != 0) & (found != 1)).any():
        raise BadSampleError(f"'{LOSS}' holds other values than 0 and 1")
    return found.astype(np.uint8)


def _from_start(value: Any, size: int) -> Mask:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value <= size:
        raise BadSampleError(f"'{START}' is no place in the tokens")
    mask = np.ones(size, dtype=np.uint8)
    mask[: max(int(value) - 1, 0)] = 0
    return mask


def _from_labels(labels: NDArray[np.integer[Any]], ids: NDArray[np.integer[Any]]) -> Mask:
    if labels.size != ids.size:
        raise BadSampleError(f"'{LABELS}' has {labels.size} values for {ids.size} tokens")
    trained: NDArray[np.bool_] = labels != _IGNORED
    if (labels[trained] != ids[trained]).any():
        raise BadSampleError(f"'{LABELS}' are not the ids themselves with -100 where nothing is trained (shifted?)")
    return trained.astype(np.uint8)


def _moved(mask: Mask) -> Mask:
    moved = np.zeros_like(mask)
    moved[:-1] = mask[1:]
    return moved
