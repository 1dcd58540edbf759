"""The door of the HTTP server: who may come in, how many at once and for how long, and what the refused are told."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

import anyio
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, BearerAuthBackend
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from skill_run.mcp_limits import Limits
from skill_run.mcp_token import Token
from skill_run.mcp_wire import error_body

PATH: Final = "/mcp"
HEALTH_PATH: Final = "/healthz"
_LOG: Final = logging.getLogger(__name__)
_JSON: Final = (b"content-type", b"application/json")
# Time beyond a tool's own limit for its answer to leave, before the request is cut.
_SPARE_SECONDS: Final = 15
# Time for a client to take the end of an answer that was cut.
_FAREWELL_SECONDS: Final = 1
_RETRY: Final = {"retry-after": "1"}
# What the SDK answers without JSON, by status.
_SENTENCES: Final = {
    HTTPStatus.BAD_REQUEST: "the request needs 'Content-Type: application/json'",
    HTTPStatus.METHOD_NOT_ALLOWED: "this server takes messages by POST",
    HTTPStatus.NOT_ACCEPTABLE: "the request needs 'Accept: application/json, text/event-stream'",
}


@dataclass(frozen=True, slots=True)
class _Refusal:
    status: HTTPStatus
    sentence: str
    headers: dict[str, str] = field(default_factory=dict)


class _BodyIsLateError(Exception):
    """A request's body did not come in time."""


class _TokenVerifier:
    """The SDK's question whether a token is good, answered from the token's file."""

    def __init__(self, token: Token) -> None:
        self._token = token

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return who holds this token; None when it is not the server's."""
        if not self._token.accepts(token):
            return None
        return AccessToken(token="", client_id=self._token.owner(), scopes=[])


class Door:
    """An ASGI application in front of the SDK's: it checks Host, Origin, token and load before a body is read."""

    def __init__(self, app: ASGIApp, token: Token, settings: TransportSecuritySettings, limits: Limits) -> None:
        """Stand in front of `app`. settings: the hosts and origins that requests may name."""
        self._app = app
        self._security = TransportSecurityMiddleware(settings)
        self._bearer = BearerAuthBackend(_TokenVerifier(token))
        self._limits = limits
        self._calls: set[anyio.CancelScope] = set()
        self._streams: set[anyio.CancelScope] = set()
        self._of_session: Counter[str] = Counter()
        self._stopping = False
        self._left = anyio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        request = Request(scope)
        answer = _Answer(send, self._limits.body)
        if await self._is_foreign(request):
            await answer.refuse(_foreign())
        elif request.url.path == HEALTH_PATH:
            await self._tell_health(answer)
        elif request.url.path != PATH:
            await answer.refuse(_Refusal(HTTPStatus.NOT_FOUND, f"there is nothing here; the server is at {PATH}"))
        elif (refusal := await self._refusal(request)) is not None:
            await answer.refuse(refusal)
        elif request.method == "GET":
            await self._pass(request, self._streams, self._limits.stream_seconds, receive, answer)
        else:
            await self._pass_call(request, receive, answer)

    async def drain(self) -> None:
        """Let no request in any more, end the streams, and wait for calls until they have had their grace."""
        self._stopping = True
        for scope in list(self._streams):
            scope.cancel()
        if self._calls:
            with anyio.move_on_after(self._limits.grace_seconds):
                await self._left.wait()
        for scope in list(self._calls):
            scope.cancel()

    async def _is_foreign(self, request: Request) -> bool:
        """Tell whether Host or Origin names somebody else: then a browser was led here by a name that lies."""
        return await self._security.validate_request(request) is not None

    async def _tell_health(self, answer: _Answer) -> None:
        if self._stopping:
            await answer.refuse(_stopping())
        else:
            await answer.send_whole(HTTPStatus.OK, b'{"status": "ok"}', {})

    async def _refusal(self, request: Request) -> _Refusal | None:
        """Return why a request may not come in; its body has not been read."""
        found = await self._bearer.authenticate(request)
        if found is None:
            sentence = "the request needs 'Authorization: Bearer TOKEN' with the token in the server's token file"
            return _Refusal(HTTPStatus.UNAUTHORIZED, sentence, {"www-authenticate": "Bearer"})
        # Sessions belong to the token that opened them.
        request.scope["auth"], request.scope["user"] = found
        assert isinstance(found[1], AuthenticatedUser)
        if self._stopping:
            return _stopping()
        if request.method == "GET":
            return None
        session = request.headers.get(MCP_SESSION_ID_HEADER, "")
        if session and self._of_session[session] >= self._limits.session_requests:
            most = self._limits.session_requests
            sentence = f"this session already has {most} requests in progress; wait for one of them"
            return _Refusal(HTTPStatus.TOO_MANY_REQUESTS, sentence, _RETRY)
        if len(self._calls) >= self._limits.requests:
            sentence = f"the server already answers {self._limits.requests} requests; try again later"
            return _Refusal(HTTPStatus.SERVICE_UNAVAILABLE, sentence, _RETRY)
        return None

    async def _pass_call(self, request: Request, receive: Receive, answer: _Answer) -> None:
        session = request.headers.get(MCP_SESSION_ID_HEADER, "")
        self._of_session[session] += 1
        try:
            await self._pass(request, self._calls, self._limits.answer_seconds + _SPARE_SECONDS, receive, answer)
        finally:
            self._of_session[session] -= 1
            if not self._of_session[session]:
                del self._of_session[session]
            if self._stopping and not self._calls:
                self._left.set()

    async def _pass(
        self, request: Request, among: set[anyio.CancelScope], seconds: float, receive: Receive, answer: _Answer
    ) -> None:
        """Hand a request to the SDK, and end it when its time is over or the server stops."""
        timed = _timed(receive, self._limits.body_seconds)
        with anyio.move_on_after(seconds) as scope:
            among.add(scope)
            try:
                await self._app(request.scope, timed, answer.send)
            except _BodyIsLateError:
                await answer.refuse(
                    _Refusal(HTTPStatus.REQUEST_TIMEOUT, "the body of the request did not come in time")
                )
            except Exception:
                # Whatever went wrong is logged here and told as every refusal is.
                _LOG.exception("a request failed")
                await answer.cut(_Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "the server failed; its log says why"))
            finally:
                among.discard(scope)
        if scope.cancelled_caught:
            late = _Refusal(HTTPStatus.SERVICE_UNAVAILABLE, f"the answer took longer than {seconds:g} seconds")
            await answer.cut(_stopping() if self._stopping else late)


