"""Lengths: how many samples there are of each length, gathered in memory that does not grow with their number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from skill_run.errors import InputError
from skill_run.report.safe import clip, flow

Ints = NDArray[np.int64]
Kind = Literal["text", "tokens", "packed", "lengths", "histogram"]
KINDS: Final[tuple[Kind, ...]] = ("text", "tokens", "packed", "lengths", "histogram")

# No sample has more tokens, no data set more samples; what claims more is a mistake in the file.
MAX_LENGTH: Final = 2**31 - 1
MAX_SAMPLES: Final = 10**12
# Up to this length a block is counted in one array of that size, which is faster than sorting it.
_DENSE: Final = 2**22


@dataclass(frozen=True, slots=True)
class Lengths:
    """A histogram of stored lengths: the tokens of a sample as tokenised, its end token included.

    At run time a sample takes one token less, where inputs lose its last token and labels its first. values [K]:
    distinct lengths, ascending; counts [K]: samples of each. kind: what they were read from. chat: conversations, which
    upstream does not cut while it tokenises. padded_to: alignment that the lengths of a packed file already have.
    """

    values: Ints
    counts: Ints
    source: str
    kind: Kind
    chat: bool = False
    padded_to: int = 1
    notes: tuple[str, ...] = ()

    @property
    def samples(self) -> int:
        """Return the number of samples."""
        return int(self.counts.sum())

    @property
    def tokens(self) -> int:
        """Return the number of stored tokens."""
        return total(self.values, self.counts)

    @property
    def longest(self) -> int:
        """Return the greatest length."""
        return int(self.values[-1])

    def quantile(self, share: float) -> int:
        """Return the smallest length that at least this share of the samples does not exceed."""
        sums = np.cumsum(self.counts)
        return int(self.values[min(int(np.searchsorted(sums, share * sums[-1])), self.values.size - 1)])

    def weighted_mean(self) -> float:
        """Return the token-weighted mean: the length of the sample that a token lies in, sum l^2 / sum l."""
        lengths, counts = self.values.astype(np.float64), self.counts.astype(np.float64)
        return float((counts * lengths**2).sum() / (counts * lengths).sum())

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON-ready data, lengths in tokens."""
        return {
            "source": self.source,
            "kind": self.kind,
            "chat": self.chat,
            "samples": self.samples,
            "tokens": self.tokens,
            "shortest": int(self.values[0]),
            "median": self.quantile(0.5),
            "p95": self.quantile(0.95),
            "p99": self.quantile(0.99),
            "longest": self.longest,
            "mean": round(self.tokens / self.samples, 2),
            "token_weighted_mean": round(self.weighted_mean(), 2),
            "padded_to": self.padded_to,
        }


def total(values: Ints, counts: Ints) -> int:
    """Return sum(values * counts) exactly, where 64 bits may be too few."""
    if not values.size:
        return 0
    if int(values.max()) * int(counts.sum()) < 2**62:
        return int(values @ counts)
    return sum(value * count for value, count in zip(values.tolist(), counts.tolist(), strict=True))


class LengthCounter:
    """Counts lengths block by block."""

    def __init__(self, name: str) -> None:
        """Keep the name of the source, for errors."""
        self.name = name
        self._values: Ints = np.empty(0, dtype=np.int64)
        self._counts: Ints = np.empty(0, dtype=np.int64)

    def add(self, lengths: Ints) -> None:
        """Count a block of lengths; InputError when one is below 1 or beyond what a sample can have."""
        if not lengths.size:
            return
        wrong = np.flatnonzero((lengths < 1) | (lengths > MAX_LENGTH))
        if wrong.size:
            raise InputError(f"{self.name}: {refusal(int(lengths[wrong[0]]))}")
        if int(lengths.max()) < _DENSE:
            counts = np.bincount(lengths)
            values = np.flatnonzero(counts)
            self._merge(values, counts[values])
        else:
            self._merge(*np.unique(lengths, return_counts=True))

    def add_counts(self, values: Ints, counts: Ints) -> None:
        """Add so many samples of each length; a length may come more than once, and a count may be 0."""
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            if not 1 <= value <= MAX_LENGTH:
                raise InputError(f"{self.name}: {refusal(value)}")
            if not 0 <= count <= MAX_SAMPLES:
                raise InputError(f"{self.name}: {count} samples of {value} tokens cannot be")
        self._merge(values, counts)

    def lengths(self, kind: Kind, **known: Any) -> Lengths:
        """Return what was counted; InputError when that is nothing."""
        kept = self._counts > 0
        if not kept.any():
            raise InputError(f"{self.name} holds no lengths; there is nothing to plan for")
        if int(self._counts.sum()) > MAX_SAMPLES:
            raise InputError(f"{self.name} claims more than {MAX_SAMPLES} samples, which no data set has")
        return Lengths(self._values[kept], self._counts[kept], self.name, kind, **known)

    def _merge(self, values: Ints, counts: Ints) -> None:
        merged, where = np.unique(np.concatenate([self._values, values]), return_inverse=True)
        sums = np.zeros(merged.size, dtype=np.int64)
        np.add.at(sums, where, np.concatenate([self._counts, counts]))
        self._values, self._counts = merged.astype(np.int64), sums


