"""`skill-run generate`: exit codes, what goes where, and one sentence for each fault."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from skill_run import cli
from skill_run.config.overrides import read_overrides

ASKED = ("offline-packed-sft", "--model", "Qwen/Qwen3-8B", "--gpus", "16", "--gpu", "h100", "--bridge", "0.6.2")


class Runner:
    def __init__(self, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.patch, self.capsys = patch, capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Return exit code, standard output and standard error of a call."""
        self.patch.setattr(sys, "argv", ["skill-run", "generate", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        told = self.capsys.readouterr()
        code = stop.value.code
        assert isinstance(code, int)
        return code, told.out, told.err


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runner:
    return Runner(monkeypatch, capsys)


def test_the_text_goes_to_standard_output_and_the_reasons_to_standard_error(run: Runner) -> None:
    code, out, err = run(*ASKED, "--seq-length", "32768", "--form", "overrides")
    assert code == 0
    assert read_overrides(out.splitlines()).assignments[0].path == "model.tensor_model_parallel_size"
    assert "model.context_parallel_size: 8192 tokens of a row" in err
    assert "skill-run validate --recipe" in err


def test_reasons_become_comments_with_explain(run: Runner) -> None:
    code, out, _ = run(*ASKED, "--explain")
    assert code == 0
    assert out.startswith("# recipe: ")
    compile(out, "train.py", "exec")


def test_without_a_workflow_they_are_listed(run: Runner) -> None:
    code, out, _ = run()
    assert code == 0
    assert "offline-packed-sft" in out
    assert json.loads(run("--format", "json")[1])[0]["id"]


def test_the_inputs_are_described_as_json_schema(run: Runner) -> None:
    code, out, _ = run("offline-packed-sft", "--describe")
    assert code == 0
    assert "seq_length" in json.loads(out)["properties"]


def test_the_result_goes_to_a_file(run: Runner, tmp_path: Path) -> None:
    code, out, _ = run(*ASKED, "--form", "yaml", "-o", str(tmp_path / "config.yaml"))
    assert (code, out) == (0, "")
    assert "checkpoint:" in (tmp_path / "config.yaml").read_text()


def test_json_holds_text_settings_and_reasons(run: Runner) -> None:
    told = json.loads(run(*ASKED, "--form", "python", "--format", "json")[1])
    assert {"text", "settings", "reasons", "summary", "findings", "next_commands", "recipe"} <= set(told)


def test_a_broken_setting_of_the_user_exits_with_1(run: Runner) -> None:
    code, _, err = run(*ASKED, "--form", "overrides", "--set", "train.micro_batch_size=3")
    assert code == 1
    assert "error: " in err


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--tp", "x"), "tensor_parallel must be a whole number"),
        (("--input", "seq_length"), "--input takes NAME=VALUE"),
        (("--input", "colour=1"), "has no input 'colour'"),
        (("--tp", "2", "--input", "tensor_parallel=4"), "tensor_parallel is given twice"),
        (("--bridge", "nonsense"), "nonsense"),
        (("--data", "org/id"), "is not a folder"),
    ],
)
def test_bad_input_is_one_sentence(run: Runner, more: tuple[str, ...], told: str) -> None:
    code, out, err = run(*ASKED, *more)
    assert (code, out) == (2, "")
    assert told in err
    assert len(err.strip().splitlines()) == 1
