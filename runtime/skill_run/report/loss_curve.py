"""Draw how the loss of a job went, with its tokens per second, as a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from skill_run.errors import InputError, MissingError
from skill_run.report.safe import flow

_SIZE: Final = (9.0, 5.0)
_DOTS: Final = 110


def save_loss_curve(series: Sequence[Mapping[str, Any]], title: str, path: Path) -> None:
    """Write the picture as PNG or SVG, by the ending of the path.

    Raises InputError for another ending, for a run without figures or a place that cannot be written, MissingError
    without matplotlib.
    """
    ending = path.suffix.lower()
    if ending not in (".png", ".svg"):
        raise InputError(f"{path} must end in .png or .svg: a plot is written as one of these")
    points = [(each["step"], each["loss"]) for each in series if "loss" in each]
    if not points:
        raise InputError("the job has written no loss yet, so there is no curve to draw")
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingError("plots need matplotlib: pip install 'skill-run[plots]'") from error
    # Text stays text in an SVG, and the file is the same each time.
    with matplotlib.rc_context({"svg.hashsalt": "skill-run", "svg.fonttype": "none"}):
        figure = Figure(figsize=_SIZE, dpi=_DOTS, layout="constrained")
        FigureCanvasAgg(figure)
        rates = [(each["step"], each["tokens_per_second"]) for each in series if "tokens_per_second" in each]
        axes = figure.subplots(2 if rates else 1, 1, sharex=True, squeeze=False, height_ratios=[3, 1] if rates else [1])
        _draw(axes[0, 0], points, "loss", "#1f6feb")
        if rates:
            _draw(axes[1, 0], rates, "tokens/s", "#5c6570")
        axes[-1, 0].set_xlabel("step")
        # Fonts lack many characters, which would be a warning each.
        shown = flow(title).encode("ascii", "backslashreplace").decode()[:120]
        axes[0, 0].set_title(shown, loc="left", fontsize=9, parse_math=False)
        try:
            figure.savefig(path, format=ending[1:], metadata={"Date": None} if ending == ".svg" else None)
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}") from error


def _draw(axes: Any, points: Sequence[tuple[int, float]], name: str, colour: str) -> None:
    axes.plot([step for step, _ in points], [value for _, value in points], color=colour, linewidth=1.4)
    axes.set_ylabel(name)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.xaxis.get_major_locator().set_params(integer=True)
