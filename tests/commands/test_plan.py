"""`skill-run plan`: exit codes, what goes where, and one sentence for each fault."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from skill_run import cli

RECIPE = "qwen3_8b_sft_8gpu_h100_bf16_32k_config"


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    path = tmp_path / "lengths.csv"
    path.write_text("length,count\n300,4000\n1200,900\n3900,200\n7000,40\n")
    return path


class Runner:
    def __init__(self, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.patch, self.capsys = patch, capsys

    def __call__(self, *arguments: str, given: str = "") -> tuple[int, str, str]:
        """Return exit code, standard output and standard error of a call."""
        self.patch.setattr(sys, "argv", ["skill-run", "plan", *arguments])
        self.patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        with pytest.raises(SystemExit) as stop:
            cli.main()
        told = self.capsys.readouterr()
        code = stop.value.code
        assert isinstance(code, int)
        return code, told.out, told.err


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runner:
    return Runner(monkeypatch, capsys)


def test_a_plan_goes_to_standard_output(run: Runner, lengths: Path) -> None:
    code, out, err = run(str(lengths))

    assert (code, err) == (0, "")
    assert "Recommended: packs of" in out


def test_json_is_the_same_plan(run: Runner, lengths: Path) -> None:
    from skill_run.plan.plan import plan_packing

    code, out, _ = run(str(lengths), "--recipe", RECIPE, "--gpus", "16", "--format", "json")

    assert code == 0
    assert json.loads(out) == plan_packing(str(lengths), recipe=RECIPE, gpus=16).to_dict()


def test_every_option_reaches_the_plan(run: Runner, lengths: Path) -> None:
    options = (
        "--pack-size 8192 --pack-size 4096 --bridge 0.5.1 --model Qwen/Qwen3-8B --gpus 16 --gpu h200 --tp 2 --cp 2"
    )
    more = "--sp --cp-comm-type p2p --recompute selective --peft lora --seq-length 4096 --max-sequences 16"

    code, out, _ = run(str(lengths), *options.split(), *more.split(), "--tokens-per-step=262144", "--format=json")

    told = json.loads(out)
    assert code == 0
    assert (told["bridge"]["version"], told["gpus"], told["rates"]["gpu"]) == ("0.5.1", 16, "h200")
    assert [each["pack_size"] for each in told["candidates"]] == [4096, 8192]
    for each in told["candidates"]:
        assert (each["layout"]["tp"], each["layout"]["cp"], each["layout"]["cp_comm_type"]) == (2, 2, "p2p")
        assert (each["recompute"], each["seq_length"], each["tokens_per_step"]) == ("selective", 4096, 262144)
        assert each["packs"]["sequences_per_pack"]["max"] <= 16


def test_lengths_come_from_standard_input_too(run: Runner) -> None:
    code, out, _ = run("-", "--pack-size", "1024", given="400\n300\n200\n")

    assert code == 0
    assert out.startswith("standard input: 3 samples of 200 to 400 tokens")


def test_files_are_written_and_nothing_is_printed(run: Runner, lengths: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need the extra `plots`")
    figures = [tmp_path / "plan.png", tmp_path / "plan.svg"]
    report = tmp_path / "plan.txt"

    code, out, err = run(str(lengths), *(f"--figure={path}" for path in figures), "-o", str(report))

    assert (code, out, err) == (0, "", "")
    assert "Recommended" in report.read_text()
    assert all(path.stat().st_size > 1000 for path in figures)


def test_when_nothing_can_be_recommended_the_exit_code_is_1(run: Runner, lengths: Path) -> None:
    code, out, _ = run(str(lengths), "--model", "meta-llama/Meta-Llama-3-70B", "--gpus", "4")

    assert code == 1
    assert "does not fit on 4 H100" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere.csv"], "nowhere.csv is not there"),
        (["{}", "--gpus", "0"], "gpus must be a whole number from 1 on"),
        (["{}", "--pack-size", "0"], "a pack size is a whole number"),
        (["{}", "--gpu", "abacus"], "is not a known kind of GPU"),
        (["{}", "--model", ""], "--model is empty"),
        (["{}", "--figure", "plan.pdf"], "must end in .png or .svg"),
        (["{}", "-o", "nowhere/plan.txt"], "there is no folder nowhere"),
        (["{}", "-o", "{}"], "is the data itself"),
        (["{}", "--figure", "{}"], "is the data itself"),
        (["{}", "--pack-size", "many"], "Invalid value for '--pack-size'"),
        ([], "Missing argument"),
    ],
)
def test_wrong_use_ends_in_one_sentence_and_exit_code_2(
    run: Runner, lengths: Path, arguments: list[str], sentence: str
) -> None:
    code, out, err = run(*(each.replace("{}", str(lengths)) for each in arguments))

    assert (code, out) == (2, "")
    assert sentence in err
    assert "Traceback" not in err
