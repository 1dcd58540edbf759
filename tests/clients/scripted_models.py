"""Model services on loopback that answer by a script, so that a whole assistant runs without a login or a network.

A script is a function from the results of the tools called so far to the next step: a Call, or text that ends the turn.
What stands behind it speaks just enough of the Messages API (Claude Code) or of the Responses API (Codex).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar


@dataclass(frozen=True)
class Call:
    """A tool that the model calls. namespace: of tools that Codex groups by server."""

    tool: str
    arguments: dict[str, Any]
    namespace: str = ""


Script = Callable[[Sequence[str]], Call | str]


@dataclass
class Service:
    """A running service: its port, and every request that came, parsed."""

    port: int
    requests: list[dict[str, Any]] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    script: ClassVar[Script]
    service: ClassVar[Service]

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._send(b'{"object": "list", "data": []}', "application/json")

    def do_HEAD(self) -> None:
        self._send(b"", "application/json")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
        self.service.requests.append(body)
        self.answer(body)

    def answer(self, body: dict[str, Any]) -> None:
        raise NotImplementedError

    def _events(self, events: Sequence[tuple[str, dict[str, Any]]]) -> None:
        lines = [f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n" for name, data in events]
        self._send("".join(lines).encode(), "text/event-stream")

    def _send(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class _Messages(_Handler):
    def answer(self, body: dict[str, Any]) -> None:
        if "count_tokens" in self.path:
            self._send(b'{"input_tokens": 10}', "application/json")
            return
        results = [text for message in body.get("messages", []) for text in _tool_results(message)]
        # Side requests, such as for a title, offer no tools.
        step = type(self).script(results) if body.get("tools") else "done"
        block: dict[str, Any] = {"type": "text", "text": step}
        if isinstance(step, Call):
            block = {"type": "tool_use", "id": f"toolu_{len(results)}", "name": step.tool, "input": step.arguments}
        stop = "tool_use" if isinstance(step, Call) else "end_turn"
        message = {
            "id": f"msg_{len(results)}",
            "type": "message",
            "role": "assistant",
            "model": body.get("model"),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 10, "output_tokens": 1},
        }
        if not body.get("stream"):
            self._send(json.dumps({**message, "content": [block], "stop_reason": stop}).encode(), "application/json")
            return
        start, delta = _streamed(block)
        self._events(
            [
                ("message_start", {"message": message}),
                ("content_block_start", {"index": 0, "content_block": start}),
                ("content_block_delta", {"index": 0, "delta": delta}),
                ("content_block_stop", {"index": 0}),
                ("message_delta", {"delta": {"stop_reason": stop}, "usage": {"output_tokens": 5}}),
                ("message_stop", {}),
            ]
        )


def _tool_results(message: dict[str, Any]) -> Iterator[str]:
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        if part.get("type") == "tool_result":
            told = part.get("content")
            yield told if isinstance(told, str) else "".join(item.get("text", "") for item in told or ())


def _streamed(block: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    if block["type"] == "text":
        return {"type": "text", "text": ""}, {"type": "text_delta", "text": block["text"]}
    return {**block, "input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}


class _Responses(_Handler):
    def answer(self, body: dict[str, Any]) -> None:
        kinds = ("function_call_output", "custom_tool_call_output")
        results = [_text(item.get("output")) for item in body.get("input", []) if item.get("type") in kinds]
        step = type(self).script(results)
        number = len(results)
        item: dict[str, Any] = {
            "type": "message",
            "id": f"msg_{number}",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": step, "annotations": []}],
        }
        if isinstance(step, Call):
            item = {
                "type": "function_call",
                "id": f"fc_{number}",
                "call_id": f"call_{number}",
                "name": step.tool,
                "arguments": json.dumps(step.arguments),
                "status": "completed",
                **({"namespace": step.namespace} if step.namespace else {}),
            }
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        response = {
            "id": f"resp_{number}",
            "object": "response",
            "created_at": 1,
            "status": "completed",
            "model": body.get("model"),
            "output": [item],
            "usage": {**usage, **details},
        }
        self._events(
            [
                ("response.created", {"response": {**response, "status": "in_progress", "output": []}}),
                ("response.output_item.added", {"output_index": 0, "item": item}),
                ("response.output_item.done", {"output_index": 0, "item": item}),
                ("response.completed", {"response": response}),
            ]
        )


def _text(output: Any) -> str:
    if isinstance(output, str):
        return output
    return "".join(part.get("text", "") for part in output or ())


@contextmanager
def _serving(kind: type[_Handler], script: Script) -> Iterator[Service]:
    handler: Any = type("Handler", (kind,), {"script": staticmethod(script)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    service = handler.service = Service(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def messages_service(script: Script) -> Any:
    """Serve the Messages API by a script; a context manager that gives the Service."""
    return _serving(_Messages, script)


def responses_service(script: Script) -> Any:
    """Serve the Responses API by a script; a context manager that gives the Service."""
    return _serving(_Responses, script)
