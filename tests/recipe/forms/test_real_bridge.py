"""What the real Megatron-Bridge 0.6.2 says of the scripts: one run of the worker imports and builds all of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from form_drafts import named_drafts

from skill_run.recipe.forms.script import render_script
from skill_run.worker.environments import Worker

BRIDGE = "0.6.2"
KINDS = (
    "recipe_data",
    "local",
    "hub",
    "overlap",
    "dtypes",
    "precision",
    "lora",
    "dora",
    "pretrain",
    "images",
    "energon",
)


@pytest.fixture(scope="module")
def scripts(bridge_worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What became of each script: its `build()` and then the real validate()."""
    if bridge_worker.bridge != BRIDGE:
        pytest.skip(f"the worker has Megatron-Bridge {bridge_worker.bridge}, not {BRIDGE}")
    folder = tmp_path_factory.mktemp("scripts")
    paths = []
    for kind in KINDS:
        paths.append(folder / f"{kind}.py")
        paths[-1].write_text(render_script(named_drafts(BRIDGE)[kind]))
    command = [*bridge_worker.command, str(Path(__file__).parents[1] / "migrate" / "run_scripts.py"), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-2000:]
    found: dict[str, dict[str, Any]] = json.loads(lines[0].removeprefix("RESULT "))
    return found


def test_the_real_0_6_2_builds_and_accepts_every_script(scripts: dict[str, dict[str, Any]]) -> None:
    assert {name: told["message"] for name, told in scripts.items() if told["outcome"] != "passes"} == {}
    assert sorted(scripts) == sorted(KINDS)
    assert {told["container"] for told in scripts.values()} == {"ConfigContainer"}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("local", {"dataset": "GPTSFTDatasetConfig", "packs": True, "pad": 4, "eval_iters": 2, "peft": "NoneType"}),
        ("lora", {"peft": "LoRA"}),
        ("dora", {"peft": "DoRA"}),
        ("pretrain", {"dataset": "GPTDatasetConfig"}),
        ("images", {"dataset": "DirectHFSFTDatasetConfig", "in_batch": True}),
        ("energon", {"dataset": "EnergonDatasetConfig", "in_batch": True}),
    ],
)
def test_a_script_builds_what_its_draft_says(
    scripts: dict[str, dict[str, Any]], kind: str, expected: dict[str, Any]
) -> None:
    assert {name: scripts[kind][name] for name in expected} == expected
