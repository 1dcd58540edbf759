"""The fields of a ConfigContainer as plain values by written name, and setting them again."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from skill_run.rehearse.change import Change

_DEEPEST = 4


def read_values(config: Any) -> dict[str, Any]:
    """Return written name -> JSON-ready value of every field, down to the fields of nested config objects.

    A section that is an object has its class name as value; what has no plain form is named by its type.
    """
    found: dict[str, Any] = {}
    _read(config, "", found, 0)
    return found


def _read(owner: Any, prefix: str, found: dict[str, Any], depth: int) -> None:
    for field in dataclasses.fields(owner):
        if field.name.startswith("_") or not hasattr(owner, field.name):
            continue
        name, value = f"{prefix}{field.name}", getattr(owner, field.name)
        found[name] = plain(value)
        if _is_object(value) and depth < _DEEPEST:
            _read(value, f"{name}.", found, depth + 1)


def plain(value: Any) -> Any:
    """Return a value as JSON-ready data: dtypes, enumerations, functions and objects by their names."""
    if value is None or (isinstance(value, (bool, int, float, str)) and not isinstance(value, enum.Enum)):
        return value
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if type(value).__module__ == "torch" and type(value).__name__ == "dtype":
        return str(value)
    return f"<{getattr(value, '__qualname__', type(value).__name__)}>"


def write_change(config: Any, change: Change) -> None:
    """Set the field of a change; text such as "torch.float32" becomes the dtype."""
    *parents, leaf = change.field.split(".")
    owner = config
    for name in parents:
        owner = getattr(owner, name)
    setattr(owner, leaf, with_dtype(change.new))


def with_dtype(value: Any) -> Any:
    """Return the dtype that a text names, any other value as it is."""
    if isinstance(value, str) and value.startswith("torch."):
        import torch

        found = getattr(torch, value.removeprefix("torch."), None)
        if isinstance(found, torch.dtype):
            return found
    return value


def _is_object(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
