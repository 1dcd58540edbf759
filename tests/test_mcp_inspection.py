"""The MCP tool `inspect_batch` in memory, through the SDK's own client, in both protocol eras."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from mcp import Client
from pyarrow import parquet

from skill_run.mcp_inspection import MAX_NUMBERS, MAX_RANKS, MAX_RUNS, MAX_SEQUENCES
from skill_run.mcp_server import create_server

pytestmark = pytest.mark.anyio

SAMPLES = Path(__file__).parent / "batch" / "data" / "samples.json.gz"
CLEAN = "0.6.2/batch_offline_mult4_cp2_mb0"
UNALIGNED = "0.6.2/batch_offline_mult1_dprank_global"
COVERS_CP = "batch-boundaries-cover-cp"
CONFIG = "model:\n  context_parallel_size: 4\n"
PNG = b"\x89PNG\r\n\x1a\n"


def decoded(value: Any) -> Any:
    """Return a sample with its arrays as arrays."""
    if isinstance(value, dict) and "__array__" in value:
        return np.array(value["data"], dtype=value["__array__"]).reshape(value["shape"])
    return {key: decoded(item) for key, item in value.items()} if isinstance(value, dict) else value


def plain(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch with its arrays as nested lists."""
    return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in batch.items()}


@pytest.fixture(scope="module")
def samples() -> dict[str, dict[str, Any]]:
    """Real batches of the library as arrays, by release and name."""
    return {name: decoded(batch) for name, batch in json.loads(gzip.decompress(SAMPLES.read_bytes())).items()}


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep caches out of the user's own folders, and no interpreter from outside."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("SKILL_RUN_PYTHON", raising=False)
        yield


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def root(tmp_path: Path, samples: dict[str, dict[str, Any]]) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "run.yaml").write_text(CONFIG, "utf-8")
    (folder / "unaligned.json").write_text(json.dumps(plain(samples[UNALIGNED])), "utf-8")
    arrays = {key: value for key, value in samples[CLEAN].items() if isinstance(value, np.ndarray)}
    np.savez(folder / "clean.npz", **arrays)
    return folder


