"""The MCP server as a process of its own, over standard input and output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

import skill_run

PACKAGES = str(Path(skill_run.__file__).parents[1])
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [PACKAGES, os.environ.get("PYTHONPATH")]))}
BROKEN = "model:\n  context_parallel_size: 3\n"
HOSTILE = [
    'a: !!python/object/apply:os.system ["echo hostile"]',
    "import os\nos.system('echo hostile')\nprint('hostile')\ncfg = llama3_8b_sft_config()\n",
    '{"model": {"\\u001b[2J\\r\\nContent-Length: 1\\r\\n\\r\\n{}": 1}}',
    "model:\n  context_parallel_size: .nan\n",
    "a: &a\n  b: *a\n",
    "[" * 100_000,
    "model:\n  seq_length: " + "9" * 10_000,
    "#!/bin/bash\necho hostile >&1\nsrun python train.py model.seq_length=$(echo hostile)\n",
    "\x00\x01\x02",
]
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
# A hung server must fail the test, not stop it.
WATCHDOG_SECONDS = 120


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def call(number: int, tool: str, **arguments: Any) -> dict[str, Any]:
    return {
        "jsonrpc": "2.0",
        "id": number,
        "method": "tools/call",
        "params": {"name": tool, "arguments": arguments},
    }


class Process:
    """A server process that is spoken to line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def send(self, *messages: dict[str, Any] | str) -> None:
        assert self.process.stdin is not None
        for message in messages:
            self.process.stdin.write((message if isinstance(message, str) else json.dumps(message)) + "\n")
        self.process.stdin.flush()

    def until(self, number: int) -> list[dict[str, Any]]:
        """Read messages up to the answer with this id; every line of stdout must be one."""
        assert self.process.stdout is not None
        messages: list[dict[str, Any]] = []
        while not messages or messages[-1].get("id") != number:
            line = self.process.stdout.readline()
            assert line, f"the server ended: {self.process.stderr.read() if self.process.stderr else ''}"
            messages.append(protocol(line))
        return messages

    def end(self) -> tuple[int, str, str]:
        """Close the input; return the exit code and what was left of stdout and stderr."""
        out, err = self.process.communicate()
        return self.process.returncode, out, err


def protocol(line: str) -> dict[str, Any]:
    message = json.loads(line)
    assert isinstance(message, dict)
    assert message["jsonrpc"] == "2.0"
    return message


@contextmanager
def started(*command: str) -> Iterator[Process]:
    process = subprocess.Popen(
        [sys.executable, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=ENVIRONMENT,
    )
    watchdog = threading.Timer(WATCHDOG_SECONDS, process.kill)
    watchdog.start()
    try:
        yield Process(process)
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()


@contextmanager
def served(root: Path) -> Iterator[Process]:
    """Start the server and shake hands."""
    with started("-m", "skill_run.mcp_server", "--root", str(root)) as process:
        process.send(INITIALIZE)
        process.until(0)
        process.send(INITIALIZED)
        yield process


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_sdk_client_lists_and_calls_the_tools(tmp_path: Path, mode: str) -> None:
    (tmp_path / "a.yaml").write_text(BROKEN, "utf-8")
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "skill_run.mcp_server", "--root", str(tmp_path)], env=ENVIRONMENT
    )
    async with Client(server, mode=mode) as client:
        tools = (await client.list_tools()).tools
        assert {"validate_config", "explain_rule", "list_skills"} <= {tool.name for tool in tools}
        result = await client.call_tool("validate_config", {"config_path": "a.yaml", "world_size": 8})
        assert not result.is_error
        assert result.structured_content is not None
        assert "world-size-divisible" in [found["rule"] for found in result.structured_content["findings"]]
        assert (await client.read_resource("rule://world-size-divisible")).contents
        refused = await client.call_tool("validate_config", {"config_path": "../a.yaml"})
        assert refused.is_error


def test_stdout_carries_only_protocol_whatever_the_config_holds(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        for number, text in enumerate(HOSTILE, start=1):
            server.send(call(number, "validate_config", config_text=text))
            answered = server.until(number)[-1]
            assert "result" in answered, answered
            assert "Traceback" not in json.dumps(answered)
        code, out, err = server.end()
    assert code == 0
    assert out == ""
    assert "hostile" not in err


def test_lines_that_are_no_messages_do_not_stop_the_server(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        server.send("no json", "[1, 2]", '{"jsonrpc": "2.0"}', '{"jsonrpc":"2.0","id":1,"method":"\\ud800"}', "")
        server.send(call(2, "list_skills"))
        assert "result" in server.until(2)[-1]
        assert server.end()[0] == 0


def test_what_is_printed_while_serving_goes_to_stderr(tmp_path: Path) -> None:
    script = f"""
import os, subprocess, sys
from pathlib import Path
from skill_run.mcp_server import create_server

def noisy() -> str:
    print("left in the buffer")
    os.write(1, b"straight to the descriptor\\n")
    subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
    return "done"

server = create_server([Path({str(tmp_path)!r})])
server.add_tool(noisy)
server.run("stdio")
"""
    with started("-c", script) as server:
        server.send(INITIALIZE)
        server.until(0)
        server.send(INITIALIZED, call(1, "noisy"))
        assert "result" in server.until(1)[-1]
        code, out, err = server.end()
    assert code == 0
    assert out == ""
    for noise in ("left in the buffer", "straight to the descriptor", "from a child"):
        assert noise in err


def test_the_end_of_input_ends_the_server_cleanly(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        assert server.end() == (0, "", "")


def test_the_end_of_input_before_any_message_is_clean(tmp_path: Path) -> None:
    with started("-m", "skill_run.mcp_server", "--root", str(tmp_path)) as server:
        assert server.end() == (0, "", "")


def test_a_client_that_went_away_is_no_error(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        assert server.process.stdout is not None
        assert server.process.stdin is not None
        assert server.process.stderr is not None
        server.process.stdout.close()
        server.send(call(1, "list_skills"))
        server.process.stdin.close()
        assert server.process.wait() == 0
        assert server.process.stderr.read() == ""
        server.process.stdin = server.process.stdout = None


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with served(tmp_path) as server:
        server.process.send_signal(number)
        assert server.process.wait() == 0
        assert server.process.stderr is not None
        assert server.process.stderr.read() == ""


def test_a_root_that_is_no_folder_is_wrong_usage(tmp_path: Path) -> None:
    with started("-m", "skill_run.mcp_server", "--root", str(tmp_path / "missing")) as server:
        code, out, err = server.end()
    assert (code, out) == (2, "")
    assert "is not a folder" in err
    assert "Traceback" not in err


def test_nothing_heavy_is_imported_before_the_first_call(tmp_path: Path) -> None:
    script = f"""
import sys
from pathlib import Path
from mcp.server import MCPServer
MCPServer("hello")
before = set(sys.modules)
from skill_run.mcp_server import create_server
create_server([Path({str(tmp_path)!r})])
heavy = ("cel_expr_python", "jsonschema", "numpy", "yaml", "torch", "skill_run.rules", "skill_run.bridge.release")
print([name for name in sys.modules if name not in before and name.startswith(heavy)])
"""
    with started("-c", script) as process:
        code, out, err = process.end()
    assert (code, out, err) == (0, "[]\n", "")
