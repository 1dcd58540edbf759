"""What the HTTP server allows one client, and all of them together: numbers only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the HTTP server: sizes in bytes, times in seconds."""

    body: int = 8 * 2**20
    """Largest request. A config of the largest size that is read fits in, even when JSON has to escape much of it."""
    head: int = 16 * 2**10
    """Largest request line and headers together."""
    connections: int = 800
    """Open connections; below the 1024 files that a process may usually have open."""
    requests: int = 400
    """Requests that are being answered, streams aside."""
    session_requests: int = 16
    """Requests of one session that are being answered, streams aside."""
    sessions: int = 1000
    """Open sessions of clients that still open one."""
    head_seconds: float = 10
    """Time for the headers to come."""
    body_seconds: float = 60
    """Time for the body to come."""
    answer_seconds: float = 600
    """Time for a tool to answer; whatever takes longer is a job."""
    write_seconds: float = 60
    """Time for which a client may take nothing of an answer that waits for it."""
    keep_alive_seconds: float = 30
    """Time for which a connection may rest between two requests."""
    idle_seconds: float = 30 * 60
    """Time after which a session without any request is closed."""
    stream_seconds: float = 60 * 60
    """Longest life of a stream for messages that no request asked for; a client opens it again."""
    grace_seconds: float = 10
    """Time for calls to finish when the server is told to stop."""
