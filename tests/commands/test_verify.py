"""`skill-run verify` as a real process: options that do not go together, and reports that would replace an input."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# What the one who runs the tests may have set.
UNSET = ("SKILL_RUN_WORKER", "PYTHONPATH")


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key not in UNSET}
    return subprocess.run(
        [sys.executable, "-m", "skill_run.cli", "verify", *arguments],
        env={**environment, "SKILL_RUN_WORKERS": str(folder / "workers"), **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def refused(done: subprocess.CompletedProcess[str], sentence: str) -> None:
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--worker", ""], "--worker is empty"),
        (["--config", "conf.yaml", "--model", ""], "--model is empty"),
        (["--data", ""], "--data is empty"),
        (["--worker", "nobody"], "there is no worker 'nobody'"),
        (["--no-parity", "--worker", "nobody"], "--no-parity leaves out what --worker names a worker for"),
        (["--no-parity", "--comm", "p2p"], "--no-parity leaves out what --comm asks for"),
        (["--bridge", "0.4.2", "--worker", "nobody"], "there is no worker 'nobody'"),
        (["--bridge", "0.4.2", "--comm", "p2p"], "it does not go with --comm"),
        (["--job", "none", "--worker", "nobody"], "it does not go with --worker"),
        (["--parity", "-o", "nowhere/report"], "there is no folder nowhere"),
        (["--parity", "-o", "."], "it is a folder"),
        (["--config", "conf.yaml", "-o", "conf.yaml"], "-o is the config itself"),
        (["--config", "conf.yaml", "--model", "model", "-o", "model/config.json"], "-o is the model itself"),
        (["--data", "packs", "-o", "packs/training.npy"], "-o is a file of the data"),
        (["--data", "packs/training.npy", "-o", "packs/training.npy"], "-o is the data itself"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(
    tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    kept = ("conf.yaml", "model/config.json", "packs/training.npy")
    for name in kept:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("kept", "utf-8")
    refused(run(tmp_path, *arguments), sentence)
    assert [(tmp_path / name).read_text("utf-8") for name in kept] == ["kept"] * 3


def test_a_name_in_the_environment_that_is_no_workers_is_refused(tmp_path: Path) -> None:
    refused(run(tmp_path, SKILL_RUN_WORKER="nobody"), "there is no worker 'nobody'")
