"""The full check of rule files: every fault is `file:line: sentence`, and the bundle's own files have none."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from skill_run.bridge.release import known_releases, newest_release
from skill_run.bundle.check import (
    MAX_BYTES,
    MAX_EXAMPLES,
    check_rule,
    check_rule_files,
    example_version,
    judge_example,
    main,
    schema,
)
from skill_run.bundle.load import load_rules, rule_files
from skill_run.bundle.locate import bundle_root
from skill_run.bundle.rule import HOUSE, rule_from_data
from skill_run.errors import InputError

CP = "model.context_parallel_size"
FILES = rule_files(bundle_root())

RuleText = Callable[..., str]
RuleData = Callable[..., dict[str, Any]]
Bundle = Callable[..., Path]


@pytest.fixture
def faults_of(tmp_path: Path) -> Callable[[str], list[str]]:
    """Return a checker of one rule text as the file no-cp.yaml."""

    def check(text: str) -> list[str]:
        path = tmp_path / "no-cp.yaml"
        path.write_text(text, "utf-8")
        return check_rule(path, "first", "no-cp.yaml")[1]

    return check


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_rule_file_of_the_bundle_has_no_fault(path: Path) -> None:
    rule, faults = check_rule(path, path.parts[-3])
    assert faults == []
    assert rule is not None


def test_the_bundle_has_rules_and_their_ids_are_unique() -> None:
    assert len(FILES) > 200
    assert len({path.stem for path in FILES}) == len(FILES)


def test_a_good_rule_has_no_fault(faults_of: Callable[[str], list[str]], rule_text: RuleText) -> None:
    assert faults_of(rule_text()) == []


# The lines of the rule text: 1 id, 2 title, 3 severity, 4 fires, 5 require, 6 message, 7 evidence, 8 fails, 9 passes,
# then the keywords that are new.
@pytest.mark.parametrize(
    ("changes", "line", "told"),
    [
        ({"id": "other"}, 1, "the id 'other' must equal the file name 'no-cp'"),
        ({"id": "No CP"}, 1, "id: 'No CP' does not match"),
        ({"id": None}, 1, "'id' is a required property"),
        ({"title": "short"}, 2, "title: 'short' is too short"),
        ({"title": None}, 1, "'title' is a required property"),
        ({"severity": "fatal"}, 3, "severity: 'fatal' is not valid"),
        ({"severity": {"0.6": "error"}}, 3, "'0.6' is not a version specifier such as >=0.4,<0.6"),
        ({"severity": {"*": "fatal"}}, 3, "severity: {'*': 'fatal'} is not valid"),
        ({"fires": "validate"}, 4, "fires: 'validate' is not of type 'object'"),
        ({"fires": {}}, 4, "fires: {} should be non-empty"),
        ({"fires": {"*": "sometimes"}}, 4, "fires.*: 'sometimes' is not one of"),
        ({"fires": {"since 0.6": "setup", "*": "never"}}, 4, "'since 0.6' is not a version specifier"),
        ({"require": None}, 1, "'require' is a required property"),
        ({"require": 3}, 5, "require: 3 is not of type 'string', 'boolean'"),
        ({"require": "model.context_paralel_size == 1"}, 5, "undeclared reference to 'model.context_paralel_size'"),
        ({"require": f"{CP} == '1'"}, 5, "no matching overload"),
        ({"require": f"{CP} + 1"}, 5, "gives INT, but BOOL is needed"),
        ({"require": f"{CP} =="}, 5, "Syntax error"),
        ({"require": f"{CP} == 1 || " + "true || " * 300 + "true"}, 5, "longer than 2000 characters"),
        ({"message": "x"}, 6, "message: 'x' is too short"),
        ({"message": "It is {model.no_such_field}."}, 6, "undeclared reference"),
        ({"message": "It is {name:model.no_such_field}."}, 6, "'model.no_such_field' is not a field of any recorded"),
        ({"evidence": []}, 7, "evidence: [] should be non-empty"),
        ({"evidence": [{"file": "a.py"}]}, 7, "evidence.0: 'says' is a required property"),
        ({"evidence": [{"says": "x", "line": "3"}]}, 7, "evidence.0: Additional properties are not allowed ('line'"),
        ({"fails": None}, 1, "'fails' is a required property"),
        ({"fails": []}, 8, "fails: [] should be non-empty"),
        ({"fails": [{CP: 2}, {CP: 1}]}, 8, "example 2 of `fails`: the rule says: passes"),
        ({"fails": [{CP: "two"}]}, 8, "example 1 of `fails`: the rule says: raises: model.context_parallel_size is"),
        ({"fails": [{"model.context_paralel_size": 2}]}, 8, "written with a fault: "),
        ({"passes": [{CP: 2}]}, 9, "example 1 of `passes`: the rule says: fails"),
        ({"passes": [{CP: None}]}, 9, "example 1 of `passes`: the rule says: needs model.context_parallel_size"),
        ({"passes": [{CP: 1, "bridge": "nonsense"}]}, 9, "is not a Megatron-Bridge version"),
        ({"bridge": "0.6"}, 10, "'0.6' is not a version specifier"),
        ({"bridge": ">=0.6", "passes": [{CP: 1, "bridge": "0.5.1"}]}, 9, "the rule says: not applicable"),
        ({"bridge": "<0.2"}, 8, "no recorded release is in the rule's range"),
        ({"when": "model.nothing > 1"}, 10, "undeclared reference"),
        ({"when": "derived.family"}, 10, "gives STRING, but BOOL is needed"),
        ({"fix": {"model.no_such_field": 1}}, 10, "'model.no_such_field' is not a field of any recorded release"),
        ({"fix": {CP: "model.nothing"}}, 10, "undeclared reference"),
        ({"fix": {CP: {"a": 1}}}, 10, "is not of type 'string', 'number'"),
        ({"fields": ["model.no_such_field"]}, 10, "'model.no_such_field' is not a field of any recorded release"),
        ({"advice": "Set {nothing}."}, 10, "undeclared reference"),
        ({"semantic_fix": "yes"}, 10, "semantic_fix: 'yes' is not of type 'boolean'"),
        ({"colour": "red"}, 1, "Additional properties are not allowed ('colour' was unexpected)"),
        ({"computed": "config"}, 5, "require: is not allowed here"),
        ({"computed": "magic", "require": None}, 9, "computed: 'magic' is not one of"),
    ],
)
def test_a_fault_is_told_with_its_line_and_a_sentence(
    faults_of: Callable[[str], list[str]], rule_text: RuleText, changes: dict[str, Any], line: int, told: str
) -> None:
    faults = faults_of(rule_text(**changes))
    assert faults
    assert [fault for fault in faults if fault.startswith(f"no-cp.yaml:{line}: ") and told in fault], faults
    assert all("\n" not in fault and len(fault) < 2400 for fault in faults)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no-cp.yaml:1: "),
        ("just text", "no-cp.yaml:1: 'just text' is not of type 'object'"),
        ("- a\n- b\n", "no-cp.yaml:1: "),
        ("id: a\nid: b\n", "no-cp.yaml:2:5: the key 'id' is given twice"),
        ("id: [\n", "no-cp.yaml:2:1: not valid YAML"),
        ("id: !!python/object/apply:os.system [ls]\n", "no-cp.yaml:1:5: the YAML tag"),
    ],
)
def test_a_file_that_is_no_rule_at_all_is_told_with_its_place(
    faults_of: Callable[[str], list[str]], text: str, told: str
) -> None:
    assert faults_of(text)[0].startswith(told)


def test_a_file_that_is_not_text_or_too_large_is_told(tmp_path: Path) -> None:
    path = tmp_path / "no-cp.yaml"
    path.write_bytes(b"\xff\xfe")
    assert "not UTF-8" in check_rule(path, "first")[1][0]
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    assert "larger than" in check_rule(path, "first")[1][0]
    assert "cannot be read" in check_rule(tmp_path / "nothing.yaml", "first")[1][0]


def test_every_fault_of_a_file_is_told_at_once(faults_of: Callable[[str], list[str]], rule_text: RuleText) -> None:
    faults = faults_of(rule_text(id="other", require="model.nothing", message="{model.nothing}"))
    assert [fault.split(":")[1] for fault in faults] == ["1", "5", "6"]


def test_a_long_schema_fault_is_cut(faults_of: Callable[[str], list[str]], rule_text: RuleText) -> None:
    (fault,) = faults_of(rule_text(severity="x" * 10_000))
    assert fault.endswith("...")
    assert len(fault) < 300


def test_a_computed_rule_needs_no_condition_and_no_examples(
    faults_of: Callable[[str], list[str]], rule_text: RuleText
) -> None:
    text = rule_text(computed="config", require=None, fails=None, passes=None, message="{detail}")
    assert faults_of(text) == []


@pytest.mark.parametrize("name", ["rule", "card"])
def test_a_shipped_schema_is_a_schema(name: Any) -> None:
    Draft202012Validator.check_schema(schema(name))


@pytest.mark.parametrize(
    ("bridge", "version"),
    [
        ("*", newest_release()),
        (">=0.7.dev0", "0.7.0.dev0"),
        ("<0.6", "0.5.1"),
        (">=0.3,<0.4", "0.3.1"),
        (">=99", None),
    ],
)
def test_examples_are_judged_by_the_newest_published_release_of_the_rule(
    rule_data: RuleData, bridge: str, version: str | None
) -> None:
    assert example_version(rule_from_data(rule_data(bridge=bridge), "first", "f")) == version


@pytest.mark.parametrize(
    ("require", "example", "outcome"),
    [
        ("world_size == 8", {"world_size": 8}, "passes"),
        ("te == '2.1'", {"te": 2.1}, "passes"),
        ("gpu == 'h100'", {"gpu": "H100"}, "passes"),
        ("env.A == 'b'", {"env.A": "b"}, "passes"),
        ("env.A == '1'", {"env.A": 1}, "passes"),
        ("given.env.B", {"env.A": "b"}, "fails"),
        ("env.A == 'b'", {CP: 1}, "needs env.A"),
        ("dataset.type == 'GPTSFTDatasetConfig'", {"recipe": "llama32_1b_sft_config"}, "passes"),
        (f"given.model.num_layers && {CP} == 1", {CP: 1}, "needs model.num_layers"),
        (f"{CP} == 1", {"bridge": "0.3.1", CP: 2}, "fails"),
    ],
)
def test_extra_keys_of_an_example_describe_the_run(
    rule_data: RuleData, require: str, example: dict[str, Any], outcome: str
) -> None:
    assert judge_example(rule_from_data(rule_data(require=require), "first", "f"), example) == outcome


def test_judging_an_example_leaves_it_as_it_is(rule_data: RuleData) -> None:
    example = {CP: 1, "world_size": 8, "env.A": "b", "bridge": "0.6.2"}
    before = json.dumps(example)
    judge_example(rule_from_data(rule_data(), "first", "f"), example)
    assert json.dumps(example) == before


def test_an_id_that_two_skills_share_is_told(bundle: Bundle, rule_text: RuleText) -> None:
    root = bundle(first__no_cp=rule_text(), second__no_cp=rule_text())
    assert check_rule_files(root) == [
        "skills/second/rules/no-cp.yaml:1: the id 'no-cp' is taken by skills/first/rules/no-cp.yaml"
    ]


def test_only_the_named_rules_are_checked(bundle: Bundle, rule_text: RuleText) -> None:
    root = bundle(first__no_cp=rule_text(), first__bad=rule_text(id="bad", require="nothing"))
    assert check_rule_files(root, ["no-cp"]) == []
    (fault,) = check_rule_files(root, ["bad"])
    assert fault.startswith("skills/first/rules/bad.yaml:5: ")


def test_the_check_runs_from_the_command_line(bundle: Bundle, rule_text: RuleText, capsys: Any) -> None:
    root = bundle(first__no_cp=rule_text(), first__bad=rule_text(id="bad", require="nothing"))
    assert main([str(root / "skills"), "no-cp"]) == 0
    assert capsys.readouterr().out == "2 rule files, 0 faults\n"
    done = subprocess.run(
        [sys.executable, "-m", "skill_run.bundle.check", str(root / "skills")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "2 rule files, 1 faults"
    assert done.stderr == ""


def test_the_examples_of_the_bundle_speak_of_every_recorded_release() -> None:
    examples = [example for rule in load_rules() for example in (*rule.fails, *rule.passes)]
    assert {*known_releases()} - {newest_release()} <= {example.get("bridge") for example in examples}


@pytest.fixture
def config_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a model's config.json that can be read, in the folder `w/model` below the working folder."""
    path = tmp_path / "w" / "model" / "config.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"num_hidden_layers": 32}', "utf-8")
    monkeypatch.chdir(tmp_path / "w")
    return path


