"""The lengths with the pack sizes marked, and context parallelism's transfer against attention, as one picture file."""

from __future__ import annotations

import os
import tempfile
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from skill_run.errors import InputError, MissingError
from skill_run.report.safe import flow

if TYPE_CHECKING:
    from skill_run.plan.plan import PackingPlan
    from skill_run.plan.traffic import Traffic

_SIZE: Final = (9.0, 7.5)
_DOTS: Final = 130
_BINS_PER_DOUBLING: Final = 4
_FILL, _DARK, _LINE = "#c4cad3", "#1a1d21", "#1f4e9c"
# Told apart without colour: line, marker.
_STYLES: Final[dict[str, tuple[str, str]]] = {
    "p2p": ("--", "s"),
    "all_gather": (":", "^"),
    "a2a": ("-.", "D"),
    "a2a+p2p": ((0, (5, 1, 1, 1, 1, 1)), "*"),  # type: ignore[dict-item]
}
# Of different sizes, so that marks in one place are all seen.
_MARKER: Final = {"s": 6, "^": 11, "D": 8, "*": 12}


def save_figure(plan: PackingPlan, path: Path) -> None:
    """Write the picture as PNG or SVG, by the ending of the path, in one step.

    Raises InputError for another ending or a place that cannot be written, MissingError without matplotlib.
    """
    ending = path.suffix.lower()
    if ending not in (".png", ".svg"):
        raise InputError(f"{path} must end in .png or .svg: a figure is written as one of these")
    if path.exists() and not path.is_file():
        raise InputError(f"{path} cannot be written: it is not a regular file")
    data = draw_figure(plan, "png" if ending == ".png" else "svg")
    try:
        handle, temporary = tempfile.mkstemp(dir=path.resolve().parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error


def draw_figure(plan: PackingPlan, form: Literal["png", "svg"]) -> bytes:
    """Return the picture as the bytes of a file. Raises MissingError without matplotlib."""
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingError("figures need matplotlib: pip install 'skill-run[plots]'") from error
    shown = plan.recommendation.candidate or next((each for each in plan.candidates if each.traffic), None)
    rows = [row for row in shown.traffic if row.verdict != "impossible"] if shown is not None else []
    # Text stays text in an SVG, and the file is the same each time.
    with matplotlib.rc_context({"svg.hashsalt": "skill-run", "svg.fonttype": "none"}):
        figure = Figure(figsize=_SIZE if rows else (_SIZE[0], _SIZE[1] / 2), dpi=_DOTS, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(2 if rows else 1, 1, squeeze=False)[:, 0]
        _draw_lengths(axes[0], plan)
        if rows and shown is not None:
            _draw_traffic(axes[1], plan, rows, shown.pack_size)
        stream = BytesIO()
        figure.savefig(stream, format=form, metadata={"Date": None} if form == "svg" else None)
    return stream.getvalue()


def _text(words: str) -> str:
    """Return text that fonts have, since a missing character would be a warning each."""
    return flow(words).encode("ascii", "backslashreplace").decode()[:110]


def _draw_lengths(axes: Any, plan: PackingPlan) -> None:
    lengths = plan.lengths
    counts = lengths.counts.astype(np.float64)
    tokens = counts * lengths.values
    low = np.floor(np.log2(lengths.values[0]) * _BINS_PER_DOUBLING)
    high = np.floor(np.log2(lengths.longest) * _BINS_PER_DOUBLING) + 1
    edges = 2 ** (np.arange(low, high + 1) / _BINS_PER_DOUBLING)
    samples, _ = np.histogram(lengths.values, bins=edges, weights=100 * counts / counts.sum())
    held, _ = np.histogram(lengths.values, bins=edges, weights=100 * tokens / tokens.sum())
    axes.stairs(samples, edges, fill=True, color=_FILL, label="samples")
    axes.stairs(held, edges, color=_DARK, linewidth=1.5, label="tokens")
    top = 1.25 * max(samples.max(), held.max())
    for candidate in plan.candidates:
        chosen = candidate.pack_size == plan.recommendation.pack_size
        axes.axvline(
            candidate.pack_size, color=_LINE, linewidth=2.4 if chosen else 0.9, linestyle="-" if chosen else "--"
        )
        name = f"{candidate.pack_size}{' (recommended)' if chosen else ''}"
        axes.annotate(
            name,
            (candidate.pack_size, top),
            xytext=(3, -3),
            textcoords="offset points",
            rotation=90,
            va="top",
            fontsize=7,
            fontweight="bold" if chosen else "normal",
        )
    axes.set_xscale("log", base=2)
    axes.set_ylim(0, top)
    axes.set_xlabel("length of a sample (tokens, log scale); vertical lines: pack sizes compared")
    axes.set_ylabel("share (%)")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
    axes.set_title(
        _text(f"{lengths.source}: {lengths.samples} samples, {lengths.tokens} tokens"),
        loc="left",
        fontsize=9,
        parse_math=False,
    )
    axes.legend(loc="upper left", fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_traffic(axes: Any, plan: PackingPlan, rows: list[Traffic], pack_size: int) -> None:
    degrees = sorted({row.layout.cp for row in rows})
    attention = [next(row.attention for row in rows if row.layout.cp == cp) for cp in degrees]
    axes.fill_between(degrees, attention, min(attention) / 10, color=_FILL, alpha=0.6, linewidth=0)
    axes.plot(
        degrees, attention, color=_DARK, marker="o", linewidth=2.2, label="attention (what transfer can hide behind)"
    )
    for comm, (line, marker) in _STYLES.items():
        found = [(row.layout.cp, row.transfer) for row in rows if row.layout.comm == comm]
        if found:
            hidden = (
                "hides behind attention" if comm == "p2p" else "ring part hides" if comm == "a2a+p2p" else "never hides"
            )
            axes.plot(
                *zip(*found, strict=True),
                color=_LINE,
                linestyle=line,
                marker=marker,
                markersize=_MARKER[marker],
                fillstyle="none",
                label=f"{comm} transfer ({hidden})",
            )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(degrees, [str(cp) for cp in degrees])
    axes.set_xlabel("context parallel size (GPUs)")
    axes.set_ylabel("time of one layer's forward pass (us)")
    axes.set_title(
        _text(f"Packs of {pack_size} tokens, {plan.model} on {plan.rates.name.upper()}"),
        loc="left",
        fontsize=9,
        parse_math=False,
    )
    axes.legend(fontsize=8, frameon=False)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
