"""Run the commands of a job one after another. Needs Python only.

Beside it: commands.json, a list of argument lists. A command that fails ends the job with its exit code. Ranks that
were made to end early, with a checkpoint, leave the file `ended-early`; the exit code is 75 then (EX_TEMPFAIL).
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

EXIT_SAVED = 75


def main() -> int:
    """Run the commands; return the code of the first one that fails."""
    folder = Path(__file__).resolve().parent
    for name in ("save-and-exit", "ended-early"):
        (folder / name).unlink(missing_ok=True)
    # Who stops the job tells the ranks as well; they save, and this process waits for them.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    for command in json.loads((folder / "commands.json").read_text(encoding="utf-8")):
        code = subprocess.run(command, cwd=folder, check=False).returncode
        if code != 0:
            print(f"skill-run: {' '.join(command[:4])} ... ended with code {code}", flush=True)
            return code if code > 0 else 128 - code
    return EXIT_SAVED if (folder / "ended-early").exists() else 0


if __name__ == "__main__":
    sys.exit(main())
