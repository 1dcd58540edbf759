"""Clients that are slow or vanish: real sockets to a child process, and another client that must notice nothing."""

from __future__ import annotations

import json
import select
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import serving
from serving import Held, Server

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and modes of files are those of POSIX")

MODERN = "2026-07-28"


@pytest.fixture
def held() -> Iterator[Held]:
    found = Held()
    yield found
    found.close()


def connected(server: Server, buffer: int = 0) -> socket.socket:
    """Return a raw connection; buffer: bytes that the system takes in for a client that does not read."""
    found = socket.socket()
    if buffer:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    found.settimeout(serving.SECONDS)
    found.connect(("127.0.0.1", server.port))
    return found


def head(server: Server, length: int, **more: str) -> bytes:
    headers = {"host": "localhost", "content-length": str(length), **server.headers(**more)}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST /mcp HTTP/1.1\r\n{lines}\r\n".encode()


def rest_of(connection: socket.socket) -> bytes:
    """Return what comes until the server closes, however it does."""
    found = b""
    try:
        while data := connection.recv(65536):
            found += data
    except ConnectionResetError:
        pass
    return found


def answer_of(connection: socket.socket) -> tuple[int, str]:
    """Return status and sentence of a refusal after which the server closes."""
    top, _, body = rest_of(connection).partition(b"\r\n\r\n")
    return int(top.split()[1]), serving.sentence(body.decode())


def serves(server: Server) -> bool:
    """Tell whether a good client gets its answer."""
    session = server.open_session()
    status, _, text = server.ask(
        body=serving.call("validate_config", config_text="a: 1"), headers=server.headers(mcp_session_id=session)
    )
    return status == 200 and "structuredContent" in text


def test_headers_that_do_not_come_are_not_waited_for(tmp_path: Path) -> None:
    with serving.limited(tmp_path, head_seconds=0.3) as server:
        with closing(connected(server)) as silent, closing(connected(server)) as slow:
            slow.sendall(b"POST /mcp HTTP/1.1\r\nHost: local")
            assert serves(server)
            assert answer_of(slow) == (408, "the headers of the request did not come in time")
            assert rest_of(silent) == b""
        # Nor after a first request over the same connection.
        with closing(connected(server)) as second:
            second.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea")
            found = rest_of(second)
            assert found.startswith(b"HTTP/1.1 200")
            assert b"HTTP/1.1 408" in found
        assert serves(server)
        assert server.ends() == 0
        assert server.rest == ("", "")


def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    with serving.limited(tmp_path, body_seconds=0.3, requests=1) as server:
        session = server.open_session()
        for more in ({"mcp_session_id": session}, {"mcp_protocol_version": MODERN}, {}):
            with closing(connected(server)) as slow:
                slow.sendall(head(server, 100, connection="close", **more) + b'{"jsonrpc"')
                assert answer_of(slow) == (408, "the body of the request did not come in time")
        # Its place is free again.
        assert serves(server)
        assert server.ends() == 0
        assert server.rest == ("", "")


def test_what_is_no_http_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with serving.limited(tmp_path, head=4096) as server:
        long = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * 8192
        for garbage in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", b"hello\r\n\r\n", long):
            with closing(connected(server)) as connection:
                connection.sendall(garbage)
                status, told = answer_of(connection)
                assert status == 400
                assert "larger than 4 KiB" in told
        assert serves(server)
        assert server.ends() == 0
        assert server.rest == ("", "")


def test_too_many_connections_are_refused_and_the_first_ones_served(tmp_path: Path) -> None:
    with serving.limited(tmp_path, connections=2) as server:
        with closing(connected(server)) as first, closing(connected(server)), closing(connected(server)) as third:
            assert answer_of(third) == (503, "the server has too many open connections; try again later")
            first.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert rest_of(first).startswith(b"HTTP/1.1 200")
            assert server.healthy()
        assert server.ends() == 0
        assert server.rest == ("", "")


def test_a_client_that_takes_no_answer_is_cut_and_harms_no_other(tmp_path: Path) -> None:
    with serving.limited(tmp_path, write_seconds=0.3) as server:
        session = server.open_session()
        body = json.dumps(serving.call("large")).encode()
        with closing(connected(server, buffer=4096)) as greedy:
            # Answers of 2 MiB each, and nothing is read.
            greedy.sendall((head(server, len(body), mcp_session_id=session) + body) * 20)
            assert serves(server)
            ended = select.poll()
            ended.register(greedy, 0)
            assert ended.poll(serving.SECONDS * 1000)
            assert len(rest_of(greedy)) < 20 * 2**20
        assert serves(server)
        assert server.status_of(session) == 200
        assert server.ends() == 0
        assert server.rest == ("", "")


@pytest.mark.parametrize("era", ["2025-06-18", MODERN])
def test_a_connection_that_is_dropped_harms_no_other_and_frees_its_place(tmp_path: Path, held: Held, era: str) -> None:
    with serving.limited(tmp_path, requests=4) as server:
        body, more = hold(server, held.port, era)
        for _ in range(3):
            dropped = connected(server)
            dropped.sendall(head(server, len(body), **more) + body)
            held.begun()
            # Closed with a reset, as when a machine or a tunnel vanishes.
            dropped.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            dropped.close()
            while server.ask(body=serving.message("ping"))[0] == 503:
                pass
            assert serves(server)
        held.let_go()
        assert serves(server)
        assert server.ends() == 0
        assert server.rest == ("", "")


def test_calls_whose_clients_are_gone_still_count(tmp_path: Path, held: Held) -> None:
    with serving.limited(tmp_path, requests=2) as server:
        body, more = hold(server, held.port, "2025-06-18")
        for _ in range(2):
            with closing(connected(server)) as dropped:
                dropped.sendall(head(server, len(body), **more) + body)
                held.begun()
        while server.status_of(more["mcp_session_id"]) == 503:
            pass
        headers = server.headers(mcp_session_id=server.open_session())
        status, _, text = server.ask(body=serving.call("validate_config", config_text="a: 1"), headers=headers)
        assert status == 200
        assert "already runs 2 calls" in text
        held.let_go()
        while not serves(server):
            pass


def hold(server: Server, port: int, era: str) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of a call that waits."""
    request = serving.call("hold", port=port)
    if era != MODERN:
        return json.dumps(request).encode(), {"mcp_session_id": server.open_session()}
    prefix = "io.modelcontextprotocol/"
    request["params"]["_meta"] = {f"{prefix}protocolVersion": MODERN, f"{prefix}clientCapabilities": {}}
    more = {"mcp_protocol_version": MODERN, "mcp_method": "tools/call", "mcp_name": "hold"}
    return json.dumps(request).encode(), more
