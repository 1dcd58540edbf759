"""Which workers there are: each is a folder with `worker.json`, written last, so a broken set-up is never listed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from skill_run.errors import InputError, MissingError

FOLDER_ENVIRONMENT: Final = "SKILL_RUN_WORKERS"
WORKER_ENVIRONMENT: Final = "SKILL_RUN_WORKER"
RECORD: Final = "worker.json"


@dataclass(frozen=True, slots=True)
class Worker:
    """An environment with torch and Megatron-Core, used through child processes only.

    command: argument list that starts its Python; versions: distribution name -> version, as found when it was added.
    """

    name: str
    command: tuple[str, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    built: bool = False

    @property
    def bridge(self) -> str | None:
        """Version of Megatron-Bridge in it, or None."""
        return self.versions.get("megatron-bridge")

    @property
    def core(self) -> str | None:
        """Version of Megatron-Core in it, or None."""
        return self.versions.get("megatron-core")

    def to_dict(self) -> dict[str, Any]:
        """Return the worker as JSON-ready data."""
        return {
            "name": self.name,
            "command": list(self.command),
            "versions": dict(self.versions),
            "built": self.built,
        }


def workers_folder() -> Path:
    """Return the folder that holds one folder for each worker: $SKILL_RUN_WORKERS, else in the user's data folder."""
    given = os.environ.get(FOLDER_ENVIRONMENT)
    if given:
        return Path(given).absolute()
    from platformdirs import user_data_path

    return user_data_path("skill-run", appauthor=False) / "workers"


def read_worker(folder: Path) -> Worker | None:
    """Return the worker that a folder holds, or None when it is not complete or its record cannot be read."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        command = record["command"]
        if not isinstance(command, list) or not command or not all(_is_word(word) for word in command):
            return None
        return Worker(
            name=folder.name,
            command=tuple(command),
            versions={str(key): str(value) for key, value in record["versions"].items()},
            built=bool(record["built"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _is_word(value: object) -> bool:
    """Whether a value can be an argument of a process."""
    return isinstance(value, str) and "\0" not in value


def list_workers() -> list[Worker]:
    """Return every complete worker, by name."""
    root = workers_folder()
    if not root.is_dir():
        return []
    found = (read_worker(folder) for folder in sorted(root.iterdir()) if folder.is_dir())
    return [worker for worker in found if worker is not None]


def find_worker(name: str | None = None, *, bridge: bool = False) -> Worker:
    """Return the worker called `name` or by $SKILL_RUN_WORKER, else the best one that there is.

    bridge: it must have Megatron-Bridge. Among several, those that were built here come first, the newest Megatron-Core
    of them. Raises InputError for an unknown name, MissingError when no worker fits.
    """
    workers = list_workers()
    asked = name or os.environ.get(WORKER_ENVIRONMENT) or None
    if asked is not None:
        workers = [worker for worker in workers if worker.name == asked]
        if not workers:
            raise InputError(f"there is no worker {asked!r}; skill-run worker list shows those that are ready")
    fitting = [worker for worker in workers if worker.bridge is not None or not bridge]
    if not fitting and asked is not None:
        raise MissingError(
            f"worker {asked} has no Megatron-Bridge; skill-run worker setup cpu-0.6.2 makes one that has"
        )
    if not fitting:
        what = "with Megatron-Bridge " if bridge else ""
        which = " cpu-0.6.2" if bridge else ""
        raise MissingError(f"no worker {what}is set up; skill-run worker setup{which} makes one")
    return max(fitting, key=lambda worker: (worker.built, _release(worker.core)))


def _release(version: str | None) -> tuple[int, ...]:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version or "0").release
    except InvalidVersion:
        return (0,)
