"""Console blocks of hand-written pages, whose output is that of the command as it runs now.

A block opens with "```console generated". Lines that begin with `$ ` are commands, run in docs/training/examples; what
a command prints stands below it. Only `skill-run` commands are run, without a shell.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
EXAMPLES: Final = ROOT / "docs" / "training" / "examples"
PAGES: Final = "docs/training/*.md"
_BLOCK: Final = re.compile(r"^(```console generated\n)(.*?)^(```)$", re.DOTALL | re.MULTILINE)
_LIMIT_SECONDS: Final = 60


def refreshed(text: str) -> str:
    """Return a page with the output of its generated console blocks as it is now."""
    return _BLOCK.sub(lambda block: block[1] + _session(block[2]) + block[3], text)


def stale_consoles() -> dict[Path, str]:
    """Return the pages whose generated blocks are out of date: path -> text as it should be."""
    found: dict[Path, str] = {}
    for path in sorted(ROOT.glob(PAGES)):
        text = path.read_text("utf-8")
        fresh = refreshed(text)
        if fresh != text:
            found[path] = fresh
    return found


def _session(block: str) -> str:
    commands = [line for line in block.splitlines() if line.startswith("$ ")]
    # What the commands of one block write is there for those that follow, and nowhere else.
    with tempfile.TemporaryDirectory() as scratch:
        return "".join(f"{line}\n{_output(line[2:], Path(scratch))}" for line in commands)


def _output(line: str, scratch: Path) -> str:
    words = shlex.split(line)
    if words[:1] != ["skill-run"]:
        raise SystemExit(f"a generated console block may only run skill-run, not: {line}")
    words = [word.replace("/tmp/", f"{scratch}/") for word in words[1:]]
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONUTF8": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "skill_run.cli", *words],
        cwd=EXAMPLES,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_LIMIT_SECONDS,
        check=False,
    )
    told = (done.stdout + done.stderr).replace(f"{scratch}/", "/tmp/")
    lines = [text.rstrip() for text in told.splitlines()]
    return "".join(f"{text}\n" for text in lines)
