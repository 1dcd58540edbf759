"""What the tests of the forms share: their helpers are importable, and each release's packages can be read."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from skill_run.errors import MissingError
from skill_run.worker.environments import FOLDER_ENVIRONMENT, Worker
from skill_run.worker.releases import prepare_release

sys.path.insert(0, str(Path(__file__).parent))

from release_syntax import Wheel


def cache_folder() -> Path:
    """Return the folder that keeps what tests fetch between runs."""
    spec = importlib.util.spec_from_file_location("install_torch", Path(__file__).parents[2] / "install_torch.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder: Path = module.cache_folder()
    return folder


@pytest.fixture(scope="session", params=("0.3.1", "0.4.2", "0.5.1", "0.6.2"))
def release(request: pytest.FixtureRequest, bridge_worker: Worker) -> tuple[str, Wheel]:
    """A release with its packages: the worker's own, or wheels that are fetched into the tests' cache folder."""
    bridge: str = request.param
    if bridge == bridge_worker.bridge:
        code = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
        done = subprocess.run([*bridge_worker.command, "-I", "-c", code], capture_output=True, text=True, check=True)
        return bridge, Wheel(Path(done.stdout.strip()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_ENVIRONMENT, str(cache_folder() / "workers"))
        try:
            return bridge, Wheel(prepare_release(bridge_worker, bridge))
        except MissingError as error:
            pytest.skip(f"the wheels of Megatron-Bridge {bridge} cannot be had, so its names are not checked: {error}")
