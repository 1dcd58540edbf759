"""Configs from data: what may be made, what is refused, and what a training environment is not needed for."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from skill_run.launch.entry import entry_config


class Backend(Enum):
    auto = 1
    flash = 2


@dataclass
class Specs:
    pad_seq_to_mult: int = 1


@dataclass
class Section:
    size: int = 0
    backend: Backend = Backend.auto
    specs: Specs | None = None
    options: dict[str, Any] = field(default_factory=dict)
    computed: int = field(default=0, init=False)


@dataclass
class Container:
    model: Section = field(default_factory=Section)


@pytest.fixture(autouse=True)
def megatron(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the classes of this file where those of Megatron are."""
    module = ModuleType("megatron.shown")
    vars(module).update(Section=Section, Specs=Specs, Backend=Backend, system=print)
    monkeypatch.setitem(sys.modules, "megatron", ModuleType("megatron"))
    monkeypatch.setitem(sys.modules, "megatron.shown", module)
    for kind in (Section, Specs, Backend):
        monkeypatch.setattr(kind, "__module__", "megatron.shown")


def test_nested_values_reach_the_objects_that_are_there() -> None:
    config = Container()
    entry_config.lay_over(config, {"model": {"size": 3, "backend": "flash", "options": {"a": 1}}})
    assert (config.model.size, config.model.backend, config.model.options) == (3, Backend.flash, {"a": 1})


def test_a_mapping_becomes_the_class_that_the_field_is_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(entry_config._hints.__wrapped__.__globals__, "_hints", lambda cls: {"specs": Specs | None})
    config = Container()
    entry_config.set_field(config, "model.specs", {"pad_seq_to_mult": 4})
    assert config.model.specs == Specs(4)


def test_a_dump_is_made_again_without_its_computed_fields() -> None:
    made = entry_config.make(
        {
            "_target_": "megatron.shown.Section",
            "size": 2,
            "computed": 9,
            "backend": {"_target_": "megatron.shown.Backend", "_call_": True, "_args_": [2], "_name_": "flash"},
            "specs": {"_target_": "megatron.shown.Specs", "pad_seq_to_mult": 8},
        },
        "model",
    )
    assert (made.size, made.computed, made.backend, made.specs) == (2, 0, Backend.flash, Specs(8))


@pytest.mark.parametrize(
    "target", ["os.system", "megatron.shown.system", "builtins.eval", "torch.load", "megatron.nowhere.Thing", 5]
)
def test_what_is_no_config_class_of_megatron_is_never_called(
    target: object, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(entry_config.ConfigError):
        entry_config.lay_over(Container(), {"model": {"specs": {"_target_": target, "size": 1}}})
    assert capsys.readouterr().out == ""


def test_a_field_that_the_release_lacks_is_named() -> None:
    with pytest.raises(entry_config.ConfigError, match=r"model\.sise is set, but Section of this .* has no field sise"):
        entry_config.lay_over(Container(), {"model": {"sise": 1}})
    with pytest.raises(
        entry_config.ConfigError, match=r"model\.sise: Section of this Megatron-Bridge has no field sise"
    ):
        entry_config.make({"_target_": "megatron.shown.Section", "sise": 1}, "model")


def test_a_setting_below_nothing_is_told(tmp_path: Path) -> None:
    with pytest.raises(entry_config.ConfigError, match=r"model\.specs\.pad_seq_to_mult cannot be set: .* no specs"):
        entry_config.set_field(Container(), "model.specs.pad_seq_to_mult", 4)
