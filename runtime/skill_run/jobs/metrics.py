"""Read the figures that a job writes while it trains, one JSON object a line, in bounded time and memory.

Fields: step, loss, tokens (real ones), padded_tokens (real and padding together), tokens_per_second, grad_norm,
memory_bytes, time. A line that is torn or no such object is passed over.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_TAIL_BYTES: Final = 64 * 1024
_LONGEST_LINE: Final = 16 * 1024
_LARGEST_FILE: Final = 2**30
_FIELDS: Final = (
    "step", "loss", "tokens", "padded_tokens", "tokens_per_second", "grad_norm", "memory_bytes", "time",
)  # fmt: skip


def last_metrics(path: Path) -> dict[str, Any] | None:
    """Return the newest figures of a file; None when there are none."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL_BYTES))
            lines = stream.read(_TAIL_BYTES).splitlines()
    except OSError:
        return None
    return next((found for line in reversed(lines) if (found := _figures(line)) is not None), None)


def metrics_series(path: Path, *, points: int = 2000) -> list[dict[str, Any]]:
    """Return the figures of a whole run in order, thinned out evenly to between `points` and twice as many.

    The last step is always there. A step that was run again after a restart stands where it was run.
    """
    kept: list[dict[str, Any]] = []
    every, count, last = 1, 0, None
    try:
        with path.open("rb") as stream:
            while (line := stream.readline(_LONGEST_LINE)) and stream.tell() < _LARGEST_FILE:
                found = _figures(line)
                if found is None:
                    continue
                last, count = found, count + 1
                if count % every:
                    continue
                kept.append(found)
                if len(kept) >= 2 * points:
                    kept, every = kept[1::2], every * 2
    except OSError:
        return []
    return kept if last is None or (kept and kept[-1] is last) else [*kept, last]


def padding_share(figures: Mapping[str, Any]) -> float | None:
    """Return which part of the tokens that were computed is padding, from 0 to 1; None when it is not told."""
    real, padded = figures.get("tokens"), figures.get("padded_tokens")
    if real is None or not padded or padded < real:
        return None
    return 1.0 - float(real) / float(padded)


def _figures(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("step"), int):
        return None
    return {name: value for name in _FIELDS if _is_figure(value := found.get(name), name)}


def _is_figure(value: Any, name: str) -> bool:
    if name == "time" and isinstance(value, str):
        return len(value) < 64
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    # A loss that is not finite is news; such a count is nonsense.
    return name in ("loss", "grad_norm") or (math.isfinite(value) and abs(value) < 2**63)
