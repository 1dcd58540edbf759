"""Generated scripts run up to their config on the real Megatron-Bridge 0.6.2, whose validate() must pass."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from skill_run.recipe.generate import generate_recipe
from skill_run.worker.environments import Worker

LLAMA = "meta-llama/Meta-Llama-3-8B"
ASKED: dict[str, dict[str, Any]] = {
    "offline-packed-sft": {},
    "long-context-sft": {"seq_length": 32768},
    "all-to-all-cp": {},
    "dense-layout": {},
    "fully-sharded": {},
}


@pytest.fixture(scope="module")
def outcomes(bridge_worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the real validate() says of the script of each workflow, for a folder of data."""
    folder = tmp_path_factory.mktemp("scripts")
    paths = []
    for workflow, inputs in ASKED.items():
        made = generate_recipe(
            workflow, model=LLAMA, gpus=8, gpu="h100", bridge="0.6.2", inputs={"data": "/data/sft", **inputs}
        )
        path = folder / f"{workflow.replace('-', '_')}.py"
        path.write_text(made.text, "utf-8")
        paths.append(path)
    command = [*bridge_worker.command, str(Path(__file__).parent / "migrate" / "run_scripts.py"), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(lines[0].removeprefix("RESULT "))
    return found


@pytest.mark.parametrize("workflow", ASKED)
def test_a_script_for_a_folder_of_data_passes_the_real_validate(outcomes: dict[str, Any], workflow: str) -> None:
    told = outcomes[workflow.replace("-", "_")]
    assert told["outcome"] == "passes", told["message"]
