"""Say in one sentence why an installer failed, from what it printed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from skill_run.errors import MissingError
from skill_run.report.safe import clip, flow
from skill_run.worker.kinds import Pin

# The first that fits decides. Without a network pip also says that there is no matching file, so that comes last.
_DISK: Final = re.compile(r"No space left on device|\[Errno 28\]|Disk quota exceeded", re.IGNORECASE)
_FOLDER: Final = re.compile(r"Read-only file system|Permission denied", re.IGNORECASE)
_HASH: Final = re.compile(r"DO NOT MATCH THE HASHES|Hash mismatch", re.IGNORECASE)
_CUT: Final = re.compile(
    r"Connection (aborted|reset|refused|broken)|IncompleteRead|incomplete-download|Download failed|timed out"
    r"|Max retries|Retrying \(|NewConnectionError|Name or service not known|name resolution|Network is unreachable"
    r"|SSLError|ProtocolError|\b50[0-9] (Server )?Error",
    re.IGNORECASE,
)
_WHEEL: Final = re.compile(
    r"BadZipFile|not a zip file|is invalid|has an invalid wheel|Wheel .* is corrupt", re.IGNORECASE
)
_ABSENT: Final = re.compile(
    r"No matching distribution found|Could not find a version|No solution found|ResolutionImpossible", re.IGNORECASE
)
_ENSUREPIP: Final = re.compile(r"ensurepip", re.IGNORECASE)
_AGAIN: Final = "run the same command again, and it goes on where it stopped"


class AbsentError(MissingError):
    """No index or folder that the installer asked has a pinned file. `pin` is None when several may be meant."""

    def __init__(self, sentence: str, pin: Pin | None) -> None:
        super().__init__(sentence)
        self.pin = pin


def failure_of(lines: Sequence[str], batch: Sequence[Pin], folder: Path) -> MissingError:
    """Return the error for an installer's last lines: its text is one sentence that says what to do."""
    text = "\n".join(lines)
    if _DISK.search(text):
        return MissingError(f"the disk is full; make room where {folder} is, then {_AGAIN}")
    if _HASH.search(text):
        name = _named(lines, batch)
        return MissingError(
            f"the file of {name} is not the one that the lock names (its SHA-256 differs): it was cut on its way or "
            "changed; nothing of it was installed; clear that package from pip's cache or ask another index"
        )
    if _WHEEL.search(text):
        return MissingError(
            f"the file of {_named(lines, batch)} is damaged; clear pip's cache (pip cache purge) and retry"
        )
    if _CUT.search(text):
        return MissingError(f"the download of {_named(lines, batch)} was cut or the index cannot be reached; {_AGAIN}")
    if _FOLDER.search(text):
        return MissingError(f"{folder} cannot be written; $SKILL_RUN_WORKERS names another folder for workers")
    if _ABSENT.search(text):
        pin = next((pin for pin in batch if re.search(rf"for {re.escape(pin.name)}==", text, re.IGNORECASE)), None)
        name = f"{pin.name} {pin.version}" if pin is not None else _named(lines, batch)
        return AbsentError(
            f"no package index or folder that pip knows has {name}; name one that has it with --extra-index-url or "
            "--find-links",
            pin,
        )
    if not batch and _ENSUREPIP.search(text):
        return MissingError("this Python cannot make environments: its ensurepip module is missing (python3-venv)")
    said = next((line for line in reversed(lines) if "error" in line.lower()), lines[-1])
    return MissingError(f"the installer failed: {clip(flow(said), 300)}")


def _named(lines: Sequence[str], batch: Sequence[Pin]) -> str:
    """Return the package that the lines speak of last, else the batch in words."""
    for line in reversed(lines):
        for pin in batch:
            if re.search(rf"\b{re.escape(pin.name)}\b", line, re.IGNORECASE):
                return f"{pin.name} {pin.version}"
    return ", ".join(f"{pin.name} {pin.version}" for pin in batch) or "the environment"
