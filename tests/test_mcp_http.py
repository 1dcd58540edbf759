"""The MCP server over HTTP, as child processes and through the SDK's own client in both protocol eras."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from mcp import Client

sys.path.insert(0, str(Path(__file__).parent))
import serving
from serving import Held, Server

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="signals and modes of files are those of POSIX"),
]

ERAS = ("auto", "legacy")
BROKEN = "model:\n  context_parallel_size: 3\n"
MIB = 2**20


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("http")
    (folder / "root").mkdir()
    (folder / "root" / "broken.yaml").write_text(BROKEN, "utf-8")
    with serving.served(folder) as found:
        yield found


@pytest.fixture
def held() -> Iterator[Held]:
    found = Held()
    yield found
    found.close()


async def validated(client: Client, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool("validate_config", {"world_size": 8, **arguments})
    assert not result.is_error, result.content
    assert result.structured_content is not None
    return result.structured_content


def refused(folder: Path, *arguments: str) -> str:
    """Return the sentence with which `skill-run mcp` refuses to start."""
    with serving.started(["-m", "skill_run.cli", "mcp", *arguments], folder) as process:
        out, err = process.communicate(timeout=serving.SECONDS)
        assert (process.returncode, out) == (2, "")
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize("era", ERAS)
async def test_tools_resources_and_prompts_work_as_over_standard_input(server: Server, era: str) -> None:
    async with server.client(era) as client:
        assert "validate_config" in [tool.name for tool in (await client.list_tools()).tools]
        report = await validated(client, config_path="broken.yaml")
        assert "world-size-divisible" in [finding["rule"] for finding in report["findings"]]
        rule = (await client.read_resource("rule://world-size-divisible")).contents[0]
        assert rule.text.startswith("id: world-size-divisible")  # type: ignore[union-attr]
        assert {prompt.name for prompt in (await client.list_prompts()).prompts}
        refusal = await client.call_tool("validate_config", {"config_path": "../secret"})
        assert refusal.is_error
        assert "outside the folders" in refusal.content[0].text  # type: ignore[union-attr]


@pytest.mark.parametrize("era", ERAS)
async def test_a_verification_runs_as_a_job_and_tells_its_progress(server: Server, era: str) -> None:
    told: list[str | None] = []

    async def note(progress: float, total: float | None, text: str | None) -> None:
        told.append(text)

    async with server.client(era) as client:
        arguments: dict[str, Any] = {"parity": False, "wait_seconds": 60}
        result = await client.call_tool("verify_skill", arguments, progress_callback=note)
        assert result.structured_content is not None
        job = result.structured_content["job"]
        again = await client.call_tool("verify_skill", {"job": job, "wait_seconds": 60})
        assert again.structured_content is not None
        assert again.structured_content["state"] == "passed"
    assert told
    # The job is the server's, not the session's.
    async with server.client(era) as client:
        later = await client.call_tool("verify_skill", {"job": job})
        assert later.structured_content is not None
        assert later.structured_content["job"] == job


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_and_a_signal_ends_it_cleanly(tmp_path: Path, number: int) -> None:
    with serving.served(tmp_path) as server:
        assert server.url == f"http://127.0.0.1:{server.port}/mcp"
        assert server.token_file == tmp_path / "state" / "http.token"
        assert server.healthy()
        # An open stream for messages that no request asked for does not hold it up.
        session = server.open_session()
        connection, answer = server.begin("GET", headers=server.headers(mcp_session_id=session))
        assert answer.status == 200
        assert server.ends(number) == 0
        connection.close()
        assert server.rest == ("", "")
        assert server.err.count("\n") == 1
        assert server.token not in server.err


def test_the_first_start_makes_a_token_of_the_users_own_and_later_ones_keep_it(tmp_path: Path) -> None:
    with serving.served(tmp_path) as server:
        token = server.token
        assert stat.S_IMODE(server.token_file.stat().st_mode) == 0o600
        assert stat.S_IMODE(server.token_file.parent.stat().st_mode) == 0o700
    with serving.served(tmp_path) as server:
        assert server.token == token
        assert os.listdir(tmp_path / "state") == ["http.token"]


async def test_a_new_token_replaces_the_old_one_while_the_server_runs(tmp_path: Path) -> None:
    with serving.served(tmp_path, "--token-file", str(tmp_path / "mine")) as server:
        old, session = server.headers(), server.open_session()
        rotate = ["-m", "skill_run.cli", "mcp", "--rotate-token", "--token-file", str(tmp_path / "mine")]
        with serving.started(rotate, tmp_path) as process:
            out, err = process.communicate(timeout=serving.SECONDS)
            assert (process.returncode, out) == (0, "")
        assert err == f"skill-run: new token in {tmp_path / 'mine'}\n"
        assert server.ask(body=serving.message("ping"), headers=old)[0] == 401
        # A session belongs to the token that opened it: a client with the new one opens another.
        assert server.status_of(session) == 404
        async with server.client("legacy") as client:
            await validated(client, config_text=BROKEN)
        server.token_file.unlink()
        assert server.ask(body=serving.message("ping"), headers=old)[0] == 401


def test_an_address_that_cannot_be_had_is_wrong_usage(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port} of 127.0.0.1 is taken" in refused(tmp_path, "--http", "--port", str(port))
    assert "no port" in refused(tmp_path, "--http", "--port", "65536")
    assert "cannot be found" in refused(tmp_path, "--http", "--host", "no host")
    assert "cannot be found" in refused(tmp_path, "--http", "--host", "")
    assert "no address of this machine" in refused(tmp_path, "--http", "--port", "0", "--host", "192.0.2.1")
    assert "no host name" in refused(tmp_path, "--http", "--port", "0", "--allow-host", "*")
    assert "go with --http" in refused(tmp_path, "--port", "0")
    assert "is not a folder" in refused(tmp_path, "--http", "--root", "missing")
    assert not (tmp_path / "state").exists()


def test_another_machine_is_served_only_with_a_token_that_is_there_and_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    host = ("--http", "--port", "0", "--host", "0.0.0.0")
    assert "make one with --rotate-token" in refused(tmp_path, *host)
    with serving.started(["-m", "skill_run.cli", "mcp", "--rotate-token"], tmp_path) as process:
        process.communicate(timeout=serving.SECONDS)
    with serving.served(tmp_path, "--host", "0.0.0.0", "--allow-host", "login-1.example") as server:
        assert server.err.startswith("skill-run: warning: other machines can reach 0.0.0.0")
        for name in ("login-1.example", f"{socket.gethostname()}:1234", f"localhost:{server.port}"):
            assert server.ask("GET", "/healthz", headers={"host": name})[0] == 200
        assert server.ask("GET", "/healthz", headers={"host": "login-2.example"})[0] == 403


def test_a_token_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("t" * 40, "ascii")
    path.chmod(0o640)
    told = refused(tmp_path, "--http", "--port", "0", "--token-file", str(path))
    assert "chmod 600" in told
    assert "ttt" not in told


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_in_progress_is_finished_before_the_server_ends(tmp_path: Path, held: Held, era: str) -> None:
    answers: list[str] = []

    async def wait(client: Client) -> None:
        result = await client.call_tool("hold", {"port": held.port})
        answers.append(result.content[0].text)  # type: ignore[union-attr]

    with serving.limited(tmp_path) as server:
        async with server.client(era) as client, anyio.create_task_group() as group:
            # The client checks an answer against the tools that it knows.
            await client.list_tools()
            group.start_soon(wait, client)
            await anyio.to_thread.run_sync(held.begun)
            server.process.send_signal(signal.SIGTERM)
            while server.healthy():
                pass
            status, headers, text = server.ask(body=serving.message("ping"))
            assert (status, headers["connection"]) == (503, "close")
            assert serving.sentence(text) == "the server is stopping"
            held.let_go()
        assert answers == ["!"]
        assert server.ended() == 0
        assert server.rest == ("", "")


@pytest.mark.parametrize("tool", ["hold", "hold_thread"])
def test_a_call_that_does_not_end_in_time_does_not_keep_the_server(tmp_path: Path, held: Held, tool: str) -> None:
    with serving.limited(tmp_path, grace_seconds=0.1) as server:
        session = server.open_session()
        connection, answer = server.begin(
            body=serving.call(tool, port=held.port), headers=server.headers(mcp_session_id=session)
        )
        held.begun()
        assert server.ends() == 0
        with serving.connection_closed(connection):
            assert b"result" not in answer.read()
        assert server.rest == ("", "")


async def test_a_second_signal_ends_the_server_at_once(tmp_path: Path, held: Held) -> None:
    with serving.limited(tmp_path, grace_seconds=3600) as server:
        session = server.open_session()
        connection, _ = server.begin(
            body=serving.call("hold", port=held.port), headers=server.headers(mcp_session_id=session)
        )
        held.begun()
        server.process.send_signal(signal.SIGINT)
        while server.healthy():
            pass
        assert server.ends(signal.SIGINT) == 0
        connection.close()


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_that_takes_too_long_is_answered_with_a_sentence(tmp_path: Path, held: Held, era: str) -> None:
    with serving.limited(tmp_path, answer_seconds=0.2) as server:
        async with server.client(era) as client:
            result = await client.call_tool("hold", {"port": held.port})
            assert result.is_error
            assert result.content[0].text == "hold took longer than 0.2 seconds"  # type: ignore[union-attr]
            await validated(client, config_text=BROKEN)


def test_a_closed_session_makes_room_for_another(tmp_path: Path) -> None:
    with serving.limited(tmp_path, sessions=2) as server:
        for _ in range(3):
            first, second = server.open_session(), server.open_session()
            status, _, text = server.ask(body=serving.message("initialize"))
            assert (status, serving.sentence(text)) == (503, "Too many open sessions")
            for session in (first, second):
                assert server.ask("DELETE", headers=server.headers(mcp_session_id=session))[0] == 200
                assert server.status_of(session) == 404


def test_an_idle_session_ends_and_makes_room_for_another(tmp_path: Path) -> None:
    with serving.limited(tmp_path, sessions=1, idle_seconds=0.2) as server:
        session = server.open_session()
        while server.ask(body=serving.message("initialize"))[0] == 503:
            pass
        assert server.status_of(session) == 404


def test_a_refused_opening_leaves_no_session_behind(tmp_path: Path) -> None:
    with serving.limited(tmp_path, sessions=1) as server:
        for body in (b"not JSON", serving.message("ping"), serving.call("validate_config")):
            assert server.ask(body=body)[0] == 400
        assert server.ask("GET")[0] == 400
        server.open_session()


async def wave(server: Server, sessions: int, calls: int, era: str) -> None:
    """Have many sessions call at the same time; every answer must be good."""

    async def use(number: int) -> None:
        async with server.client(era) as client:
            for turn in range(calls):
                text = f"model:\n  context_parallel_size: {3 + number}\ntrain:\n  train_iters: {turn + 1}\n"
                assert (await validated(client, config_text=text))["verdict"]

    async with anyio.create_task_group() as group:
        for number in range(sessions):
            group.start_soon(use, number)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("era", ERAS)
async def test_many_sessions_at_once_are_served_and_leave_no_memory_behind(tmp_path: Path, era: str) -> None:
    with serving.limited(tmp_path) as server:
        await wave(server, 10, 6, era)
        before = server.resident()
        for _ in range(3):
            await wave(server, 10, 6, era)
        assert server.resident() - before < 8 * MIB
        assert server.ends() == 0
        assert server.rest == ("", "")


async def test_the_answer_over_http_is_the_answer_over_standard_input(server: Server, tmp_path: Path) -> None:
    from skill_run.mcp_server import create_server

    async with server.client() as client, Client(create_server([tmp_path])) as local:
        over_http = await validated(client, config_text=BROKEN)
        assert json.dumps(over_http) == json.dumps(await validated(local, config_text=BROKEN))
