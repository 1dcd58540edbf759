"""The folder of a job: all that is needed to run it, to follow it, and to find it again when the store is lost."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from skill_run.errors import InputError

PLAN: Final = "plan.json"
# The engine's id, or who is starting the job; when it was started.
ENGINE: Final = "engine.json"
STOP: Final = "stop.json"
# Made by the one of several stops that signals the ranks; holds when.
SIGNALLED: Final = "stop.signalled"
EXIT: Final = "exit.json"
LOG: Final = "job.log"
RANK_LOGS: Final = "logs"
METRICS: Final = "metrics.jsonl"
CHECKPOINTS: Final = "checkpoints"

# What only this package writes; a plan's own files take other names.
_OURS: Final = frozenset({PLAN, ENGINE, STOP, SIGNALLED, EXIT, LOG, METRICS, "process.json"})
_LARGEST_RECORD: Final = 64 * 2**20


def state_folder() -> Path:
    """Return the folder that holds the store and the jobs: $SKILL_RUN_STATE, else in the user's state folder."""
    given = os.environ.get("SKILL_RUN_STATE")
    if given:
        return Path(given).absolute()
    from platformdirs import user_state_path

    return user_state_path("skill-run", appauthor=False)


def write_record(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON under its last name in one step: it is there as a whole or not at all."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace a file in one step and bring it to the disk. Lone surrogates are written as the bytes they stand for.

    Raises InputError when there is no room or no permission.
    """
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape", newline="") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error


def read_record(path: Path) -> dict[str, Any] | None:
    """Return the JSON object of a file; None when it is not there or is none."""
    try:
        if path.stat().st_size > _LARGEST_RECORD:
            return None
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def make_folder(path: Path) -> None:
    """Make a job's folder, which only its owner may enter. Raises InputError when it exists or cannot be made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700)
    except FileExistsError as error:
        raise InputError(f"{path} is there already; a job gets a folder of its own") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be made: {getattr(error, 'strerror', None) or error}") from error


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write a plan's files. Raises InputError for a name that leads out of the folder or that is one of ours."""
    for name in files:
        check_name(name)
    for name, text in files.items():
        target = folder / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{target.parent} cannot be made: {error.strerror}") from error
        write_text(target, text)


def check_name(name: str) -> None:
    """Raise InputError for the name of a plan's file that leads out of the job's folder or that is one of ours."""
    path = PurePosixPath(name)
    outside = path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name
    if outside or path.parts[0] in _OURS or path.parts[0].startswith(".new-"):
        raise InputError(f"a plan cannot write a file called {name[:80]!r}")
