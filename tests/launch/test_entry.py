"""The entry scripts are complete by themselves; that of 0.3 to 0.5 trains on a real release of its generation."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import skill_run
from skill_run.errors import MissingError
from skill_run.launch.files import entry_files
from skill_run.worker.environments import FOLDER_ENVIRONMENT, Worker
from skill_run.worker.releases import prepare_release

PACKAGE = Path(skill_run.__file__).parent
# What a training environment has.
TRAINING = {"megatron", "torch", "yaml"}
CPU = {
    "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false", "PYTHONWARNINGS": "ignore",
}  # fmt: skip


@pytest.mark.parametrize("release", ["0.3.1", "0.5.1", "0.6.2", "0.7.0.dev0"])
def test_a_jobs_folder_needs_the_training_environment_only(release: str) -> None:
    written = entry_files(release)
    own = {name.removesuffix(".py") for name in written}
    imported = {
        name.partition(".")[0]
        for text in written.values()
        for node in ast.walk(ast.parse(text))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported - own - TRAINING - set(sys.stdlib_module_names) == set()


def test_each_generation_has_its_own_script() -> None:
    assert entry_files("0.5.1")["train.py"] != entry_files("0.6.2")["train.py"]
    assert entry_files("0.6.2")["train.py"] == entry_files("0.7.0.dev0")["train.py"]


def test_an_old_release_packs_trains_and_saves_by_its_entry_script(
    bridge_worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_ENVIRONMENT, str(tmp_path / "workers"))
    try:
        release = prepare_release(bridge_worker, "0.4.2")
    except MissingError as error:
        pytest.skip(f"the wheels of Megatron-Bridge 0.4.2 cannot be had: {error}")
    folder = tmp_path / "job"
    folder.mkdir()
    for name, text in entry_files("0.4.2").items():
        (folder / name).write_text(text, "utf-8")
    script = Path(__file__).with_name("old_release.py")
    done = subprocess.run(
        [*bridge_worker.command, "-s", "-P", str(script), str(PACKAGE), str(folder)],
        env={**os.environ, **CPU, "SKILL_RUN_RELEASE": str(release)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("ascii").splitlines()]
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert json.loads((folder / "evidence.json").read_text("ascii"))["bridge"] == "0.4.2"
    assert (folder / "checkpoints" / "latest_checkpointed_iteration.txt").read_text("ascii").strip() == "3"
    assert {path.name for path in (folder / "capture").iterdir()} == {
        f"rank{rank}_batch{number}.pt" for rank in (0, 1) for number in (0, 1)
    }
