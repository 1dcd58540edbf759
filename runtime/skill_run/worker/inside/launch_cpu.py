"""Start a job on CPUs: `python launch_cpu.py FOLDER prepare|ranks|rank [RANKS]`, in a worker's interpreter.

The same entry script runs as on GPUs; what is installed around it here is the CPU layer.
"""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> int:
    """Make `skill_run` importable as boot.py does, and run what is asked for."""
    # torchrun puts this folder on the path, where short names of ours could hide those of others.
    sys.path[:] = [entry for entry in sys.path if entry and Path(entry).resolve() != HERE]
    package = types.ModuleType("skill_run")
    package.__path__ = [str(HERE.parents[1])]
    sys.modules["skill_run"] = package
    from skill_run.worker.inside.launch_ranks import run

    folder = Path(sys.argv[1])
    scratch = folder / "prepared"
    scratch.mkdir(exist_ok=True)
    os.environ["SKILL_RUN_SCRATCH"] = str(scratch)
    return run(folder, sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 1)


# Processes that torch spawns import this file again under another name.
if __name__ == "__main__":
    sys.exit(main())
