"""Install pinned assistants' command lines once, into a cache folder outside the clone.

`python tests/clients/install_clients.py` prints the folder of their commands. Node comes with the MCP Inspector's
installation; packages come from the registries that pip and npm are set up for.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import install_inspector
from install_inspector import CannotInstallError

CLIENTS = {
    "@anthropic-ai/claude-code": "2.1.332",
    "@openai/codex": "0.171.0",
    "@google/gemini-cli": "0.61.0",
    "skills": "1.7.4",
}


def install() -> tuple[Path, Path]:
    """Return the folders of the clients' commands and of Node; CannotInstallError when they cannot be had."""
    node = Path(install_inspector.install()[0])
    names = "-".join(f"{package.rpartition('/')[2]}-{version}" for package, version in CLIENTS.items())
    folder = install_inspector.cache_folder() / names
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="installing-") as temporary:
            _fetch(node, Path(temporary, "done"))
            try:
                Path(temporary, "done").rename(folder)
            except OSError:
                if not folder.is_dir():  # otherwise another run was faster
                    raise
    return folder / "node_modules" / ".bin", node.parent


def _fetch(node: Path, folder: Path) -> None:
    npm = next(node.parents[1].glob("**/npm/bin/npm-cli.js"), None)
    if npm is None:
        raise CannotInstallError("the installed Node has no npm")
    packages = [f"{package}@{version}" for package, version in CLIENTS.items()]
    options = ["--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(folder)]
    # Packages with install scripts call `node` by its name.
    path = f"PATH={node.parent}:/usr/bin:/bin"
    install_inspector._run(["env", path, str(node), str(npm), "install", *options, *packages])


if __name__ == "__main__":
    try:
        print(install()[0])
    except CannotInstallError as error:
        sys.exit(f"cannot install the clients: {error}")
