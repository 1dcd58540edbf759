"""What tests of several folders share: interpreters with torch and Megatron, which the tool itself never imports."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from skill_run.errors import MissingError
from skill_run.worker.environments import FOLDER_ENVIRONMENT, Worker, read_worker, workers_folder
from skill_run.worker.install import setup_worker


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


@pytest.fixture(scope="session")
def core_worker() -> Worker:
    """Worker with Megatron-Core 0.16.1; the test is skipped where it can neither be found nor built."""
    return ready_worker("core-0.16.1")


@pytest.fixture(scope="session")
def bridge_worker() -> Worker:
    """Worker with Megatron-Bridge 0.6.2; the test is skipped where it can neither be found nor built."""
    return ready_worker("cpu-0.6.2")


def ready_worker(name: str) -> Worker:
    """Return a worker of the user, else the one in the cache folder of the tests."""
    found = read_worker(workers_folder() / name)
    if found is not None:
        return found
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_ENVIRONMENT, str(load_installer().cache_folder() / "workers"))
        try:
            return setup_worker(name)
        except MissingError as error:
            pytest.skip(f"worker {name} is not set up and cannot be built: {error}")
