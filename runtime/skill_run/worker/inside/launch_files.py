"""Import the entry script of a job and its modules, from the job's own folder."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def entry_modules(folder: Path) -> tuple[ModuleType, ModuleType]:
    """Return entry_config and entry_hooks of a job's folder."""
    _look_in(folder)
    return importlib.import_module("entry_config"), importlib.import_module("entry_hooks")


def entry_script(folder: Path) -> ModuleType:
    """Return train.py of a job's folder as a module."""
    _look_in(folder)
    return importlib.import_module("train")


def _look_in(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
