"""What a data set is turned into: blocks of token ids and loss masks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Block:
    """Samples one behind the other.

    tokens: int32 [T], the stored ids, each sample with its last token, which becomes a label only.
    masks: uint8 [T], the loss mask that is stored in a packed file: aligned with the labels, so that position i tells
    whether token i + 1 of the same sample is trained. lengths: int32 [N], stored lengths before alignment padding;
    the runtime length is one less.
    """

    tokens: NDArray[np.int32]
    masks: NDArray[np.uint8]
    lengths: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a data set is read: samples kept so far, and bytes of the input files."""

    samples: int
    done_bytes: int
    total_bytes: int
