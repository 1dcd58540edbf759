"""The command line, as real processes: exit codes, what goes where, fixes in place, and hostile input."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import resource
import shlex
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from jsonschema import Draft202012Validator

import skill_run
from skill_run import __version__, validate_config
from skill_run.verify.run import CHECKS

CP = "model.context_parallel_size"
MBS = "train.micro_batch_size"
RECIPE = "llama32_1b_sft_config"
LAUNCH = f"torchrun --nproc_per_node 8 scripts/training/run_recipe.py --recipe {RECIPE}"

CLEAN = """\
model:
  context_parallel_size: 1
"""
# Corruption only: a finding that upstream never notices.
CORRUPT = """\
# our run
model:
  context_parallel_size: 2   # long context
  calculate_per_token_loss: true
dataset:
  enable_offline_packing: true
  offline_packing_specs:
    packed_sequence_size: 4096
    pad_seq_to_mult: 1
"""
FIXED = CORRUPT.replace("pad_seq_to_mult: 1", "pad_seq_to_mult: 4")
# One fault whose fix changes what is trained.
SEMANTIC = """\
train:
  micro_batch_size: 1
  global_batch_size: 10
"""
HOUSE_RULE = """\
id: house-wants-cp
title: this team always trains with context parallelism
severity: warning
fires: {"*": never}
require: model.context_parallel_size > 1
message: The size is {model.context_parallel_size}.
evidence: [{says: decided in the team}]
fails: [{model.context_parallel_size: 1}]
passes: [{model.context_parallel_size: 2}]
"""

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]
Write = Callable[..., Path]
Outcomes = dict[tuple[str | bytes, ...], Done]


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of the child processes, with a cache folder of their own."""
    dropped = ("NO_COLOR", "SKILL_RUN_DEBUG", "COLUMNS")
    kept = {key: value for key, value in os.environ.items() if key not in dropped}
    own = {"XDG_CACHE_HOME": tmp_path_factory.mktemp("cache"), "SKILL_RUN_WORKERS": tmp_path_factory.mktemp("workers")}
    return {**kept, **{name: str(folder) for name, folder in own.items()}, "PYTHONWARNINGS": "error"}