class _Answer:
    """The way back to the client: it knows how far the answer is, and words what the SDK refuses without JSON."""

    def __init__(self, send: Send, largest_body: int) -> None:
        self._send = send
        self._largest = largest_body
        self._started = False
        self._ended = False
        self._worded = False
        # A body whose length was told cannot be cut short.
        self._endless = False

    async def send(self, message: Message) -> None:
        """Pass on what the SDK sends."""
        if self._worded:
            return
        if message["type"] == "http.response.start":
            headers = dict(message.get("headers", ()))
            kind = headers.get(b"content-type", b"")
            if message["status"] >= HTTPStatus.BAD_REQUEST and not kind.startswith(b"application/json"):
                await self._word(message["status"], headers)
                return
            self._started = True
            self._endless = b"content-length" not in headers
        else:
            self._ended = not message.get("more_body", False)
        await self._send(message)

    async def refuse(self, refusal: _Refusal) -> None:
        """Answer with a refusal; nothing has been sent yet."""
        await self.send_whole(refusal.status, error_body(refusal.status, refusal.sentence), refusal.headers)

    async def send_whole(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        """Answer with a JSON body."""
        self._started = self._ended = True
        given = [(name.encode("ascii"), text.encode("latin-1")) for name, text in headers.items()]
        length = (b"content-length", str(len(body)).encode("ascii"))
        start = {"type": "http.response.start", "status": status, "headers": [_JSON, length, *given]}
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def cut(self, refusal: _Refusal) -> None:
        """End an answer wherever it is. A client that takes nothing is left to the connection's own limit."""
        with anyio.move_on_after(_FAREWELL_SECONDS):
            if not self._started:
                await self.refuse(refusal)
            elif self._endless and not self._ended:
                self._ended = True
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _word(self, status: int, headers: dict[bytes, bytes]) -> None:
        self._worded = True
        found = HTTPStatus(status)
        sentence = _SENTENCES.get(found, f"the request was refused: {found.phrase}")
        if found is HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            sentence = f"the request is larger than {self._largest // 2**20} MiB"
        kept = {"allow": headers[b"allow"].decode("latin-1")} if b"allow" in headers else {}
        await self.refuse(_Refusal(found, sentence, kept))


def transport_security(hosts: Sequence[str]) -> TransportSecuritySettings:
    """Return what Host and Origin may name: these hosts, at any port, since a tunnel may have another."""
    named = [f"[{host}]" if ":" in host else host for host in hosts]
    return TransportSecuritySettings(
        allowed_hosts=[form for host in named for form in (host, f"{host}:*")],
        allowed_origins=[f"http://{form}" for host in named for form in (host, f"{host}:*")],
    )


def _timed(receive: Receive, seconds: float) -> Receive:
    """Return `receive` that raises _BodyIsLateError unless the whole body has come within so many seconds."""
    deadline = anyio.current_time() + seconds
    whole = False

    async def timed() -> Message:
        nonlocal whole
        if whole:
            return await receive()
        with anyio.move_on_at(deadline):
            message = await receive()
            whole = message["type"] != "http.request" or not message.get("more_body", False)
            return message
        raise _BodyIsLateError

    return timed


def _foreign() -> _Refusal:
    sentence = "Host or Origin names no address of this server; --allow-host NAME allows another name"
    return _Refusal(HTTPStatus.FORBIDDEN, sentence)


def _stopping() -> _Refusal:
    return _Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "the server is stopping", {"connection": "close"})
