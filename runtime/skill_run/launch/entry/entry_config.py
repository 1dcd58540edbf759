"""Build the ConfigContainer of a job from the files beside this one; needs Megatron-Bridge (0.3 to 0.6) only.

run.json says where the config starts from and what the plan sets last; config.yaml holds the values laid over a recipe,
or the whole ConfigContainer; overrides.json holds Hydra overrides, which Bridge's own code applies in between.
Only config classes and enumerations of Megatron are made from these files; functions are referred to, never called.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import json
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_CONTAINER = "megatron.bridge.training.config.ConfigContainer"
_INITIALISERS = "torch.nn.init."


class ConfigError(ValueError):
    """The config cannot be built; the text says which field and why."""


def read_run(folder: Path) -> dict[str, Any]:
    """Return run.json of a job's folder."""
    found = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def build(run: Mapping[str, Any], folder: Path) -> Any:
    """Return the config: the base, the values of config.yaml, the overrides, then what the plan sets.

    Raises ConfigError for a field that the config does not have or a value that no config class of Megatron is.
    """
    import yaml

    values = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8")) or {}
    base = run["base"]
    if "recipe" in base:
        config = getattr(importlib.import_module(base["module"]), base["recipe"])()
        lay_over(config, values)
    else:
        # Not by Bridge's own loader: that of 0.3 calls whatever a file names, and that of 0.4 and 0.5 refuses the
        # signal.Signals of its own dumps.
        config = make({"_target_": _CONTAINER, **values}, "")
    apply_overrides(config, json.loads((folder / "overrides.json").read_text(encoding="utf-8")))
    for setting in run["settings"]:
        set_field(config, setting["field"], setting["value"])
    return config


def apply_overrides(config: Any, tokens: list[str]) -> None:
    """Apply Hydra overrides by Bridge's own code, then make objects of the mappings that it leaves behind."""
    if not tokens:
        return
    if any("_target_" in token for token in tokens):
        raise ConfigError("an override cannot make an object (_target_); set it in the config file")
    from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

    process_config_with_overrides(config, cli_overrides=list(tokens))
    _make_objects(config, "")


def lay_over(owner: Any, values: Mapping[str, Any], path: str = "") -> None:
    """Set fields of a config object, and of the objects in it, from nested mappings."""
    for name, value in values.items():
        if name not in ("_target_", "_call_"):
            _set(owner, str(name), value, f"{path}{name}")


def set_field(config: Any, path: str, value: Any) -> None:
    """Set the field with this dotted path."""
    *parents, leaf = path.split(".")
    owner = config
    for name in parents:
        owner = getattr(owner, name, None)
        if owner is None:
            raise ConfigError(f"{path} cannot be set: the config has no {name}")
    _set(owner, leaf, value, path)


def _set(owner: Any, name: str, value: Any, path: str) -> None:
    if isinstance(owner, dict):
        owner[name] = value
        return
    if not hasattr(owner, name) and name not in {field.name for field in dataclasses.fields(owner)}:
        raise ConfigError(f"{path} is set, but {type(owner).__name__} of this Megatron-Bridge has no field {name}")
    held = getattr(owner, name, None)
    if isinstance(value, Mapping) and "_target_" not in value and dataclasses.is_dataclass(held):
        lay_over(held, value, f"{path}.")
    elif isinstance(value, Mapping) and "_target_" not in value and isinstance(held, dict):
        setattr(owner, name, {**held, **value})
    else:
        setattr(owner, name, _made(value, _hint(type(owner), name), held, path))


def _made(value: Any, hint: Any, held: Any, path: str) -> Any:
    """Return the object that plain data stands for: a config object, an enumeration's member, a dtype, or the data."""
    if isinstance(value, Mapping):
        if "_target_" in value:
            return make(value, path)
        kinds = [each for each in _alternatives(hint) if isinstance(each, type) and dataclasses.is_dataclass(each)]
        cls: Any = kinds[0] if kinds else None
        return dict(value) if cls is None else make({**value, "_target_": f"{cls.__module__}.{cls.__qualname__}"}, path)
    if isinstance(value, list):
        return [make(item, f"{path}[]") if isinstance(item, Mapping) and "_target_" in item else item for item in value]
    if isinstance(value, str):
        for kind in [type(held) if isinstance(held, enum.Enum) else None, *_alternatives(hint)]:
            if isinstance(kind, type) and issubclass(kind, enum.Enum) and value in kind.__members__:
                return kind[value]
        return _dtype(value)
    return value


def make(value: Mapping[str, Any], path: str) -> Any:
    """Return the object that a mapping with `_target_` describes."""
    check_target(value, path or "the config")
    target = str(value["_target_"])
    found = _find(target)
    if value.get("_call_", True) is False:
        return found
    given = {key: inner for key, inner in value.items() if not key.startswith("_")}
    if value.get("_partial_") is True:
        return functools.partial(found, **given)
    if isinstance(found, type) and issubclass(found, enum.Enum):
        return found(*value.get("_args_", ()))
    # Dumps hold fields that are computed, which no constructor takes.
    taken = {field.name: field.init for field in dataclasses.fields(found)}
    unknown = next((key for key in given if key not in taken), None)
    if unknown is not None:
        raise ConfigError(f"{_join(path, unknown)}: {found.__name__} of this Megatron-Bridge has no field {unknown}")
    return found(
        **{key: _made(inner, _hint(found, key), None, _join(path, key)) for key, inner in given.items() if taken[key]}
    )


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def check_target(data: Mapping[str, Any], path: str) -> None:
    """Raise ConfigError unless a mapping with `_target_` asks for something that a config may hold."""
    target = data["_target_"]
    if not isinstance(target, str) or not target.startswith(("megatron.", "torch.", "signal.Signals")):
        raise ConfigError(f"{path} asks for {str(target)[:120]!r}; a config names things of Megatron and torch only")
    if data.get("_call_", True) is False:
        return
    if data.get("_partial_") is True and target.startswith(_INITIALISERS):
        return
    found = None if target.startswith("torch.") else _find(target)
    if not (dataclasses.is_dataclass(found) or (isinstance(found, type) and issubclass(found, enum.Enum))):
        raise ConfigError(f"{path} asks to make {target[:120]!r}, which is no config class of Megatron")


def _find(path: str) -> Any:
    parts = path.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            found = getattr(found, name, None)
        if found is not None:
            return found
    raise ConfigError(f"this Megatron-Bridge has no {path[:160]}")


def _make_objects(owner: Any, path: str) -> None:
    for field in dataclasses.fields(owner):
        value = getattr(owner, field.name, None)
        where = f"{path}{field.name}"
        if dataclasses.is_dataclass(value) and not isinstance(value, type) and where.count(".") < 4:
            _make_objects(value, f"{where}.")
        elif isinstance(value, dict):
            made = _made(value, _hint(type(owner), field.name), None, where)
            if not isinstance(made, dict):
                setattr(owner, field.name, made)


@functools.lru_cache(maxsize=None)  # noqa: UP033
def _hints(cls: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls)
    except (NameError, TypeError, AttributeError, ImportError):
        return {}


def _hint(cls: Any, name: str) -> Any:
    return _hints(cls).get(name) if isinstance(cls, type) else None


def _alternatives(hint: Any) -> list[Any]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [each for part in typing.get_args(hint) for each in _alternatives(part)]
    return [hint]


def _dtype(value: str) -> Any:
    if not value.startswith("torch."):
        return value
    torch = importlib.import_module("torch")
    found = getattr(torch, value[len("torch.") :], None)
    return found if isinstance(found, torch.dtype) else value
