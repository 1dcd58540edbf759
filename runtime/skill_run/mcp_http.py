"""The MCP server over streamable HTTP: where it listens, who may call it, and how it ends."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from types import FrameType
from typing import Any, Final

import anyio
import uvicorn
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings
from mcp.types import CallToolResult, InputRequiredResult

from skill_run import validate_config
from skill_run.errors import EXIT_CLEAN, InputError
from skill_run.mcp_door import PATH, Door, transport_security
from skill_run.mcp_limits import Limits
from skill_run.mcp_server import SkillRunServer
from skill_run.mcp_token import Token, default_token_file, make_token
from skill_run.mcp_wire import LimitedConfig
from skill_run.report.safe import clip, printable
from skill_run.roots import Roots

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8765
_HIGHEST_PORT: Final = 65535
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*|[0-9A-Fa-f:.]+")
_SHOWN: Final = 100


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """How to serve: the address, further names for it, the token's file (None: the user's own), and limits."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    allowed_hosts: tuple[str, ...] = ()
    token_file: Path | None = None
    limits: Limits = field(default_factory=Limits)


class HttpServer(SkillRunServer):
    """The server whose calls have a time limit, and which knows how many are running."""

    def __init__(self, roots: Roots, python: str | Path | None, limits: Limits) -> None:
        super().__init__(roots, python)
        self.limits = limits
        self.running = 0

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Call a tool; ToolError also when it takes too long, or when too many run whose clients have gone away."""
        if self.running >= self.limits.requests:
            raise ToolError(f"the server already runs {self.running} calls; try again later")
        self.running += 1
        try:
            with anyio.move_on_after(self.limits.answer_seconds):
                return await super().call_tool(name, arguments, context)
            raise ToolError(f"{printable(clip(name, _SHOWN))} took longer than {self.limits.answer_seconds:g} seconds")
        finally:
            self.running -= 1


def serve(roots: Sequence[Path], options: HttpOptions, python: str | Path | None = None) -> None:
    """Serve over HTTP until the process is told to stop, which is a clean end; nothing is printed on stdout.

    python: as for create_server. Raises InputError for an address that cannot be had, a token file that cannot be used,
    and a root that is not a folder.
    """
    allowed = tuple(map(_host_name, options.allowed_hosts))
    # The address comes first: it is what is wrong most often, and nothing has been written yet.
    listener = _listen(options.host, options.port)
    with listener, redirect_stdout(sys.stderr):
        path = options.token_file or default_token_file()
        if not path.exists():
            _make_first_token(path, listener, options.host)
        token = Token(path)
        server = HttpServer(Roots(roots), python, options.limits)
        security = transport_security([*_names(listener, options.host), *allowed])
        if not _is_local(listener):
            _tell(
                f"warning: other machines can reach {options.host}, and tokens and answers travel unencrypted; "
                "an SSH tunnel to a server on 127.0.0.1 is safer"
            )
        anyio.run(_serve, server, token, security, listener)


async def _serve(
    server: HttpServer, token: Token, security: TransportSecuritySettings, listener: socket.socket
) -> None:
    limits = server.limits
    # Many first calls at once would each compile the rules for themselves.
    validate_config({"model": {}})
    server.streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=limits.body,
        session_idle_timeout=limits.idle_seconds,
        max_sessions=limits.sessions,
        transport_security=security,
    )
    # What others send wrongly is told to them, and would fill the log.
    for name in ("mcp", "uvicorn", "sse_starlette"):
        logging.getLogger(name).setLevel(logging.ERROR)
    manager = server.session_manager
    door = Door(manager.handle_request, token, security, limits)
    listening = _Listening(LimitedConfig(door, limits), f"MCP server at {_url(listener)}; token in {token.path}")
    told = _stop_signal()
    async with manager.run(), anyio.create_task_group() as group:
        group.start_soon(_stop_when, told, door, listening)
        await listening.serve(sockets=[listener])
        group.cancel_scope.cancel()
        if server.running:
            # Nobody waits for these calls any more, and a tool's thread cannot be cancelled.
            sys.stderr.flush()
            os._exit(EXIT_CLEAN)


class _Listening(uvicorn.Server):
    """uvicorn's server, which says when it is ready and leaves the signals to us.

    Its own handling of signals would cut the answers of calls in progress at once.
    """

    def __init__(self, config: LimitedConfig, ready: str) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        _tell(self._ready)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Capture none."""
        yield


def _stop_signal() -> anyio.Event:
    """Return what is set by the first signal to stop; the second one ends the process."""
    told = anyio.Event()
    loop = asyncio.get_running_loop()

    def note(number: int, frame: FrameType | None) -> None:
        if told.is_set():
            os._exit(EXIT_CLEAN)
        loop.call_soon_threadsafe(told.set)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)
    return told


async def _stop_when(told: anyio.Event, door: Door, listening: _Listening) -> None:
    await told.wait()
    await door.drain()
    listening.should_exit = True


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; InputError when there can be none."""
    shown = printable(clip(host, _SHOWN))
    if not 0 <= port <= _HIGHEST_PORT:
        raise InputError(f"{port} is no port; one lies between 1 and {_HIGHEST_PORT}, and 0 takes any free one")
    try:
        found = socket.getaddrinfo(host or "?", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise InputError(f"the host '{shown}' cannot be found; give a name or an address of this machine") from error
    family, _, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    try:
        return socket.create_server(address, family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InputError(f"port {port} of {shown} is taken; choose another one with --port") from error
        if error.errno == errno.EADDRNOTAVAIL:
            raise InputError(f"{shown} is no address of this machine") from error
        raise InputError(f"port {port} of {shown} cannot be used: {error.strerror}") from error


def _address(listener: socket.socket) -> IPv4Address | IPv6Address:
    return ip_address(str(listener.getsockname()[0]).partition("%")[0])


def _is_local(listener: socket.socket) -> bool:
    return _address(listener).is_loopback


def _names(listener: socket.socket, host: str) -> list[str]:
    """Return the names by which clients may call the server; any that lead here by a tunnel are among them."""
    address = _address(listener)
    names = [*_LOOPBACK]
    if not address.is_unspecified:
        names += [host, str(address)]
    if not address.is_loopback:
        names.append(socket.gethostname())
    return list(dict.fromkeys(names))


def _url(listener: socket.socket) -> str:
    address, port = _address(listener), listener.getsockname()[1]
    host = f"[{address}]" if isinstance(address, IPv6Address) else str(address)
    return f"http://{socket.gethostname() if address.is_unspecified else host}:{port}{PATH}"


def _host_name(text: str) -> str:
    name = text.removeprefix("[").removesuffix("]")
    if not _HOST_NAME.fullmatch(name):
        raise InputError(f"'{printable(clip(text, _SHOWN))}' is no host name; give it without a port, such as node7")
    return name


def _make_first_token(path: Path, listener: socket.socket, host: str) -> None:
    if not _is_local(listener):
        raise InputError(
            f"{host} is open to other machines, so a token must be there before it is served: there is none in {path}; "
            "make one with --rotate-token"
        )
    make_token(path, replace=False)


def _tell(sentence: str) -> None:
    print(f"skill-run: {sentence}", file=sys.stderr, flush=True)