@pytest.fixture
def run(tmp_path: Path, environment: dict[str, str]) -> Run:
    """Return a runner of `skill-run` in a folder without house rules above it."""
    (tmp_path / ".git").mkdir()

    def start(*arguments: str | bytes | Path, env: dict[str, str] | None = None, **options: Any) -> Done:
        options = {"stdin": subprocess.DEVNULL} | options if "input" not in options else options
        return subprocess.run(
            [sys.executable, "-m", "skill_run.cli", *arguments],
            **{
                "cwd": tmp_path,
                "env": {**environment, **(env or {})},
                "capture_output": True,
                "encoding": "utf-8",
                "check": False,
            }
            | options,
        )

    return start


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a writer of files in the folder that `run` works in."""

    def place(text: str | bytes, name: str = "conf.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return place


def as_json(done: Done) -> dict[str, Any]:
    assert done.stderr == ""
    data: dict[str, Any] = json.loads(done.stdout)
    return data


def rules_of(done: Done) -> set[str]:
    return {finding["rule"] for finding in as_json(done)["findings"]}


def refused(done: Done, told: str) -> None:
    """Check that a call ended in one sentence on standard error and exit code 2."""
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert done.stderr.startswith("skill-run: ")
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
    assert "internal error" not in done.stderr
    assert len(done.stderr) < 600


def test_a_clean_config_exits_0_with_the_report_on_standard_output(run: Run, write: Write) -> None:
    write(CLEAN)
    done = run("validate", "conf.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Checked conf.yaml: Megatron-Bridge ")
    assert done.stdout.rstrip().splitlines()[-1].startswith("no findings; ")


@pytest.mark.parametrize(
    ("text", "level", "code"),
    [
        (CORRUPT, None, 1),
        (CORRUPT, "corruption", 1),
        (CORRUPT, "error", 0),
        (FIXED, None, 0),
        (FIXED, "warning", 0),
        (FIXED, "info", 1),
    ],
)
def test_findings_exit_1_from_the_level_asked_for(
    run: Run, write: Write, text: str, level: str | None, code: int
) -> None:
    write(text)
    asked = () if level is None else ("--level", level)
    done = run("validate", "conf.yaml", "--bridge", "0.6.2", *asked)
    assert (done.returncode, done.stderr) == (code, "")


def test_the_json_report_is_that_of_the_python_function_and_obeys_its_schema(run: Run, write: Write) -> None:
    path = write(CORRUPT)
    options = (
        "--bridge",
        "0.6.2",
        "--world-size",
        "8",
        "--te",
        "2.10",
        "--gpu",
        "h100",
        "--env",
        "A=b=c",
        "--env",
        "B=",
    )
    done = run("validate", str(path), "--format", "json", *options)
    report = validate_config(
        path, bridge="0.6.2", world_size=8, te="2.10", gpu="h100", env={"A": "b=c", "B": ""}
    ).to_dict()
    assert as_json(done) == json.loads(json.dumps(report))
    schema = json.loads((Path(skill_run.__file__).parent / "report" / "report.schema.json").read_text("utf-8"))
    Draft202012Validator(schema).validate(as_json(done))


@pytest.mark.parametrize("form", ["text", "sarif", "github", "junit"])
def test_every_form_of_the_report_tells_the_finding_and_exits_alike(run: Run, write: Write, form: str) -> None:
    write(CORRUPT)
    done = run("validate", "conf.yaml", "--bridge", "0.6.2", "--format", form)
    assert (done.returncode, done.stderr) == (1, "")
    assert "offline-pad-multiple-covers-cp" in done.stdout
    if form == "sarif":
        assert json.loads(done.stdout)["version"] == "2.1.0"
    if form == "junit":
        assert ElementTree.fromstring(done.stdout).tag == "testsuites"
    if form == "github":
        assert done.stdout.startswith("::error file=conf.yaml,line=9,col=22,title=")


def test_the_report_can_go_into_a_file(run: Run, write: Write, tmp_path: Path) -> None:
    write(CORRUPT)
    done = run("validate", "conf.yaml", "--format", "json", "-o", "report.json")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    assert json.loads((tmp_path / "report.json").read_text("utf-8"))["source"] == "conf.yaml"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".git", "conf.yaml", "report.json"]


def test_a_report_into_a_pipe_or_device_leaves_it_what_it_is(run: Run, write: Write, tmp_path: Path) -> None:
    write(CLEAN)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    try:
        assert run("validate", "conf.yaml", "--output", "fifo").returncode == 0
        assert os.read(reader, 65536).startswith(b"Checked conf.yaml")
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(fifo.stat().st_mode)


@pytest.mark.parametrize("arguments", [("validate", "conf.yaml"), ("validate", "conf.yaml", "--fix", "--write")])
def test_a_report_into_a_pipe_that_nobody_reads_is_refused(
    run: Run, write: Write, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    write(CLEAN)
    os.mkfifo(tmp_path / "fifo")
    done = run(*arguments, "-o", "fifo")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("skill-run: fifo cannot be written: nobody reads from it\n")


def test_a_report_into_a_socket_is_refused(run: Run, write: Write, tmp_path: Path) -> None:
    write(CLEAN)
    with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(tmp_path):
        server.bind("socket")
        refused(run("validate", "conf.yaml", "-o", "socket"), "neither a file nor a pipe nor a character device")


def test_a_report_into_a_device_is_written(run: Run, write: Write) -> None:
    write(CLEAN)
    done = run("validate", "conf.yaml", "-o", "/dev/null")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert run("validate", "conf.yaml", "-o", "/dev/stdout").stdout.startswith("Checked conf.yaml")


@pytest.mark.parametrize("more", [(), ("--fix",), ("--fix", "--write")])
@pytest.mark.parametrize("output", ["conf.yaml", "./sub/../conf.yaml", "link.yaml"])
def test_a_report_never_replaces_the_config(
    run: Run, write: Write, tmp_path: Path, more: tuple[str, ...], output: str
) -> None:
    path = write(CORRUPT)
    (tmp_path / "sub").mkdir()
    (tmp_path / "link.yaml").symlink_to(path)
    refused(run("validate", "conf.yaml", "-o", output, *more), "-o is the config itself")
    assert path.read_text("utf-8") == CORRUPT


@pytest.mark.parametrize("model", ["model", "model/config.json"])
def test_a_report_never_replaces_the_models_config(run: Run, write: Write, model: str) -> None:
    write(CLEAN)
    path = write('{"num_hidden_layers": 2}', "model/config.json")
    refused(run("validate", "conf.yaml", "--model", model, "-o", str(path)), "-o is the model itself")
    assert path.read_text("utf-8") == '{"num_hidden_layers": 2}'


@pytest.mark.parametrize("option", ["-o", "--html", "--plot"])
@pytest.mark.parametrize(("name", "kind"), [("batch.json", "batch"), ("conf.yaml", "config")])
def test_a_report_of_a_batch_never_replaces_an_input(run: Run, write: Write, option: str, name: str, kind: str) -> None:
    write(CLEAN)
    write('{"tokens_len": 16, "cu_seqlens_q": [0, 8, 16]}', "batch.json")
    done = run("inspect", "batch.json", "--config", "conf.yaml", option, name)
    refused(done, f"{option} is the {kind} itself ({name})")


@pytest.mark.parametrize("output", ["no/report.txt", "."])
def test_a_report_that_cannot_be_written_leaves_the_config_unchanged(run: Run, write: Write, output: str) -> None:
    path = write(CORRUPT)
    refused(run("validate", "conf.yaml", "--fix", "--write", "-o", output), f"{output} cannot be written")
    assert path.read_text("utf-8") == CORRUPT


@pytest.mark.parametrize("end", ["\\n", "\\r", "\\e", "\\u2028"])
def test_a_name_from_the_config_cannot_start_a_line_of_its_own_in_the_list_of_changes(
    run: Run, write: Write, end: str
) -> None:
    write(f'model:\n  "tensor_model_parallel_size{end}::error::x": 2\n')
    done = run("validate", "conf.yaml", "--fix")
    assert not [line for line in done.stderr.splitlines() if line.startswith("::")]
    assert done.stderr.startswith("removed model.tensor_model_parallel_size\\")
    assert "\x1b" not in done.stderr


def test_verbose_lists_every_rule_that_was_not_checked(run: Run, write: Write) -> None:
    write(CLEAN)
    assert "global-batch-divisible" not in run("validate", "conf.yaml").stdout
    assert "global-batch-divisible" in run("validate", "conf.yaml", "--verbose").stdout


def test_fix_prints_the_corrected_config_and_nothing_else_on_standard_output(run: Run, write: Write) -> None:
    path = write(CORRUPT)
    done = run("validate", "conf.yaml", "--bridge", "0.6.2", "--fix")
    assert (done.returncode, done.stdout) == (0, FIXED)
    assert (
        "changed dataset.offline_packing_specs.pad_seq_to_mult: 1 -> 4  (offline-pad-multiple-covers-cp)" in done.stderr
    )
    assert "Checked conf.yaml" in done.stderr
    assert path.read_text("utf-8") == CORRUPT
    again = run("validate", "-", "--bridge", "0.6.2", input=done.stdout)
    assert again.returncode == 0


def test_fix_holds_back_what_changes_training_and_says_so(run: Run, write: Write) -> None:
    write(SEMANTIC)
    options = ("validate", "conf.yaml", "--bridge", "0.6.2", "--world-size", "4")
    held = run(*options, "--fix")
    assert (held.returncode, held.stdout) == (1, SEMANTIC)
    assert "--fix-semantic): global-batch-divisible" in held.stderr
    applied = run(*options, "--fix", "--fix-semantic")
    assert (applied.returncode, applied.stdout) == (0, SEMANTIC.replace("10", "12"))
    assert "10 -> 12  (global-batch-divisible)  [changes training]" in applied.stderr


def test_a_fix_does_not_go_with_asking_upstream(run: Run, write: Write) -> None:
    write(CORRUPT)
    refused(run("validate", "conf.yaml", "--fix", "--ask-upstream"), "--ask-upstream asks about the config as it is")


def test_fix_with_a_report_file_keeps_the_report_off_standard_error(run: Run, write: Write, tmp_path: Path) -> None:
    write(CORRUPT)
    done = run("validate", "conf.yaml", "--bridge", "0.6.2", "--fix", "--format", "json", "-o", "report.json")
    assert (done.returncode, done.stdout) == (0, FIXED)
    assert done.stderr.splitlines() == [
        "changed dataset.offline_packing_specs.pad_seq_to_mult: 1 -> 4  (offline-pad-multiple-covers-cp)"
    ]
    assert json.loads((tmp_path / "report.json").read_text("utf-8"))["summary"]["corruption"] == 0


def test_fix_prints_the_config_whatever_the_encoding_of_the_terminal_is(run: Run, write: Write) -> None:
    text = CORRUPT.replace("our run", "Lauf f\N{LATIN SMALL LETTER U WITH DIAERESIS}r morgen")
    write(text)
    done = run("validate", "conf.yaml", "--bridge", "0.6.2", "--fix", env={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stdout) == (0, text.replace("pad_seq_to_mult: 1", "pad_seq_to_mult: 4"))


def test_write_changes_the_file_and_keeps_comments_line_ends_mode_and_links(
    run: Run, write: Write, tmp_path: Path
) -> None:
    path = write(CORRUPT.replace("\n", "\r\n"), "real/conf.yaml")
    path.chmod(0o640)
    (tmp_path / "link.yaml").symlink_to(path)
    done = run("validate", "link.yaml", "--bridge", "0.6.2", "--fix", "--write")
    assert (done.returncode, done.stdout) == (0, "")
    assert path.read_bytes() == FIXED.replace("\n", "\r\n").encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert (tmp_path / "link.yaml").is_symlink()
    assert [entry.name for entry in path.parent.iterdir()] == ["conf.yaml"]


def test_write_leaves_a_config_without_faults_alone(run: Run, write: Write) -> None:
    path = write(FIXED)
    before = path.stat()
    done = run("validate", "conf.yaml", "--bridge", "0.6.2", "--fix", "--write")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("nothing to fix\n")
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_write_that_fails_halfway_leaves_the_old_file_whole(run: Run, write: Write, tmp_path: Path) -> None:
    path = write(CORRUPT)
    done = run(
        "validate",
        "conf.yaml",
        "--bridge",
        "0.6.2",
        "--fix",
        "--write",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (40, 40)),
    )
    assert done.returncode == 2
    assert "conf.yaml cannot be written: File too large" in done.stderr
    assert path.read_text("utf-8") == CORRUPT
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".git", "conf.yaml"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("conf.yaml", "--write"), "--write needs --fix"),
        (("conf.yaml", f"{CP}=4", "--fix", "--write"), "--write takes no overrides"),
        (("--recipe", RECIPE, f"{CP}=2", "--fix", "--write"), "--write needs a config file"),
        (("-", "--fix", "--write"), "--write needs a config file"),
        ((LAUNCH, "--fix", "--write"), "--write needs a config file"),
        (("job.sh", "--bridge", "0.6.2", "--fix", "--write"), "--write cannot place the fixes in job.sh"),
    ],
)
def test_write_is_refused_where_the_fixes_do_not_belong_into_the_file(
    run: Run, write: Write, arguments: tuple[str, ...], told: str
) -> None:
    path = write(CORRUPT)
    script = write(f"#!/bin/bash\n#SBATCH --nodes=1\n{LAUNCH} {MBS}=4\n", "job.sh")
    before = (path.read_bytes(), script.read_bytes())
    done = run("validate", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert (path.read_bytes(), script.read_bytes()) == before


def test_overrides_are_laid_over_the_config(run: Run, write: Write) -> None:
    write(CORRUPT)
    pad = "dataset.offline_packing_specs.pad_seq_to_mult"
    assert run("validate", "conf.yaml", f"{pad}=4", "--bridge", "0.6.2").returncode == 0
    assert run("validate", "--bridge", "0.6.2", "conf.yaml", f"{pad}=4", f"{CP}=4").returncode == 1


def test_fixes_of_overrides_are_overrides(run: Run, write: Write) -> None:
    path = write(CORRUPT)
    done = run("validate", "conf.yaml", f"{CP}=4", "--bridge", "0.6.2", "--fix")
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [f"{CP}=4", "++dataset.offline_packing_specs.pad_seq_to_mult=8"],
    )
    assert path.read_text("utf-8") == CORRUPT


def test_a_recipe_is_the_base_of_overrides(run: Run) -> None:
    options = ("validate", "--bridge", "0.6.2", "--format", "json", "--recipe", RECIPE)
    assert rules_of(run(*options, f"{CP}=2")) >= {"cp-sft-needs-per-token-loss", "offline-pad-multiple-covers-cp"}
    assert run(*options).returncode == 0


@pytest.mark.parametrize("first", [f"++{CP}=2", "~model.recompute_method"])
def test_an_override_in_first_place_is_not_taken_for_a_file(run: Run, first: str) -> None:
    assert as_json(run("validate", first, "rng.seed=1", "--format", "json"))["source"] == "overrides"


def test_a_file_whose_name_looks_like_an_override_is_a_file(run: Run, write: Write) -> None:
    write(CORRUPT, "lr=1.yaml")
    done = run("validate", "lr=1.yaml", "--bridge", "0.6.2", "--format", "json")
    assert as_json(done)["source"] == "lr=1.yaml"


def test_a_launch_command_is_read_after_two_dashes_and_in_quotes(run: Run) -> None:
    words = shlex.split(f"{LAUNCH} {MBS}=4")
    split = run("validate", "--bridge", "0.6.2", "--format", "json", "--", *words)
    quoted = run("validate", "--bridge", "0.6.2", "--format", "json", f"{LAUNCH} {MBS}=4")
    assert "offline-packing-needs-micro-batch-1" in rules_of(split)
    assert as_json(split)["world_size"] == 8
    assert as_json(split)["findings"] == as_json(quoted)["findings"]


@pytest.mark.parametrize("python", ["python3.12", "/usr/bin/python3"])
def test_a_launch_by_any_python_is_read_after_two_dashes(run: Run, python: str) -> None:
    done = run("validate", "--format", "json", "--", python, "run_recipe.py", "--recipe", RECIPE)
    assert as_json(done)["source"] == "<command>"


def test_words_of_a_launch_are_kept_apart(run: Run) -> None:
    done = run("validate", "--bridge", "0.6.2", "--fix", "--", *shlex.split(LAUNCH), "logger.wandb_exp_name='a b; c'")
    assert shlex.split(done.stdout) == [*shlex.split(LAUNCH), "logger.wandb_exp_name='a b; c'"]


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (CORRUPT, None),
        (CORRUPT, "yaml"),
        (
            json.dumps(
                {CP: 2, "dataset.offline_packing_specs.pad_seq_to_mult": 3, "dataset.enable_offline_packing": True}
            ),
            None,
        ),
        (f"{LAUNCH} {CP}=2 dataset.offline_packing_specs.pad_seq_to_mult=1 # {CP}", "command"),
    ],
)
def test_standard_input_is_read_in_any_form(run: Run, text: str, form: str | None) -> None:
    told = () if form is None else ("--form", form)
    done = run("validate", "-", "--bridge", "0.6.2", "--format", "json", *told, input=text)
    assert done.stderr == ""
    assert as_json(done)["bridge"]["version"] == "0.6.2"
    if form != "command":
        assert "offline-pad-multiple-covers-cp" in rules_of(done)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "empty"),
        (b"model: \xff\n", "standard input is not UTF-8 text (byte 7)"),
        (b"# " + b"x" * (5 * 1024 * 1024), "standard input is larger than"),
    ],
)
def test_standard_input_that_is_no_config_is_refused(run: Run, data: bytes, told: str) -> None:
    done = run("validate", "-", input=data, encoding=None)
    refused(subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode()), told)  # type: ignore[attr-defined]


def test_the_environment_of_the_run_can_be_given(run: Run) -> None:
    options = ("model.fine_grained_activation_offloading=true", "model.offload_modules=[core_attn]", "--format", "json")
    name = "fine-grained-offload-needs-env"
    told = run("validate", *options, "--env", "NVTE_CPU_OFFLOAD_V1=1", "--env", "OTHER=x y")
    assert name not in rules_of(told)
    assert name in rules_of(run("validate", *options, "--env", "OTHER=1"))


def test_the_model_folder_can_be_given(run: Run, write: Write) -> None:
    write(json.dumps({"num_attention_heads": 12, "num_key_value_heads": 4}), "model/config.json")
    override = "model.tensor_model_parallel_size=2"
    told = as_json(run("validate", override, "--model", "model", "--format", "json"))
    untold = as_json(run("validate", override, "--format", "json"))
    assert told["summary"]["not_checked"] < untold["summary"]["not_checked"]


def test_house_rules_near_the_config_and_in_a_named_folder_are_used(run: Run, write: Write) -> None:
    write(CLEAN, "deep/conf.yaml")
    write(HOUSE_RULE, ".skill-run/rules/house-wants-cp.yaml")
    write(HOUSE_RULE.replace("house-wants-cp", "named-folder"), "elsewhere/named-folder.yaml")
    options = ("validate", "deep/conf.yaml", "--format", "json")
    assert rules_of(run(*options)) == {"house-wants-cp"}
    assert rules_of(run(*options, "--rules", "elsewhere")) == {"named-folder"}


def test_a_house_rule_is_explained_where_it_holds(run: Run, write: Write, tmp_path: Path) -> None:
    write(HOUSE_RULE, ".skill-run/rules/house-wants-cp.yaml")
    assert "this team always trains with context parallelism" in run("explain", "house-wants-cp").stdout
    named = run("explain", "house-wants-cp", "--rules", ".skill-run/rules", "--format", "json")
    assert json.loads(named.stdout)["rule"]["skill"] == "house"


def test_a_wrong_house_rule_is_refused_with_its_place(run: Run, write: Write) -> None:
    write(CLEAN)
    write(HOUSE_RULE.replace("size > 1", "size >"), "rules/house-wants-cp.yaml")
    refused(run("validate", "conf.yaml", "--rules", "rules"), "rules/house-wants-cp.yaml:5: ")


def on_terminal(environment: dict[str, str], *arguments: str) -> bytes:
    """Return what a call prints on a terminal."""
    ours, theirs = pty.openpty()
    try:
        subprocess.run(
            [sys.executable, "-m", "skill_run.cli", *arguments],
            env={**environment, "TERM": "xterm-256color"},
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            check=False,
        )
    finally:
        os.close(theirs)
    printed = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:
            break
        if not part:
            break
        printed += part
    os.close(ours)
    return printed


def test_colours_are_for_terminals_and_no_color_turns_them_off(write: Write, environment: dict[str, str]) -> None:
    path = str(write("train:\n  micro_batch_size: 1\n"))
    coloured = on_terminal(environment, "validate", path)
    plain = on_terminal({**environment, "NO_COLOR": "1"}, "validate", path)
    assert b"\x1b[" in coloured
    assert plain.startswith(b"Checked")
    assert b"\x1b[" not in plain
    assert b"\x1b[" in on_terminal({**environment, "NO_COLOR": ""}, "validate", path)


@pytest.mark.parametrize("arguments", [("validate", "conf.yaml"), ("skills", "list")])
def test_a_reader_that_goes_away_ends_the_call_without_a_word(
    run: Run, write: Write, arguments: tuple[str, ...]
) -> None:
    write(CORRUPT)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run(*arguments, capture_output=False, stdout=writer, stderr=subprocess.PIPE)
    finally:
        os.close(writer)
    assert done.stderr == ""
    assert done.returncode in (0, 1)


MCP_CLOSED = "skill-run: standard input or output is closed; an MCP server speaks over both\n"


def in_shell(environment: dict[str, str], folder: Path, command: str) -> Done:
    """Run a shell command in which `skill-run` is the command line."""
    line = f'skill_run() {{ {shlex.quote(sys.executable)} -m skill_run.cli "$@"; }}; {command}'
    return subprocess.run(
        ["/bin/sh", "-c", line], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        ("skill_run validate conf.yaml >&-", 0, ""),
        ("skill_run validate - <&-", 2, "skill-run: standard input is closed\n"),
        ("skill_run mcp <&-", 2, MCP_CLOSED),
        ("skill_run mcp >&-", 2, MCP_CLOSED),
        (
            "skill_run validate conf.yaml >/dev/full",
            2,
            "skill-run: the output cannot be used: No space left on device\n",
        ),
    ],
)
def test_closed_streams_and_a_full_disk_are_no_internal_errors(
    write: Write, environment: dict[str, str], tmp_path: Path, command: str, code: int, told: str
) -> None:
    write(CLEAN)
    done = in_shell(environment, tmp_path, command)
    assert (done.returncode, done.stderr) == (code, told)


HOSTILE_ARGUMENTS: list[tuple[tuple[str | bytes, ...], str]] = [
    ((), "nothing to validate"),
    (("",), "the first argument is empty"),
    (("=",), "override '='"),
    (("~",), "override '~'"),
    (("a=b=c",), "has '=' inside its value"),
    ((f"{CP}=[1,2",), "a bracket is not closed"),
    ((f"{CP}=two",), "must be a whole number"),
    ((f"{CP}=0",), "must be at least 1"),
    ((f"{CP}=99999999999999999999",), "out of range"),
    ((f"{CP}=4611686018427387904", "model.tensor_model_parallel_size=4611686018427387904"), "out of range"),
    (("model=16",), "model is 16"),
    (("x=" + "[" * 60_000,), "nested deeper"),
    (("[" * 60_000,), "not there"),
    ((b"\xff\xfe",), "not there"),
    ((b"model.cp_comm_type='\xff'",), "not valid Unicode"),
    ((f"{CP}=1", "--gpu", b"\xff"), "not valid Unicode"),
    (("no/such/file.yaml",), "not there"),
    (("a\x1b[31mb\rc.yaml",), "not there"),
    (("/",), "is a directory"),
    (("/dev/zero",), "not a regular file"),
    (("torchrun 'abc",), "not closed"),
    (("--", "torchrun"), "no command that starts a training"),
    ((f"{CP}=1", "--bridge", "latest"), "not a Megatron-Bridge version"),
    ((f"{CP}=1", "--bridge", b"\xff"), "not a Megatron-Bridge version"),
    ((f"{CP}=1", "--world-size", "0"), "world size must be"),
    ((f"{CP}=1", "-n", "99999999999999999999"), "world size must be"),
    ((f"{CP}=1", "--env", "NOTHING"), "--env takes NAME=VALUE"),
    ((f"{CP}=1", "--env", "a b=1"), "--env takes NAME=VALUE"),
    ((f"{CP}=1", "--te", "new"), "Transformer Engine version"),
    ((f"{CP}=1", "--model", "/no/such/folder"), "not there"),
    ((f"{CP}=1", "--model", "/"), "has no config.json"),
    ((f"{CP}=1", "--rules", "/no/such/folder"), "not a folder of rule files"),
    ((f"{CP}=1", "-o", "/no/such/folder/report"), "cannot be written"),
    ((f"{CP}=1", "-o", "/"), "cannot be written"),
    (("--recipe", " "), "recipe name is empty"),
]
OTHER_HOSTILE_ARGUMENTS: list[tuple[tuple[str | bytes, ...], str]] = [
    (("explain", "global-batch-divisble"), "did you mean global-batch-divisible"),
    (("explain", ""), "there is no rule and no field ''"),
    (("explain", b"\xff\x1b[31m"), "there is no rule and no field"),
    (("explain", "x" * 100_000), "there is no rule and no field"),
    (("explain", "model.seq_length", "--bridge", "latest"), "not a Megatron-Bridge version"),
    (("skills", "show", "megatron-fsdb"), "did you mean megatron-fsdp?"),
    (("skills", "show", "../../etc"), "there is no skill '../../etc'"),
    (("skills", "show", b"\xff\n\x1b"), "there is no skill"),
    (("skills", "show", "x" * 100_000), "there is no skill"),
    (("mcp", "--root", "/no/such/folder"), "is not a folder"),
    (("mcp", "--root", b"\xff"), "is not a folder"),
]
HOSTILE_FILES: list[tuple[str, bytes, str]] = [
    ("empty.yaml", b"", "empty"),
    ("binary.yaml", bytes(range(256)), "not UTF-8"),
    ("nul.yaml", b"model: {a: \0}\n", "control characters"),
    ("list.yaml", b"- a\n- b\n", "must be a mapping"),
    ("two.yaml", b"a: 1\n---\nb: 2\n", "more than one YAML document"),
    ("broken.yaml", b"model: [1,\n", "broken.yaml:2:1: not valid YAML"),
    ("deep.yaml", b"a: " + b"{a: " * 5000 + b"1" + b"}" * 5000, "nested deeper"),
    ("cycle.yaml", b"model: &m {a: *m}\n", "contains itself"),
    (
        "laughs.yaml",
        b"a0: &a0 [x]\n"
        + b"".join(b"a%d: &a%d [%s]\n" % (n, n, b",".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 12)),
        "expands to more than",
    ),
    ("tag.yaml", b"model: !!python/object/apply:os.system [exit]\n", "tag"),
    ("twice.yaml", b"rng: {seed: 1}\nrng: {seed: 2}\n", "given twice"),
    ("broken.json", b'{"model": ', "broken.json:1:"),
    ("deep.json", b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deep"),
    ("surrogate.json", b'{"model": {"cp_comm_type": "\\ud800"}}', "surrogate.json"),
    ("broken.py", b"def f(:\n", "broken.py:1"),
    ("deep.py", b"x = " + b"(" * 10_000 + b")" * 10_000, "deep.py"),
    ("quote.sh", b"#!/bin/bash\ntorchrun 'abc\n", "not closed"),
    ("large.yaml", b"#" * (5 * 1024 * 1024), "larger than"),
]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Outcomes:
    """Run every hostile call, as many at a time as there are processors; return the outcomes by arguments."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / ".git").mkdir()
    for name, data, _ in HOSTILE_FILES:
        (folder / name).write_bytes(data)
    calls: list[tuple[str | bytes, ...]] = [("validate", *arguments) for arguments, _ in HOSTILE_ARGUMENTS]
    calls += [arguments for arguments, _ in OTHER_HOSTILE_ARGUMENTS]
    calls += [("validate", name) for name, _, _ in HOSTILE_FILES]

    def start(arguments: tuple[str | bytes, ...]) -> Done:
        command = [sys.executable, "-m", "skill_run.cli", *arguments]
        return subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(calls, pool.map(start, calls), strict=True))


