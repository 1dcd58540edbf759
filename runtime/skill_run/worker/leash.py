"""Run a command that ends when its starter does: `python -I leash.py PARENT_PID COMMAND...`.

Needs nothing but the standard library, since it replaces itself by the command at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

_SET_PARENT_DEATH_SIGNAL = 1


def main(arguments: list[str]) -> int:
    """Tie this process to its parent where the system can do that (Linux), then become the command."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    # The parent may have ended before the tie was made.
    if os.getppid() != int(arguments[0]):
        return 1
    try:
        os.execvp(arguments[1], arguments[1:])
    except OSError as error:
        print(f"{arguments[1]}: {error.strerror}", file=sys.stderr)
    return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
