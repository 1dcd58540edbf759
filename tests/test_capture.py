"""The dumper under real torch, in child processes, from the package and as a file copied alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import skill_run
from skill_run import inspect_batch
from skill_run.batch.snippet import capture_snippet
from skill_run.bridge.release import known_releases
from skill_run.errors import InputError

PACKAGES = str(Path(skill_run.__file__).parents[1])

# One child does all that needs torch and tells what it saw; the tests look at one thing each.
SCENES = Path(__file__).with_name("capture_scenes.py")


def _scenes(python: str, folder: Path, source: str, paths: list[str]) -> dict[str, Any]:
    (folder / "capture_under_test.py").write_text(source, "utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *paths])}
    command = [python, str(SCENES), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.fixture(scope="module")
def told(torch_python: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the child saw with the package on its path, and the folder it wrote to."""
    folder = tmp_path_factory.mktemp("capture")
    found = _scenes(torch_python, folder, "from skill_run.capture import dumping\n", [PACKAGES])
    return {**found, "folder": folder}


def test_the_step_does_what_it_did(told: dict[str, Any]) -> None:
    sums = [28 + 80 * number for number in range(4)]
    plans = [False, True, True, False]
    assert told["results"] == [["state", total, plan] for total, plan in zip(sums, plans, strict=True)]
    assert told["name"] == "forward_step"


def test_bridge_finds_the_state_by_the_first_parameter(told: dict[str, Any]) -> None:
    assert told["first parameter"] == "state"


def test_as_many_batches_as_asked_for_are_written(told: dict[str, Any]) -> None:
    assert told["files"] == ["rank0_batch0.pt", "rank0_batch1.pt"]


def test_a_dump_shows_the_batch_before_the_step_changed_it(told: dict[str, Any]) -> None:
    assert told["tokens"] == [[list(range(8))], [list(range(10, 18))]]
    assert {"tokens", "labels", "cu_seqlens_q", "token_count"} <= set(told["keys"])


def test_tensors_that_were_one_are_two_in_the_dump(told: dict[str, Any]) -> None:
    assert told["shared"] is False


def test_tensors_keep_their_dtype_and_become_plain(told: dict[str, Any]) -> None:
    assert told["dtypes"]["cu_seqlens_q"] == "torch.int32"
    assert told["dtypes"]["half"] == "torch.bfloat16"
    assert told["kinds"]["parameter"] == "Tensor"


def test_what_is_no_data_is_told_by_its_name(told: dict[str, Any]) -> None:
    plain = {key: value for key, value in told["plain"].items() if key != "words"}
    assert plain == {
        "visual_inputs": "<__main__.Pictures>",
        "colour": 3,
        "numbers": [1, 2.5, True, "text"],
        "huge": "<torch.float32 [33554432], too large to dump>",
        "nowhere": "<torch.Tensor>",
        "token_count": [8],
        "attention_mask": None,
    }


def test_numpy_arrays_of_numbers_become_tensors(told: dict[str, Any]) -> None:
    assert told["dtypes"]["numpy"] == "torch.int64"
    assert told["plain"]["words"] == "<numpy.ndarray>"


def test_a_step_of_megatron_lm_is_wrapped_too_and_batches_can_be_skipped(told: dict[str, Any]) -> None:
    assert told["megatron"] == [28, 108, 188]
    assert told["megatron files"] == ["rank0_batch1.pt"]


def test_a_callable_object_and_a_rank_without_data_work(told: dict[str, Any]) -> None:
    assert told["functor"] == [1, 8]
    assert told["none"] is None


def test_ranks_that_are_not_asked_write_nothing(told: dict[str, Any]) -> None:
    assert told["other ranks"] is False


def test_a_failure_to_write_is_said_once_and_training_goes_on(told: dict[str, Any]) -> None:
    assert told["after a failure"] == [28, 108, 188]
    (line,) = told["said"]
    assert line.startswith("skill-run capture: no batch is dumped any more:")


def test_the_end_of_the_data_passes_through(told: dict[str, Any]) -> None:
    assert told["end"] == "StopIteration"


def test_the_place_of_the_rank_is_told_where_it_is_known(told: dict[str, Any]) -> None:
    assert told["info"] == {"form": "micro_batch", "rank": 0, "world_size": 1, "training": True, "number": 0}
    placed = {"tp_rank": 1, "tp_size": 2, "pp_rank": 0, "pp_size": 1, "dp_rank": 3, "dp_size": 4}
    assert told["placed"] == {**told["info"], **placed}
    assert told["own groups"] == {**told["placed"], "training": False, "cp_rank": 1, "cp_size": 2}


def test_nothing_else_of_the_package_is_imported(told: dict[str, Any]) -> None:
    assert told["modules"] == ["skill_run", "skill_run.capture"]


def test_the_file_works_copied_alone(torch_python: str, tmp_path: Path) -> None:
    source = Path(skill_run.__file__).with_name("capture.py").read_text("utf-8")
    found = _scenes(torch_python, tmp_path, source, [])
    assert found["modules"] == []
    assert found["files"] == ["rank0_batch0.pt", "rank0_batch1.pt"]


def test_dumps_are_inspected_one_by_one_and_by_rank(told: dict[str, Any], torch_python: str, tmp_path: Path) -> None:
    dump = told["folder"] / "run" / "rank0_batch0.pt"
    report = inspect_batch(dump, python=torch_python)
    assert (report.path, report.generation, report.tokens) == ("offline_packed", ">=0.6", 8)
    assert report.findings == ()
    for rank in (0, 1):
        shutil.copy(dump, tmp_path / f"rank{rank}_batch0.pt")
    ranks = inspect_batch(tmp_path, python=torch_python)
    assert ranks.path == "ranks"
    assert ranks.findings == ()


@pytest.mark.parametrize("release", known_releases())
def test_the_snippet_is_python_that_wraps_the_step(release: str) -> None:
    text = capture_snippet(release)
    compile(text, "<snippet>", "exec")
    assert "finetune(config, dumping(forward_step" in text
    assert f"--bridge {release}" in text
    assert max(map(len, text.splitlines())) <= 110


@pytest.mark.parametrize(
    ("release", "said", "silent"),
    [
        ("0.3.1", "finetune() takes no callbacks", "built by the collator"),
        ("0.4.2", "write no file", "takes no callbacks"),
        ("0.5.1", "happens inside the step", "write no file"),
        ("0.6.2", "built by the collator", "happens inside the step"),
        ("main", "megatron.bridge.data.batch_utils", "data.finetuning"),
    ],
)
def test_the_snippet_says_what_a_dump_of_the_release_shows(release: str, said: str, silent: str) -> None:
    text = capture_snippet(release)
    assert said in text
    assert silent not in text


def test_without_a_release_the_snippet_is_for_the_newest() -> None:
    assert capture_snippet() == capture_snippet("0.6.2")


def test_a_snippet_for_no_version_is_refused() -> None:
    with pytest.raises(InputError, match="is not a Megatron-Bridge version"):
        capture_snippet("latest please")
