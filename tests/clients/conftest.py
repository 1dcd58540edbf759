"""Real assistants' command lines, the bundle as it is shipped, and a home of its own for each test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import install_clients

ROOT = Path(__file__).parents[2]
NOT_SHIPPED = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "dist", "tests")
SECONDS = 120

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def commands() -> tuple[Path, Path]:
    """The folders of the clients' commands and of Node."""
    try:
        return install_clients.install()
    except install_clients.CannotInstallError as error:
        pytest.skip(f"the clients cannot be installed: {error}")


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is shipped, since some clients write beside what they read."""
    return Path(shutil.copytree(ROOT, tmp_path_factory.mktemp("bundle") / "skill-run", ignore=NOT_SHIPPED))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The folder that the clients work in."""
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home folder of the clients."""
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def run(commands: tuple[Path, Path], home: Path, project: Path) -> Run:
    """Return a function that runs a client's command; keywords are further variables of its environment."""
    environment = {
        "HOME": str(home),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), str(commands[1]), "/usr/bin", "/bin"]),
        "DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        # The server is there before the first turn, and its tools are offered as they are.
        "MCP_CONNECTION_NONBLOCKING": "0",
        "MCP_TIMEOUT": "60000",
        "ENABLE_TOOL_SEARCH": "false",
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
    }

    def call(name: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(commands[0] / name), *arguments],
            cwd=project,
            env={**environment, **more},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    return call
