"""Which sequences share a pack: our own histogram packing, and Megatron-Bridge's algorithms with its own results.

`assign_packs` gives each sequence a pack; `arrange` and `bridge_packs` say in which order sequences and packs lie.
Only numbers are handled here: lengths in, pack ids out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from skill_run.errors import InputError
from skill_run.pack.assign.packs import Packs, arrange, bridge_packs, steps_of_like_work

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Algorithm = Literal["histogram", "first_fit_decreasing", "first_fit_shuffle"]
ALGORITHMS: tuple[Algorithm, ...] = ("histogram", "first_fit_decreasing", "first_fit_shuffle")

__all__ = ["ALGORITHMS", "Algorithm", "Packs", "arrange", "assign_packs", "bridge_packs", "steps_of_like_work"]


def assign_packs(
    lengths: Any,
    pack_size: int,
    *,
    algorithm: str = "histogram",
    max_sequences: int | None = None,
    seed: int = 0,
    balance: bool = False,
) -> npt.NDArray[np.int32]:
    """Return the pack of each sequence: ids from 0, all of them used.

    lengths: array-like [N] of physical lengths in tokens, each from 1 to pack_size. algorithm: `histogram` mixes long
    and short sequences in every pack and needs no more packs than first_fit_decreasing; the other two give exactly the
    packs of Megatron-Bridge's functions of that name (data/packing/algorithms.py of 0.6.2, the same since 0.3).
    max_sequences: most sequences in a pack. seed: of first_fit_shuffle's shuffle. balance: even out the sum of squared
    lengths of the packs, which is their attention work, and not only their tokens; that may take up to 0.5 % more
    packs, and cannot lower the work of a sequence that fills a pack alone. Both are for `histogram` only.

    Raises InputError for lengths that cannot be packed, and for settings that the algorithm does not have.
    """
    from skill_run.pack.assign.first_fit import first_fit_ids
    from skill_run.pack.assign.histogram import decreasing_ids
    from skill_run.pack.assign.lengths import checked, checked_limit
    from skill_run.pack.assign.spread import spread_ids

    found = checked(lengths, pack_size)
    if algorithm not in ALGORITHMS:
        raise InputError(f"there is no packing algorithm '{str(algorithm)[:60]}'; there are {', '.join(ALGORITHMS)}")
    if max_sequences is not None:
        max_sequences = checked_limit(max_sequences)
    if algorithm != "histogram" and (balance or max_sequences is not None):
        raise InputError(f"{algorithm} neither limits nor balances the sequences of a pack; use histogram")
    if not len(found):
        return found
    if algorithm == "first_fit_shuffle":
        return first_fit_ids(found, pack_size, seed)
    if algorithm == "first_fit_decreasing":
        return decreasing_ids(found, pack_size)
    return spread_ids(found, pack_size, max_sequences=max_sequences, balance=balance)
