"""The content of the bundle: skills, cards, references and evals are well formed, complete and true of the rules."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

import click
import pytest
import skills_ref  # type: ignore[import-untyped]
from jsonschema import Draft202012Validator

from skill_run import __version__
from skill_run.bridge.names import exists, to_canonical, to_written
from skill_run.bridge.release import known_releases, load_release, matches, newest_release
from skill_run.bundle.card import card_faults, load_card
from skill_run.bundle.check import schema
from skill_run.bundle.skills import read_frontmatter
from skill_run.cli import cli
from skill_run.mcp_inspection import Inspection
from skill_run.mcp_tools import Tools
from skill_run.report.finding import ValidationReport
from skill_run.rules.derived import DERIVED, Facts
from skill_run.rules.environment import build_environment, compile_expression, variables_in
from skill_run.rules.validate import build_config, read_sources, validate_config

ROOT = Path(__file__).parents[2]
SKILLS = sorted(path.parent for path in ROOT.glob("skills/*/SKILL.md"))
FLAGSHIP = ROOT / "skills" / "packed-sequences-long-context"
SPEC_FIELDS = {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
MCP_TOOLS = {
    "validate_config",
    "inspect_batch",
    "explain_rule",
    "list_skills",
    "verify_skill",
    "launch_training",
    "get_job",
    "list_jobs",
    "stop_job",
    "generate_recipe",
    "migrate_config",
    "plan_packing",
    "pack_dataset",
}
FORMS = {"python": "python", "yaml": "yaml", "bash": "command"}

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
SNIPPET = re.compile(r"^```(\w+) bridge=(\S+) world_size=(\d+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TICKED = re.compile(r"`([^`\n]+)`")
KEBAB = re.compile(r"[a-z0-9]+(?:[.-][a-z0-9]+)*-[a-z0-9]+(?:[.-][a-z0-9]+)*")
COMMAND = re.compile(r"\bskill-run ([a-z][a-z-]*)\b")


def name_of(value: object) -> str:
    return value.name if isinstance(value, Path) else str(value)


def prose(skill: Path) -> list[Path]:
    return [skill / "SKILL.md", *sorted((skill / "references").glob("*.md"))]


def card_of(skill: Path) -> dict[str, Any]:
    return load_card(skill / "card.yaml")


def rules_in(skill: Path) -> set[str]:
    return {path.stem for path in (skill / "rules").glob("*.yaml")}


def all_rules() -> set[str]:
    return {rule for skill in SKILLS for rule in rules_in(skill)}


def listed_rules(skill: Path) -> list[str]:
    return [rule for topic in card_of(skill)["constraints"] for rule in topic["rules"]]


def bad_findings(report: ValidationReport) -> set[str]:
    return {finding.rule for finding in report.at_least("corruption")}


each_skill = pytest.mark.parametrize("skill", SKILLS, ids=name_of)


def test_the_bundle_card_names_every_skill_folder() -> None:
    assert sorted(load_card(ROOT / "card.yaml")["skills"]) == sorted(skill.name for skill in SKILLS)


def test_the_bundle_card_names_every_recorded_release_with_its_core_release() -> None:
    recorded = [{"bridge": version, "core": load_release(version).core} for version in known_releases()]
    assert load_card(ROOT / "card.yaml")["releases"] == recorded


def test_the_bundle_card_has_the_version_of_the_runtime() -> None:
    assert load_card(ROOT / "card.yaml")["version"] == __version__


@each_skill
def test_the_frontmatter_holds_only_fields_of_the_agent_skills_spec(skill: Path) -> None:
    front = read_frontmatter((skill / "SKILL.md").read_text("utf-8"), skill.name)
    assert set(front) <= SPEC_FIELDS
    assert front["name"] == skill.name
    assert 100 < len(front["description"]) <= 1024
    assert len(front["compatibility"]) <= 500
    assert all(isinstance(value, str) for value in front["metadata"].values())
    assert front["metadata"]["version"] == __version__


@each_skill
def test_the_description_says_when_to_use_the_skill_and_when_not(skill: Path) -> None:
    description = read_frontmatter((skill / "SKILL.md").read_text("utf-8"), skill.name)["description"]
    assert "Use when" in description
    assert "Not for" in description
    assert "Megatron-Bridge" in description


@each_skill
def test_the_frontmatter_is_in_block_style(skill: Path) -> None:
    text = (skill / "SKILL.md").read_text("utf-8")
    front = text.split("---")[1]
    assert not re.search(r":\s*[\[{]", front)


@each_skill
def test_the_reference_validator_of_the_spec_accepts_the_skill(skill: Path) -> None:
    assert skills_ref.validate(skill) == []


@each_skill
def test_the_body_is_short_enough_for_an_assistant(skill: Path) -> None:
    assert len((skill / "SKILL.md").read_text("utf-8").splitlines()) < 500


@each_skill
def test_every_file_is_ascii(skill: Path) -> None:
    for path in [*prose(skill), skill / "card.yaml", skill / "evals" / "evals.json"]:
        assert path.read_bytes().isascii(), path


@each_skill
def test_every_link_resolves_inside_the_skill_folder(skill: Path) -> None:
    for path in prose(skill):
        for target in LINK.findall(FENCE.sub("", path.read_text("utf-8"))):
            found = (path.parent / target.partition("#")[0]).resolve()
            assert found.exists(), f"{path}: {target}"
            assert found.is_relative_to(skill.resolve()), f"{path}: {target} leaves the skill"


@each_skill
def test_every_reference_is_named_in_the_skill_and_lies_one_level_deep(skill: Path) -> None:
    text = (skill / "SKILL.md").read_text("utf-8")
    for path in (skill / "references").rglob("*"):
        assert path.parent.name == "references"
        assert f"references/{path.name}" in text, path


@each_skill
def test_every_rule_named_in_prose_exists(skill: Path) -> None:
    known = all_rules() | {other.name for other in SKILLS} | {"skill-run"}
    for path in prose(skill):
        for word in TICKED.findall(FENCE.sub("", path.read_text("utf-8"))):
            if KEBAB.fullmatch(word):
                assert word in known, f"{path}: `{word}` is neither a rule nor a skill"


@each_skill
def test_the_pitfalls_name_rules_of_the_card(skill: Path) -> None:
    text = FENCE.sub("", (skill / "SKILL.md").read_text("utf-8"))
    pitfalls = text.partition("## Pitfalls")[2].partition("\n## ")[0]
    rows = [line for line in pitfalls.splitlines() if line.startswith("|")][2:]
    listed = {rule.rpartition("/")[2] for rule in listed_rules(skill)}
    assert rows
    for row in rows:
        named = TICKED.findall(row.rsplit("|", 2)[1])
        assert named, row
        assert set(named) <= listed, row


@each_skill
def test_prose_and_evals_mention_only_commands_and_tools_of_this_release(skill: Path) -> None:
    for path in [*prose(skill), skill / "evals" / "evals.json"]:
        text = path.read_text("utf-8")
        assert set(COMMAND.findall(text)) <= {*cli.list_commands(click.Context(cli)), "is"}, path


@each_skill
def test_arguments_of_validate_config_named_in_the_workflow_exist(skill: Path) -> None:
    text = (skill / "SKILL.md").read_text("utf-8")
    named = re.search(r"MCP `validate_config` with ((?:(?:, |,\n +| or |,? and if known )?`\w+`)+)", text)
    assert named is not None
    assert set(TICKED.findall(named[1])) <= set(signature(Tools.validate_config).parameters)


def test_arguments_of_inspect_batch_named_in_the_workflow_exist() -> None:
    text = (FLAGSHIP / "SKILL.md").read_text("utf-8")
    named = re.search(r"MCP `inspect_batch` with ([^)]+)\)", text)
    assert named is not None
    assert set(TICKED.findall(named[1])) <= set(signature(Inspection.inspect_batch).parameters)


@each_skill
def test_the_skill_says_how_to_get_the_runtime_and_what_holds_without_it(skill: Path) -> None:
    rest = (skill / "SKILL.md").read_text("utf-8").partition("## Without the runtime")[2]
    assert "pip install skill-run" in rest
    assert "skill-run mcp" in rest


@each_skill
def test_the_card_obeys_its_schema_and_lists_exactly_the_rules_of_its_folder(skill: Path) -> None:
    assert card_faults(skill / "card.yaml", f"{skill.name}/card.yaml") == []
    listed = listed_rules(skill)
    assert len(listed) == len(set(listed))
    assert {rule for rule in listed if "/" not in rule} == rules_in(skill)


@each_skill
def test_rules_of_other_skills_in_a_card_exist_where_the_card_says(skill: Path) -> None:
    for rule in listed_rules(skill):
        if "/" in rule:
            other, _, name = rule.partition("/")
            assert name in rules_in(ROOT / "skills" / other), rule


@each_skill
def test_the_card_is_validated_on_every_release_of_the_bundle(skill: Path) -> None:
    assert card_of(skill)["validated_on"]["releases"] == load_card(ROOT / "card.yaml")["releases"]


@each_skill
def test_ids_within_a_card_are_unique(skill: Path) -> None:
    card = card_of(skill)
    for key, field in (("features", "id"), ("workflows", "id"), ("verify", "title"), ("constraints", "topic")):
        names = [entry[field] for entry in card[key]]
        assert len(names) == len(set(names)), key


@each_skill
def test_fields_of_features_exist_in_the_releases_they_are_for(skill: Path) -> None:
    for feature in card_of(skill)["features"]:
        left = set(known_releases())
        for specifier, settings in feature["enable"].items():
            versions = {version for version in left if matches(specifier, version)}
            left -= versions
            assert versions, f"{feature['id']}: no release is {specifier}"
            for field in settings:
                for version in versions:
                    assert exists(to_canonical(field, version), version), f"{feature['id']}: {field} in {version}"


@each_skill
def test_every_expression_of_features_and_workflows_compiles(skill: Path) -> None:
    card = card_of(skill)
    settings = [block for feature in card["features"] for block in feature["enable"].values()]
    for workflow in card["workflows"]:
        values = {entry["name"]: entry["default"] for entry in workflow["inputs"]}
        for block in (workflow["settings"], *workflow.get("settings_by_release", {}).values()):
            settings.append({field: filled(value, values) for field, value in block.items()})
    expressions = [value for block in settings for value in block.values() if isinstance(value, str)]
    environment = build_environment(expressions)
    for expression in expressions:
        compile_expression(environment, expression)


@each_skill
def test_every_workflow_with_its_defaults_gives_a_config_without_error_or_corruption(skill: Path) -> None:
    for workflow in card_of(skill)["workflows"]:
        for version in known_releases():
            if matches(workflow["bridge"], version):
                report = validate_config(workflow_config(workflow, version), bridge=version, world_size=8)
                assert bad_findings(report) == set(), f"{workflow['id']} on {version}: {report.findings}"


@each_skill
def test_every_config_of_verify_has_the_outcome_the_card_promises(skill: Path) -> None:
    for check in card_of(skill)["verify"]:
        config = check["config"] if isinstance(check["config"], dict) else skill / check["config"]
        options = {key: check[key] for key in ("recipe", "world_size", "te", "gpu", "env") if key in check}
        report = validate_config(config, bridge=check["bridge"], **options)
        found = {finding.rule for finding in report.findings}
        assert set(check["expect"]) <= found, check["title"]
        assert bad_findings(report) <= set(check["expect"]), check["title"]


@each_skill
def test_verify_holds_a_clean_config_and_faulty_ones(skill: Path) -> None:
    expected = [bool(check["expect"]) for check in card_of(skill)["verify"]]
    assert False in expected
    assert expected.count(True) >= 3


def snippets() -> Iterator[Any]:
    for skill in SKILLS:
        for path in prose(skill):
            for number, found in enumerate(SNIPPET.finditer(path.read_text("utf-8")), start=1):
                yield pytest.param(*found.groups(), id=f"{skill.name}/{path.name}:{number}")


@pytest.mark.parametrize(("language", "bridge", "world_size", "text"), list(snippets()))
def test_every_snippet_in_prose_is_a_config_without_error_or_corruption(
    language: str, bridge: str, world_size: str, text: str
) -> None:
    report = validate_config(text, form=FORMS[language], bridge=bridge, world_size=int(world_size))  # type: ignore[arg-type]
    assert bad_findings(report) == set()
    assert not [entry for entry in report.not_checked if "world_size" in entry.needs]


def test_the_flagship_shows_every_packing_path_for_both_api_generations() -> None:
    text = (FLAGSHIP / "references" / "enable.md").read_text("utf-8")
    shown = [(match[2], match[4]) for match in SNIPPET.finditer(text)]
    for word, bridge in (
        ("packed_sequence_specs=", "0.5.1"),
        ("offline_packing_specs=", "0.6.2"),
        ("pack_sequences_in_batch=True", "0.5.1"),
        ("enable_in_batch_packing=True", "0.6.2"),
        ("packing_buffer_size:", "0.7.0.dev0"),
    ):
        assert [version for version, snippet in shown if word in snippet] == [bridge], word


@each_skill
def test_evals_are_well_formed_and_hold_negatives(skill: Path) -> None:
    data = json.loads((skill / "evals" / "evals.json").read_text("utf-8"))
    assert set(data) == {"skill_name", "evals"}
    assert data["skill_name"] == skill.name
    evals = data["evals"]
    assert len(evals) >= (6 if skill == FLAGSHIP else 4)
    assert [entry["id"] for entry in evals] == list(range(1, len(evals) + 1))
    for entry in evals:
        assert set(entry) == {"id", "prompt", "expected_output", "assertions", "expected_tools", "negative"}
        assert len(entry["prompt"]) > 20
        assert len(entry["expected_output"]) > 20
        assert entry["assertions"]
        assert all(isinstance(assertion, str) for assertion in entry["assertions"])
        assert set(entry["expected_tools"]) <= MCP_TOOLS
        assert entry["negative"] is (not entry["expected_tools"])
    assert any(entry["negative"] for entry in evals)
    assert any("validate_config" in entry["expected_tools"] for entry in evals)


@each_skill
def test_rules_named_in_evals_exist(skill: Path) -> None:
    known = all_rules()
    for entry in json.loads((skill / "evals" / "evals.json").read_text("utf-8"))["evals"]:
        for assertion in entry["assertions"]:
            for word in re.findall(r"(?:names(?: the rule)?|called with) ([a-z0-9.-]+)", assertion):
                if KEBAB.fullmatch(word.rstrip(".")):
                    assert word.rstrip(".") in known, assertion


def test_the_card_schema_is_valid_and_describes_every_property() -> None:
    card_schema = schema("card")
    Draft202012Validator.check_schema(card_schema)
    shared = card_schema["$defs"]
    undescribed = [
        path
        for path, node in properties(card_schema, "")
        if "description" not in {**shared.get(node.get("$ref", "").rpartition("/")[2], {}), **node}
    ]
    assert undescribed == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"kind": "plugin"}, "kind"),
        ({"name": "Megatron FSDP"}, "name"),
        ({"validated_on": {"date": "2026-11-30"}}, "validated_on"),
        ({"bridge": "0.6"}, "bridge"),
        ({"constraints": ["fsdp-needs-dtensor-checkpoints"]}, "constraints"),
        ({"anchors": [{"bridge": "*", "file": "../config.py", "what": "Nothing to see here."}]}, "anchors"),
        (
            {"features": [{"id": "x", "title": "Some feature", "meaning": "It does a thing to it.", "enable": {}}]},
            "features",
        ),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_the_schema_names_the_part_of_a_card_that_is_wrong(change: dict[str, Any], told: str) -> None:
    card = {**card_of(ROOT / "skills" / "megatron-fsdp"), **change}
    errors = Draft202012Validator(schema("card")).iter_errors(card)
    assert any(told in f"{list(error.path)} {error.message}" for error in errors)


def properties(node: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every property definition of a schema, leaving out conditions, with its path."""
    if isinstance(node, list):
        for number, item in enumerate(node):
            yield from properties(item, f"{path}/{number}")
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "properties":
                yield from ((f"{path}/{name}", definition) for name, definition in value.items())
            if key != "if":
                yield from properties(value, f"{path}/{key}")


