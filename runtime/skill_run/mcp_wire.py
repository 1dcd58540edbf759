"""HTTP connections that cannot be held open for nothing: uvicorn's protocol with limits on time and size."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from skill_run.mcp_limits import Limits

# JSON-RPC: a request that is none, and the first code that is left to servers.
_INVALID_REQUEST: Final = -32600
_SERVER_ERROR: Final = -32000
_SERVER_FAULTS: Final = 500
# A time of 0 for unsent bytes: on, and no seconds.
_AT_ONCE: Final = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)


def error_body(status: int, sentence: str) -> bytes:
    """Return the body of a refusal: a JSON-RPC error with one sentence, which MCP clients show to their users."""
    code = _SERVER_ERROR if status >= _SERVER_FAULTS or status == HTTPStatus.TOO_MANY_REQUESTS else _INVALID_REQUEST
    return json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": sentence}}).encode("ascii")


class LimitedConfig(uvicorn.Config):
    """uvicorn's configuration for LimitedProtocol: quiet, HTTP only, and with limits."""

    def __init__(self, app: Any, limits: Limits) -> None:
        super().__init__(
            app,
            http=LimitedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=limits.head,
            timeout_keep_alive=int(limits.keep_alive_seconds),
            # Calls have had their time to finish before; this is for connections to close.
            timeout_graceful_shutdown=1,
        )
        self.limits = limits


class LimitedProtocol(H11Protocol):
    """A connection whose client must send its headers in time, and take what is sent to it in time."""

    def __init__(self, config: uvicorn.Config, *arguments: Any, **more: Any) -> None:
        super().__init__(config, *arguments, **more)
        assert isinstance(config, LimitedConfig)
        self.limits = config.limits
        self._head_alarm = _Alarm(self.loop)
        self._write_alarm = _Alarm(self.loop)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuse the connection when there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "the server has too many open connections; try again later")
        else:
            self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Take bytes of a request."""
        super().data_received(data)
        self._watch_head()

    def on_response_complete(self) -> None:
        """Go on to the next request, of which some may be there."""
        super().on_response_complete()
        if self.conn.trailing_data[0]:
            self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._head_alarm.stop()
        self._write_alarm.stop()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Note that the client takes nothing, and give it some time."""
        super().pause_writing()
        self._write_alarm.start(self.limits.write_seconds, self._reset)

    def resume_writing(self) -> None:
        """Note that the client takes bytes again."""
        self._write_alarm.stop()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP request."""
        size = f"{self.limits.head // 1024} KiB"
        self._refuse(HTTPStatus.BAD_REQUEST, f"this is no HTTP/1.1 request, or its headers are larger than {size}")

    def _watch_head(self) -> None:
        """Have the timer run while a request's headers are awaited, and only then."""
        if self._awaits_head():
            self._head_alarm.start(self.limits.head_seconds, self._head_is_late)
        else:
            self._head_alarm.stop()

    def _awaits_head(self) -> bool:
        return not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete)

    def _head_is_late(self) -> None:
        if not self._awaits_head():
            return
        if self.conn.trailing_data[0] and self.conn.our_state is h11.IDLE:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, "the headers of the request did not come in time")
        else:
            self.transport.close()

    def _reset(self) -> None:
        """Close, and have the system forget what it could not send either."""
        found = self.transport.get_extra_info("socket")
        if found is not None:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        self.transport.abort()

    def _refuse(self, status: HTTPStatus, sentence: str) -> None:
        """Answer without asking the application, and close."""
        body = error_body(status, sentence)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode("ascii")),
            (b"connection", b"close"),
        ]
        answer: list[h11.Event] = [
            h11.Response(status_code=status, headers=headers, reason=status.phrase.encode("ascii")),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ]
        for event in answer:
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class _Alarm:
    """A call that comes later, unless it is stopped before."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None

    def start(self, seconds: float, call: Callable[[], None]) -> None:
        """Have `call` come in so many seconds, if nothing is on its way yet."""
        if self._handle is None:
            self._handle = self._loop.call_later(seconds, self._ring, call)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _ring(self, call: Callable[[], None]) -> None:
        self._handle = None
        call()
