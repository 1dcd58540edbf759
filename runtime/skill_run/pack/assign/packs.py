"""The order in which sequences lie in packs, and packs in a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from skill_run.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Packs:
    """Packs in order. order: [N] sequence numbers as they lie; starts: [P + 1] where each pack begins in `order`."""

    order: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1


def arrange(pack_ids: Any, *, seed: int) -> Packs:
    """Return the packs of `assign_packs` with sequences mixed inside each pack, and packs mixed, by `seed`.

    pack_ids: [N], ids from 0 of which all are used. Training then sees neither sorted lengths nor sorted packs.
    """
    import numpy as np

    from skill_run.pack.assign.lengths import random_of

    ids = np.asarray(pack_ids, np.int64)
    count = int(ids.max(initial=-1)) + 1
    random = random_of(seed)
    place = random.permutation(count)
    mixed = random.permutation(len(ids))
    keys = place[ids[mixed]]
    order = mixed[np.argsort(keys, kind="stable")]
    return Packs(order.astype(np.int64), _starts(np.bincount(keys, minlength=count)))


def bridge_packs(lengths: Any, pack_size: int, *, algorithm: str = "first_fit_shuffle", seed: int = 0) -> Packs:
    """Return exactly the rows that Megatron-Bridge's offline packing makes of sequences with these lengths.

    lengths: [N] physical lengths, 0 for a sample of one token. seed: what numpy's global generator is seeded with
    before packing: by upstream itself from 0.6 on, by the caller before. Mirrors create_hist, create_packing_strategy
    and fill_packing_strategy of data/packing/algorithms.py (0.6.2); they draw the same numbers in the same order in
    every release since 0.3.
    """
    import numpy as np

    from skill_run.pack.assign.first_fit import first_fit, shuffled_first_fit
    from skill_run.pack.assign.lengths import checked, random_of

    found = checked(lengths, pack_size, least=0)
    random = random_of(seed)
    if algorithm == "first_fit_shuffle":
        taken, packs = shuffled_first_fit(found, pack_size, random)
    elif algorithm == "first_fit_decreasing":
        taken = np.sort(found)[::-1]
        packs = first_fit(taken.tolist(), pack_size)
    else:
        raise InputError(f"Megatron-Bridge has no packing algorithm '{str(algorithm)[:60]}'")
    by_pack = np.argsort(packs, kind="stable")
    order = np.empty(len(found), np.int64)
    in_rows = taken[by_pack]
    held = np.argsort(found, kind="stable")
    ends = np.cumsum(np.bincount(found, minlength=pack_size + 1))
    rows_by_length = np.argsort(in_rows, kind="stable")
    start = 0
    for end in np.unique(ends[ends > 0]).tolist():
        # Sequences of one length are permuted and then taken from the end.
        of_length = held[start:end]
        order[rows_by_length[start:end]] = of_length[random.permutation(end - start)][::-1]
        start = end
    return Packs(order, _starts(np.bincount(packs, minlength=0)))


def _starts(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    import numpy as np

    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def steps_of_like_work(packs: Packs, lengths: Any, per_step: int, *, seed: int) -> Packs:
    """Return the packs ordered so that those of one optimizer step have about the same attention work.

    per_step: packs of a step (the global batch size). Data-parallel ranks wait for the one with the most work, so packs
    with like sums of squared lengths share a step; the order of the steps is mixed by `seed`. Ranks of context
    parallelism need no such order: each sequence of a pack is cut into 2 * CP chunks, of which every rank gets two that
    add up to the same work.
    """
    import numpy as np

    from skill_run.pack.assign.lengths import random_of

    if per_step < 1:
        raise InputError(f"a step has at least one pack, not {per_step}")
    squares = np.asarray(lengths, np.float64)[packs.order] ** 2
    work = np.add.reduceat(squares, packs.starts[:-1]) if len(packs) else squares
    ranked = np.argsort(work, kind="stable")
    whole = len(ranked) // per_step * per_step
    random = random_of(seed)
    steps = ranked[:whole].reshape(-1, per_step)
    random.shuffle(steps)
    order = np.concatenate([steps.reshape(-1), ranked[whole:]])
    sizes = np.diff(packs.starts)[order]
    places = np.repeat(packs.starts[:-1][order] - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes)
    return Packs(packs.order[places + np.arange(len(packs.order))], _starts(sizes))