@pytest.fixture(params=["auto", "legacy"])
async def client(root: Path, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    async with Client(create_server([root]), mode=request.param) as connected:
        yield connected


async def answer(client: Client, **arguments: Any) -> dict[str, Any]:
    """Return the answer without a picture; the client checks it against the tool's output schema."""
    result = await client.call_tool("inspect_batch", {"picture": False, **arguments})
    assert not result.is_error, result.content
    assert isinstance(result.structured_content, dict)
    assert [json.loads(item.text) for item in result.content] == [result.structured_content]  # type: ignore[union-attr]
    return result.structured_content


async def refusal(client: Client, **arguments: Any) -> str:
    """Return the sentence with which the tool refuses."""
    result = await client.call_tool("inspect_batch", arguments)
    assert result.is_error, result.structured_content
    text: str = result.content[0].text  # type: ignore[union-attr]
    assert "Traceback" not in text
    assert "Error executing tool" not in text
    assert len(text) < 1100
    return text


def rules_of(report: dict[str, Any]) -> list[str]:
    return [finding["rule"] for finding in report["findings"]]


def write_packs(path: Path, rows: int = 3) -> None:
    """Write a packed file as Megatron-Bridge 0.6 does: two sequences of 8 tokens at run time in each row."""
    table = pyarrow.table(
        {
            "input_ids": pyarrow.array([list(range(10, 28))] * rows, pyarrow.list_(pyarrow.int64())),
            "loss_mask": pyarrow.array(
                [[0] + [1] * 7 + [0] + [0] + [1] * 7 + [0]] * rows, pyarrow.list_(pyarrow.int8())
            ),
            "seq_start_id": pyarrow.array([[0, 9]] * rows, pyarrow.list_(pyarrow.int64())),
        }
    )
    parquet.write_table(table, path)


async def test_a_clean_batch_of_the_library_is_clean_and_says_what_it_is(client: Client) -> None:
    report = await answer(client, path="clean.npz", bridge="0.6.2", cp=2)
    assert next(iter(report)) == "summary"
    assert (report["path"], report["generation"], report["source"]) == ("offline_packed", ">=0.6", "clean.npz")
    assert "cu_seqlens_q" in report["meaning"]
    assert report["because"]
    assert report["findings"] == []
    assert report["cp"]["whole"] is True
    assert sum(rank["tokens"] for rank in report["cp"]["ranks"]) == report["tokens"] == 128


async def test_a_fault_is_found_alike_in_a_file_and_in_the_call(
    client: Client, samples: dict[str, dict[str, Any]]
) -> None:
    in_file = await answer(client, path="unaligned.json", cp=4)
    in_call = await answer(client, batch=plain(samples[UNALIGNED]), cp=4)
    assert in_call["source"] == "batch"
    assert {**in_call, "source": ""} == {**in_file, "source": ""}
    finding = in_file["findings"][0]
    assert finding["rule"] == COVERS_CP
    assert (finding["severity"], finding["fires"]) == ("corruption", "never")
    assert finding["fields"] == ["cu_seqlens_q"]
    assert "3 corruption" in in_file["summary"]["verdict"]


async def test_the_config_gives_the_sizes_that_the_call_leaves_out(client: Client) -> None:
    assert COVERS_CP not in rules_of(await answer(client, path="unaligned.json"))
    report = await answer(client, path="unaligned.json", config_path="run.yaml")
    assert COVERS_CP in rules_of(report)
    assert report["cp"]["size"] == 4


async def test_a_launch_script_is_read_as_the_config_but_not_followed(
    client: Client, root: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "train.py"
    outside.write_text("model.context_parallel_size = (\n", "utf-8")
    (root / "job.sh").write_text(f"torchrun {outside} model.context_parallel_size=4\n", "utf-8")
    report = await answer(client, path="unaligned.json", config_path="job.sh")
    assert report["cp"]["size"] == 4


async def test_the_pack_map_comes_as_an_image_beside_the_answer(client: Client) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra `plots`")
    result = await client.call_tool("inspect_batch", {"path": "clean.npz", "cp": 2})
    text, image = result.content
    assert json.loads(text.text) == result.structured_content  # type: ignore[union-attr]
    assert (image.type, image.mime_type) == ("image", "image/png")  # type: ignore[union-attr]
    assert base64.b64decode(image.data, validate=True).startswith(PNG)  # type: ignore[union-attr]


async def test_without_matplotlib_the_pack_map_comes_as_text(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = await client.call_tool("inspect_batch", {"path": "clean.npz"})
    assert [item.type for item in result.content] == ["text", "text"]
    assert re.search(r"^  row 0\s+[A-Za-z|.]+$", result.content[1].text, re.MULTILINE)  # type: ignore[union-attr]


async def test_pages_together_hold_each_finding_and_each_sequence_once(client: Client) -> None:
    whole = await answer(client, path="unaligned.json", cp=4)
    assert whole["total"] == len(whole["findings"]) > 1
    assert whole["sequences_total"] == len(whole["sequences"]) > 5
    findings: list[Any] = []
    sequences: list[Any] = []
    at: int | None = 0
    start: int | None = 0
    while at is not None or start is not None:
        page = await answer(
            client,
            path="unaligned.json",
            cp=4,
            offset=at or 0,
            max_findings=1,
            sequence_offset=start or 0,
            max_sequences=5,
        )
        assert page["summary"] == whole["summary"]
        if at is not None:
            findings += page["findings"]
            at = page["next_offset"]
        if start is not None:
            sequences += page["sequences"]
            start = page["next_sequence_offset"]
    assert findings == whole["findings"]
    assert sequences == whole["sequences"]


async def test_the_answer_is_bounded_however_big_the_batch_is(client: Client) -> None:
    tokens, size = 65536, 1024
    batch = {
        "tokens": [[1] * tokens],
        "loss_mask": [[1] * tokens],
        "cu_seqlens_q": [[*range(0, tokens, 3), tokens]],
        "x" * 5000: [1],
    }
    result = await client.call_tool("inspect_batch", {"batch": batch, "cp": size, "max_sequences": MAX_SEQUENCES})
    report = result.structured_content
    assert report is not None
    assert report["sequences_total"] == 21846
    assert len(report["sequences"]) == MAX_SEQUENCES
    assert report["cp"]["size"] == size
    assert len(report["cp"]["ranks"]) == MAX_RANKS
    assert all(len(rank["runs"]) <= MAX_RUNS for rank in report["cp"]["ranks"])
    assert len(report["cp"]["duplicated_runs"]) <= MAX_RUNS
    assert len(json.dumps(report)) < 60_000
    assert len(result.content[1].model_dump_json()) < 1_500_000


async def test_a_packed_file_and_a_folder_of_them_give_figures(client: Client, root: Path) -> None:
    (root / "packed").mkdir()
    write_packs(root / "packed" / "training_64.idx.parquet")
    write_packs(root / "packed" / "validation_64.idx.parquet")
    for path, files in (("packed/training_64.idx.parquet", 1), ("packed", 2)):
        report = await answer(client, path=path)
        assert (report["path"], report["cp"]) == ("packed_dataset", None)
        assert report["sequences"][1] == {"row": 0, "start": 8, "logical": 8, "physical": 8, "trained": 7}
        assert report["statistics"]["files"] == files
        assert report["summary"]["rows"] == report["rows"] == 3 * files
        assert report["summary"]["sequences"] == 6 * files
        assert report["statistics"]["sequence_length"] == {"min": 8, "max": 8}


async def test_dumps_of_each_rank_are_put_together(
    client: Client, root: Path, samples: dict[str, dict[str, Any]]
) -> None:
    (root / "dumps").mkdir()
    for rank in range(2):
        batch = samples[f"0.3.1/getbatch_mult4_cp2_mb1_rank{rank}"]
        (root / "dumps" / f"rank{rank}_step0.json").write_text(json.dumps(plain(batch)), "utf-8")
    report = await answer(client, path="dumps", bridge="0.3.1", cp=2)
    assert report["path"] == "ranks"
    assert report["summary"]["corruption"] > 0


async def test_one_of_several_batches_is_named_by_its_number(
    client: Client, root: Path, samples: dict[str, Any]
) -> None:
    lines = [json.dumps(plain(samples[name])) for name in (CLEAN, UNALIGNED)]
    (root / "many.jsonl").write_text("\n".join(lines), "utf-8")
    assert "many.jsonl#1" in await refusal(client, path="many.jsonl")
    report = await answer(client, path="many.jsonl#2")
    assert (report["rows"], report["source"]) == (3, "many.jsonl#2")
    assert (await refusal(client, path="many.jsonl#3")).startswith("many.jsonl holds 2 batches")


async def test_a_path_out_of_the_roots_is_refused(client: Client, root: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text((root / "unaligned.json").read_text("utf-8"), "utf-8")
    (tmp_path / "run.yaml").write_text(CONFIG, "utf-8")
    (root / "link.json").symlink_to(secret)
    (root / "up").symlink_to(tmp_path, target_is_directory=True)
    names = ["../secret.json", str(secret), "link.json", "up/secret.json", "../secret.json#1", "up/*.json"]
    for name in names:
        assert "outside the folders that may be read" in await refusal(client, path=name)
    assert "outside the folders" in await refusal(client, path="clean.npz", config_path="../run.yaml")


async def test_a_folder_whose_files_lead_out_of_the_roots_is_refused(
    client: Client, root: Path, tmp_path: Path
) -> None:
    write_packs(tmp_path / "training_64.idx.parquet")
    (root / "linked").mkdir()
    (root / "linked" / "training_64.idx.parquet").symlink_to(tmp_path / "training_64.idx.parquet")
    told = await refusal(client, path="linked")
    assert told.startswith("linked/training_64.idx.parquet leads outside")
    (tmp_path / "64_metadata.jsonl").write_text("secret", "utf-8")
    (root / "beside").mkdir()
    write_packs(root / "beside" / "training_64.idx.parquet")
    (root / "beside" / "64_metadata.jsonl").symlink_to(tmp_path / "64_metadata.jsonl")
    for name in ("beside", "beside/training_64.idx.parquet"):
        assert "64_metadata.jsonl leads outside" in await refusal(client, path=name)


async def test_a_glob_is_no_path(client: Client) -> None:
    assert "is not there" in await refusal(client, path="*.npz")


@pytest.mark.skipif(find_spec("torch") is not None, reason="this interpreter has torch itself")
async def test_a_torch_file_needs_an_interpreter_with_torch(client: Client, root: Path) -> None:
    (root / "dump.pt").write_bytes(b"PK")
    told = await refusal(client, path="dump.pt")
    assert told.startswith("dump.pt can only be read by an interpreter that has torch")
    assert "--python PATH" in told


async def test_the_interpreter_of_the_server_is_the_one_that_is_started(root: Path) -> None:
    (root / "dump.pt").write_bytes(b"PK")
    async with Client(create_server([root], root / "no-such-python")) as client:
        assert "no-such-python is no program that can be started" in await refusal(client, path="dump.pt")


async def test_a_torch_file_is_read_by_the_interpreter_of_the_server(root: Path, torch_python: str) -> None:
    batch = "{'tokens': torch.arange(8)[None], 'cu_seqlens_q': torch.tensor([[0, 4, 8]])}"
    script = f"import torch; torch.save({batch}, 'dump.pt')"
    subprocess.run([torch_python, "-c", script], cwd=root, check=True)
    async with Client(create_server([root], torch_python)) as client:
        report = await answer(client, path="dump.pt")
        assert [item["physical"] for item in report["sequences"]] == [4, 4]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "give path or batch"),
        ({"path": "clean.npz", "batch": {"tokens": [1]}}, "only one of them"),
        ({"path": "nothing.npz"}, "nothing.npz is not there"),
        ({"path": "a\0b"}, "is not a path"),
        ({"path": "run.yaml"}, "run.yaml has a name that tells no form"),
        ({"path": "clean.npz", "bridge": "newest"}, "is not a Megatron-Bridge version"),
        ({"path": "clean.npz", "config_path": "nothing.yaml"}, "nothing.yaml is not there"),
        ({"path": "clean.npz", "config_path": "clean.npz"}, "clean.npz is not UTF-8"),
        ({"path": "clean.npz", "cp": 0}, "cp: "),
        ({"path": "clean.npz", "cp": 10**30}, "context parallel size"),
        ({"path": "clean.npz", "max_sequences": MAX_SEQUENCES + 1}, "max_sequences: "),
        ({"path": "clean.npz", "python": "/bin/sh"}, "there is no argument 'python'"),
        ({"batch": "no json"}, "batch: "),
        ({"batch": {}}, ""),
        ({"batch": {"tokens": [[1], ["x"]]}}, ""),
        ({"batch": {"tokens": [10**40]}}, ""),
        ({"batch": {"cu_seqlens_q": [0.5, float("nan")], "tokens": [[1, 2]]}}, ""),
        ({"batch": {"cu_seqlens_q": {"a": {"b": [1]}}, "tokens": [[1, 2]]}}, ""),
        ({"batch": {"rank0": {"tokens": None}, "rank1": {}}}, ""),
        ({"batch": {"tokens": [0] * (MAX_NUMBERS + 1)}}, "save it as a file"),
    ],
)
async def test_wrong_input_is_refused_with_a_sentence(client: Client, arguments: dict[str, Any], told: str) -> None:
    assert told in await refusal(client, **arguments)


@pytest.mark.parametrize(
    "change",
    [
        {"cu_seqlens_q": [[0, 2**62, -(2**62)]]},
        {"cu_seqlens_q": [[5, 3, 1]]},
        {"cu_seqlens_q": [[]]},
        {"cu_seqlens_q": [[0, 10**8, 10**9]]},
        {"loss_mask": [[float("nan")] * 8]},
        {"loss_mask": [[1, 2, 3]]},
        {"position_ids": [[-1] * 8]},
        {"max_seqlen_q": 10**18},
        {"\x1b[2J": [1], "y" * 10_000: [2]},
    ],
)
async def test_a_malformed_batch_gets_findings_or_one_sentence(client: Client, change: dict[str, Any]) -> None:
    batch = {"tokens": [[1] * 8], "cu_seqlens_q": [[0, 4, 8]], "loss_mask": [[1] * 8], **change}
    result = await client.call_tool("inspect_batch", {"batch": batch, "cp": 2})
    text = result.content[0].text  # type: ignore[union-attr]
    assert "Traceback" not in text
    assert "Error executing tool" not in text
    assert len(text) < 30_000
    assert "\x1b" not in text


async def test_a_batch_that_is_nested_too_deep_is_refused(client: Client) -> None:
    deep: Any = [1]
    for _ in range(40):
        deep = [deep]
    assert "nested deeper" in await refusal(client, batch={"tokens": deep})


async def test_a_pickle_in_a_packed_file_is_not_run(client: Client, root: Path, tmp_path: Path) -> None:
    mark = tmp_path / "executed"

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.mkdir, (str(mark),))

    np.save(root / "training_64.npy", np.array([Evil()], dtype=object), allow_pickle=True)
    assert "training_64.npy" in await refusal(client, path="training_64.npy")
    assert not mark.exists()
