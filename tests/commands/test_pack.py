"""`skill-run pack`: what it writes and prints, and one sentence for each fault."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from skill_run import cli


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.jsonl"
    rows = ({"input_ids": list(range(2, 2 + size)), "answer_start_idx": 2} for size in (9, 5, 17, 3, 12))
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return path


class Runner:
    def __init__(self, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.patch, self.capsys = patch, capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Return exit code, standard output and standard error of a call."""
        self.patch.setattr(sys, "argv", ["skill-run", "pack", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = self.capsys.readouterr()
        return int(ended.value.code or 0), out, err


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runner:
    return Runner(monkeypatch, capsys)


def test_json_names_files_that_are_there(run: Runner, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, told, _ = run(str(data), "--out", str(out), "--pack-size", "32", "--bridge", "0.6.2", "--format", "json")
    report = json.loads(told)
    assert code == 0
    assert report["samples"] == 5
    assert all(Path(file).is_file() for file in report["files"])
    assert not list(out.glob(".skill-run-pack-*"))


def test_the_second_call_says_that_the_file_is_up_to_date(run: Runner, data: Path, tmp_path: Path) -> None:
    call = (str(data), "--out", str(tmp_path / "out"), "--pack-size", "32", "--bridge", "0.6.2")
    assert "written: " in run(*call)[1]
    code, told, _ = run(*call)
    assert code == 0
    assert "up to date: " in told


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--pack-size", "30", "--cp", "2"), "no multiple of pad_seq_to_mult 4"),
        (("--pack-size", "32", "--compat", "--balance"), "compat excludes them"),
        (("--pack-size", "8", "--refuse", "dropped"), "which is refused"),
        (("--pack-size", "32", "--dataset-kwargs", "[]"), "must be a JSON object"),
    ],
)
def test_a_fault_is_one_sentence_and_leaves_no_packed_file(
    run: Runner, data: Path, tmp_path: Path, options: tuple[str, ...], sentence: str
) -> None:
    code, told, error = run(str(data), "--out", str(tmp_path / "out"), "--bridge", "0.6.2", *options)
    assert code != 0
    assert told == ""
    assert sentence in error
    assert "Traceback" not in error
    assert not list(tmp_path.rglob("training_*"))


def test_a_refused_loss_exits_like_a_finding_and_writes_nothing(run: Runner, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, told, err = run(str(data), "--out", str(out), "--pack-size", "8", "--refuse", "dropped")
    assert (code, told) == (1, "")
    assert "samples are dropped, which is refused; nothing was written" in err
    assert not list(out.rglob("*.parquet"))
