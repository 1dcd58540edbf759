"""Folders of a launch: where the job's own one goes, whether nodes share it, and which checkpoint it starts from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from skill_run.errors import InputError
from skill_run.jobs.store import file_system

# File systems that only one machine sees; a network's have other names.
_OF_ONE_MACHINE: Final = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay", "squashfs", "vfat", "aufs"}
)
LATEST: Final = "latest_checkpointed_iteration.txt"


def not_shared(what: str, path: str) -> str | None:
    """Return a warning when other nodes cannot be expected to see a folder; None when they can, or nobody can tell."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    kind = file_system(os.path.realpath(path), mounts)
    if kind not in _OF_ONE_MACHINE:
        return None
    return f"{what} {path} lies on {kind}, which other nodes do not see unless it is exported to them"


def saved_step(folder: str) -> int | None:
    """Return the step of the newest checkpoint in a folder; None when there is none, or it names none."""
    try:
        text = (Path(folder) / LATEST).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return int(text) if text.isdigit() else None


def resumed_from(folder: str) -> tuple[str, int]:
    """Return a checkpoint folder as absolute path with its step. Raises InputError when it holds no checkpoint."""
    path = str(Path(folder).expanduser().absolute())
    step = saved_step(path)
    if step is None:
        raise InputError(f"{path} holds no checkpoint to resume from: it has no {LATEST} with a step")
    return path, step
