"""Options that no engine can run are refused with a sentence; hostile text never becomes code."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from skill_run.errors import InputError
from skill_run.launch.options import LaunchOptions, hours_of

from .conftest import CONFIG, PlanOf

HOSTILE = ["a b", "it's", "$(touch pwned)", "`touch pwned`", "a;touch pwned", "a&&touch pwned", "umlaut ü", "a#b", "-n"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"nodes": 2}, "--engine slurm takes --nodes"),
        ({"nodes": 0}, "number of nodes must be from 1"),
        ({"launcher": "srun"}, "srun starts ranks in Slurm only"),
        ({"account": "team"}, "--account is an option of --engine slurm"),
        ({"engine": "slurm", "account": "a b"}, "has characters that Slurm's names do not have"),
        ({"engine": "slurm", "partition": "a\n#SBATCH --wrap=x"}, "has characters that Slurm's names do not have"),
        ({"engine": "slurm", "launcher": "fork"}, "forked ranks run on this machine only"),
        ({"engine": "slurm", "time": "soon"}, "is not of the form"),
        ({"engine": "slurm", "time": "0"}, "leaves no time"),
        ({"name": "a\nb"}, "line break or another control character"),
        ({"folder": "/a\x00b"}, "line break or another control character"),
        ({"env": {"A B": "1"}}, "is no name of an environment variable"),
        ({"env": {"A": "1\n2"}}, "line break or another control character"),
        ({"engine": "slurm", "container_mounts": ("/a:/a",)}, "--container-mounts needs --container-image"),
        ({"requeue": True}, "--requeue is an option of --engine slurm"),
    ],
)
def test_what_cannot_be_run_is_refused_with_a_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        LaunchOptions(**options)


@pytest.mark.parametrize(
    ("text", "hours"),
    [("30", 0.5), ("90:00", 1.5), ("04:00:00", 4.0), ("1-00", 24.0), ("2-12:30", 60.5), ("1-00:00:36", 24.01)],
)
def test_time_limits_are_read_as_slurm_reads_them(text: str, hours: float) -> None:
    assert hours_of(text) == pytest.approx(hours)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_one_word_in_the_batch_script(plan_of: PlanOf, tmp_path: Path, text: str) -> None:
    folder = tmp_path / text
    folder.mkdir()
    plan = plan_of(
        CONFIG,
        engine="slurm",
        folder=str(folder),
        name=text,
        env={"SAID": text},
        container_image=text,
        packed_data=text,
    )
    script = plan.files["job.sbatch"].replace("cd --", 'mkdir -p -- "$WHERE"; cd -- "$WHERE"; : cd --')
    # Stand-ins for Slurm's commands that write down what they are given.
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("srun", "scontrol"):
        tool = tools / name
        tool.write_text('#!/bin/bash\nprintf "%s\\0" "$SAID" "$@" >> "$TOLD"; printf "\\n" >> "$TOLD"\n', "ascii")
        tool.chmod(0o755)
    told, where = tmp_path / "told", tmp_path / "where"
    environment = {
        "PATH": f"{tools}:/usr/bin:/bin", "TOLD": str(told), "WHERE": str(where), "SLURM_JOB_NODELIST": "n1",
        "SLURM_JOB_ID": "5", "SLURM_NNODES": "1",
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.rglob("pwned"))
    calls = [line.split("\0") for line in told.read_text("utf-8").split("\n")]
    ranks = next(call for call in calls if "--kill-on-bad-exit=1" in call)
    assert ranks[0] == text
    assert f"--container-image={text}" in ranks
    assert f"{folder}/{plan.id}/train.py" in ranks
    assert json.loads((where / "exit.json").read_text("ascii"))["code"] == 0


@pytest.mark.parametrize("text", ['a"b', "a\\b", "a%jb"])
def test_what_a_directive_cannot_hold_is_refused(plan_of: PlanOf, text: str) -> None:
    with pytest.raises(InputError, match="--job-name cannot hold"):
        plan_of(CONFIG, engine="slurm", name=text)


def test_a_secret_is_not_written_into_a_plan(plan_of: PlanOf) -> None:
    with pytest.raises(InputError, match="HF_TOKEN looks like a secret"):
        plan_of(CONFIG, env={"HF_TOKEN": "x"})


def test_the_shown_command_is_what_a_shell_would_take(plan_of: PlanOf) -> None:
    plan = plan_of(CONFIG, folder="/a b")
    assert shlex.split(shlex.join(plan.extra["steps"][0]))[1] == f"/a b/{plan.id}/train.py"
