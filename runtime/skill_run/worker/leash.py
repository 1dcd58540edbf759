"""Run a command that ends with its starter, and so does all that it started: `python -I leash.py COMMAND...`.

The starter puts it into a session of its own and keeps a pipe to its standard input open: when that is closed, however
the starter ended, the whole session is killed. Needs nothing but the standard library.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading


def main(command: list[str]) -> int:
    """Run the command; return its exit code, 127 when it cannot be started."""
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode & 0xFF
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127


def _end_with_standard_input() -> None:
    while os.read(0, 2**10):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    # Not the end of the interpreter, which would wait for the thread.
    os._exit(main(sys.argv[1:]))
