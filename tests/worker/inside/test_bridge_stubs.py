"""Stand-ins for packages that Bridge imports unconditionally: only Bridge sees them, and none of them can be used."""

from __future__ import annotations

import abc
import builtins
from collections.abc import Callable
from typing import Any

import pytest

from skill_run.worker.inside import bridge_stubs
from skill_run.worker.inside.bridge_stubs import StandIn, StandInError

Importer = Callable[[str, str], dict[str, Any]]


@pytest.fixture
def run_in(monkeypatch: pytest.MonkeyPatch) -> Importer:
    """Run statements as a module of the given name, with stand-ins for packages that are missing here."""
    monkeypatch.setattr(bridge_stubs, "_installed", [])
    monkeypatch.setattr(builtins, "__import__", builtins.__import__)
    bridge_stubs.install()

    def run(module: str, code: str) -> dict[str, Any]:
        names: dict[str, Any] = {"__name__": module}
        exec(compile(code, module, "exec"), names)
        return names

    return run


def test_a_module_of_bridge_can_import_what_is_missing(run_in: Importer) -> None:
    code = "import modelopt.torch.distill as mtd\nfrom nvidia_resiliency_ext.inprocess import CallWrapper"
    found = run_in("megatron.bridge.training.gpt_step", code)
    assert issubclass(found["CallWrapper"], StandIn)
    assert found["mtd"].__name__ == "modelopt.torch.distill"


@pytest.mark.parametrize("module", ["megatron.core.utils", "megatron.bridgework", "transformers.utils"])
def test_other_modules_still_see_that_it_is_missing(run_in: Importer, module: str) -> None:
    with pytest.raises(ModuleNotFoundError):
        run_in(module, "import transformer_engine")


def test_a_missing_package_of_another_name_stays_missing_in_bridge(run_in: Importer) -> None:
    with pytest.raises(ModuleNotFoundError):
        run_in("megatron.bridge.models", "import package_that_nobody_has")


def test_a_stand_in_can_be_subclassed_with_parameters_and_mixed_with_abstract_classes(run_in: Importer) -> None:
    base = run_in("megatron.bridge.data", "from megatron.energon import DefaultTaskEncoder")["DefaultTaskEncoder"]

    class Mixed(base[int, str], abc.ABC):  # type: ignore[misc]
        pass

    assert issubclass(Mixed, base)
    assert not isinstance(3, base)


def test_a_stand_in_is_refused_by_name_when_it_is_made_or_called(run_in: Importer) -> None:
    code = "import transformer_engine.pytorch as te"
    engine = run_in("megatron.bridge.peft.lora_layers", code)["te"]
    with pytest.raises(StandInError, match=r"transformer_engine\.pytorch\.Linear is not installed"):
        engine.Linear(4, 4)
    with pytest.raises(StandInError, match=r"transformer_engine\.pytorch\.fp8_autocast is not installed"):
        engine.fp8_autocast(enabled=True)


def test_decorators_of_energon_leave_functions_as_they_are(run_in: Importer) -> None:
    code = "from megatron.energon.task_encoder.base import stateless"
    stateless = run_in("megatron.bridge.data", code)["stateless"]

    def cook() -> int:
        return 1

    assert stateless(cook) is cook
    assert stateless(restore_seeds=True)(cook) is cook


def test_installing_twice_changes_nothing(run_in: Importer) -> None:
    hooked = builtins.__import__
    assert "modelopt" in bridge_stubs.install()
    assert builtins.__import__ is hooked