@pytest.mark.parametrize(
    "model", ["model", "model/config.json", "./model", "{}", "~/model", "a/../model", "../w/model", "missing.json"]
)
def test_an_example_cannot_have_a_model_read_from_a_path(rule_data: RuleData, config_json: Path, model: str) -> None:
    rule = rule_from_data(rule_data(require="model.num_layers == 1"), HOUSE, "f")
    with pytest.raises(InputError, match="must be a model id such as Qwen/Qwen3-8B, not a file or folder"):
        judge_example(rule, {"model": model.format(config_json.parent)})


def test_an_example_may_name_a_model_by_its_id(rule_data: RuleData) -> None:
    rule = rule_from_data(rule_data(require=f"{CP} == 1"), HOUSE, "f")
    assert judge_example(rule, {CP: 2, "model": "Qwen/Qwen3-8B"}) == "fails"
    assert judge_example(rule, {CP: 2, "model": "nobody/knows"}) == "fails"


BATCH = {"tokens_len": 16, "cu_seqlens_q": [[0, 8, 16]]}


@pytest.mark.parametrize("config", ["conf.yaml", "{}", "model:\n  context_parallel_size: 2\n", ["conf.yaml"], None, 3])
def test_an_example_of_a_batch_cannot_have_a_config_read(
    rule_data: RuleData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: object
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf.yaml").write_text(f"{CP}: 2\n", "utf-8")
    if isinstance(config, str):
        config = config.format(tmp_path / "conf.yaml")
    rule = rule_from_data(rule_data(computed="batch", require=None), HOUSE, "f")
    with pytest.raises(InputError, match="`config` of an example must be a mapping of settings"):
        judge_example(rule, {**BATCH, "config": config})


def test_an_example_of_a_batch_may_hold_settings(rule_data: RuleData) -> None:
    rule = rule_from_data(rule_data(computed="batch", require=None), HOUSE, "f")
    assert judge_example(rule, {**BATCH, "config": {CP: 2}}) == "passes"


@pytest.mark.parametrize(("key", "value"), [("gpu", [1]), ("model", [1]), ("model", {"a": 1}), ("recipe", 5)])
def test_an_input_of_an_example_that_is_not_text_is_a_fault(
    faults_of: Callable[[str], list[str]], rule_text: RuleText, key: str, value: object
) -> None:
    (fault,) = faults_of(rule_text(fails=[{CP: 2, key: value}]))
    assert fault == f"no-cp.yaml:8: example 1 of `fails`: the rule says: raises: `{key}` of an example must be text"


@pytest.mark.parametrize("key", ["fails", "passes"])
def test_too_many_examples_are_refused_before_one_is_judged(
    faults_of: Callable[[str], list[str]], rule_text: RuleText, key: str
) -> None:
    (fault,) = faults_of(rule_text(**{key: [{"nonsense": 1}] * (MAX_EXAMPLES + 1)}))
    assert f"a rule holds at most {MAX_EXAMPLES} examples of `{key}`, not {MAX_EXAMPLES + 1}" in fault


@pytest.mark.parametrize("limit", [2**63 - 1, -(2**63), 2**64])
def test_an_example_of_a_batch_with_a_boundary_at_the_end_of_the_number_range_is_judged_or_refused(
    faults_of: Callable[[str], list[str]], rule_text: RuleText, limit: int
) -> None:
    example = {"tokens_len": 16, "cu_seqlens_q": [[0, limit]], "cp": 2}
    (fault, *_) = faults_of(rule_text(computed="batch", require=None, fails=[example], passes=[BATCH]))
    assert fault.startswith("no-cp.yaml:7: example 1 of `fails`: the rule says: ")


GROWING = "['aaaaaaaaaa']" + ".map(a, a + a)" * 3 + ".size() > 0"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"require": GROWING}, 5),
        ({"when": GROWING}, 10),
        ({"message": f"It is {{{GROWING}}}."}, 6),
        ({"fix": {"model.sequence_parallel": GROWING}}, 10),
        ({"require": f"{CP} == 1" + " || false" * 120}, 5),
    ],
)
def test_an_expression_that_can_grow_without_bounds_is_refused_in_a_house_rule_only(
    tmp_path: Path, rule_text: RuleText, changes: dict[str, Any], line: int
) -> None:
    path = tmp_path / "no-cp.yaml"
    path.write_text(rule_text(**changes), "utf-8")
    faults = check_rule(path, HOUSE, "no-cp.yaml")[1]
    assert [fault.startswith(f"no-cp.yaml:{line}: an expression of a house rule ") for fault in faults] == [True]
    assert "an expression of a house rule" not in "".join(check_rule(path, "first")[1])


@pytest.mark.parametrize(
    "value", ["type(1)", "duration('1s')", "timestamp('2020-01-01T00:00:00Z')", "[b'a']", "{1: 2}"]
)
def test_a_fix_that_no_config_can_hold_is_a_fault(
    faults_of: Callable[[str], list[str]], rule_text: RuleText, value: str
) -> None:
    (fault,) = faults_of(rule_text(fix={CP: value}))
    assert f"the fix of {CP} gives " in fault
    assert fault.endswith(", which no config can hold")
