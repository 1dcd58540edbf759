"""The stages of a rehearsal and how a failure inside upstream's code is told: the stage, one sentence and the place."""

from __future__ import annotations

import os
import shutil
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final

from skill_run.worker.inside.errors import RefusedError

_LONGEST: Final = 1200
_DETAIL: Final = 6000
_ROOM: Final = 2**20
# Part of a file's path -> the stage that fails there; the first of the innermost frames that fits decides.
_PLACES: Final = (
    ("checkpointing.py", "save"),
    ("dist_checkpointing", "save"),
    ("bridge/data/packing", "packing"),
    ("bridge/data/", "data"),
    ("training/tokenizers", "data"),
)


class StageFailure(RefusedError):
    """A stage of a rehearsal failed: its name, what upstream said, where (file:line), and the end of the traceback."""

    def __init__(self, stage: str, sentence: str, place: str = "", detail: str = "") -> None:
        super().__init__(sentence, "failed")
        self.stage = stage
        self.place = place
        self.detail = detail

    @classmethod
    def from_error(cls, stage: str, error: BaseException) -> StageFailure:
        """Return the failure of a stage for an exception of upstream's code."""
        if isinstance(error, StageFailure):
            return error
        if isinstance(error, RefusedError):
            return cls(stage, str(error))
        detail = "".join(traceback.format_exception(error))[-_DETAIL:]
        return cls(stage, _words(error), _place(error.__traceback__), detail)

    def to_dict(self) -> dict[str, Any]:
        """Return the failure as JSON-ready data."""
        return {"stage": self.stage, "message": str(self), "place": self.place, "detail": self.detail}


def refuse_full_disk(scratch: str) -> None:
    """Raise RefusedError when the disk is full, which every library tells in words of its own."""
    if shutil.disk_usage(scratch).free < _ROOM:
        place = os.path.dirname(scratch)
        raise RefusedError(f"{place} is full; make room there, or let $TMPDIR name another folder", "missing")


def stage_of(error: BaseException, otherwise: str) -> str:
    """Return the stage that a traceback points to: where data, packing or checkpoints are handled, else `otherwise`."""
    if isinstance(error, StageFailure):
        return error.stage
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = frame.filename.replace(os.sep, "/")
        for part, stage in _PLACES:
            if part in path:
                return stage
    return otherwise


def _words(error: BaseException) -> str:
    """Return an exception's type and text; where that tells no name, the line of code does."""
    text = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    line = frames[-1].line if frames else None
    if not text:
        text = line or "no reason given"
    elif isinstance(error, TypeError) and line:
        text = f"{text}: {line}"
    clipped = text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
    return f"{type(error).__name__}: {clipped}"


def _place(trace: TracebackType | None) -> str:
    """Return file:line of the innermost frame in Megatron's code, else of the innermost one."""
    frames = traceback.extract_tb(trace)
    if not frames:
        return ""
    inside = [frame for frame in frames if "/megatron/" in frame.filename.replace(os.sep, "/")]
    frame = (inside or list(frames))[-1]
    return f"{_short(frame.filename)}:{frame.lineno}"


def _short(path: str) -> str:
    parts: Sequence[str] = path.replace(os.sep, "/").split("/")
    if "megatron" in parts:
        return "/".join(parts[parts.index("megatron") :])
    return parts[-1]
