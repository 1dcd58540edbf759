"""Find an interpreter with torch for the tests, or make one once, in a cache folder outside the clone.

`python tests/install_torch.py` prints its path. $SKILL_RUN_TEST_TORCH_PYTHON names one that is there already; the
folder is $SKILL_RUN_TEST_CACHE, or the user's cache folder. torch comes from the registry that pip is set up for.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ENVIRONMENT = "SKILL_RUN_TEST_TORCH_PYTHON"
TORCH_VERSION = "2.13.0"
TIMEOUT_SECONDS = 1800


class CannotInstallError(Exception):
    """There is no interpreter with torch and none can be made; the text says why."""


def cache_folder() -> Path:
    """Return the folder that keeps test tools between runs."""
    given = os.environ.get("SKILL_RUN_TEST_CACHE")
    if given:
        return Path(given).resolve()
    from platformdirs import user_cache_path

    return user_cache_path("skill-run", appauthor=False) / "test-tools"


def install() -> str:
    """Return the path of an interpreter that imports torch; CannotInstallError when there can be none."""
    given = os.environ.get(ENVIRONMENT)
    if given:
        _check(given)
        return given
    folder = cache_folder() / f"torch-{TORCH_VERSION}-numpy-py{sys.version_info.major}.{sys.version_info.minor}"
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not (folder / "ready").is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        # A virtual environment cannot be moved, so it is made in place and marked when it is complete.
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        _run([*pip, f"torch=={TORCH_VERSION}", "numpy"])
        _check(str(python))
        (folder / "ready").touch()
    return str(python)


def _check(python: str) -> None:
    _run([python, "-c", "import torch"])


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotInstallError(f"{command[0]} did not run: {error}") from error
    if done.returncode != 0:
        last = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()][-3:]
        raise CannotInstallError(f"{' '.join(command[-2:])}: {' / '.join(last)}")


if __name__ == "__main__":
    try:
        print(install())
    except CannotInstallError as error:
        sys.exit(f"there is no interpreter with torch: {error}")
