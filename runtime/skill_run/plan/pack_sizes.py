"""Pack sizes worth comparing for some lengths, and the tokens of a step that they are compared at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from skill_run.errors import InputError
from skill_run.plan.lengths import Lengths

# Where upstream's packing guide starts (docs/training/packed-sequences.md).
FIRST: Final = 8192
# 64 packs of 8192 tokens, which is also upstream's 128 packs of 4096.
DEFAULT_SLOTS: Final = 64 * FIRST
MOST_SIZES: Final = 6
_SMALLEST: Final = 512
_LARGEST: Final = 2**21
_MOST_ASKED: Final = 16
_MOST_TOKENS: Final = 2**24


def pack_sizes_for(lengths: Lengths, asked: Sequence[int], seq_length: int | None) -> tuple[int, ...]:
    """Return the sizes asked for, else powers of two: from the 95th percentile to four times the longest sample.

    seq_length: what samples are cut to, None for the pack size. Raises InputError for sizes that cannot be.
    """
    if asked:
        return _checked(asked)
    longest = min(lengths.longest, seq_length or lengths.longest, _LARGEST)
    high = max(_SMALLEST, _power_up(longest))
    low = max(_SMALLEST, min(high, _power_down(lengths.quantile(0.95))))
    powers = [2**power for power in range(low.bit_length() - 1, high.bit_length())]
    # Larger packs than the longest sample only help to fill them.
    powers += [high * factor for factor in (2, 4) if high * factor <= _LARGEST]
    own = {seq_length} - {None, *powers}
    while len(powers) + len(own) > MOST_SIZES:
        # What is far above the longest sample goes first, then what would cut most.
        del powers[-1 if powers[-1] > high else 0]
    return tuple(sorted([*powers, *(size for size in own if size is not None)]))


def _checked(asked: Sequence[int]) -> tuple[int, ...]:
    for size in asked:
        if isinstance(size, bool) or not isinstance(size, int) or not 2 <= size <= _MOST_TOKENS:
            raise InputError(f"a pack size is a whole number of tokens from 2 to {_MOST_TOKENS}, not {str(size)[:40]}")
    found = tuple(sorted(set(asked)))
    if len(found) > _MOST_ASKED:
        raise InputError(f"{len(found)} pack sizes are asked for; at most {_MOST_ASKED} are compared at once")
    return found


def rows_of_step(slots: int, pack_size: int, data_parallel: int) -> int:
    """Return the global batch in packs that is nearest to `slots` tokens and that the ranks share evenly."""
    return max(1, round(slots / (pack_size * data_parallel))) * data_parallel


def _power_up(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()


def _power_down(value: int) -> int:
    return 1 << (value.bit_length() - 1)
