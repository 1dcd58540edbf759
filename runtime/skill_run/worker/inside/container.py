"""Build the real ConfigContainer of this environment's Bridge from plain data, without running what a file asks for.

Bridge's own loader calls any function under torch., transformers. and others that a file names, and resolves
interpolations. Here only config classes and enumerations of Megatron are made; functions and dtypes are looked up in
the few places where Bridge's own dumps name them, and are never called.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import re
import signal
import types
import typing
from collections.abc import Mapping
from typing import Any, Final

from skill_run.worker.inside.errors import RefusedError

CONTAINER: Final = "megatron.bridge.training.config.ConfigContainer"
_PACKAGES: Final = ("megatron.bridge.", "megatron.core.", "megatron.training.")
_PATH: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*){1,12}")
_DTYPE: Final = re.compile(r"torch\.[a-z]+\d*\w*")
_TORCH_FUNCTION: Final = re.compile(r"torch\.(nn\.functional|_C\._nn|nn\.init)\.[a-z]\w*")
_SHORT_DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
# Where a class is looked for that is named without its module.
_HOMES: Final = (
    "megatron.bridge.training.config",
    "megatron.bridge.data.builders",
    "megatron.bridge.data.packing",
    "megatron.bridge.data.packing.config",
    "megatron.bridge.models",
    "megatron.bridge.models.gpt_provider",
    "megatron.bridge.peft.lora",
    "megatron.bridge.peft.dora",
    "megatron.bridge.training.comm_overlap",
    "megatron.bridge.training.mixed_precision",
)
_MARKS: Final = frozenset({"_target_", "_call_", "_partial_", "type"})
_PLAIN: Final = (str, int, float, bool, type(None))


class Builder:
    """Builds config objects; `dropped` names what the classes do not have, as Bridge's loader leaves it out too.

    infer: data without `_target_` becomes an object where the field's annotation names a config class, and text
    becomes the dtype or enumeration member that the field holds. Bridge's loader does neither.
    """

    def __init__(self, *, infer: bool) -> None:
        self.infer = infer
        self.dropped: list[str] = []

    def container(self, data: Mapping[str, Any]) -> Any:
        """Return the ConfigContainer that `data` describes.

        Raises RefusedError for targets that are not admitted; what Megatron's own classes raise passes through.
        """
        target = data.get("_target_", CONTAINER)
        found = _locate_class(str(target), "the config")
        if self.infer:
            data = {**{name: {} for name in _required(found) if name not in data}, **data}
        return self._make(found, data, "")

    def _make(self, cls: type, data: Mapping[str, Any], where: str) -> Any:
        hints = _hints(cls)
        # Dumps hold fields that are computed, which no constructor takes.
        taken = {field.name: field.init for field in dataclasses.fields(cls)}
        values = {}
        for name, value in data.items():
            path = f"{where}.{name}" if where else str(name)
            if taken.get(name):
                values[str(name)] = self._value(value, hints.get(name), path)
            elif name not in taken and name not in _MARKS:
                self.dropped.append(path)
        lacking = [name for name in _required(cls) if name not in values] if self.infer else []
        if lacking:
            raise RefusedError(f"{where or 'the config'} does not say {', '.join(lacking)}, which {cls.__name__} needs")
        return cls(**values)

    def _value(self, value: Any, hint: Any, where: str) -> Any:
        if isinstance(value, Mapping):
            return self._object(value, hint, where)
        if isinstance(value, list):
            return [self._value(item, None, where) for item in value]
        if not isinstance(value, _PLAIN):
            raise RefusedError(f"{where} holds {type(value).__name__}, which is no plain value")
        return _coerced(value, hint) if self.infer and isinstance(value, str) else value

    def _object(self, data: Mapping[str, Any], hint: Any, where: str) -> Any:
        target = data.get("_target_")
        if target is None and self.infer:
            found = _config_class(hint, data.get("type"))
            if found is not None:
                return self._make(found, data, where)
        if target is None:
            return {key: self._value(item, None, f"{where}.{key}") for key, item in data.items()}
        if not isinstance(target, str) or not _PATH.fullmatch(target):
            raise RefusedError(f"{where} names {str(target)[:120]!r}, which is no dotted path")
        if data.get("_call_", True) is False:
            return _locate_reference(target, where)
        if data.get("_partial_") is True:
            options = {key: self._value(item, None, where) for key, item in data.items() if not key.startswith("_")}
            return functools.partial(_locate_reference(target, where), **options)
        found = _locate_class(target, where)
        if issubclass(found, enum.Enum):
            return _member(found, data.get("_args_"), where)
        return self._make(found, data, where)


def _locate_class(target: str, where: str) -> type:
    """Return the config class or enumeration with this dotted path."""
    found = signal.Signals if target == "signal.Signals" else _locate_in_megatron(target, where)
    if isinstance(found, type) and (dataclasses.is_dataclass(found) or issubclass(found, enum.Enum)):
        return found
    raise RefusedError(f"{where} asks to make {target[:120]!r}, which is no config class of Megatron")


def _locate_reference(target: str, where: str) -> Any:
    """Return the dtype, function or class with this dotted path; it is not called."""
    torch: Any = importlib.import_module("torch")
    if _DTYPE.fullmatch(target):
        found = getattr(torch, target.rpartition(".")[2], None)
        if isinstance(found, torch.dtype):
            return found
    elif _TORCH_FUNCTION.fullmatch(target):
        found = torch
        for name in target.split(".")[1:]:
            found = getattr(found, name, None)
        if callable(found) and not isinstance(found, types.ModuleType):
            return found
    return _locate_in_megatron(target, where)


def _locate_in_megatron(target: str, where: str) -> Any:
    """Return what a module of Megatron itself defines; modules of others that it imports are out of reach."""
    if not target.startswith(_PACKAGES):
        raise RefusedError(f"{where} names {target[:120]!r}; only what Megatron itself defines is used")
    module, _, name = target.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise RefusedError(f"{where} names {target[:120]!r}, which this Megatron-Bridge does not have") from error
    except Exception as error:
        # A module can do anything while it is imported, such as ask for a GPU.
        raise RefusedError(f"{where} names {target[:120]!r}, which cannot be imported without a GPU") from error
    if not str(getattr(found, "__module__", "")).startswith(_PACKAGES):
        raise RefusedError(f"{where} names {target[:120]!r}; only what Megatron itself defines is used")
    return found


def _member(kind: type[enum.Enum], given: Any, where: str) -> enum.Enum:
    values = given if isinstance(given, list) else []
    if len(values) != 1:
        raise RefusedError(f"{where} names the enumeration {kind.__name__} without one value")
    return kind(values[0])


def _required(cls: type) -> list[str]:
    """Return the fields of a config class that have no default."""
    return [
        field.name
        for field in dataclasses.fields(cls)
        if field.init and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    """Return the annotations of a class; none when one of them names what is not importable here."""
    try:
        return typing.get_type_hints(cls)
    except (NameError, TypeError, AttributeError, ImportError):
        return {}


def _alternatives(hint: Any) -> list[Any]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [choice for part in typing.get_args(hint) for choice in _alternatives(part)]
    return [hint]


def _config_class(hint: Any, name: object) -> type | None:
    """Return the class called `name`, else the first config class that an annotation admits."""
    if isinstance(name, str):
        for home in _HOMES:
            try:
                found = getattr(importlib.import_module(home), name, None)
            except ImportError:
                continue
            if isinstance(found, type) and dataclasses.is_dataclass(found):
                return found
    for choice in _alternatives(hint):
        if isinstance(choice, type) and dataclasses.is_dataclass(choice):
            return choice
    return None


def _coerced(value: str, hint: Any) -> Any:
    torch = importlib.import_module("torch")
    for choice in _alternatives(hint):
        if choice is torch.dtype:
            short = value.removeprefix("torch.")
            found = getattr(torch, _SHORT_DTYPES.get(short, short), None)
            return found if isinstance(found, torch.dtype) else value
        if isinstance(choice, type) and issubclass(choice, enum.Enum) and value in choice.__members__:
            return choice[value]
    return value
