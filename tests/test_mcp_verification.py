"""The MCP tool `verify_skill`: a job at once, progress while it runs, the report at the end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from skill_run.mcp_server import create_server
from skill_run.verify.run import CHECKS
from skill_run.worker.environments import RECORD, Worker

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    """A client of a server whose workers folder is `workers`, which is empty at first."""
    monkeypatch.setenv("SKILL_RUN_WORKERS", str(tmp_path / "workers"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    async with Client(create_server([tmp_path])) as found:
        yield found


async def ask(client: Client, **arguments: Any) -> dict[str, Any]:
    answer = await client.call_tool("verify_skill", arguments)
    assert not answer.is_error, answer.content
    found: dict[str, Any] | None = answer.structured_content
    assert found is not None
    return found


async def refused(client: Client, **arguments: Any) -> str:
    answer = await client.call_tool("verify_skill", arguments)
    assert answer.is_error
    return str(answer.content[0].text)  # type: ignore[union-attr]


async def finished(client: Client, job: str) -> dict[str, Any]:
    while (found := await ask(client, job=job, wait_seconds=60))["state"] == "running":
        pass
    return found


async def test_a_job_is_started_at_once_and_asked_for_until_it_has_ended(client: Client) -> None:
    started = await ask(client, parity=False, wait_seconds=0)
    assert started["state"] == "running"
    ended = await finished(client, started["job"])
    assert (ended["state"], ended["message"]) == ("passed", "")
    assert [check["name"] for check in ended["checks"]] == list(CHECKS)


async def test_a_second_job_is_refused_while_one_runs_and_names_it(client: Client) -> None:
    started = await ask(client, parity=False, wait_seconds=0)
    assert started["job"] in await refused(client, parity=False)
    await finished(client, started["job"])
    assert (await ask(client, parity=False, wait_seconds=0))["job"] != started["job"]


async def test_without_a_worker_parity_is_skipped_and_says_how_to_get_one(client: Client) -> None:
    ended = await finished(client, (await ask(client, wait_seconds=0))["job"])
    parity = ended["checks"][-1]
    assert (ended["state"], parity["name"], parity["skipped"]) == ("passed", "parity", True)
    assert "skill-run worker setup" in parity["detail"]


async def test_parity_that_was_asked_for_fails_without_a_worker(client: Client) -> None:
    ended = await finished(client, (await ask(client, cp=2, wait_seconds=0))["job"])
    assert ended["state"] == "failed"
    assert "skill-run worker setup" in ended["message"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"job": "verify-0"}, "no such verification"),
        ({"cp": 0}, "cp"),
        ({"wait_seconds": 61}, "wait_seconds"),
        ({"config_path": "../x.yaml"}, "x.yaml"),
        ({"data_path": "/etc/passwd"}, "passwd"),
        ({"config": "x"}, "there is no argument 'config'"),
    ],
)
async def test_a_call_that_cannot_be_served_is_one_sentence(
    client: Client, arguments: dict[str, Any], told: str
) -> None:
    sentence = await refused(client, **arguments)
    assert told in sentence
    assert "\n" not in sentence


async def test_data_whose_files_lead_outside_is_refused(client: Client, tmp_path: Path) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-outside.json"
    outside.write_text("[8]", "utf-8")
    (tmp_path / "packs").mkdir()
    (tmp_path / "packs" / "training.json").symlink_to(outside)
    (tmp_path / "lengths.json").symlink_to(outside)
    for name in ("packs", "lengths.json"):
        assert "outside the folders that may be read" in await refused(client, data_path=name)


async def test_a_comparison_reports_its_progress_and_its_figures(
    client: Client, core_worker: Worker, tmp_path: Path
) -> None:
    folder = tmp_path / "workers" / core_worker.name
    folder.mkdir(parents=True)
    (folder / RECORD).write_text(json.dumps(core_worker.to_dict()), "utf-8")
    told: list[tuple[float, str | None]] = []

    async def listen(done: float, total: float | None, text: str | None) -> None:
        told.append((done, text))

    answer = await client.call_tool("verify_skill", {"cp": 2, "wait_seconds": 60}, progress_callback=listen)
    assert answer.structured_content is not None
    ended = await finished(client, answer.structured_content["job"])
    assert ended["state"] == "passed", ended
    assert all(layout["gradient_error"] <= 1e-12 for layout in ended["parity"]["layouts"])
    assert all(control["caught"] and control["diagnosis"] for control in ended["parity"]["controls"])
    assert len(told) > 1
