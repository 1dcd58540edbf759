"""The MCP tools for jobs without a worker: what a preview holds, what a token starts, and what is refused."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from skill_run.jobs.service import Jobs
from skill_run.launch import token as tokens
from skill_run.mcp_server import create_server

pytestmark = pytest.mark.anyio
RECIPE = "llama32_1b_sft_1gpu_h100_bf16_config"
GPUS = {"recipe": RECIPE, "bridge": "0.6.2", "gpus_per_node": 8, "gpu": "h100", "from_scratch": True}
SILENT = [
    "model.context_parallel_size=2",
    "model.calculate_per_token_loss=true",
    "ddp.average_in_collective=false",
    "dataset.offline_packing_specs.pad_seq_to_mult=1",
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    """A client of a server with a state folder of its own and no worker."""
    monkeypatch.setenv("SKILL_RUN_WORKERS", str(tmp_path / "workers"))
    monkeypatch.setenv("SKILL_RUN_STATE", str(tmp_path / "state"))
    root = tmp_path / "root"
    root.mkdir()
    async with Client(create_server([root])) as found:
        yield found


async def ask(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer.content
    assert answer.structured_content is not None
    return dict(answer.structured_content)


async def refused(client: Client, tool: str = "launch_training", **arguments: Any) -> str:
    answer = await client.call_tool(tool, arguments)
    assert answer.is_error, answer.structured_content
    return str(answer.content[0].text)  # type: ignore[union-attr]


async def test_a_preview_holds_the_plan_and_starts_nothing(client: Client) -> None:
    told = await ask(client, "launch_training", **GPUS)
    assert told["state"] == "previewed"
    assert told["ranks"][0] == "8 ranks = 1 node x 8"
    assert "--nproc-per-node=8" in told["commands"][-1]
    assert all(each["reason"] for each in told["environment"])
    assert (told["gpu_hours"], told["resumes_from"], told["batch_script"]) == (None, "", "")
    job = Jobs().get(told["job"])
    assert (job.state.value, job.started) == ("previewed", None)


async def test_a_batch_script_and_its_cost_are_shown(client: Client) -> None:
    told = await ask(client, "launch_training", **GPUS, engine="slurm", nodes=1, time="02:00:00", partition="gpu")
    assert "#SBATCH --partition=gpu" in told["batch_script"]
    assert told["gpu_hours"] == 16.0


async def test_a_corruption_refuses_until_the_user_accepts_the_rule(client: Client) -> None:
    said = await refused(client, **GPUS, overrides=SILENT)
    assert "offline-pad-multiple-covers-cp" in said
    told = await ask(client, "launch_training", **GPUS, overrides=SILENT, allow=["offline-pad-multiple-covers-cp"])
    assert told["accepted"] == ["offline-pad-multiple-covers-cp"]
    told = await ask(client, "launch_training", **GPUS, overrides=SILENT, fix=True)
    assert any("pad_seq_to_mult" in setting for setting in told["settings"])


async def test_a_token_that_expired_starts_nothing(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    told = await ask(client, "launch_training", **GPUS)
    later = time.time() + told["valid_seconds"] + 1
    monkeypatch.setattr(tokens.time, "time", lambda: later)
    assert "has expired" in await refused(client, confirm_token=told["confirm_token"])
    assert (await ask(client, "get_job", job=told["job"]))["state"] == "previewed"


async def test_a_plan_that_was_changed_on_disk_is_not_started(client: Client) -> None:
    told = await ask(client, "launch_training", **GPUS)
    path = Path(Jobs().get(told["job"]).plan.folder) / "plan.json"
    plan = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**plan, "command": ["touch", "pwned"]}), "utf-8")
    assert "was changed after its preview" in await refused(client, confirm_token=told["confirm_token"])


async def test_the_token_of_one_preview_does_not_start_another(client: Client) -> None:
    one, other = [await ask(client, "launch_training", **GPUS) for _ in range(2)]
    mixed = one["confirm_token"].replace(one["job"], other["job"])
    assert "does not belong to this plan" in await refused(client, confirm_token=mixed)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "nothing to launch"),
        ({"config_path": "../secret.yaml"}, "outside the folders that may be read"),
        ({**GPUS, "folder": "/"}, "outside the folders that may be read"),
        ({**GPUS, "resume": "/etc"}, "outside the folders that may be read"),
        ({**GPUS, "env": {"LD_PRELOAD": "/tmp/a.so"}}, "decides which code runs"),
        ({**GPUS, "env": {"PYTHONPATH": "/tmp"}}, "decides which code runs"),
        ({**GPUS, "env": {"HF_TOKEN": "x"}}, "looks like a secret"),
        ({**GPUS, "python": "/bin/sh"}, "there is no argument 'python'"),
        ({**GPUS, "name": "a\nb"}, "line break"),
        ({"recipe": RECIPE, "cpu": True}, "no worker with Megatron-Bridge is set up"),
        ({"confirm_token": "x"}, "no confirm token"),
    ],
)
async def test_what_may_not_be_launched_is_refused_with_a_sentence(
    client: Client, arguments: dict[str, Any], sentence: str
) -> None:
    assert sentence in await refused(client, **arguments)
    assert await ask(client, "list_jobs") == {"jobs": []}


async def test_a_job_that_is_not_there_is_told(client: Client) -> None:
    for tool in ("get_job", "stop_job"):
        assert "there is no job" in await refused(client, tool, job="nosuch")
