"""The page about HTTP: its limits are those of the code, and what it shows can be used."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

from skill_run.cli import mcp
from skill_run.mcp_limits import Limits

sys.path.insert(0, str(Path(__file__).parents[1]))
import serving

PAGE = (Path(__file__).parents[2] / "docs" / "http.md").read_text("utf-8")
LIMITS = Limits()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.M | re.S)


def test_the_limits_are_those_of_the_code() -> None:
    told = dict(re.findall(r"^\| ([a-z].*?) \| (\d.*?) \|$", PAGE.partition("## Limits")[2], re.M))
    assert told == {
        "size of a request": f"{LIMITS.body // 2**20} MiB",
        "size of its headers": f"{LIMITS.head // 2**10} KiB",
        "open connections": f"{LIMITS.connections}",
        "requests being answered": f"{LIMITS.requests}, of one session {LIMITS.session_requests}",
        "sessions": f"{LIMITS.sessions}",
        "time for headers, for a body": f"{LIMITS.head_seconds:g} s, {LIMITS.body_seconds:g} s",
        "time for a tool to answer": f"{LIMITS.answer_seconds:g} s",
        "time for which a client may take nothing of its answer": f"{LIMITS.write_seconds:g} s",
        "a connection at rest, a session at rest": f"{LIMITS.keep_alive_seconds:g} s, {LIMITS.idle_seconds:g} s",
        "life of a stream for messages that no request asked for": (
            f"{LIMITS.stream_seconds:g} s; the client opens it again"
        ),
    }
    assert f"get {LIMITS.grace_seconds:g} seconds to finish" in PAGE


def test_every_snippet_can_be_read() -> None:
    assert len(blocks("json")) == 2
    for text in blocks("json"):
        assert "Bearer $" in json.loads(text)["mcpServers"]["skill-run"]["headers"]["Authorization"]


def test_the_program_validates_a_config_through_a_server(tmp_path: Path) -> None:
    (program,) = blocks("python")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "conf.yaml").write_text("model:\n  context_parallel_size: 3\n", "utf-8")
    with serving.served(tmp_path) as server:
        program = program.replace("http://127.0.0.1:8765/mcp", server.url)
        with serving.started(["-c", program], tmp_path, SKILL_RUN_TOKEN=server.token) as process:
            out, err = process.communicate(timeout=serving.SECONDS)
    assert (process.returncode, err) == (0, "")
    assert out.startswith("1 error")


def test_every_command_line_of_the_server_is_one() -> None:
    lines = [line for text in blocks("bash") for line in text.splitlines() if line.startswith("skill-run mcp")]
    assert len(lines) == 2
    for line in lines:
        mcp.make_context("mcp", shlex.split(line, comments=True)[2:])
