"""What a picture of a batch shows: where each row's sequences, padding and untrained tokens lie.

Sizes and places in tokens. Runs are arrays [n, 2] of first and one past the last token, sorted and apart. Boundaries
may be broken: what they claim is cut to the row, and the places where they break are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from skill_run.batch.inspect import InspectionReport, Sequence
    from skill_run.batch.model import Row

    Ints = NDArray[np.int64]
    Truths = NDArray[np.bool_]

# Larger claims are drawn as this; floats hold whole numbers up to here.
_MOST_TOKENS: Final = 2**53
_FEW_ROWS: Final = 4
_MOST_PARTS: Final = 8
# Okabe and Ito's colours for every kind of sight, those that neighbours tell apart best first; they repeat.
COLOURS: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")


@dataclass(frozen=True, slots=True)
class MapRow:
    """One row. Arrays are [sequences]: those that are not empty, in the order of the boundaries.

    total: tokens of the row; numbers: place in the boundary array; starts, ends: cut to the row, and equal for a
    sequence of negative length or outside; logical, physical: as claimed; trained: -1 where not known. padding, masked
    (no loss; None when not known), faulty (padding with loss), loose (in no sequence): runs. filler: first token of the
    tail filler, `total` if there is none. broken: boundaries that go down or leave the row.
    """

    index: int
    total: int
    numbers: Ints
    starts: Ints
    ends: Ints
    logical: Ints
    physical: Ints
    trained: Ints
    padding: Ints
    masked: Ints | None
    faulty: Ints
    loose: Ints
    filler: int
    broken: tuple[int, ...] = ()

    def label(self, at: int) -> str:
        """Say what a person wants to know of one sequence."""
        end = self.starts[at] + self.physical[at]
        parts = [
            f"start {self.starts[at]}",
            f"end {end}",
            f"logical {self.logical[at]}",
            f"physical {self.physical[at]}",
        ]
        if self.trained[at] >= 0:
            parts.append(f"trained {self.trained[at]}")
        name = "tail filler" if self.starts[at] >= self.filler else f"sequence {self.numbers[at]}"
        return f"row {self.index}, {name}: {', '.join(parts)}"


def map_rows(report: InspectionReport) -> Iterator[MapRow]:
    """Yield the rows of a report that can be drawn, in order."""
    sequences = _by_row(report)
    batch = report.batch
    if batch is None:
        for index, members in sequences.items():
            yield _map_row(index, max(item.start + item.physical for item in members), members, None, None)
        return
    for row in batch.rows:
        members = sequences.get(row.index, [])
        total = row.total if row.total is not None else max((item.start + item.physical for item in members), default=0)
        if total > 0:
            filler = row.token_count if batch.path == "offline_packed" else None
            yield _map_row(row.index, total, members, None if batch.per_rank else row, filler)


def _by_row(report: InspectionReport) -> dict[int, list[Sequence]]:
    found = report.sequences
    if not found and report.batch is not None:
        from skill_run.batch.inspect import sequences_of

        found = tuple(item for row in report.batch.rows for item in sequences_of(report.batch, row))
    grouped: dict[int, list[Sequence]] = {}
    for item in found:
        grouped.setdefault(item.row, []).append(item)
    return grouped


def _map_row(index: int, total: int, members: list[Sequence], row: Row | None, filler: int | None) -> MapRow:
    import numpy as np

    total = min(total, _MOST_TOKENS)
    table = np.array(
        [
            (number, *(_clipped(value) for value in (item.start, item.logical, item.physical, _known(item.trained))))
            for number, item in enumerate(members)
        ],
        dtype=np.int64,
    ).reshape(-1, 5)
    claimed = table[:, 1] + table[:, 3]
    broken = np.concatenate([claimed[(table[:, 3] < 0) | (claimed > total)], table[table[:, 1] < 0, 1]])
    starts, ends = np.clip(table[:, 1], 0, total), np.clip(claimed, 0, total)
    ends = np.maximum(starts, ends)
    kept = table[:, 3] != 0
    numbers, starts, ends = table[kept, 0], starts[kept], ends[kept]
    logical, physical, trained = table[kept, 2], table[kept, 3], table[kept, 4]
    filler = filler if filler is not None and 0 <= filler < total else total
    real = np.clip(starts + np.clip(logical, 0, None), starts, ends)
    tails = [np.stack([real, ends], axis=1), np.array([[filler, total]], dtype=np.int64)]
    masked, faulty = None, _no_runs()
    if row is not None and row.padding_mask is not None and row.padding_mask.size == total:
        tails.append(true_runs(row.padding_mask.astype(bool)))
    padding = union(np.concatenate(tails))
    if row is not None and row.loss_mask is not None and row.loss_mask.size == total:
        with_loss = np.nan_to_num(np.asarray(row.loss_mask, dtype=np.float64)) > 0
        masked = true_runs(~with_loss)
        faulty = true_runs(with_loss & _painted(padding, total))
    return MapRow(
        index=index,
        total=total,
        numbers=numbers,
        starts=starts,
        ends=ends,
        logical=logical,
        physical=physical,
        trained=trained,
        padding=padding,
        masked=masked,
        faulty=faulty,
        loose=_gaps(union(np.stack([starts, ends], axis=1)), total),
        filler=filler,
        broken=tuple(sorted(set(np.clip(broken, 0, total).tolist()))),
    )


def _known(trained: int | None) -> int:
    return -1 if trained is None else trained


def _clipped(value: int) -> int:
    return max(-_MOST_TOKENS, min(value, _MOST_TOKENS))


def _no_runs() -> Ints:
    import numpy as np

    return np.empty((0, 2), dtype=np.int64)


def _painted(runs: Ints, total: int) -> Truths:
    import numpy as np

    steps = np.zeros(total + 1, dtype=np.int8)
    steps[runs[:, 0]] += 1
    steps[runs[:, 1]] -= 1
    return np.asarray(np.cumsum(steps[:-1]) > 0)


def _gaps(runs: Ints, total: int) -> Ints:
    import numpy as np

    gaps = np.stack([np.append(0, runs[:, 1]), np.append(runs[:, 0], total)], axis=1)
    return np.asarray(gaps[gaps[:, 1] > gaps[:, 0]], dtype=np.int64)


def true_runs(mask: Truths) -> Ints:
    """Return the runs where `mask` is true."""
    import numpy as np

    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return np.asarray(edges.reshape(-1, 2), dtype=np.int64)


def union(runs: Ints) -> Ints:
    """Return runs in any order, overlapping or empty, as sorted ones that lie apart."""
    import numpy as np

    runs = runs[runs[:, 1] > runs[:, 0]]
    if not runs.size:
        return _no_runs()
    runs = runs[np.argsort(runs[:, 0], kind="stable")]
    reach = np.maximum.accumulate(runs[:, 1])
    first = np.concatenate([[True], runs[1:, 0] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.stack([runs[first, 0], reach[last]], axis=1)


def covered(runs: Ints, edges: Ints) -> Ints:
    """Return how many tokens of the runs lie between each two neighbours of `edges` (ascending)."""
    import numpy as np

    if not runs.size:
        return np.zeros(len(edges) - 1, dtype=np.int64)
    sums = np.concatenate([[0], np.cumsum(runs[:, 1] - runs[:, 0])])
    at = np.searchsorted(runs[:, 0], edges, side="right") - 1
    inside = np.clip(edges - runs[at, 0], 0, runs[at, 1] - runs[at, 0])
    before = np.where(at >= 0, sums[at] + inside, 0)
    return np.asarray(np.diff(before), dtype=np.int64)


def coarse(runs: Ints, window: tuple[int, int], limit: int, *, any_token: bool = False) -> Ints:
    """Return the runs inside a window as at most `limit` ones that look the same at that resolution.

    any_token: a cell counts when it holds one such token, else when it holds half.
    """
    import numpy as np

    runs = within(runs, *window)
    if len(runs) <= limit:
        return runs
    edges = np.linspace(*window, 2 * limit).astype(np.int64)
    share = covered(runs, edges)
    cells = true_runs(share > 0 if any_token else 2 * share >= np.diff(edges))
    return np.asarray(edges[cells], dtype=np.int64)


def cells(row: MapRow, edges: Ints) -> dict[str, Any]:
    """Return what each cell between two `edges` shows, as arrays [cells].

    owner: index into the row's sequences, -1 for none; several: more than one sequence begins inside; begins: a
    sequence begins there; padding: more than half is; loose: at least half is; masked: at least half of the
    tokens have no loss, None when not known; faulty: any padding token has loss.
    """
    import numpy as np

    sizes = np.diff(edges)
    middle = edges[:-1] + sizes // 2
    drawn = np.flatnonzero(row.ends > row.starts)
    order = drawn[np.argsort(row.starts[drawn], kind="stable")]
    starts = row.starts[order]
    at = np.searchsorted(starts, middle, side="right") - 1
    owner = np.where(at >= 0, order[np.clip(at, 0, None)], -1) if order.size else np.full(middle.size, -1)
    if order.size:
        owner = np.where(middle < row.ends[np.clip(owner, 0, None)], owner, -1)
    begins = np.diff(np.searchsorted(starts, edges, side="left"))
    return {
        "owner": owner,
        "begins": begins > 0,
        "several": begins > 1,
        "padding": 2 * covered(row.padding, edges) > sizes,
        "loose": 2 * covered(row.loose, edges) >= sizes,
        "masked": None if row.masked is None else 2 * covered(row.masked, edges) >= sizes,
        "faulty": covered(row.faulty, edges) > 0,
    }


def windows(row: MapRow, rows: int, sequences: int) -> list[tuple[int, int]]:
    """Return the parts of a row that are drawn one below the other: more than one where few rows hold many sequences.

    rows: how many are drawn; sequences: how many are wanted in a part.
    """
    parts = 1 if rows > _FEW_ROWS else min(_MOST_PARTS, max(1, -(-len(row.numbers) // sequences)), row.total)
    size = -(-row.total // parts)
    return [(start, min(start + size, row.total)) for start in range(0, row.total, size)]


def within(runs: Ints, start: int, end: int) -> Ints:
    """Return runs cut to a window."""
    import numpy as np

    cut = np.clip(runs, start, end)
    return np.asarray(cut[cut[:, 1] > cut[:, 0]], dtype=np.int64)


def tokens_in(runs: Ints) -> int:
    """Return the number of tokens in runs."""
    return int((runs[:, 1] - runs[:, 0]).sum())
