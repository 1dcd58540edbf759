"""Any form of config to a Source: which form it is, and one sentence for whatever is none."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skill_run.bridge.release import load_release
from skill_run.config.model import Form, Location
from skill_run.config.read import form_of_text, read_mapping, read_source, read_started_script
from skill_run.config.tree import MAX_BYTES
from skill_run.errors import InputError
from skill_run.rules.validate import validate_config

FIELD = "model.context_parallel_size"
YAML = "model:\n  context_parallel_size: 2\n"
JSON = '{"model": {"context_parallel_size": 2}}'
PYTHON = """from megatron.bridge.recipes.gemma import gemma2_2b_sft_config

cfg = gemma2_2b_sft_config()
cfg.model.context_parallel_size = 2
"""
COMMAND = f"torchrun run_recipe.py --recipe gemma2_2b_sft_config {FIELD}=2"
SBATCH = f"#!/bin/bash\n#SBATCH --nodes=2\nsrun python run_recipe.py --recipe gemma2_2b_sft_config {FIELD}=2\n"


def values(source: Any, **settings: Any) -> dict[str, Any]:
    return {found.path: found.value for found in read_source(source, **settings).assignments}


def refusal(source: Any, **settings: Any) -> str:
    with pytest.raises(InputError) as caught:
        read_source(source, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "form"),
    [
        ("conf.yaml", YAML, "yaml"),
        ("conf.yml", YAML, "yaml"),
        ("CONF.YAML", YAML, "yaml"),
        ("conf.yaml", JSON, "yaml"),
        ("conf.json", JSON, "json"),
        ("train.py", PYTHON, "python"),
        ("job.sh", SBATCH, "sbatch"),
        ("job.sbatch", SBATCH, "sbatch"),
        ("job.slurm", SBATCH, "sbatch"),
        ("conf", YAML, "yaml"),
        ("conf.txt", JSON, "json"),
        ("conf.txt", f"\n\n {JSON}", "json"),
        ("job", SBATCH, "sbatch"),
        ("launch", COMMAND + "\n", "command"),
        ("launch", f"CUDA_DEVICE_MAX_CONNECTIONS=1 {COMMAND}\n", "command"),
        (
            "launch",
            "uv run python run_recipe.py --recipe gemma2_2b_sft_config model.context_parallel_size=2",
            "command",
        ),
        ("train", f"#!/usr/bin/env python3\n{PYTHON}", "python"),
        ("train", PYTHON, "python"),
        ("conf.yaml", f"\ufeff{YAML}", "yaml"),
    ],
)
def test_a_file_is_read_by_its_suffix_or_its_content(tmp_path: Path, name: str, text: str, form: Form) -> None:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    for path in (file, str(file)):
        source = read_source(path, bridge="0.6.2")
        assert (source.form, source.name) == (form, str(file))
        assert [found.value for found in source.assignments if found.path == FIELD] == [2]


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (YAML, "yaml"),
        (f"{FIELD}: 2\n", "yaml"),
        (f"# a comment\n{YAML}", "yaml"),
        (f"{JSON}\n", "json"),
        (f"{json.dumps(json.loads(JSON), indent=2)}\n", "json"),
        (JSON, "json"),
        (PYTHON, "python"),
        (SBATCH, "sbatch"),
        (COMMAND, "command"),
        (f"{COMMAND} \\\n  train.micro_batch_size=1\n", "command"),
    ],
)
def test_text_is_told_by_its_content(text: str, form: Form) -> None:
    source = read_source(text, bridge="0.6.2")
    assert source.form == form
    assert [found.value for found in source.assignments if found.path == FIELD] == [2]


@pytest.mark.parametrize("text", ["/" * 200_000, "A=" + "/" * 200_000, "a/" * 100_000, "A= " * 70_000])
def test_long_words_that_start_no_program_are_looked_at_once(text: str) -> None:
    assert form_of_text(text) == "yaml"


def test_one_line_of_text_is_read_when_its_form_is_given() -> None:
    assert values("model.context_parallel_size: 2", form="yaml") == {FIELD: 2}


@pytest.mark.parametrize(
    "text",
    [
        f"_target_: megatron.bridge.training.config.ConfigContainer\n{YAML}",
        f'{{"_target_": "megatron.bridge.training.config.ConfigContainer", {JSON[1:]}\n',
    ],
)
def test_a_dump_of_the_library_is_a_container(text: str) -> None:
    source = read_source(text)
    assert source.form == "container"
    assert [found.path for found in source.assignments] == [FIELD]


@pytest.mark.parametrize("target", ["3", "[a]", "x.SomethingElse"])
def test_another_target_at_the_top_makes_no_container(target: str) -> None:
    assert read_source(f"_target_: {target}\n{YAML}").form == "yaml"


@pytest.mark.parametrize(
    "mapping",
    [
        {"model": {"context_parallel_size": 2}},
        {FIELD: 2},
        {"model": {"context_parallel_size": 2}, "_target_": "x.ConfigContainer"},
        MappingProxyType({FIELD: 2}),
    ],
)
def test_a_mapping_is_read_nested_or_dotted(mapping: Any) -> None:
    assert values(mapping) == {FIELD: 2}
    assert read_source(mapping).name == "<mapping>"
    assert read_source(mapping).assignments[0].location == Location()


def test_a_mapping_that_is_a_dump_is_a_container() -> None:
    assert read_mapping({"_target_": "x.ConfigContainer"}).form == "container"


def test_reading_leaves_the_mapping_as_it_was() -> None:
    mapping = {"model": {"recompute_modules": ["mlp"]}}
    read_source(mapping).assignments[0].value.append("x")  # type: ignore[union-attr]
    assert mapping == {"model": {"recompute_modules": ["mlp"]}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": "\\ud83d\\ude00"}', "\U0001f600"),
        ('{"a": "\\u0000\\b"}', "\x00\x08"),
        ('{"a": "\x7f"}', "\x7f"),
        ('{\n\t"a": "x\\/y"}', "x/y"),
        ('{"a":1}', 1),
        ('{"a": 1E5}', 1e5),
        ('{"a": "yes"}', "yes"),
        ('{"a": "1e5"}', "1e5"),
    ],
)
def test_all_of_json_is_read(text: str, value: object) -> None:
    assert values(text, form="json") == {"a": value}


def test_json_with_a_key_longer_than_yaml_takes_is_read() -> None:
    assert values(json.dumps({"k" * 2000: 1}), form="json") == {"k" * 2000: 1}


def test_a_repeated_key_is_refused_even_where_json_is_not_yaml() -> None:
    assert "not valid YAML" in refusal('{"a": "\\ud83d\\ude00", "b": 1, "b": 2}', form="json")


DEEP = 10_000


@pytest.mark.parametrize(
    ("form", "text", "sentence"),
    [
        ("yaml", "", "<text> is empty: it holds no config"),
        ("yaml", "# only\n# comments\n", "<text> is empty: it holds no config"),
        ("yaml", "- a\n- b\n", "<text> does not hold a config: the top level must be a mapping of sections"),
        ("yaml", "just text\n", "<text> does not hold a config: the top level must be a mapping of sections"),
        ("yaml", "3\n", "<text> does not hold a config: the top level must be a mapping of sections"),
        ("yaml", "a: 1\n---\nb: 2\n", "<text>:2:1: the file holds more than one YAML document"),
        ("yaml", "model:\n\ta: 1\n", "<text>:2:1: not valid YAML: found character that cannot start any token"),
        ("yaml", "a: 1\na: 2\n", "<text>:2:4: the key 'a' is given twice in one mapping"),
        ("yaml", "a: &x {b: *x}\n", "<text>:1:11: the anchor 'x' contains itself"),
        ("yaml", "- " * DEEP + "a\n", "<text>:1:129: the YAML is nested deeper than 64 levels"),
        ("json", "", "<text>:1:1: not valid JSON: Expecting value"),
        ("json", "[1]", "<text> does not hold a config: the top level must be a mapping of sections"),
        ("json", "null", "<text> does not hold a config: the top level must be a mapping of sections"),
        ("json", '{"a": 1, "a": 2}', "<text>:1:15: the key 'a' is given twice in one mapping"),
        ("json", '{"a": 1,}', "<text>:1:9: not valid JSON: Expecting property name enclosed in double quotes"),
        ("json", '{"a": ' * 70 + "1" + "}" * 70, "<text>: the mapping is nested deeper than 64 levels"),
        ("json", '{"a": ' + "9" * 5000 + "}", "<text>: the JSON holds a number with too many digits"),
        ("json", '{"a": ' + "9" * 500 + "}", "<text>: a number of more than 400 digits is out of range"),
    ],
)
def test_text_that_is_no_config_is_refused_in_one_sentence(form: Form, text: str, sentence: str) -> None:
    assert refusal(text, form=form) == sentence


def test_yaml_too_deep_for_the_parser_is_refused() -> None:
    # Newer versions of the parser stop by themselves, older ones leave it to the limit of this project.
    sentence = refusal("[" * DEEP + "]" * DEEP, form="yaml")
    assert sentence.endswith(("exceeded maximum nesting depth", "nested deeper than 64 levels"))


def test_json_too_deep_for_the_parser_is_refused() -> None:
    # How deep the parser of the standard library goes depends on the version of Python.
    sentence = refusal('{"a":' * DEEP + "1" + "}" * DEEP, form="json")
    assert sentence in ("<text>: the JSON is nested too deep", "<text>: the mapping is nested deeper than 64 levels")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda file: file.write_bytes(b"a: \xe9\n"), "FILE is not UTF-8 text (byte 3)"),
        (lambda file: file.write_bytes("a: 1".encode("utf-16")), "FILE is not UTF-8 text (byte 0)"),
        (lambda file: file.write_bytes(b""), "FILE is empty: it holds no config"),
        (lambda file: file.mkdir(), "FILE is a directory; name one config file"),
        (lambda file: None, "FILE is not there: no such config file"),
        (lambda file: file.symlink_to("gone"), "FILE is not there: no such config file"),
        (lambda file: file.symlink_to(file), "FILE is not there: no such config file"),
        (os.mkfifo, "FILE is not a regular file"),
        (
            lambda file: file.write_bytes(b"a: 1\n" * (10 * 1024 * 1024)),
            "FILE is larger than 4096 KiB, which no config is",
        ),
        (lambda file: file.write_text("a: [1\n"), "FILE:2:1: not valid YAML: did not find expected ',' or ']'"),
    ],
    ids=["latin-1", "utf-16", "empty", "folder", "missing", "broken link", "loop", "pipe", "50 MB", "bad yaml"],
)
def test_a_file_that_cannot_be_used_is_refused_with_its_name(
    tmp_path: Path, make: Callable[[Path], object], sentence: str
) -> None:
    file = tmp_path / "conf.yaml"
    make(file)
    assert refusal(file).replace(str(file), "FILE") == sentence


def test_a_file_at_the_size_limit_is_read(tmp_path: Path) -> None:
    file = tmp_path / "conf.yaml"
    file.write_text(YAML + "#" * (MAX_BYTES - len(YAML)), encoding="utf-8")
    assert values(file) == {FIELD: 2}


def test_a_name_with_a_line_break_is_a_file_when_it_is_given_as_a_path(tmp_path: Path) -> None:
    file = tmp_path / "my\nconf.yaml"
    file.write_text(YAML, encoding="utf-8")
    assert values(file) == {FIELD: 2}


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("missing.yaml", "missing.yaml is not there: no such config file"),
        ("model.context_parallel_size: 2", "model.context_parallel_size: 2 is not there: no such config file"),
        ("", ". is a directory; name one config file"),
        ("a\0b", "a\0b is not there: no such config file"),
        ("x" * 100_000, "x" * 197 + "... is not there: no such config file"),
        (3, "a config is a path, text or a mapping, not a value of type int"),
        (None, "a config is a path, text or a mapping, not a value of type NoneType"),
        ([{"a": 1}], "a config is a path, text or a mapping, not a value of type list"),
        (b"a: 1\n", "a config is a path, text or a mapping, not a value of type bytes"),
        ({"a": {1: 2}}, "<mapping>: a key of type int is not text"),
        ({1: 2}, "<mapping>: a key of type int is not text"),
        ({"a": object()}, "<mapping>: a value of type object is not plain config data"),
    ],
)
def test_what_is_neither_path_text_nor_mapping_is_refused(source: Any, sentence: str) -> None:
    assert refusal(source) == sentence


OWN_SCRIPT = "python train.py"


def started(launch: str, folder: Path | None) -> str | None:
    script = read_started_script(read_source(launch, form="command", bridge="0.6.2"), folder)
    return None if script is None else script.name


@pytest.mark.parametrize(
    "launch", [OWN_SCRIPT, "torchrun --nproc_per_node=8 scripts/train.py", "python /gone/train.py"]
)
def test_the_script_that_a_launch_line_starts_is_read_beside_it(tmp_path: Path, launch: str) -> None:
    (tmp_path / "train.py").write_text(PYTHON, encoding="utf-8")
    assert started(launch, tmp_path) == str(tmp_path / "train.py")


def test_the_script_where_the_launch_line_says_comes_first(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PYTHON, encoding="utf-8")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "train.py").write_text(PYTHON, encoding="utf-8")
    assert started("python scripts/train.py", tmp_path) == str(tmp_path / "scripts" / "train.py")


@pytest.mark.parametrize("launch", [COMMAND, "python -m my_package.train", "python missing.py"])
def test_no_script_is_followed_where_there_is_none_of_the_users_own(tmp_path: Path, launch: str) -> None:
    for name in ("run_recipe.py", "train.py"):
        (tmp_path / name).write_text(PYTHON, encoding="utf-8")
    assert started(launch, tmp_path) is None


def test_a_script_is_not_followed_through_a_link_or_without_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.py").write_text(PYTHON, encoding="utf-8")
    (tmp_path / "train.py").symlink_to("secret.py")
    assert started(OWN_SCRIPT, tmp_path) is None
    assert started("python secret.py", None) is None


def test_a_config_that_is_no_launch_line_starts_no_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PYTHON, encoding="utf-8")
    assert read_started_script(read_source(YAML), tmp_path) is None


def test_a_class_in_a_config_is_never_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trap_module.py").write_text("raise SystemExit('imported')\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    report = validate_config(
        {"dataset": {"_target_": "trap_module.GPTSFTDatasetConfig", "_call_": True, "_args_": [1]}}, bridge="0.6.2"
    )
    assert report.bridge.version == "0.6.2"


NAMES = load_release("0.6.2").written_names()
PACKING = [name for name in NAMES if any(part in name for part in ("parallel", "pack", "length", "batch", "eval_"))]
SECTIONS = sorted(load_release("0.6.2").sections)
ODD = [
    *("_target_", "_call_", "_name_", "type", "world_size", "te", "gpu", "hf", "", ".", "model.", "a..b", "env_vars"),
    *("dataset.type", "dataset._target_", "dataset.packed_sequence_specs", "dataset.dataset_kwargs", "mixed_precision"),
]
KEYS = st.sampled_from(PACKING) | st.sampled_from(SECTIONS) | st.sampled_from(ODD) | st.text(max_size=6)
FUZZ = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-2, 16)
    | st.sampled_from([2**31, 2**62, 2**63 - 1, 2**63, -(2**63), 10**30])
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["a2a+p2p", "bf16_mixed", "x.GPTSFTDatasetConfig", "h100", "2.10", "full", "x.ConfigContainer"])
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=8
)
MAPPINGS = st.dictionaries(KEYS, VALUES, max_size=8)
TEXTS = (
    st.text(max_size=120)
    | st.text("abc:-{}[]&*!|>#\"'% \n\t.?,<=$~01", max_size=60)
    | MAPPINGS.map(json.dumps)
    | st.lists(st.tuples(KEYS, SCALARS), max_size=6).map(
        lambda pairs: "".join(f"{key}: {value}\n" for key, value in pairs)
    )
)
VERSIONS = st.sampled_from([None, "0.3.1", "0.5.1", "0.6.2", "main"])
FORMS = st.sampled_from([None, "yaml", "json"])


@FUZZ
@given(MAPPINGS, VERSIONS)
def test_any_mapping_is_judged_or_refused(mapping: dict[str, Any], bridge: str | None) -> None:
    with suppress(InputError):
        validate_config(mapping, bridge=bridge).to_dict()


@FUZZ
@given(TEXTS, FORMS, VERSIONS)
def test_any_text_is_read_and_judged_or_refused(text: str, form: Form | None, bridge: str | None) -> None:
    with suppress(InputError):
        read_source(text + "\n", form=form, bridge=bridge)
        validate_config(text + "\n", form=form, bridge=bridge).to_dict()
