"""Entry of every worker process: `python -s -P boot.py TASK`, with the request as one JSON line on standard input.

Makes `skill_run` importable without installing it and without running its `__init__`, so that none of the tool's
dependencies is needed here.
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path


def main() -> int:
    """Run the task that the command line names; return the exit code."""
    package = types.ModuleType("skill_run")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]
    sys.modules["skill_run"] = package
    serve = importlib.import_module("skill_run.worker.inside.serve")
    return int(serve.serve(sys.argv[1]))


# Processes that torch spawns import this file again under another name.
if __name__ == "__main__":
    sys.exit(main())
