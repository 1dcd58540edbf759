"""Token store: samples on disk, one behind the other, read back through the page cache, so that memory stays flat.

A store is a folder with `tokens.bin` (int32), `masks.bin` (uint8), `lengths.bin` (int32, stored lengths) and, written
last, `whole.json`. A folder without that file is what an interrupted run left.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt

from skill_run.errors import InputError

_FILES: Final = {"tokens": np.int32, "masks": np.uint8, "lengths": np.int32}
_WHOLE: Final = "whole.json"


@dataclass(frozen=True, slots=True)
class Store:
    """A whole store.

    tokens: [T]; masks: [T]; lengths: [N]; offsets: [N] first token of each sample; told: what was said of it when it
    was written.
    """

    tokens: npt.NDArray[np.int32]
    masks: npt.NDArray[np.uint8]
    lengths: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    told: Mapping[str, Any]


class StoreWriter:
    """Writes blocks of samples into a folder; `finish` makes it whole."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _WHOLE).unlink(missing_ok=True)
        self._folder = folder
        self._files: dict[str, IO[bytes]] = {name: open(folder / f"{name}.bin", "wb") for name in _FILES}  # noqa: SIM115

    def add(self, **arrays: npt.NDArray[Any]) -> None:
        """Append tokens, masks and lengths of some samples."""
        for name, kind in _FILES.items():
            self._files[name].write(np.ascontiguousarray(arrays[name], dtype=kind).data)

    def finish(self, told: Mapping[str, Any]) -> None:
        """Write everything down and mark the store as whole."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        self.close()
        temporary = self._folder / f"{_WHOLE}.tmp"
        temporary.write_text(json.dumps(told), "utf-8")
        temporary.replace(self._folder / _WHOLE)

    def close(self) -> None:
        """Close the files; what was written so far stays, unmarked."""
        for file in self._files.values():
            file.close()


def open_store(folder: Path) -> Store | None:
    """Return the store in a folder, or None when there is no whole one."""
    try:
        told = json.loads((folder / _WHOLE).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    arrays = {name: _mapped(folder / f"{name}.bin", kind) for name, kind in _FILES.items()}
    lengths = arrays["lengths"]
    ends = np.cumsum(lengths, dtype=np.int64)
    if len(arrays["tokens"]) != (int(ends[-1]) if len(ends) else 0) or len(arrays["masks"]) != len(arrays["tokens"]):
        raise InputError(f"{folder} was changed since it was written; remove it and start again")
    return Store(**arrays, offsets=ends - lengths, told=told)


def _mapped(path: Path, kind: Any) -> npt.NDArray[Any]:
    if not path.stat().st_size:
        return np.zeros(0, kind)
    return np.memmap(path, dtype=kind, mode="r")
