"""The common form of a tokenised line, read without building a Python object for each token.

A line is taken when it is exactly {"input_ids": [...], KEY: ...} with whole numbers; any other one is left to the JSON
parser, which also finds out what is wrong with it.
"""

from __future__ import annotations

import re
import warnings
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_HEAD: Final = re.compile(rb'\s*\{\s*"input_ids"\s*:\s*\[')
_NEXT: Final = re.compile(rb'\s*,\s*"(loss_mask|labels|answer_start_idx)"\s*:\s*(\[|\d{1,9}(?=\s*\}))')
_TAIL: Final = re.compile(rb"\s*\}\s*")
_DIGITS: Final = b"0123456789, "
_ZERO, _ONE, _COMMA = b"01,"

Integers = NDArray[np.int64]


def quick_row(line: bytes) -> dict[str, Any] | None:
    """Return the line's values, lists as arrays, or None when the line is of another form."""
    head = _HEAD.match(line)
    if head is None:
        return None
    end = line.find(b"]", head.end())
    following = _NEXT.match(line, end + 1)
    if end < 0 or following is None:
        return None
    ids = _integers(line[head.end() : end], _DIGITS)
    if ids is None:
        return None
    key, value = following.group(1).decode("ascii"), following.group(2)
    if value != b"[":
        closed = _TAIL.fullmatch(line, following.end())
        return {"input_ids": ids, key: int(value)} if closed else None
    last = line.find(b"]", following.end())
    if last < 0 or _TAIL.fullmatch(line, last + 1) is None:
        return None
    text = line[following.end() : last]
    values = _zeros_and_ones(text) if key == "loss_mask" else _integers(text, _DIGITS + b"-")
    return None if values is None else {"input_ids": ids, key: values}


def _integers(text: bytes, allowed: bytes) -> Integers | None:
    if text.translate(None, allowed):
        return None
    with warnings.catch_warnings():
        # It only warns where the text goes on behind the last number.
        warnings.simplefilter("error")
        try:
            found = np.fromstring(text.decode("ascii"), dtype=np.int64, sep=",")
        except (ValueError, DeprecationWarning):
            return None
    return found if found.size == text.count(b",") + 1 else None


def _zeros_and_ones(text: bytes) -> NDArray[np.uint8] | None:
    values = np.frombuffer(text.replace(b" ", b""), dtype=np.uint8)
    digits = values[::2]
    if values.size % 2 == 0 or (values[1::2] != _COMMA).any() or ((digits != _ZERO) & (digits != _ONE)).any():
        return None
    mask: NDArray[np.uint8] = digits - np.uint8(_ZERO)
    return mask
