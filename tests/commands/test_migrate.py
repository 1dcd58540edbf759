"""`skill-run migrate`: what goes where, exit codes, and one sentence for each fault."""

from __future__ import annotations

import json
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from skill_run.cli import cli
from skill_run.errors import InputError

OLD = "dataset:\n  dataset_root: /d  # mine\n  packed_sequence_specs: {packed_sequence_size: 64}\n"
NEW = (
    "dataset:\n  dataset_root: /d  # mine\n  offline_packing_specs: {packed_sequence_size: 64}\n"
    "  enable_offline_packing: true\n"
)


def run(arguments: Sequence[str], **options: Any) -> Result:
    # Through the group: click keeps how a command asks for help from its first call.
    return CliRunner().invoke(cli, ["migrate", *arguments], standalone_mode=False, **options)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(OLD, encoding="utf-8")
    return path


def test_the_result_goes_to_standard_output_and_the_changes_to_standard_error(config: Path) -> None:
    result = run([str(config), "--to", "0.6.2"])
    assert result.stdout == NEW
    assert "changed  line 3: dataset.packed_sequence_specs -> dataset.offline_packing_specs" in result.stderr
    assert result.stderr.splitlines()[-1] == "2 changed, 0 by hand; validated for 0.6.2: no errors"
    assert result.return_value == 0
    assert config.read_text() == OLD


def test_a_diff_shows_the_changed_lines_alone(config: Path) -> None:
    result = run([str(config), "--to", "0.6.2", "--diff"])
    assert [line for line in result.stdout.splitlines() if line.startswith(("-  ", "+  "))] == [
        "-  packed_sequence_specs: {packed_sequence_size: 64}",
        "+  offline_packing_specs: {packed_sequence_size: 64}",
        "+  enable_offline_packing: true",
    ]


def test_write_replaces_the_file_and_keeps_its_byte_order_mark_and_line_ends(config: Path) -> None:
    config.write_bytes(b"\xef\xbb\xbf" + OLD.replace("\n", "\r\n").encode())
    result = run([str(config), "--to", "0.6.2", "--write"])
    assert result.return_value == 0
    assert result.stdout == ""
    assert config.read_bytes() == b"\xef\xbb\xbf" + NEW.replace("\n", "\r\n").encode()
    run([str(config), "--to", "0.6.2", "--write"])
    assert config.read_bytes() == b"\xef\xbb\xbf" + NEW.replace("\n", "\r\n").encode()


def test_the_result_can_go_to_another_file(config: Path, tmp_path: Path) -> None:
    target = tmp_path / "new.yaml"
    result = run([str(config), "--to", "0.6.2", "-o", str(target)])
    assert result.stdout == ""
    assert target.read_text() == NEW
    assert config.read_text() == OLD


def test_json_holds_the_whole_migration(config: Path) -> None:
    result = run([str(config), "--to", "0.6.2", "--format", "json"])
    told = json.loads(result.stdout)
    assert told["text"] == NEW
    assert told["clean"] is True
    assert told["from_version"] == "0.5.1"


def test_standard_input_is_read_for_a_dash() -> None:
    result = run(["-", "--to", "0.6.2"], input=OLD)
    assert result.stdout == NEW


def test_overrides_come_back_one_per_line() -> None:
    result = run(["dataset.pack_sequences_in_batch=true", "model.seq_length=64", "--to", "0.6.2", "--from", "0.5.1"])
    assert result.stdout == "dataset.enable_in_batch_packing=true\nmodel.seq_length=64\n"


def test_a_launch_line_comes_back_as_one() -> None:
    line = "torchrun --nproc_per_node 8 run_recipe.py --recipe llama32_1b_sft_config train.eval_iters=2"
    result = run([line, "--to", "0.6.2", "--from", "0.5.1"])
    assert result.stdout == line.replace("train.eval", "validation.eval") + "\n"


def test_a_python_file_comes_back_as_python(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("from megatron.bridge.data.datasets.packed_sequence import PackedSequenceSpecs\n")
    result = run([str(script), "--to", "0.6.2"])
    assert result.stdout == "from megatron.bridge.data.packing import PackedSequenceSpecs\n"
    assert "not judged for 0.6.2" in result.stderr


def test_what_is_left_to_a_person_is_listed_and_ends_in_exit_code_1(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("from megatron.bridge.data.datasets.packed_sequence import *\n")
    result = run([str(script), "--to", "0.6.2"])
    assert result.return_value == 1
    assert "by hand  line 1: from megatron.bridge.data.datasets.packed_sequence import *" in result.stderr


def test_the_same_release_has_nothing_to_do(config: Path) -> None:
    result = run([str(config), "--to", "0.5.1"])
    assert result.stdout == OLD
    assert "note: nothing to do: the input is for 0.5.1" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["CONFIG", "--to", "9.x"], "'9.x' is not a Megatron-Bridge version"),
        (["CONFIG", "--to", ""], "--to is empty"),
        (["CONFIG", "a.b=1", "--to", "0.6.2"], "give either a config or overrides"),
        (["a.b=1", "--to", "0.6.2", "--write"], "--write needs a config file"),
        (["CONFIG", "--to", "0.6.2", "--write", "-o", "x.yaml"], "--write and -o both say where the result goes"),
        (["CONFIG", "--to", "0.6.2", "-o", "/nowhere/x.yaml"], "there is no folder /nowhere"),
        (["missing.yaml", "--to", "0.6.2"], "missing.yaml is not there"),
    ],
)
def test_wrong_usage_is_told_in_one_sentence_and_changes_nothing(
    config: Path, arguments: list[str], sentence: str
) -> None:
    result = run([str(config) if word == "CONFIG" else word for word in arguments])
    assert isinstance(result.exception, InputError)
    assert sentence in str(result.exception)
    assert config.read_text() == OLD


def test_a_read_only_file_is_left_alone(config: Path) -> None:
    config.chmod(stat.S_IRUSR)
    result = run([str(config), "--to", "0.6.2", "--write"])
    assert isinstance(result.exception, InputError)
    assert "is read-only; write the result elsewhere with -o FILE" in str(result.exception)
    assert config.read_text() == OLD
