"""The HTTP server under clients that others wrote: MCP Inspector, Claude Code, and the protocol's conformance suite."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import install_conformance
import install_inspector
from token_proxy import token_proxy

import serving
from serving import Server

Run = Callable[..., subprocess.CompletedProcess[str]]
TOOL_IS_ERROR = 5
# What every server must do, whatever its tools are.
SCENARIOS = [
    "server-initialize",
    "server-session-lifecycle",
    "ping",
    "tools-list",
    "resources-list",
    "prompts-list",
    "dns-rebinding-protection",
    "caching",
    "http-header-validation",
    "server-sse-multiple-streams",
    "sep-2640-skills-enumeration",
    "sep-2640-skills-manifest",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that no client may make write a word, or end."""
    folder = tmp_path_factory.mktemp("http")
    (folder / "root").mkdir()
    (folder / "root" / "a.yaml").write_text("model:\n  context_parallel_size: 3\n", "utf-8")
    with serving.served(folder) as found:
        yield found
        assert found.ends() == 0
        assert found.rest == ("", "")


@pytest.fixture
def inspect(server: Server, tmp_path: Path) -> Run:
    """Return a function that runs the inspector on the server."""
    try:
        command = install_inspector.install()
    except install_inspector.CannotInstallError as error:
        pytest.skip(f"the MCP Inspector cannot be installed: {error}")
    return asked(command, tmp_path, ["--transport", "http", "--server-url", server.url])


def asked(command: list[str], home: Path, options: list[str]) -> Run:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *options, *arguments],
            capture_output=True,
            text=True,
            cwd=home,
            env={"HOME": str(home), "PATH": os.environ.get("PATH", "")},
            timeout=serving.SECONDS,
            check=False,
        )

    return run


def test_the_inspector_lists_and_calls_the_tools_with_the_token(inspect: Run, server: Server) -> None:
    token = ["--header", f"Authorization: Bearer {server.token}"]
    listed = inspect(*token, "--method", "tools/list", "--strict")
    assert listed.returncode == 0, listed.stderr
    assert "validate_config" in [tool["name"] for tool in json.loads(listed.stdout)["tools"]]
    arguments = ["config_path=a.yaml", "world_size=8"]
    called = inspect(*token, "--method", "tools/call", "--tool-name", "validate_config", "--tool-arg", *arguments)
    assert called.returncode == 0, called.stderr
    report = json.loads(called.stdout)["structuredContent"]
    assert "world-size-divisible" in [finding["rule"] for finding in report["findings"]]
    outside = ["--tool-name", "validate_config", "--tool-arg", "config_path=../token"]
    assert inspect(*token, "--method", "tools/call", *outside).returncode == TOOL_IS_ERROR


def test_the_inspector_verifies_every_skill_over_http(inspect: Run, server: Server) -> None:
    token = ["--header", f"Authorization: Bearer {server.token}"]
    done = inspect(*token, "--method", "skills/list", "--verify", "--require-digests", "--protocol-era", "modern")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no conformance errors" in done.stdout + done.stderr


def test_the_inspector_is_refused_with_another_token(inspect: Run) -> None:
    done = inspect("--header", "Authorization: Bearer wrong", "--method", "tools/list")
    assert done.returncode != 0
    assert "validate_config" not in done.stdout


def test_claude_code_connects_with_the_token_only(run: Run, server: Server) -> None:
    # The token stays out of its configuration.
    header = "Authorization: Bearer ${SKILL_RUN_TOKEN}"
    added = run("claude", "mcp", "add", "--transport", "http", "skill-run", server.url, "--header", header)
    assert added.returncode == 0, added.stdout + added.stderr
    assert "\u2714 Connected" in run("claude", "mcp", "list", SKILL_RUN_TOKEN=server.token).stdout
    assert "Connected" not in run("claude", "mcp", "list", SKILL_RUN_TOKEN="wrong").stdout


def test_gemini_connects_with_the_token_only(run: Run, server: Server, project: Path) -> None:
    entry = {"httpUrl": server.url, "headers": {"Authorization": "Bearer $SKILL_RUN_TOKEN"}}
    (project / ".gemini").mkdir()
    (project / ".gemini" / "settings.json").write_text(json.dumps({"mcpServers": {"skill-run": entry}}), "utf-8")
    good = run("gemini", "mcp", "list", SKILL_RUN_TOKEN=server.token)
    assert "(http) - Connected" in good.stdout + good.stderr
    bad = run("gemini", "mcp", "list", SKILL_RUN_TOKEN="wrong")
    assert "- Connected" not in bad.stdout + bad.stderr


@pytest.mark.parametrize("good", [True, False], ids=["token", "another token"])
def test_codex_lists_the_tools_with_the_token_only(
    run: Run, server: Server, commands: tuple[Path, Path], home: Path, good: bool
) -> None:
    variable = ["--bearer-token-env-var", "SKILL_RUN_TOKEN"]
    added = run("codex", "mcp", "add", "skill-run", "--url", server.url, *variable)
    assert added.returncode == 0, added.stdout + added.stderr
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin", "SKILL_RUN_TOKEN": server.token if good else "wrong"}
    about = {"clientInfo": {"name": "test", "version": "1"}}
    requests = [
        {"id": 1, "method": "initialize", "params": about},
        {"method": "initialized"},
        {"id": 2, "method": "mcpServerStatus/list", "params": {}},
    ]
    with subprocess.Popen(
        [commands[0] / "codex", "app-server"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("".join(json.dumps(request) + "\n" for request in requests))
        process.stdin.flush()
        answer = next(line for line in process.stdout if json.loads(line).get("id") == 2)
        process.kill()
    assert ('"validate_config"' in answer) == good


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_server_conforms_to_the_protocol(server: Server, tmp_path: Path, scenario: str) -> None:
    try:
        command = install_conformance.install()
    except install_inspector.CannotInstallError as error:
        pytest.skip(f"the conformance suite cannot be installed: {error}")
    # The suite can send no token.
    with token_proxy(server.port, server.token) as port:
        run = asked(command, tmp_path, ["server", "--url", f"http://127.0.0.1:{port}/mcp"])
        done = run("--scenario", scenario)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failed" in done.stdout
    assert "Passed: 0/" not in done.stdout