def filled(value: Any, inputs: Mapping[str, Any]) -> Any:
    """Return a setting with its `inputs.NAME` replaced by CEL literals."""
    if not isinstance(value, str):
        return value
    return re.sub(r"\binputs\.(\w+)", lambda match: json.dumps(inputs[match[1]]), value)


def evaluated(expression: str, values: Mapping[str, Any]) -> Any:
    compiled = compile_expression(build_environment([expression]), expression)
    return compiled.eval(data=dict(values)).plain_value()


def workflow_config(workflow: Mapping[str, Any], version: str) -> dict[str, Any]:
    """Return the settings that a workflow gives with its default inputs: plain ones first, derived ones on top."""
    inputs = {entry["name"]: entry["default"] for entry in workflow["inputs"]}
    blocks = [workflow["settings"]]
    blocks += [block for key, block in workflow.get("settings_by_release", {}).items() if matches(key, version)]
    settings = {field: filled(value, inputs) for block in blocks for field, value in block.items()}
    later = {field: value for field, value in settings.items() if isinstance(value, str) and "derived." in value}
    config = {
        field: evaluated(value, {}) if isinstance(value, str) else value
        for field, value in settings.items()
        if field not in later
    }
    for field, value in later.items():
        facts = Facts(build_config(read_sources(config, bridge=newest_release()), bridge=newest_release()))
        names = [name for name in variables_in(value) if name in DERIVED]
        config[field] = evaluated(value, {name: facts.derived(name) for name in names})
    return {to_written(field, version): value for field, value in config.items()}