@pytest.mark.parametrize(("arguments", "told"), HOSTILE_ARGUMENTS)
def test_hostile_arguments_of_validate_are_refused_in_one_sentence(
    hostile: Outcomes, arguments: tuple[str | bytes, ...], told: str
) -> None:
    refused(hostile["validate", *arguments], told)


@pytest.mark.parametrize(("arguments", "told"), OTHER_HOSTILE_ARGUMENTS)
def test_hostile_arguments_of_other_commands_are_refused_in_one_sentence(
    hostile: Outcomes, arguments: tuple[str | bytes, ...], told: str
) -> None:
    refused(hostile[arguments], told)


@pytest.mark.parametrize(("name", "told"), [(name, told) for name, _, told in HOSTILE_FILES])
def test_hostile_files_are_refused_in_one_sentence(hostile: Outcomes, name: str, told: str) -> None:
    refused(hostile["validate", name], told)


@pytest.mark.parametrize("form", ["text", "json", "sarif", "github", "junit"])
def test_a_file_name_that_is_not_text_is_reported_in_every_form(run: Run, tmp_path: Path, form: str) -> None:
    name = b"con\xff\x1b[31m\nf.yaml"
    with open(os.path.join(os.fsencode(tmp_path), name), "wb") as stream:
        stream.write(CORRUPT.encode())
    done = run("validate", name, "--bridge", "0.6.2", "--format", form)
    assert (done.returncode, done.stderr) == (1, "")
    assert "offline-pad-multiple-covers-cp" in done.stdout
    assert "\x1b" not in done.stdout


