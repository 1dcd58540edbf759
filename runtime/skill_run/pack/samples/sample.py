"""One sample on its way from a line to a block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class BadSampleError(Exception):
    """A line that cannot become a sample; the text is a clause that follows its place."""


@dataclass(slots=True)
class Sample:
    """Stored ids and the stored loss mask (aligned with the labels) of one line.

    cut: tokens that truncation took away. ends_open: the mask comes from where the answer starts and so holds a 1 at
    its last place too, which no reader looks at.
    """

    tokens: Sequence[int]
    mask: Sequence[int]
    cut: int = 0
    ends_open: bool = False


def shifted(mask: list[int]) -> list[int]:
    """Return a mask over tokens as one over labels: each value one place earlier, 0 behind."""
    return [*mask[1:], 0]
