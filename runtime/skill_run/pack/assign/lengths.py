"""Lengths as they come in: checked once, then plain int32."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from skill_run.errors import InputError

# Pack sizes beyond it are no context length of any model.
LARGEST_PACK: Final = 2**26


def checked(lengths: Any, pack_size: Any, *, least: int = 1) -> npt.NDArray[np.int32]:
    """Return lengths as int32 [N]; InputError that says how many are wrong, and which is the first."""
    if isinstance(pack_size, bool) or not isinstance(pack_size, int | np.integer) or not 1 <= pack_size <= LARGEST_PACK:
        raise InputError(f"the pack size must be a whole number from 1 to {LARGEST_PACK}, not {str(pack_size)[:60]}")
    try:
        found = np.asarray(lengths)
    except (ValueError, OverflowError) as error:
        raise InputError("the lengths are no list of numbers") from error
    if found.size == 0:
        return np.zeros(0, np.int32)
    if found.ndim != 1:
        raise InputError(f"the lengths must be one list of numbers, not an array of {found.ndim} dimensions")
    if found.dtype.kind == "f":
        _refuse(found, ~(found == np.floor(found)), "are no whole numbers")
    elif found.dtype.kind not in "iu":
        raise InputError(f"the lengths must be whole numbers, not {found.dtype}")
    _refuse(found, found < least, f"are below {least}")
    _refuse(found, found > pack_size, f"are longer than the pack ({pack_size} tokens)")
    return found.astype(np.int32)


def checked_limit(most: Any) -> int:
    """Return how many sequences a pack may hold; InputError when that is no whole number of at least 1."""
    if isinstance(most, bool) or not isinstance(most, int | np.integer) or most < 1:
        raise InputError(f"a pack must hold at least one sequence (a whole number), not {str(most)[:60]}")
    return int(most)


def random_of(seed: Any) -> np.random.RandomState:
    """Return the generator that np.random.seed(seed) makes of numpy's global one; InputError for what is no seed."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
        raise InputError(f"the seed must be a whole number from 0 to 2**32 - 1, not {str(seed)[:60]}")
    return np.random.RandomState(seed)


def _refuse(lengths: npt.NDArray[Any], wrong: npt.NDArray[np.bool_], what: str) -> None:
    if wrong.any():
        first = int(np.argmax(wrong))
        count = int(wrong.sum())
        raise InputError(f"{count} of {len(lengths)} lengths {what}; the first is number {first}: {lengths[first]}")
