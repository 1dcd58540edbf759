"""Which classes a config may name: Megatron's own config classes are made, functions are only referred to."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import re
from collections.abc import Mapping
from typing import Any, Final

from skill_run.worker.inside.errors import RefusedError
from skill_run.worker.inside.rehearse_stages import StageFailure

_REFERRED: Final = ("megatron.", "torch.")
_MADE: Final = ("megatron.", "signal.Signals")
_INITIALISERS: Final = "torch.nn.init."
_PATH: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*){1,12}")


def check_targets(data: Any, where: str = "the config") -> None:
    """Raise RefusedError unless everything that `data` asks to make is a config class or an enumeration of Megatron.

    A class that is not there is a StageFailure("build").

    data: nested mappings as they stand in a YAML file. Bridge's loader admits every function of torch and others;
    a rehearsal runs files from anywhere, so it admits less.
    """
    if isinstance(data, Mapping):
        if "_target_" in data:
            _check(data, where)
        for key, value in data.items():
            check_targets(value, f"{where}.{key}" if where != "the config" else str(key))
    elif isinstance(data, (list, tuple)):
        for item in data:
            check_targets(item, where)


def _check(data: Mapping[str, Any], where: str) -> None:
    target = data["_target_"]
    called = data.get("_call_", True) is not False
    fits = isinstance(target, str) and (
        target.startswith(_REFERRED)
        if not called
        else (data.get("_partial_") is True and target.startswith(_INITIALISERS)) or _is_made(target)
    )
    if not fits:
        raise RefusedError(
            f"{where} asks to make {str(target)[:120]!r}; a rehearsal makes only Megatron's own config classes"
        )


def _is_made(target: str) -> bool:
    if not target.startswith(_MADE):
        return False
    found = find_class(target)
    if found is None:
        # A method of a class is no class either, and Bridge's loader would call it.
        raise StageFailure("build", f"this release of Megatron-Bridge has no class {target[:200]}")
    return dataclasses.is_dataclass(found) or issubclass(found, enum.Enum)


def find_class(path: str) -> type | None:
    """Return the class with this dotted path, or None; other objects, and modules that fail, raise RefusedError."""
    if not _PATH.fullmatch(path):
        return None
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
    except Exception as error:
        # A module can do anything while it is imported, such as ask for a GPU.
        raise RefusedError(f"{module[:120]} cannot be imported without a GPU: {str(error)[:200]}") from error
    if found is None or isinstance(found, type):
        return found
    raise RefusedError(f"{path[:120]} is no class")
