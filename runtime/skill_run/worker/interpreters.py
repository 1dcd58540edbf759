"""Find a Python of one version on this machine, to build a worker with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from skill_run.errors import InputError, MissingError
from skill_run.report.safe import clip, flow

# What a Python must have to make an environment that pip is in; Debian ships it without ensurepip.
_QUESTION: Final = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2], sys.executable, sep='\\n')"
_SECONDS: Final = 60.0
_DOWNLOAD_SECONDS: Final = 600.0


def find_python(version: str) -> str:
    """Return the absolute path of a Python of `version`, such as "3.11".

    Looks at this process's own, at PATH, at pyenv's, and at last lets uv bring one, where uv is installed. Raises
    MissingError when there is none.
    """
    for candidate in _candidates(version):
        found = _usable(candidate, version)
        if found is not None:
            return found
    found = _uv_python(version)
    if found is None:
        raise MissingError(
            f"Python {version} with its venv module is not on PATH or in pyenv; install it (python{version} and "
            f"python{version}-venv), or install uv, which brings one"
        )
    return found


def own_path(program: str) -> str:
    """Return the path that an interpreter gives itself, so that pyenv's stand-ins and links on PATH are left behind.

    InputError when the program is no Python.
    """
    found = _output([program, "-I", "-c", "import sys; print(sys.executable)"], _SECONDS, dict(os.environ))
    if not found or not Path(found).is_file():
        raise InputError(f"{clip(flow(program), 200)} is not a Python interpreter that can be run")
    return found


def _candidates(version: str) -> Iterator[str]:
    yield sys.executable
    on_path = shutil.which(f"python{version}")
    if on_path is not None:
        yield on_path
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    releases = (path for path in root.glob(f"{version}.*") if path.name.removeprefix(f"{version}.").isdigit())
    for release in sorted(releases, key=lambda path: int(path.name.rpartition(".")[2]), reverse=True):
        yield str(release / "bin" / "python")


def _usable(candidate: str, version: str) -> str | None:
    """Return the path that a candidate gives itself when it is of the version and can make environments."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    said = _output([candidate, "-I", "-c", _QUESTION], _SECONDS, environment)
    lines = said.splitlines() if said else []
    return lines[1] if len(lines) == 2 and lines[0] == version else None


def _uv_python(version: str) -> str | None:
    """Return a Python that uv has or downloads."""
    said = _uv(["python", "find", version])
    if said is None and _uv(["python", "install", version]) is not None:
        said = _uv(["python", "find", version])
    return _usable(said, version) if said else None


def _uv(arguments: list[str]) -> str | None:
    uv = shutil.which("uv")
    return _output([uv, *arguments], _DOWNLOAD_SECONDS, dict(os.environ)) if uv is not None else None


def _output(command: list[str], seconds: float, environment: dict[str, str]) -> str | None:
    """Return what a command prints, or None when it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, env=environment, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
