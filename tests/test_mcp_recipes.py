"""The MCP tools that generate, migrate, plan and pack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from skill_run.mcp_recipes import TEXT_LIMIT
from skill_run.mcp_server import create_server

pytestmark = pytest.mark.anyio

OLD = """\
model: {context_parallel_size: 2, seq_length: 4096, calculate_per_token_loss: true}  # two ranks
ddp: {average_in_collective: false}
train: {micro_batch_size: 1, global_batch_size: 8}
dataset:
  seq_length: 4096
  packed_sequence_specs: {packed_sequence_size: 4096, pad_seq_to_mult: 4}
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    (folder / "old.yaml").write_text(OLD, "utf-8")
    (folder / "lengths.csv").write_text("length,count\n100,500\n700,200\n3000,40\n", "utf-8")
    rows = [{"input_ids": list(range(1, 20 + n % 30)), "loss_mask": [1] * (19 + n % 30)} for n in range(300)]
    (folder / "training.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return folder


async def call(root: Path, tool: str, **arguments: Any) -> Any:
    """Return the structured answer of a tool, or its error's sentence."""
    async with Client(create_server([root])) as client:
        answer = await client.call_tool(tool, arguments)
    return answer.content[0].text if answer.is_error else answer.structured_content  # type: ignore[union-attr]


async def test_workflows_are_listed_then_described_then_generated(root: Path) -> None:
    listed = await call(root, "generate_recipe")
    assert "offline-packed-sft" in [workflow["id"] for workflow in listed["workflows"]]
    described = await call(root, "generate_recipe", workflow="offline-packed-sft", describe=True)
    assert "seq_length" in described["inputs"]["properties"]
    made = await call(
        root,
        "generate_recipe",
        workflow="offline-packed-sft",
        model="Qwen/Qwen3-8B",
        gpus=16,
        gpu="h100",
        bridge="0.6.2",
        inputs={"seq_length": 32768},
    )
    assert made["left_out"] == 0
    compile(made["text"], "made.py", "exec")
    assert made["settings"]["model.context_parallel_size"] > 1
    assert made["reasons"]
    assert not [problem for problem in made["problems"] if problem["severity"] in ("error", "corruption")]


async def test_a_config_file_is_moved_with_its_comments(root: Path) -> None:
    moved = await call(root, "migrate_config", config_path="old.yaml", to="0.6.2")
    assert (moved["from_version"], moved["to_version"], moved["clean"]) == ("0.5.1", "0.6.2", True)
    assert "enable_offline_packing: true" in moved["text"]
    assert "# two ranks" in moved["text"]
    assert moved["manual"] == []
    assert (root / "old.yaml").read_text("utf-8") == OLD


async def test_overrides_are_moved_as_text(root: Path) -> None:
    text = "dataset.packed_sequence_specs.packed_sequence_size=4096\nmodel.context_parallel_size=2"
    moved = await call(root, "migrate_config", config_text=text, to="0.6.2", bridge="0.5.1")
    assert "dataset.offline_packing_specs.packed_sequence_size=4096" in moved["text"]
    assert "offline-pad-multiple-covers-cp" in [problem["rule"] for problem in moved["problems"]]


async def test_a_long_config_is_cut_at_a_line_and_says_how_much_is_missing(root: Path) -> None:
    (root / "long.yaml").write_text(OLD + "# filler\n" * 6000, "utf-8")
    moved = await call(root, "migrate_config", config_path="long.yaml", to="0.6.2")
    assert len(moved["text"]) <= TEXT_LIMIT
    assert moved["text"].endswith("\n")
    assert moved["left_out"] > 20_000


async def test_pack_sizes_are_planned_from_a_file_and_from_lengths(root: Path) -> None:
    from_file = await call(root, "plan_packing", data_path="lengths.csv", pack_sizes=[4096])
    given = {"100": 500, "700": 200, "3000": 40}
    from_lengths = await call(root, "plan_packing", lengths=given, pack_sizes=[4096])
    assert from_file["sizes"] == from_lengths["sizes"]
    (size,) = from_file["sizes"]
    assert size["packs"] == -(-(100 * 500 + 700 * 200 + 3000 * 40 - 740) // 4096)
    assert from_file["pack_size"] == 4096
    assert from_file["traffic"]


async def test_data_are_packed_by_a_job_into_files_that_inspect_finds_clean(root: Path) -> None:
    async with Client(create_server([root])) as client:
        arguments = {"data_path": "training.jsonl", "out_path": "packs", "pack_size": 256, "bridge": "0.6.2"}
        answer: Any = (await client.call_tool("pack_dataset", {**arguments, "wait_seconds": 0})).structured_content
        while answer["state"] == "running":
            follow = {"job": answer["job"], "wait_seconds": 60}
            answer = (await client.call_tool("pack_dataset", follow)).structured_content
        assert answer["state"] == "passed", answer["message"]
        assert answer["report"]["samples"] == 300
        (made,) = (root / "packs").rglob("training_256*.parquet")
        inspected: Any = (await client.call_tool("inspect_batch", {"path": str(made)})).structured_content
    serious = [item for item in inspected["findings"] if item["severity"] in ("error", "corruption")]
    assert serious == []


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("generate_recipe", {"workflow": "offline-packd-sft"}, "offline-packed-sft"),
        ("generate_recipe", {"workflow": "offline-packed-sft", "model": "../../x"}, "outside the folders"),
        ("migrate_config", {"to": "0.6.2"}, "give config_path or config_text"),
        ("migrate_config", {"to": "0.6.2", "config_path": "old.yaml", "config_text": "a=1"}, "one of them"),
        ("migrate_config", {"to": "soon", "config_path": "old.yaml"}, "soon"),
        ("migrate_config", {"to": "0.6.2", "config_path": "../x.yaml"}, "x.yaml"),
        ("plan_packing", {}, "give data_path or lengths"),
        ("plan_packing", {"lengths": {"a": 1}}, "must map a length"),
        ("plan_packing", {"lengths": {"0": 1}}, "0"),
        ("plan_packing", {"data_path": "/etc/passwd"}, "outside the folders"),
        ("pack_dataset", {}, "give data_path, out_path and pack_size"),
        ("pack_dataset", {"job": "pack-none"}, "no such packing"),
        ("pack_dataset", {"data_path": "training.jsonl", "out_path": "../out", "pack_size": 64}, "out"),
    ],
)
async def test_what_cannot_be_is_refused_in_one_sentence(
    root: Path, tool: str, arguments: dict[str, Any], message: str
) -> None:
    told = await call(root, tool, **arguments)
    assert isinstance(told, str)
    assert message in told
    assert "\n" not in told
    assert not (root.parent / "out").exists()


async def test_nothing_is_read_or_written_through_links_that_lead_out(root: Path) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "secret.jsonl").write_text('{"input_ids": [1, 2, 3], "loss_mask": [1, 1, 1]}\n', "utf-8")
    (root / "link").symlink_to(outside, target_is_directory=True)
    (root / "data").mkdir()
    (root / "data" / "training.jsonl").symlink_to(outside / "secret.jsonl")
    ids = {"pack_size": 64, "bridge": "0.6.2"}
    for arguments in (
        {"data_path": "training.jsonl", "out_path": "link/new"},
        {"data_path": "training.jsonl", "out_path": "link"},
        {"data_path": "data", "out_path": "new"},
        {"data_path": "link/secret.jsonl", "out_path": "new"},
    ):
        assert "outside the folders" in await call(root, "pack_dataset", **ids, **arguments)
    assert "outside the folders" in await call(root, "plan_packing", data_path="data")
    assert [path.name for path in outside.iterdir()] == ["secret.jsonl"]