def test_nothing_of_a_config_is_executed_or_imported(run: Run, write: Write, tmp_path: Path) -> None:
    write("raise SystemExit(7)\n", "evil.py")
    target = tmp_path / "ran"
    write(f"import evil\nopen({str(target)!r}, 'w')\ncfg = evil.f()\ncfg.model.seq_length = 1\n", "train.py")
    write(f"model: {{_target_: evil.Thing, _args_: ['{target}']}}\n", "target.yaml")
    write(f"#!/bin/bash\nX=$(touch {target})\ntorchrun train.py\n", "job.sh")
    for name in ("train.py", "target.yaml", "job.sh"):
        assert run("validate", name).returncode in (0, 1)
    assert not target.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("validate", "--world-size", "many"),
        ("validate", "--format", "xml"),
        ("validate", "--level", "bad"),
        ("validate", "--no-such-option"),
        ("explain",),
        ("skills", "drop"),
        ("frobnicate",),
        (),
    ],
)
def test_wrong_usage_exits_2_with_the_usage_on_standard_error(run: Run, arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Usage: ")
    assert "Traceback" not in done.stderr


def test_help_and_version_exit_0(run: Run) -> None:
    told = run("--help")
    assert (told.returncode, told.stderr) == (0, "")
    for name in ("explain", "mcp", "skills", "validate", "verify"):
        assert f"\n  {name} " in told.stdout
    assert "--fix-semantic" in run("validate", "-h").stdout
    assert run("--version").stdout == f"skill-run, version {__version__}\n"


def test_the_installed_command_is_the_same_program(environment: dict[str, str]) -> None:
    script = Path(sys.executable).with_name("skill-run")
    done = subprocess.run([script, "--version"], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == f"skill-run, version {__version__}\n"


def test_skills_are_listed_and_shown(run: Run) -> None:
    names = [skill["name"] for skill in json.loads(run("skills", "list", "--format", "json").stdout)]
    assert "packed-sequences-long-context" in names
    listed = run("skills", "list")
    assert listed.returncode == 0
    assert all(name in listed.stdout for name in names)
    shown = run("skills", "show", "megatron-fsdp", "--format", "json")
    assert (shown.returncode, json.loads(shown.stdout)["name"]) == (0, "megatron-fsdp")
    assert "megatron-fsdp" in run("skills", "show", "megatron-fsdp").stdout


def test_rules_and_fields_are_explained(run: Run) -> None:
    rule = run("explain", "global-batch-divisible")
    assert (rule.returncode, rule.stderr) == (0, "")
    assert "train.global_batch_size" in rule.stdout
    field = run("explain", "pad_seq_to_mult", "--format", "json")
    assert json.loads(field.stdout)["name"] == "dataset.offline_packing_specs.pad_seq_to_mult"
    assert "packed_sequence_specs" in run("explain", "pad_seq_to_mult", "--bridge", "0.5.1").stdout


def test_verify_tells_each_check_with_its_figures_and_exits_0(run: Run) -> None:
    done = run("verify")
    assert (done.returncode, done.stderr) == (0, "")
    *checks, parity, verdict = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in checks] == [f"ok   {name}" for name in CHECKS]
    assert all(any(char.isdigit() for char in line.partition(":")[2].rpartition("(")[0]) for line in checks)
    assert parity.startswith("skip parity: no worker is set up; skill-run worker setup makes one")
    assert verdict == "verified, except what was skipped"


def test_verify_without_parity_skips_nothing(run: Run) -> None:
    done = run("verify", "--no-parity")
    assert done.stdout.splitlines()[-1] == "verified"
    assert "parity" not in done.stdout


def test_the_second_call_answers_from_the_cache_as_the_first_did(run: Run, write: Write, tmp_path: Path) -> None:
    write(CORRUPT)
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    first, second = (run("validate", "conf.yaml", "--format", "json", env=env) for _ in range(2))
    assert len(list((tmp_path / "cache" / "skill-run").iterdir())) == 1
    assert first.stdout == second.stdout
    assert first.returncode == second.returncode == 1


def test_an_unusable_cache_folder_is_not_an_error(run: Run, write: Write) -> None:
    write(CORRUPT)
    blocked = write("", "blocked")
    done = run("validate", "conf.yaml", env={"XDG_CACHE_HOME": str(blocked), "HOME": str(blocked)})
    assert (done.returncode, done.stderr) == (1, "")


def test_a_pipe_in_place_of_the_cached_rules_is_not_waited_for(run: Run, write: Write, tmp_path: Path) -> None:
    write(CORRUPT)
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    first = run("validate", "conf.yaml", env=env)
    (kept,) = (tmp_path / "cache" / "skill-run").iterdir()
    kept.unlink()
    os.mkfifo(kept)
    second = run("validate", "conf.yaml", env=env)
    assert (second.returncode, second.stdout, second.stderr) == (1, first.stdout, "")
    assert kept.is_file()


@pytest.mark.parametrize("start", [(), ("bash",), ("NCCL_DEBUG=INFO",)])
@pytest.mark.parametrize("in_checkout", [False, True])
def test_a_line_through_train_sh_is_taken_word_by_word(
    run: Run, tmp_path: Path, start: tuple[str, ...], in_checkout: bool
) -> None:
    if in_checkout:
        (tmp_path / "train.sh").touch()
    line = ("./train.sh", "--nodes", "2", "--gpus-per-node", "8", "--recipe", RECIPE, "train.micro_batch_size=2")
    done = run("validate", "--bridge", "0.6.2", "--format", "json", "--", *start, *line)
    report = json.loads(done.stdout)
    assert report["world_size"] == 16
    assert "offline-packing-needs-micro-batch-1" in {finding["rule"] for finding in report["findings"]}
