"""The bars of the web page: one lane a row or a rank, as inline SVG with a cell for each sequence or part.

Places are percentages of the lane, so that a lane takes any width; only overlays without a pattern are stretched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from skill_run.report.cut_map import CutPart, rank_parts, token_runs
from skill_run.report.pack_map import COLOURS, MapRow, coarse, covered, true_runs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from skill_run.batch.context_parallel import Partition

    Ints = NDArray[np.int64]

_OVERLAY: Final = 400
_TICKS: Final = 150
_BUSY: Final = 24
_PARTS: Final = 2000
_STRETCH: Final = 10_000
# Ticks reach above and below the bar.
_TOP, _HEIGHT = "12%", "76%"
_HATCH: Final = (
    '<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect class="ground" width="6" height="6"/><line class="stripe" x1="1" y1="0" x2="1" y2="6"/></pattern>'
)


@dataclass(frozen=True, slots=True)
class Frame:
    """What of a row one lane shows: tokens from `start` to `end`, at a scale where the whole width is `span` tokens."""

    start: int
    end: int
    span: int

    @property
    def window(self) -> tuple[int, int]:
        """Start and end."""
        return self.start, self.end

    def place(self, start: int, end: int) -> str:
        """Return the place of a run in the lane as attributes, cut to the frame."""
        start, end = max(start, self.start), min(end, self.end)
        return (
            f'x="{self.percent(start - self.start)}" width="{self.percent(end - start)}" y="{_TOP}" height="{_HEIGHT}"'
        )

    def percent(self, tokens: int) -> str:
        """Return a number of tokens as a share of the lane."""
        return f"{round(100 * tokens / self.span, 3):g}%"


def lane(name: str, content: str, *, busy: bool = False) -> str:
    """Return one lane of a grid; name and content are markup; busy: its ticks are left out on narrow screens."""
    head = f'<span role="rowheader" class="name">{name}</span>'
    return f'<div role="row" class="lane{" busy" if busy else ""}">{head}<svg role="none">{content}</svg></div>'


def legend_swatch(name: str) -> str:
    """Return a small picture of what a class of the map looks like."""
    if name in ("tick", "snag"):
        shown = f'<line class="{name}" x1="50%" x2="50%" y1="0" y2="100%"/>'
    elif name == "veil":
        shown = '<rect class="s0" width="100%" height="100%"/><rect class="veil" width="100%" height="100%"/>'
    elif name == "hatch":
        # The first use of the pattern on the page; all later ones refer to it.
        shown = f'<defs>{_HATCH}</defs><rect class="hatch" width="100%" height="100%"/>'
    else:
        shown = f'<rect class="{name}" width="100%" height="100%"/>'
    return f'<svg aria-hidden="true">{shown}</svg>'


def row_lane(row: MapRow, frame: Frame, limit: int) -> str:
    """Return the lane of the part of a row inside a frame. limit: sequences drawn, the rest is one block."""
    inside = [at for at in range(len(row.numbers)) if max(row.starts[at], frame.start) < min(row.ends[at], frame.end)]
    parts = [
        _cell(_colour(row, at), frame, int(row.starts[at]), int(row.ends[at]), row.label(at)) for at in inside[:limit]
    ]
    end = frame.end
    if len(inside) > limit:
        end = int(row.starts[inside[limit]])
        said = f"row {row.index}, {len(inside) - limit} more sequences: from {end}, to {frame.end}"
        parts.append(_cell("rest", frame, end, frame.end, said))
    for start, stop in coarse(row.loose, frame.window, _OVERLAY, any_token=True).tolist():
        parts.append(_cell("loose", frame, start, stop, f"row {row.index}, in no sequence: from {start}, to {stop}"))
    for start, stop in coarse(row.padding, (frame.start, end), _OVERLAY).tolist():
        parts.append(f'<rect class="hatch over" {frame.place(start, stop)}/>')
    if row.masked is not None:
        parts.append(_stretched("veil", frame, coarse(_without_loss(row), (frame.start, end), _OVERLAY)))
    parts.append(_stretched("faulty", frame, coarse(row.faulty, frame.window, _OVERLAY, any_token=True)))
    parts += _ticks(row, frame, inside[:limit])
    name = f"row {row.index}" if frame.window == (0, row.total) else f"from {frame.start}"
    return lane(name, "".join(parts), busy=len(inside) > _BUSY)


def _without_loss(row: MapRow) -> Ints:
    """Return the tokens without loss that are no padding, which has its own look."""
    import numpy as np

    assert row.masked is not None
    if not row.padding.size or not row.masked.size:
        return row.masked
    edges = np.unique(np.concatenate([row.masked.reshape(-1), row.padding.reshape(-1)]))
    kept = (covered(row.masked, edges) > 0) & (covered(row.padding, edges) == 0)
    return np.asarray(edges[true_runs(kept)], dtype=np.int64)


def _colour(row: MapRow, at: int) -> str:
    return "filler" if row.starts[at] >= row.filler else f"s{int(row.numbers[at]) % len(COLOURS)}"


def _cell(look: str, frame: Frame, start: int, end: int, said: str) -> str:
    return f'<rect role="gridcell" tabindex="-1" class="{look}" {frame.place(start, end)} aria-label="{said}"/>'


def _stretched(look: str, frame: Frame, runs: Ints) -> str:
    """Return runs as one path in one stretched picture; faults take the lower part only."""
    if not runs.size:
        return ""
    scale = _STRETCH / frame.span
    path = "".join(
        f"M{scale * (start - frame.start):.0f} 0h{max(1.0, scale * (stop - start)):.0f}v1"
        f"H{scale * (start - frame.start):.0f}z"
        for start, stop in runs.tolist()
    )
    top, height = ("58%", "30%") if look == "faulty" else (_TOP, _HEIGHT)
    return (
        f'<svg class="over" y="{top}" height="{height}" width="100%" viewBox="0 0 {_STRETCH} 1" '
        f'preserveAspectRatio="none"><path class="{look}" d="{path}"/></svg>'
    )


def _ticks(row: MapRow, frame: Frame, drawn: list[int]) -> Iterator[str]:
    import numpy as np

    if drawn and len(drawn) <= _TICKS:
        edges = np.unique(np.concatenate([row.starts[drawn], row.ends[drawn]])).tolist()
        yield from (_tick("tick", frame, edge) for edge in edges if frame.start <= edge <= frame.end)
    yield from (_tick("snag", frame, edge) for edge in row.broken[:_TICKS] if frame.start <= edge <= frame.end)


def _tick(look: str, frame: Frame, edge: int) -> str:
    at = frame.percent(edge - frame.start)
    return f'<line class="{look}" x1="{at}" x2="{at}" y1="0" y2="100%"/>'


def cut_lanes(cut: Partition, row: MapRow, frame: Frame, limit: int) -> Iterator[str]:
    """Yield a lane for each of the first `limit` ranks, then for tokens held more than once, then for lost ones."""
    fair = max(1, _PARTS // min(cut.size, limit))
    for rank, indices in enumerate(cut.indices[:limit]):
        parts = rank_parts(indices, row, frame.window, fair)
        yield lane(f"rank {rank}", "".join(_part(row, frame, part, cut.size, rank) for part in parts))
    for look, said, tokens in (("twice", "held more than once", cut.duplicated), ("lost", "on no rank", cut.lost)):
        if tokens.size:
            runs = coarse(token_runs(tokens), frame.window, _OVERLAY, any_token=True).tolist()
            shown = (_cell(look, frame, start, end, f"{said}: from {start}, to {end}") for start, end in runs)
            yield lane(look, "".join(shown))


def _part(row: MapRow, frame: Frame, part: CutPart, size: int, rank: int) -> str:
    look = "rest" if part.owner is None else _colour(row, part.owner)
    return _cell(look, frame, part.start, part.end, part.label(row, size, rank))
