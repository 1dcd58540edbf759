"""See from a pipe whether a process that inherited its other end is still there."""

from __future__ import annotations

import os
import select

# A process that is being ended has this long, in seconds; the test fails then, and does not hang.
PATIENCE = 60.0


def is_closed(reader: int) -> bool:
    """Return whether no process holds the pipe's other end any more; waits for one that is being ended."""
    ready, _, _ = select.select([reader], [], [], PATIENCE)
    return bool(ready) and os.read(reader, 1) == b""
