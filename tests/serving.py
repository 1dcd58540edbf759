"""The HTTP server as a child process on a free port, raw requests to it, and a tool that waits until it is told."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

# Longer than anything here takes: a test that hangs fails.
SECONDS = 60
READY = re.compile(r"skill-run: MCP server at (http://(\S+):(\d+)/mcp); token in (.+)\n")
BOTH = "application/json, text/event-stream"
# The server with limits of the test's own, and with tools that wait for a byte from the test.
SCRIPT = """
import socket, sys
from pathlib import Path
import anyio
from skill_run import mcp_http
from skill_run.mcp_limits import Limits

async def hold(port: int) -> str:
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        return (await stream.receive(1)).decode()

def hold_thread(port: int) -> str:
    with socket.create_connection(("127.0.0.1", port)) as stream:
        return stream.recv(1).decode()

def large() -> str:
    return "x" * 2**20

class Server(mcp_http.HttpServer):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        for tool in (hold, hold_thread, large):
            self.add_tool(tool, structured_output=False)

mcp_http.HttpServer = Server
options = mcp_http.HttpOptions(port=0, token_file=Path(sys.argv[2]), limits=Limits(**eval(sys.argv[3])))
mcp_http.serve([Path(sys.argv[1])], options)
"""


@dataclass
class Server:
    """A server that listens; `err` is what it wrote on standard error before."""

    process: subprocess.Popen[str]
    url: str
    port: int
    token_file: Path
    err: str
    rest: tuple[str, str] = field(default=("", ""))

    @property
    def token(self) -> str:
        return self.token_file.read_text("ascii").strip()

    def headers(self, **more: str) -> dict[str, str]:
        """Return what every good request carries; keywords add headers, with _ for -."""
        usual = {"authorization": f"Bearer {self.token}", "content-type": "application/json", "accept": BOTH}
        return {**usual, **{name.replace("_", "-"): value for name, value in more.items()}}

    def ask(
        self, method: str = "POST", path: str = "/mcp", body: Any = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], str]:
        """Return status, headers and text of the answer to one request over a connection of its own."""
        connection, answer = self.begin(method, path, body, headers)
        with connection_closed(connection):
            return answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read().decode()

    def begin(
        self, method: str = "POST", path: str = "/mcp", body: Any = b"", headers: dict[str, str] | None = None
    ) -> tuple[HTTPConnection, HTTPResponse]:
        """Return the connection and the answer as far as its headers."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data, self.headers() if headers is None else headers)
        return connection, connection.getresponse()

    def open_session(self) -> str:
        """Return the id of a new session of the era that has them."""
        client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        status, headers, text = self.ask(body=message("initialize", client))
        assert status == 200, text
        session = headers["mcp-session-id"]
        ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert self.ask(body=ready, headers=self.headers(mcp_session_id=session))[0] == 202
        return session

    def status_of(self, session: str) -> int:
        """Return the status that a request of a session gets."""
        return self.ask(body=message("ping"), headers=self.headers(mcp_session_id=session))[0]

    def healthy(self) -> bool:
        return self.ask("GET", "/healthz", headers={})[0] == 200

    def ends(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code; `rest` holds what was still written."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        out, err = self.process.communicate(timeout=SECONDS)
        self.rest = (out, err)
        return self.process.returncode

    def resident(self) -> int:
        """Return the memory that the server holds, in bytes."""
        text = Path(f"/proc/{self.process.pid}/status").read_text("ascii")
        found = re.search(r"VmRSS:\s+(\d+) kB", text)
        assert found is not None
        return int(found[1]) * 1024

    @asynccontextmanager
    async def client(self, mode: str = "auto") -> AsyncIterator[Client]:
        """Yield the SDK's client, connected."""
        carried = {"authorization": f"Bearer {self.token}"}
        async with (
            httpx2.AsyncClient(headers=carried, timeout=SECONDS) as http,
            Client(streamable_http_client(self.url, http_client=http), mode=mode) as connected,
        ):
            yield connected


def message(method: str, params: dict[str, Any] | None = None, number: int = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}}


def call(tool: str, number: int = 1, **arguments: Any) -> dict[str, Any]:
    return message("tools/call", {"name": tool, "arguments": arguments}, number)


def sentence(text: str) -> str:
    """Return the sentence of a refusal, whose form is checked."""
    body = json.loads(text)
    assert (body["jsonrpc"], body["id"]) == ("2.0", None)
    told: str = body["error"]["message"]
    assert told
    assert "\n" not in told
    return told


@contextmanager
def connection_closed(connection: HTTPConnection) -> Iterator[None]:
    try:
        yield
    finally:
        connection.close()


@contextmanager
def started(command: list[str], folder: Path, **more: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a process with a state and a cache folder of its own, and end it."""
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "SKILL_RUN_STATE": str(folder / "state"), **more},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def listening(process: subprocess.Popen[str]) -> Server:
    """Wait until a server is ready."""
    told = ""
    assert process.stderr is not None
    for line in process.stderr:
        told += line
        if found := READY.fullmatch(line):
            return Server(process, found[1], int(found[3]), Path(found[4]), told)
    raise AssertionError(f"the server did not start: {told}")


@contextmanager
def served(folder: Path, *arguments: str) -> Iterator[Server]:
    """Yield a server that was started from the command line."""
    (folder / "root").mkdir(exist_ok=True)
    options = ["--port", "0", "--root", str(folder / "root"), *arguments]
    with started(["-m", "skill_run.cli", "mcp", "--http", *options], folder) as process:
        yield listening(process)


@contextmanager
def limited(folder: Path, **limits: float) -> Iterator[Server]:
    """Yield a server with limits of its own and the tools that wait."""
    with started(["-c", SCRIPT, str(folder), str(folder / "token"), repr(limits)], folder) as process:
        yield listening(process)


class Held:
    """Calls of the tool `hold` that have begun: each lasts until it is let go."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(SECONDS)
        self.port: int = self._listener.getsockname()[1]
        self._calls: list[socket.socket] = []

    def begun(self) -> None:
        """Wait until one more call has begun."""
        self._calls.append(self._listener.accept()[0])

    def let_go(self) -> None:
        for waiting in self._calls:
            waiting.sendall(b"!")
            waiting.close()
        self._calls.clear()

    def close(self) -> None:
        for waiting in self._calls:
            waiting.close()
        self._listener.close()
