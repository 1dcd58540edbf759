"""Who the HTTP server lets in, how many at once, and what the refused are told: raw requests to a child process."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import serving
from serving import Held, Server

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and modes of files are those of POSIX")

PING = serving.message("ping")
LARGEST = 2**20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose log must be empty at the end, whatever it refused."""
    with serving.limited(tmp_path_factory.mktemp("door"), body=LARGEST) as found:
        yield found
        token = found.token
        assert found.ends() == 0
        assert token not in found.rest[1]
        assert found.rest == ("", "")


@pytest.fixture
def held() -> Iterator[Held]:
    found = Held()
    yield found
    found.close()


def bearer(text: str) -> dict[str, str]:
    return {"authorization": text, "content-type": "application/json", "accept": serving.BOTH}


def test_without_the_token_nothing_is_served(server: Server) -> None:
    token = server.token
    wrong = ["", "Bearer", "Bearer ", f"Basic {token}", f"Bearer {token}x", f"Bearer {token[:-1]}", "Bearer \xe9" * 20]
    for text in [None, *wrong]:
        headers = {} if text is None else bearer(text)
        for method in ("POST", "GET", "DELETE", "OPTIONS"):
            status, answered, body = server.ask(method, body=PING, headers=headers)
            assert (status, answered["www-authenticate"]) == (401, "Bearer")
            assert token[:-1] not in body
            assert "Authorization: Bearer TOKEN" in serving.sentence(body)
    assert server.ask(path=f"/mcp?token={token}", body=PING, headers={})[0] == 401
    assert server.ask(body=PING, headers=bearer(f"bearer {token}"))[0] == 400


def test_a_session_id_alone_opens_nothing(server: Server) -> None:
    session = server.open_session()
    assert server.ask(body=PING, headers={**bearer("Bearer x"), "mcp-session-id": session})[0] == 401
    assert server.status_of(session) == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "192.0.2.1", ""])
def test_a_host_that_is_not_the_servers_is_refused_even_with_the_token(server: Server, host: str) -> None:
    for path in ("/mcp", "/healthz"):
        status, _, body = server.ask(path=path, body=PING, headers=server.headers(host=host))
        assert status == 403
        assert "--allow-host" in serving.sentence(body)


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://localhost.evil.example", "file://"])
def test_a_page_of_somebody_else_is_refused_even_with_the_token(server: Server, origin: str) -> None:
    assert server.ask(body=PING, headers=server.headers(origin=origin))[0] == 403


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9000", "[::1]:9000", "127.0.0.1:1"])
def test_a_tunnel_may_end_at_any_port_of_the_clients_machine(server: Server, host: str) -> None:
    headers = server.headers(host=host, origin=f"http://{host}", mcp_session_id=server.open_session())
    assert server.ask(body=PING, headers=headers)[0] == 200


def test_health_is_told_without_a_token_and_tells_nothing_else(server: Server) -> None:
    status, headers, body = server.ask("GET", "/healthz", headers={})
    assert (status, json.loads(body)) == (200, {"status": "ok"})
    assert set(headers) == {"date", "content-type", "content-length"}


def test_what_does_not_fit_is_refused_with_a_sentence(server: Server) -> None:
    session = server.open_session()
    good = server.headers(mcp_session_id=session)
    wrong: list[tuple[int, str, dict[str, Any]]] = [
        (404, "the server is at /mcp", {"path": "/"}),
        (404, "the server is at /mcp", {"path": "/mcp/"}),
        (404, "Session not found", {"headers": server.headers(mcp_session_id="x" * 100)}),
        (400, "Content-Type", {"headers": {**good, "content-type": "text/plain"}}),
        (
            400,
            "Content-Type",
            {"headers": {**good, "content-type": "text/plain", "mcp-protocol-version": "2026-07-28"}},
        ),
        (400, "Parse error", {"body": b"{"}),
        (400, "Validation error", {"body": [PING]}),
        (405, "Method Not Allowed", {"method": "PUT"}),
        (405, "POST", {"method": "PUT", "headers": {**good, "mcp-protocol-version": "2026-07-28"}}),
        (406, "text/event-stream", {"headers": {**good, "accept": "text/html"}}),
        (406, "text/event-stream", {"headers": {**good, "accept": "text/html", "mcp-protocol-version": "2026-07-28"}}),
        (413, "larger than 1 MiB", {"body": b" " * (LARGEST + 1)}),
    ]
    for status, told, request in wrong:
        found, headers, text = server.ask(**{"headers": good, "body": PING, **request})
        assert (found, headers["content-type"]) == (status, "application/json"), request
        assert told in json.loads(text)["error"]["message"], request
    assert server.status_of(session) == 200


def test_a_body_whose_length_is_not_told_is_limited_too(server: Server) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(LARGEST // 1000 + 2):
            yield b" " * 1000

    assert server.healthy()
    from http.client import HTTPConnection

    connection = HTTPConnection("127.0.0.1", server.port, timeout=serving.SECONDS)
    with serving.connection_closed(connection):
        connection.request("POST", "/mcp", chunks(), server.headers(), encode_chunked=True)  # type: ignore[arg-type]
        answer = connection.getresponse()
        assert answer.status == 413
        assert "larger than 1 MiB" in serving.sentence(answer.read().decode())


def test_the_largest_body_is_read(server: Server) -> None:
    text = json.dumps(serving.call("validate_config", config_text="a: 1")).encode()
    headers = server.headers(mcp_session_id=server.open_session())
    status, _, answer = server.ask(body=text + b" " * (LARGEST - len(text)), headers=headers)
    assert status == 200
    assert "result" in answer


def test_one_session_cannot_take_every_place(tmp_path: Path, held: Held) -> None:
    with serving.limited(tmp_path, session_requests=2, requests=3) as server:
        greedy, other = server.open_session(), server.open_session()
        waiting = []
        for number in range(2):
            body = serving.call("hold", number, port=held.port)
            waiting.append(server.begin(body=body, headers=server.headers(mcp_session_id=greedy)))
            held.begun()
        body = serving.call("hold", 9, port=held.port)
        status, headers, text = server.ask(body=body, headers=server.headers(mcp_session_id=greedy))
        assert (status, headers["retry-after"]) == (429, "1")
        assert "2 requests in progress" in serving.sentence(text)
        assert server.status_of(other) == 200
        waiting.append(server.begin(body=body, headers=server.headers(mcp_session_id=other)))
        held.begun()
        status, headers, text = server.ask(body=PING, headers=server.headers(mcp_session_id=other))
        assert (status, headers["retry-after"]) == (503, "1")
        assert "answers 3 requests" in serving.sentence(text)
        assert server.healthy()
        held.let_go()
        for connection, answer in waiting:
            with serving.connection_closed(connection):
                assert b'"text":"!"' in answer.read()
        assert server.status_of(greedy) == server.status_of(other) == 200
