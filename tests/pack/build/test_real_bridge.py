"""What the real Megatron-Bridge 0.6.2 makes of our packed files; one run of the worker."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

import skill_run
from skill_run import inspect_batch
from skill_run.pack.build import build_packs
from skill_run.pack.samples import Preprocessing
from skill_run.worker.environments import Worker

WORDS = {word: at for at, word in enumerate(("<eos>", "<unk>", *"abcdefgh"))}
SEED = 77
COLUMNS = ("input_ids", "loss_mask", "seq_start_id")
CASES: dict[str, dict[str, Any]] = {
    "plain": {"multiple": 1, "preprocessing": None, "compat": True},
    "padded": {"multiple": 4, "preprocessing": None, "compat": True},
    "explicit": {"multiple": 4, "preprocessing": Preprocessing("input", "output", separator=" "), "compat": True},
    "ours": {"multiple": 4, "preprocessing": None, "compat": False},
}


def write_tokenizer(folder: Path) -> Path:
    folder.mkdir()
    made = Tokenizer(models.WordLevel(WORDS, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(told), "utf-8")
    return folder


def write_data(folder: Path) -> Path:
    folder.mkdir()
    drawn = random.Random(5)
    with (folder / "training.jsonl").open("w", encoding="utf-8") as file:
        for _ in range(60):
            texts = (" ".join(drawn.choices("abcdefgh", k=drawn.randint(1, 30))) for _ in range(2))
            file.write(json.dumps(dict(zip(("input", "output"), texts, strict=True))) + "\n")
    return folder


@pytest.fixture(scope="module")
def runs(bridge_worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Any, Any]]:
    """Our report, upstream's answer beside our file, and upstream's answer for a folder without it, by case."""
    folder = tmp_path_factory.mktemp("packing")
    tokenizer = write_tokenizer(folder / "tokenizer")
    ours, requests = [], []
    for name, case in CASES.items():
        root = write_data(folder / name)
        fresh = folder / f"{name}-fresh"
        shutil.copytree(root, fresh)
        ours.append(
            build_packs(
                root,
                root,
                bridge="0.6.2",
                pack_size=64,
                pad_seq_to_mult=case["multiple"],
                tokenizer=tokenizer,
                tokenizer_name="words",
                compat=case["compat"],
                seed=SEED,
                preprocessing=case["preprocessing"],
            ).to_dict()
        )
        explicit = case["preprocessing"]
        shared = {
            "seq_length": 64,
            "pack_size": 64,
            "seed": SEED,
            "multiple": case["multiple"],
            "preprocessing": None if explicit is None else asdict(explicit),
            "dataset_kwargs": {"pad_to_max_length": True},
        }
        requests += [{"root": str(place), **shared} for place in (root, fresh)]
    script = Path(__file__).with_name("packing_in_bridge.py")
    done = subprocess.run(
        [*bridge_worker.command[:1], str(script), str(Path(skill_run.__file__).parents[1])],
        input=json.dumps({"tokenizer": str(tokenizer), "configs": requests}),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    return {name: (ours[at], told[2 * at], told[2 * at + 1]) for at, name in enumerate(CASES)}


@pytest.mark.parametrize("name", CASES)
def test_training_finds_our_file_and_does_not_pack_again(runs: dict[str, Any], name: str) -> None:
    ours, beside, _ = runs[name]
    assert [beside["path"], beside["metadata"]] == ours["files"]
    assert beside["reused"]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["compat"]])
def test_compat_writes_the_columns_and_metadata_that_upstream_writes(runs: dict[str, Any], name: str) -> None:
    ours, _, fresh = runs[name]
    written, upstream = pq.read_table(ours["files"][0]), pq.read_table(fresh["path"])
    assert written.schema.equals(upstream.schema)
    for column in COLUMNS:
        assert written.column(column).to_pylist() == upstream.column(column).to_pylist()
    assert json.loads(Path(ours["files"][1]).read_text()) == json.loads(Path(fresh["metadata"]).read_text())


@pytest.mark.parametrize("name", CASES)
def test_upstreams_reader_loads_every_row_and_collates(runs: dict[str, Any], name: str) -> None:
    ours, beside, _ = runs[name]
    rows = pq.read_table(ours["files"][0]).to_pylist()
    assert len(beside["rows"]) == len(rows) == ours["packs"]
    for (tokens, masks, starts), row in zip(beside["rows"], rows, strict=True):
        assert (tokens, masks) == (row["input_ids"], row["loss_mask"])
        assert starts == [*row["seq_start_id"], len(tokens)]
    assert beside["batch"]["tokens"] == [1, 64]


def test_our_packs_hold_the_sequences_of_upstreams(runs: dict[str, Any]) -> None:
    def sequences(rows: Any) -> list[list[int]]:
        return sorted(tokens[start:end] for tokens, _, starts in rows for start, end in pairwise(starts))

    _, ours, _ = runs["ours"]
    _, upstream, _ = runs["padded"]
    assert sequences(ours["rows"]) == sequences(upstream["rows"])
    assert len(ours["rows"]) <= len(upstream["rows"])


@pytest.mark.parametrize("name", CASES)
def test_inspect_finds_nothing_in_our_file(runs: dict[str, Any], name: str) -> None:
    report = inspect_batch(Path(runs[name][0]["files"][0]), bridge="0.6.2")
    assert not [finding for finding in report.findings if finding.severity in ("error", "warning")]
