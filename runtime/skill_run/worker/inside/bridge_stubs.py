"""Let `megatron.bridge` import without packages that it imports unconditionally and that need a GPU, or are not used.

The stand-ins are served to importers inside `megatron.bridge` only. Megatron-Core and transformers still see that the
packages are absent, so what they offer without them is what runs.
"""

from __future__ import annotations

import abc
import builtins
import importlib.util
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

# Packages that some release from 0.3.1 to 0.6.2 imports at the top of a module of its training loop, its PEFT or its
# recipes (training/pretrain.py, training/gpt_step.py, peft/lora_layers.py, data/energon/, diffusion/).
STANDABLE: Final = (
    "transformer_engine",
    "transformer_engine_torch",
    "modelopt",
    "nvidia_resiliency_ext",
    "megatron.energon",
    "webdataset",
    "diffusers",
)
# What recipes use while their modules are imported: a class that they instantiate, a decorator with and without
# options. Every other use of a stand-in is refused.
_MADE_ON_IMPORT: Final = frozenset({"Cooker"})
_DECORATORS: Final = frozenset({"stateless"})
_BRIDGE: Final = "megatron.bridge"

_installed: list[tuple[str, ...]] = []


class StandInError(ImportError):
    """Something of a missing package was used, not merely imported."""


class _StandInType(abc.ABCMeta):
    """Metaclass of stand-in classes; it derives from ABCMeta because recipes mix them with abstract classes."""

    def __getattr__(cls, name: str) -> _StandInType:
        if name.startswith("_"):
            raise AttributeError(name)
        made = _stand_in_class(name, cls.__module__)
        setattr(cls, name, made)
        return made


class StandIn(metaclass=_StandInType):
    """Base of every class that stands for one of a missing package: it can be subclassed and asked about, not made."""

    def __init__(self, *_args: object, **_options: object) -> None:
        if type(self).__name__ not in _MADE_ON_IMPORT:
            raise StandInError(f"{type(self).__module__}.{type(self).__name__} is not installed in this worker")

    def __class_getitem__(cls, _parameters: object) -> type[StandIn]:
        """Return the class itself: generic classes are subclassed with their parameters given."""
        return cls


class StandInModule(types.ModuleType):
    """Stands for a module or a function of a missing package: every attribute exists."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made: Any = _stand_in_class(name, self.__name__) if name[0].isupper() else self.child(name)
        setattr(self, name, made)
        return made

    def child(self, name: str) -> StandInModule:
        """Return the stand-in for the module or function `name` in this one."""
        found = self.__dict__.get(name)
        if not isinstance(found, StandInModule):
            found = StandInModule(f"{self.__name__}.{name}")
            setattr(self, name, found)
        return found

    def __call__(self, *values: Any, **options: Any) -> Any:
        """Leave a decorated function as it is; refuse every other call."""
        if self.__name__.rpartition(".")[2] in _DECORATORS:
            return values[0] if values else _unchanged
        raise StandInError(f"{self.__name__} is not installed in this worker")


def _unchanged(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _stand_in_class(name: str, module: str) -> _StandInType:
    return _StandInType(name, (StandIn,), {"__module__": module, "__doc__": f"Stands for {module}.{name}."})


def missing_packages() -> tuple[str, ...]:
    """Return those of STANDABLE that this environment lacks."""
    return tuple(name for name in STANDABLE if not _is_there(name))


def _is_there(name: str) -> bool:
    try:
        return name in sys.modules or importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def install() -> tuple[str, ...]:
    """Serve stand-ins for the missing packages from now on; return the packages. A second call changes nothing."""
    if not _installed:
        missing = missing_packages()
        _installed.append(missing)
        if missing:
            builtins.__import__ = _importer(builtins.__import__, {name: StandInModule(name) for name in missing})
    return _installed[0]


def _importer(ordinary: Callable[..., Any], stand_ins: Mapping[str, StandInModule]) -> Callable[..., Any]:
    """Return an `__import__` that knows the stand-ins when a module of Bridge asks."""

    def import_for(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        if level == 0 and globals is not None and _is_bridge(globals.get("__name__")):
            package = next((known for known in stand_ins if name == known or name.startswith(known + ".")), None)
            # The partition index is served as a module of its own.
            if package is not None and package not in sys.modules:
                return _served(stand_ins[package], name, bool(fromlist))
        return ordinary(name, globals, locals, fromlist, level)

    return import_for


def _is_bridge(importer: object) -> bool:
    return isinstance(importer, str) and (importer == _BRIDGE or importer.startswith(_BRIDGE + "."))


def _served(package: StandInModule, name: str, wants_attributes: bool) -> Any:
    """Return what the import statement binds: the module itself for `from`, the outermost package otherwise."""
    if not wants_attributes:
        outermost = package.__name__.partition(".")[0]
        return package if outermost == package.__name__ else importlib.import_module(outermost)
    found = package
    for part in name[len(package.__name__) :].split(".")[1:]:
        found = found.child(part)
    return found
