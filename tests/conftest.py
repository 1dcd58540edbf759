"""What tests of several folders share: the interpreter with torch, which the package itself never imports."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest


def load_installer() -> Any:
    spec = importlib.util.spec_from_file_location("install_torch", Path(__file__).with_name("install_torch.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def torch_python() -> str:
    """Path of an interpreter that has torch; the test is skipped where none can be made."""
    installer = load_installer()
    try:
        found: str = installer.install()
    except installer.CannotInstallError as error:
        pytest.skip(f"no interpreter with torch can be had: {error}")
    return found
