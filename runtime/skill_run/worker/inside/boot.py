"""Entry of every worker process: `python -s -P boot.py TASK`, with the request as one JSON line on standard input.

Makes `skill_run` importable without installing it and without running its `__init__`, so that none of the tool's
dependencies is needed here.
"""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path

# Names a folder with another release's packages, which come before those of the environment.
RELEASE_ENVIRONMENT = "SKILL_RUN_RELEASE"

package = types.ModuleType("skill_run")
package.__path__ = [str(Path(__file__).resolve().parents[2])]
sys.modules["skill_run"] = package
if os.environ.get(RELEASE_ENVIRONMENT):
    sys.path.insert(0, os.environ[RELEASE_ENVIRONMENT])


def main() -> int:
    """Run the task that the command line names; return the exit code."""
    from skill_run.worker.inside.serve import serve

    return serve(sys.argv[1])


# Processes that torch spawns import this file again under another name: they need the package and no second task.
if __name__ == "__main__":
    sys.exit(main())
