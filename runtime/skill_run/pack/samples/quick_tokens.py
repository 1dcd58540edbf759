"""The common form of tokenised lines, read for a whole chunk at once without a Python object for each token.

Lines are taken when each is exactly {"input_ids": [...], KEY: ...} with whole numbers and the same KEY. Any other chunk
is left to the JSON parser, which also finds out what is wrong with it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from skill_run.pack.samples.token_columns import Column
from skill_run.pack.samples.tokens import IDS, LOSS, START

_HEAD: Final = re.compile(rb'\s*\{\s*"input_ids"\s*:\s*\[')
_NEXT: Final = re.compile(rb'\s*,\s*"(loss_mask|labels|answer_start_idx)"\s*:\s*(\[|\d{1,9}(?=\s*\}))')
_TAIL: Final = re.compile(rb"\s*\}\s*")
_DIGITS: Final = b"0123456789, "
_ZERO, _ONE, _COMMA = b"01,"

Integers = NDArray[np.int64]


def quick_columns(lines: Sequence[bytes]) -> dict[str, Column] | None:
    """Return the values of lines as columns, or None when any line is of another form."""
    ids: list[bytes] = []
    others: list[bytes] = []
    keys = set()
    for line in lines:
        found = _cut(line)
        if found is None:
            return None
        ids.append(found[0])
        keys.add(found[1])
        others.append(found[2])
    if len(keys) != 1:
        return None
    name = keys.pop().decode("ascii")
    tokens, values = _numbers(ids, _DIGITS), None
    if name == START:
        values = Column(np.array(others, dtype=np.int64), None)
    else:
        values = _zeros_and_ones(others) if name == LOSS else _numbers(others, _DIGITS + b"-")
    return None if tokens is None or values is None else {IDS: tokens, name: values}


def _cut(line: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Return the text of the ids, the other key, and the text of its value; None for a line of another form."""
    head = _HEAD.match(line)
    if head is None:
        return None
    end = line.find(b"]", head.end())
    following = _NEXT.match(line, end + 1)
    if end < 0 or following is None:
        return None
    start, last = following.end(), following.end()
    value = following.group(2)
    if value == b"[":
        last = line.find(b"]", start)
        if last < 0:
            return None
        value, last = line[start:last], last + 1
    return (line[head.end() : end], following.group(1), value) if _TAIL.fullmatch(line, last) else None


def _starts(texts: list[bytes]) -> Integers:
    sizes = [text.count(b",") + 1 for text in texts]
    return np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))


def _numbers(texts: list[bytes], allowed: bytes) -> Column | None:
    joined = b",".join(texts)
    if joined.translate(None, allowed):
        return None
    with warnings.catch_warnings():
        # It only warns where the text goes on behind the last number that it could read.
        warnings.simplefilter("error")
        try:
            found = np.fromstring(joined.decode("ascii"), dtype=np.int64, sep=",")
        except (ValueError, DeprecationWarning):
            return None
    starts = _starts(texts)
    return Column(found, starts) if found.size == starts[-1] else None


def _zeros_and_ones(texts: list[bytes]) -> Column | None:
    values = np.frombuffer(b",".join(texts).replace(b" ", b""), dtype=np.uint8)
    digits = values[::2]
    if values.size % 2 == 0 or (values[1::2] != _COMMA).any() or ((digits != _ZERO) & (digits != _ONE)).any():
        return None
    return Column(digits - np.uint8(_ZERO), _starts(texts))