def refusal(value: object) -> str:
    """Return why a value is no length."""
    shown = clip(flow(str(value)), 40)
    if isinstance(value, int) and value > MAX_LENGTH:
        return f"{shown} tokens are more than any sample has"
    return f"{shown} is no length; a length is a whole number of tokens from 1 on"


def from_mapping(data: Mapping[Any, Any], name: str) -> Lengths:
    """Return the lengths of a mapping {length: count}, whose keys may be text, or of {"lengths": [...]}.

    {"length": [...], "count": [...]} is read too. Raises InputError when it is none of these.
    """
    for key in ("lengths", "stored_lengths"):
        if key in data:
            return from_values(_listed(data[key], name, key), name)
    if set(data) == {"length", "count"}:
        values, counts = (_listed(data[key], name, key) for key in ("length", "count"))
        pairs: Iterable[tuple[Any, Any]] = zip(values, counts, strict=False)
        if len(values) != len(counts):
            raise InputError(f"{name} has {len(values)} lengths but {len(counts)} counts")
    else:
        pairs = data.items()
    return from_pairs(pairs, name)


def _listed(value: Any, name: str, key: str) -> Any:
    if isinstance(value, list | tuple | np.ndarray):
        return value
    raise InputError(f"{name}: {key} must be a list of numbers, not {clip(flow(str(value)), 40)}")


def from_pairs(pairs: Iterable[tuple[Any, Any]], name: str) -> Lengths:
    """Return the lengths of (length, count) pairs; numbers may be text. Raises InputError with the first wrong one."""
    values: list[int] = []
    counts: list[int] = []
    for length, count in pairs:
        value = whole(length)
        number = whole(count)
        if value is None or not 1 <= value <= MAX_LENGTH:
            raise InputError(f"{name}: {refusal(length if value is None else value)}")
        if number is None or not 0 <= number <= MAX_SAMPLES:
            raise InputError(f"{name}: {clip(flow(str(count)), 40)} is no number of samples (of {value} tokens)")
        values.append(value)
        counts.append(number)
    counter = LengthCounter(name)
    counter.add_counts(np.array(values, dtype=np.int64), np.array(counts, dtype=np.int64))
    return counter.lengths("histogram")


def from_values(lengths: Any, name: str) -> Lengths:
    """Return the lengths of an array or a sequence of whole numbers. Raises InputError when it is none."""
    counter = LengthCounter(name)
    counter.add(whole_numbers(lengths, name))
    return counter.lengths("lengths")


def whole_numbers(lengths: Any, name: str) -> Ints:
    """Return a one-dimensional array of whole numbers; InputError with the first entry that is none."""
    if isinstance(lengths, np.ndarray) and lengths.dtype.kind in "iu":
        found = lengths
    else:
        items = list(lengths)
        for item in items:
            if whole(item) is None or isinstance(item, str):
                raise InputError(f"{name}: {refusal(item)}")
        found = np.array([min(int(item), MAX_LENGTH + 1) for item in items], dtype=np.int64)
    if found.ndim != 1:
        raise InputError(f"{name} is an array of shape {found.shape}; lengths are one list of numbers")
    return as_int64(found)


def as_int64(numbers: NDArray[Any]) -> Ints:
    """Return whole numbers of any width; those that only 64 unsigned bits hold become one that is no length either."""
    if numbers.dtype.kind == "u" and numbers.dtype.itemsize == 8:
        numbers = np.minimum(numbers, np.uint64(MAX_LENGTH + 1))
    return np.asarray(numbers, dtype=np.int64)


def whole(value: Any) -> int | None:
    """Return a whole number, given as such or as text; None for anything else."""
    if isinstance(value, bool | np.bool_):
        return None
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, str) and len(value) <= 20:
        text = value.strip()
        return int(text) if text.removeprefix("-").isascii() and text.removeprefix("-").isdigit() else None
    return None


def thinned(lengths: Lengths, most: int) -> tuple[Lengths, float]:
    """Return at most about `most` samples with the same shares of each length, and how many times fewer they are.

    The longest length stays, since it decides what fits.
    """
    if lengths.samples <= most:
        return lengths, 1.0
    share = most / lengths.samples
    ends = np.floor(np.cumsum(lengths.counts.astype(np.float64)) * share + 0.5).astype(np.int64)
    counts = np.diff(ends, prepend=0)
    counts[-1] = max(int(counts[-1]), 1)
    kept = counts > 0
    found = replace(lengths, values=lengths.values[kept], counts=counts[kept])
    return found, lengths.samples / found.samples
