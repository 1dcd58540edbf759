"""The pack map, the parts of each context parallel rank and the lengths as one picture file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from skill_run.errors import InputError, MissingError
from skill_run.report.cut_map import cut_window, rank_parts, token_runs
from skill_run.report.inspected import cut_sentence, figures, kind, length_histogram, statistics
from skill_run.report.pack_map import COLOURS, MapRow, cells, coarse, map_rows, true_runs, windows
from skill_run.report.safe import flow
from skill_run.report.wording import count, counts, short

if TYPE_CHECKING:
    from skill_run.batch.context_parallel import Partition
    from skill_run.batch.inspect import InspectionReport

PlotFormat = Literal["png", "svg"]
# Lane, first token, one past the last.
_Box = tuple[int, int, int]

_WIDTH: Final = 12.0
_LANE: Final = 0.22
_HEAD: Final = 0.9
_BARS: Final = 2.2
_DOTS: Final = 110
_ROWS: Final = 64
_SEQUENCES_A_LANE: Final = 48
_RANKS: Final = 32
_CELLS: Final = 1200
_TICKS: Final = 60
_LIGHT: Final = 0.68
_HEADING: Final = 150
_HALF: Final = 0.38
_GREY, _RED, _DARK, _STRIPE = "#c9ced6", "#b3001b", "#1a1d21", "#5c6570"


def save_plot(report: InspectionReport, path: str | Path) -> None:
    """Write the picture as PNG or SVG, by the ending of the path.

    Raises InputError for another ending or a place that cannot be written, MissingError without matplotlib.
    """
    path = Path(path)
    ending = path.suffix.lower()
    if ending not in (".png", ".svg"):
        raise InputError(f"{path} must end in .png or .svg: a plot is written as one of these")
    if path.exists() and not path.is_file():
        raise InputError(f"{path} cannot be written: it is not a regular file")
    data = draw_plot(report, "png" if ending == ".png" else "svg")
    try:
        path.write_bytes(data)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error


def draw_plot(report: InspectionReport, format: PlotFormat) -> bytes:
    """Return the picture as the bytes of a file. Raises MissingError without matplotlib."""
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingError("plots need matplotlib: pip install 'skill-run[plots]'") from error
    rows = list(map_rows(report))
    parts = [(row, window) for row in rows[:_ROWS] for window in windows(row, len(rows), _SEQUENCES_A_LANE)]
    bars = length_histogram(rows) or next(iter(statistics(report).histograms.values()), [])
    heights = []
    if parts:
        heights.append(len(parts) * _LANE + 0.5)
    if report.cp is not None and rows:
        heights.append((min(report.cp.size, _RANKS) + 2) * _LANE + 0.5)
    if bars:
        heights.append(_BARS)
    # Text of a path stays text in an SVG, and the file is the same each time.
    with matplotlib.rc_context({"svg.hashsalt": "skill-run", "svg.fonttype": "none", "hatch.linewidth": 0.7}):
        figure = Figure(figsize=(_WIDTH, _HEAD + sum(heights) + 0.4 * len(heights)), dpi=_DOTS, layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(_heading(report, rows), parse_math=False, fontsize=10, ha="left", x=0.01)
        grid = figure.add_gridspec(max(1, len(heights)), 1, height_ratios=heights or [1])
        axes = iter([figure.add_subplot(grid[at]) for at in range(len(heights))])
        if parts:
            _draw_map(next(axes), parts, len(rows) - min(len(rows), _ROWS))
        if report.cp is not None and rows:
            _draw_cut(next(axes), report, report.cp, rows[0])
        if bars:
            _draw_lengths(next(axes), bars)
        stream = BytesIO()
        figure.savefig(stream, format=format, metadata={"Date": None} if format == "svg" else None)
    return stream.getvalue()


def _heading(report: InspectionReport, rows: Sequence[MapRow]) -> str:
    numbers = ", ".join(f"{name} {value}" for name, value in figures(report, rows))
    lines = (short(report.source), f"{kind(report)}; {counts(report.findings)}", numbers)
    # Fonts lack many characters, which would be a warning each.
    return "\n".join(flow(line).encode("ascii", "backslashreplace").decode()[:_HEADING] for line in lines)


def _lighter(colour: str) -> str:
    channels = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(value + (255 - value) * _LIGHT):02x}" for value in channels)


def _draw_map(axes: Any, parts: Sequence[tuple[MapRow, tuple[int, int]]], left_out: int) -> None:
    names = []
    boxes: dict[str, list[_Box]] = {look: [] for look in _looks()}
    edges: list[tuple[int, int]] = []
    broken: list[tuple[int, int]] = []
    for lane, (row, (start, end)) in enumerate(parts):
        names.append(f"row {row.index}" if (start, end) == (0, row.total) else f"from {start}")
        for look, runs in _runs(row, start, end):
            boxes[look] += [(lane, first - start, last - start) for first, last in runs]
        inner = [(lane, int(edge) - start) for edge in row.starts if start < edge < end]
        edges += inner if len(inner) <= _TICKS else []
        broken += [(lane, edge - start) for edge in row.broken if start <= edge <= end]
    for look, style in _looks().items():
        _add_boxes(axes, boxes[look], **style)
    _add_ticks(axes, edges, colors=_DARK, linewidths=0.6)
    _add_ticks(axes, broken, colors=_RED, linewidths=2)
    known = any(row.masked is not None for row, _ in parts)
    said = "Pack map: dark trained, light without loss, hatched padding" if known else "Pack map: hatched padding"
    if any(row.faulty.size for row, _ in parts):
        said += ", red padding that is trained"
    if left_out:
        said += f"; {count(left_out, 'more row')} not drawn"
    _finish(axes, names, said, max(end - start for _, (start, end) in parts))


def _looks() -> dict[str, dict[str, Any]]:
    """Return how each kind of run is drawn: `0` a trained sequence of the first colour, `0-` one without loss."""
    plain = {str(at): {"facecolors": value} for at, value in enumerate(COLOURS)}
    light = {f"{at}-": {"facecolors": _lighter(value)} for at, value in enumerate(COLOURS)}
    return (
        plain
        | light
        | {
            "padding": {"facecolors": "white", "edgecolors": _STRIPE, "hatch": "//////", "linewidth": 0},
            "faulty": {"facecolors": _RED},
            "loose": {"facecolors": "white", "edgecolors": _RED, "linestyle": ":"},
        }
    )


def _runs(row: MapRow, start: int, end: int) -> Iterator[tuple[str, list[list[int]]]]:
    """Yield the runs of a part of a row by look."""
    import numpy as np

    edges = np.unique(np.linspace(start, end, min(_CELLS, end - start) + 1).astype(np.int64))
    found = cells(row, edges)
    owner, faulty, padding = found["owner"], found["faulty"], found["padding"]
    colour = np.where(owner >= 0, np.append(row.numbers, 0)[owner] % len(COLOURS), -1)
    masked = found["masked"] if found["masked"] is not None else np.zeros(owner.size, dtype=bool)
    plain = ~padding & ~faulty
    for at in range(len(COLOURS)):
        yield str(at), edges[true_runs(plain & (colour == at) & ~masked)].tolist()
        yield f"{at}-", edges[true_runs(plain & (colour == at) & masked)].tolist()
    yield "padding", edges[true_runs(padding & ~faulty)].tolist()
    yield "faulty", edges[true_runs(faulty)].tolist()
    yield "loose", edges[true_runs(plain & (colour < 0))].tolist()


def _draw_cut(axes: Any, report: InspectionReport, cut: Partition, row: MapRow) -> None:
    start, end = cut_window(cut, row)
    names = []
    boxes: dict[str, list[_Box]] = {colour: [] for colour in (*COLOURS, _GREY, _RED)}
    for rank, indices in enumerate(cut.indices[:_RANKS]):
        names.append(f"rank {rank}")
        for part in rank_parts(indices, row, (start, end), _CELLS):
            colour = _GREY if part.owner is None else COLOURS[int(row.numbers[part.owner]) % len(COLOURS)]
            boxes[colour].append((rank, part.start - start, part.end - start))
    for name, tokens in (("twice", cut.duplicated), ("lost", cut.lost)):
        if tokens.size:
            runs = coarse(token_runs(tokens), (start, end), _CELLS, any_token=True).tolist()
            boxes[_RED] += [(len(names), first - start, last - start) for first, last in runs]
            names.append(name)
    for colour, found in boxes.items():
        _add_boxes(axes, found, facecolors=colour)
    where = "" if (start, end) == (0, row.total) else f" Drawn are the tokens from {start} to {end}."
    _finish(axes, names, cut_sentence(report) + where, end - start)


def _add_boxes(axes: Any, boxes: Sequence[_Box], **style: Any) -> None:
    from matplotlib.collections import PolyCollection

    corners = [
        [(start, lane - _HALF), (start, lane + _HALF), (end, lane + _HALF), (end, lane - _HALF)]
        for lane, start, end in boxes
    ]
    if corners:
        axes.add_collection(PolyCollection(corners, **style), autolim=False)


def _add_ticks(axes: Any, places: Sequence[tuple[int, int]], **style: Any) -> None:
    from matplotlib.collections import LineCollection

    lines = [[(at, lane - 0.5), (at, lane + 0.5)] for lane, at in places]
    if lines:
        axes.add_collection(LineCollection(lines, **style), autolim=False)


def _finish(axes: Any, names: Sequence[str], title: str, tokens: int) -> None:
    axes.set_title(title, loc="left", fontsize=9, parse_math=False)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, tokens)
    axes.tick_params(axis="x", labelsize=7)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _draw_lengths(axes: Any, bars: Sequence[tuple[str, int]]) -> None:
    axes.bar(range(len(bars)), [value for _, value in bars], color=COLOURS[0])
    names = [name.encode("ascii", "backslashreplace").decode() for name, _ in bars]
    axes.set_xticks(range(len(bars)), names, fontsize=7, rotation=45 if len(bars) > 12 else 0, parse_math=False)
    axes.set_title("Sequences by length in tokens", loc="left", fontsize=9)
    axes.tick_params(axis="y", labelsize=7)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.spines[["top", "right"]].set_visible(False)
