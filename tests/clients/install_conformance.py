"""Install the pinned MCP conformance suite once, into a cache folder outside the clone.

`python tests/clients/install_conformance.py` prints the command that runs it. Node comes with the MCP Inspector's
installation; packages come from the registries that pip and npm are set up for.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import install_inspector
from install_inspector import CannotInstallError

PACKAGE = "@modelcontextprotocol/conformance"
# The first line of versions that knows the revision of 2026-07-28.
VERSION = "0.2.0-alpha.12"


def install() -> list[str]:
    """Return the command of the suite, after installing it if needed; CannotInstallError when impossible."""
    node = Path(install_inspector.install()[0])
    folder = install_inspector.cache_folder() / f"conformance-{VERSION}"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="installing-") as temporary:
            _fetch(node, Path(temporary, "done"))
            try:
                Path(temporary, "done").rename(folder)
            except OSError:
                if not folder.is_dir():  # otherwise another run was faster
                    raise
    return [str(node), str((folder / "node_modules" / ".bin" / "conformance").resolve())]


def _fetch(node: Path, folder: Path) -> None:
    npm = next(node.parents[1].glob("**/npm/bin/npm-cli.js"), None)
    if npm is None:
        raise CannotInstallError("the installed Node has no npm")
    options = ["--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(folder)]
    path = f"PATH={node.parent}:/usr/bin:/bin"
    install_inspector._run(["env", path, str(node), str(npm), "install", *options, f"{PACKAGE}@{VERSION}"])


if __name__ == "__main__":
    try:
        print(" ".join(install()))
    except CannotInstallError as error:
        sys.exit(f"cannot install the conformance suite: {error}")
