"""Run the commands of a job one after another; the last one takes the place of this process. Needs Python only.

Beside it: commands.json, a list of argument lists. A command that fails ends the job with its exit code.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def main() -> int:
    """Run the commands; return the code of the first one that fails."""
    folder = Path(__file__).resolve().parent
    *first, last = json.loads((folder / "commands.json").read_text(encoding="utf-8"))
    (folder / "save-and-exit").unlink(missing_ok=True)
    for command in first:
        code = subprocess.run(command, cwd=folder, check=False).returncode
        if code != 0:
            print(f"skill-run: {' '.join(command[:3])} ended with code {code}; the ranks are not started", flush=True)
            return code if code > 0 else 128 - code
    sys.stdout.flush()
    os.chdir(folder)
    os.execvp(last[0], last)


if __name__ == "__main__":
    sys.exit(main())
