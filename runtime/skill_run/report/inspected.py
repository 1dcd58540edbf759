"""What all forms say of an inspected batch or dataset: its name, figures, statistics, lengths and parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from skill_run.report.pack_map import MapRow, tokens_in
from skill_run.report.safe import flow, show_value
from skill_run.report.wording import count, short

if TYPE_CHECKING:
    from skill_run.batch.context_parallel import Partition
    from skill_run.batch.inspect import InspectionReport

PATHS: Final = {
    "offline_packed": "offline packed batch",
    "in_batch_packed": "in-batch packed batch",
    "megatron_lm_sft": "Megatron-LM --sft batch",
    "packed": "packed batch",
    "padded": "batch of unpacked rows",
    "packed_seq_params": "PackedSeqParams",
    "packed_dataset": "packed dataset",
    "ranks": "batch as several ranks hold it",
}
_GENERATIONS: Final = {
    "<=0.5": "as Megatron-Bridge up to 0.5 makes it",
    ">=0.6": "as Megatron-Bridge 0.6 and newer make it",
    "main": "as the main branch of Megatron-Bridge makes it",
    "megatron-lm": "as Megatron-LM makes it",
}
_BINS: Final = 12
_STATISTICS: Final = 200
_SHORT: Final = 4
_SHARES: Final = ("fill", "share")
_IN_FIGURES: Final = ("tokens", "rows")


def kind(report: InspectionReport) -> str:
    """Say what was recognised, in a few words."""
    made = _GENERATIONS.get(report.generation)
    name = PATHS.get(report.path, short(report.path))
    return name if made is None else f"{name}, {made}"


def reason(report: InspectionReport) -> str:
    """Say why it was recognised as that."""
    return flow(report.because).rstrip(".")


def figures(report: InspectionReport, rows: Sequence[MapRow]) -> list[tuple[str, str]]:
    """Return the numbers of a batch by name; those that are not known are left out."""
    if report.batch is None:
        return [("tokens", number(report.tokens)), ("rows", number(report.rows))] if report.tokens else []
    drawn = sum(row.total for row in rows)
    padding = sum(tokens_in(row.padding) for row in rows)
    loose = sum(tokens_in(row.loose) for row in rows)
    members = sum(int((row.starts < row.filler).sum()) for row in rows)
    masked = [tokens_in(row.masked) for row in rows if row.masked is not None]
    found = [("tokens", number(report.tokens if report.tokens is not None else drawn))]
    found.append(("ranks" if report.path == "ranks" else "rows", number(report.rows)))
    found.append(("sequences", number(members)))
    if drawn:
        found.append(("fill", f"{100 * max(0, drawn - padding - loose) / drawn:.1f} %"))
        found.append(("padding", number(padding)))
    if loose:
        found.append(("in no sequence", number(loose)))
    if rows and len(masked) == len(rows):
        found.append(("trained", number(drawn - sum(masked))))
    return found


def number(value: int | float | None) -> str:
    """Return a number with its thousands apart by spaces, `-` for one that is not known."""
    return "-" if value is None else f"{value:,}".replace(",", " ")


@dataclass(frozen=True, slots=True)
class Statistics:
    """A dataset's statistics in a form to show: single values, histograms, and the rest as tables, all by title."""

    values: list[tuple[str, str]]
    histograms: dict[str, list[tuple[str, int]]]
    tables: dict[str, list[tuple[str, str]]]


def statistics(report: InspectionReport) -> Statistics:
    """Return the report's statistics sorted by how they are shown; each part is bounded."""
    found = Statistics([], {}, {})
    for key, value in list(report.statistics.items())[:_STATISTICS]:
        title = short(key).replace("_", " ")
        bars = _bars(value) if "histogram" in key else None
        if key in _IN_FIGURES:
            continue
        if bars is not None:
            found.histograms[title] = bars
        elif isinstance(value, Mapping) and len(value) <= _SHORT and all(map(_is_number, value.values())):
            said = ", ".join(f"{short(str(name))} {number(item)}" for name, item in value.items())
            found.values.append((title, said))
        elif isinstance(value, Mapping):
            items = list(value.items())[:_STATISTICS]
            found.tables[title] = [(short(str(name)).replace("_", " "), _shown(item)) for name, item in items]
        else:
            share = _is_number(value) and key.endswith(_SHARES)
            found.values.append((title, f"{100 * value:.1f} %" if share else _shown(value)))
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return short(value)
    if _is_number(value):
        return number(value)
    return show_value(list(value) if isinstance(value, tuple) else value)


def _bars(value: Any) -> list[tuple[str, int]] | None:
    """Return a histogram given as {range: count} or as [{range..., count}] as labels and counts, else None."""
    if isinstance(value, Mapping):
        pairs = [(short(str(name)), item) for name, item in value.items()]
    elif isinstance(value, list | tuple) and all(isinstance(item, Mapping) and item for item in value):
        pairs = [("-".join(str(part) for part in list(item.values())[:-1]), list(item.values())[-1]) for item in value]
    else:
        return None
    if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for _, item in pairs):
        return None
    return [(short(name), item) for name, item in pairs[:_STATISTICS]]


def length_histogram(rows: Sequence[MapRow]) -> list[tuple[str, int]]:
    """Return how many sequences have a logical length in each of a few equal ranges, the tail filler left out."""
    import numpy as np

    kept = [row.logical[row.starts < row.filler] for row in rows]
    lengths = np.concatenate(kept) if kept else np.empty(0, dtype=np.int64)
    lengths = lengths[lengths >= 0]
    if lengths.size < 2:
        return []
    step = _round_step(int(lengths.max()) + 1)
    counts = np.bincount(lengths // step)
    shortest = int(lengths.min()) // step
    return [(_range(step * at, step), int(counts[at])) for at in range(shortest, counts.size)]


def _range(start: int, step: int) -> str:
    return str(start) if step == 1 else f"{start}-{start + step - 1}"


def _round_step(span: int) -> int:
    step = 1
    while step * _BINS < span:
        step *= 2
    return step


def cut_sentence(report: InspectionReport) -> str:
    """Say whether each token of the row that is cut as a preview reaches exactly one context parallel rank."""
    cut = report.cp
    assert cut is not None
    name = f"Context parallel size {cut.size}"
    if report.batch is not None and len(report.batch.rows) > 1:
        name += f", row {report.batch.rows[0].index}"
    if cut.whole:
        return f"{name}: every token is on exactly one rank."
    parts = [
        f"{count(int(cut.duplicated.size), 'token')} held more than once",
        f"{count(int(cut.lost.size), 'token')} lost",
    ]
    if cut.outside:
        parts.append(f"{count(cut.outside, 'position')} outside the row")
    return f"{name}: {', '.join(parts)}."


def balance_sentence(cut: Partition) -> str:
    """Say how evenly the attention work is spread."""
    return f"The busiest rank has {cut.imbalance:.3f} times the mean attention work."


def rank_table(cut: Partition) -> list[tuple[str, ...]]:
    """Return a heading and a line for each rank: tokens, trained ones, work in attention pairs and of the mean."""
    mean = sum(cut.work) / len(cut.work)
    lines: list[tuple[str, ...]] = [("rank", "tokens", "trained", "work", "of mean")]
    for rank, indices in enumerate(cut.indices):
        trained = number(None if cut.trained is None else cut.trained[rank])
        share = f"{cut.work[rank] / mean:.3f}" if mean else "-"
        lines.append((str(rank), number(int(indices.size)), trained, number(cut.work[rank]), share))
    return lines
