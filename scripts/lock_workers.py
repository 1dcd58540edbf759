"""Write a worker's lock: one pinned file a line, with its SHA-256 and its size.

    python3.12 scripts/lock_workers.py LIST runtime/skill_run/worker/locks/cpu-0.6.2.lock

LIST holds `name==version` lines: what `pip freeze` says in an environment that works, or the lock as it is now with
versions changed; a file that is no wheel is marked `source`. The files come from the indexes that pip is set up for; a
lock names no index. Run it with the Python that the worker has, on x86-64 Linux, in an environment with pip 25.1 or
newer and setuptools.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HEADER = "# Written by scripts/lock_workers.py for Python {python} on x86-64 Linux. Installed with --no-deps.\n"


def requirements(text: str) -> list[str]:
    """Return the `name==version` of each line, without hashes and comments."""
    words = (line.split("#")[0].split() for line in text.splitlines())
    return [line[0] for line in words if line]


def lock_line(requirement: str, folder: Path) -> str:
    """Return the line of one requirement, whose only file lies in the folder."""
    (path,) = folder.iterdir()
    with open(path, "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    source = "" if path.suffix == ".whl" else " source"
    return f"{requirement} --hash=sha256:{digest}  # bytes={path.stat().st_size}{source}"


def download(requirement: str, folder: Path) -> None:
    """Download the one file that pip chooses for a requirement."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--dest", str(folder), requirement], check=True)


def main() -> None:
    """Write the lock."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", type=Path)
    parser.add_argument("lock", type=Path)
    arguments = parser.parse_args()
    lines = []
    for requirement in requirements(arguments.list.read_text(encoding="utf-8")):
        with tempfile.TemporaryDirectory() as folder:
            download(requirement, Path(folder))
            lines.append(lock_line(requirement, Path(folder)))
    lines.sort(key=lambda line: re.split("==", line)[0].lower().replace("_", "-"))
    header = HEADER.format(python=".".join(map(str, sys.version_info[:2])))
    arguments.lock.write_text(header + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
