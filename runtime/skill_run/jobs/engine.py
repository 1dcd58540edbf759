"""What an engine is: the thing that runs jobs and that is asked about them. Engines are found here by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from skill_run.errors import InputError
from skill_run.jobs.model import Plan, Seen
from skill_run.jobs.supervisor import identity


class Engine(Protocol):
    """Starts, looks at and stops jobs; every answer is what the engine itself says at that moment."""

    def start(self, plan: Plan, folder: Path) -> dict[str, Any]:
        """Start a plan whose files are written; return what is needed to find it again.

        Raises InputError in the engine's own words when it refuses, MissingError when it is not there.
        """
        ...

    def look(self, engine_id: Mapping[str, Any], folder: Path) -> Seen:
        """Return how a job stands."""
        ...

    def stop(self, engine_id: Mapping[str, Any], folder: Path, firm_after_seconds: float) -> None:
        """Ask a job to save and end, and end it by force later; return at once."""
        ...

    def find(self, job_id: str, folder: Path) -> dict[str, Any] | None:
        """Return the engine's id of a job whose start was cut before it was written down; None when none runs."""
        ...


def find_engine(name: str) -> Engine:
    """Return an engine. Raises InputError for a name that is not known."""
    if name == "local":
        from skill_run.jobs.local import LocalEngine

        return LocalEngine()
    if name == "slurm":
        from skill_run.jobs.slurm import SlurmEngine

        return SlurmEngine()
    raise InputError(f"there is no engine {name[:40]!r}; there are local and slurm")


def starter() -> dict[str, Any]:
    """Return who starts a job now, so that a start that is cut can be told from one that goes on."""
    return {"starter": {**(identity(os.getpid()) or {}), "host": os.uname().nodename}}
