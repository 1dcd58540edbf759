"""Check rule and card files fully: schema, CEL, known fields, and each rule's own examples.

`python -m skill_run.bundle.check SKILLS_DIR [RULE_ID ...]` prints one `file:line: sentence` per fault.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from skill_run.bridge.release import known_releases, matches, newest_release
from skill_run.bundle.rule import HOUSE, Rule, rule_from_data
from skill_run.config.text import read_text
from skill_run.config.tree import Mapping as TreeMapping
from skill_run.config.tree import Node, parse_tree, to_plain
from skill_run.config.tree import Sequence as TreeSequence
from skill_run.errors import BundleError, InputError

MAX_BYTES = 256 * 1024
# Of each kind in one rule.
MAX_EXAMPLES = 100
SchemaName = Literal["rule", "card"]


@cache
def schema(name: SchemaName) -> dict[str, Any]:
    """Return a shipped JSON Schema (draft 2020-12)."""
    text = (files("skill_run.bundle") / "schema" / f"{name}.schema.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


@cache
def _validator(name: SchemaName) -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(schema(name))


def _child(node: Node | None, step: Any) -> Node | None:
    if isinstance(node, TreeMapping):
        return node.items.get(step)
    if isinstance(node, TreeSequence) and isinstance(step, int) and step < len(node.items):
        return node.items[step]
    return None


def _line(root: Node | None, path: Iterable[Any]) -> int:
    """Return the line of the deepest node on a path."""
    line = 1
    node = root
    for step in path:
        child = _child(node, step)
        if child is None:
            break
        node = child
        line = node.line or line
    return line


def schema_faults(name: SchemaName, root: Node | None, file: str) -> list[str]:
    """Return the schema faults of a parsed file as `file:line: sentence`."""
    found = []
    for error in sorted(_validator(name).iter_errors(to_plain(root)), key=lambda item: list(map(str, item.path))):
        where = ".".join(str(step) for step in error.path)
        message = "is not allowed here" if error.validator == "not" else error.message
        message = message if len(message) <= 200 else message[:197] + "..."
        found.append(f"{file}:{_line(root, error.path)}: {where + ': ' if where else ''}{message}")
    return found


def check_rule(path: Path, skill: str, shown: str | None = None) -> tuple[Rule | None, list[str]]:
    """Read and check one rule file; return the rule (None when it has no usable shape) and its faults."""
    file = shown or str(path)
    try:
        root = parse_tree(read_text(path, MAX_BYTES), file)
    except InputError as error:
        return None, [str(error)]
    faults = schema_faults("rule", root, file)
    if faults:
        return None, faults
    data = to_plain(root)
    assert isinstance(data, dict)
    rule = rule_from_data(data, skill, file)
    if rule.id != path.stem:
        faults.append(f"{file}:{_line(root, ['id'])}: the id '{rule.id}' must equal the file name '{path.stem}'")
    faults += [f"{file}:{_line(root, [key])}: {message}" for key, message in _content_faults(rule)]
    return rule, faults


def _content_faults(rule: Rule) -> list[tuple[str, str]]:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    found: list[tuple[str, str]] = []
    specifiers = [("bridge", rule.bridge), *(("fires", key) for key in rule.fires)]
    if not isinstance(rule.severity, str):
        specifiers += [("severity", key) for key in rule.severity]
    for key, specifier in specifiers:
        try:
            if specifier != "*":
                SpecifierSet(specifier)
        except InvalidSpecifier:
            found.append((key, f"'{specifier}' is not a version specifier such as >=0.4,<0.6"))
    for key, examples in (("fails", rule.fails), ("passes", rule.passes)):
        if len(examples) > MAX_EXAMPLES:
            found.append((key, f"a rule holds at most {MAX_EXAMPLES} examples of `{key}`, not {len(examples)}"))
    if found:
        return found
    if rule.computed == "batch":
        return found + list(_example_faults(rule))
    found += _field_faults(rule)
    if rule.computed:
        return found
    faults = list(_expression_faults(rule))
    found += faults
    if not faults:
        found += list(_example_faults(rule))
    return found


def _field_faults(rule: Rule) -> Iterable[tuple[str, str]]:
    from skill_run.bridge.names import canonical_field

    for key, names in (("fix", rule.fix), ("fields", rule.fields)):
        for name in names:
            if canonical_field(name) is None and name != "world_size":
                yield key, f"'{name}' is not a field of any recorded release"


def _expression_faults(rule: Rule) -> Iterable[tuple[str, str]]:
    from cel_expr_python import cel

    from skill_run.rules.environment import build_environment, check_house_expression, compile_expression
    from skill_run.rules.evaluate import _PLACEHOLDER, expressions_of

    def compiled(expression: str, expected: Any = None) -> None:
        if rule.skill == HOUSE:
            check_house_expression(expression)
        compile_expression(environment, expression, expected)

    environment = build_environment(expressions_of(rule))
    for key, expression in (("when", rule.when), ("require", rule.require)):
        try:
            compiled(expression, cel.Type.BOOL)
        except BundleError as error:
            yield key, str(error)
    others = [("fix", value) for value in rule.fix.values() if isinstance(value, str)]
    for key, text in (("message", rule.message), ("advice", rule.advice)):
        for expression in _PLACEHOLDER.findall(text):
            if expression.startswith("name:"):
                from skill_run.bridge.names import canonical_field

                name = expression.removeprefix("name:").strip()
                if canonical_field(name) is None:
                    yield key, f"'{name}' is not a field of any recorded release"
            else:
                others.append((key, expression))
    for key, expression in others:
        try:
            compiled(expression)
        except BundleError as error:
            yield key, str(error)


def example_version(rule: Rule) -> str | None:
    """Return the release a rule's examples are judged by: the newest published one that the rule applies to."""
    candidates = [newest_release(), *reversed(known_releases())]
    return next((version for version in candidates if matches(rule.bridge, version)), None)


def judge_example(rule: Rule, example: Mapping[str, Any]) -> str:
    """Return what the rule says of one of its examples: `fails`, `passes`, `not applicable` or `needs ...`.

    An example holds its values itself: InputError when it names a file.
    """
    if rule.computed == "batch":
        return _judge_batch(rule, example)
    from skill_run.rules.evaluate import RuleSet
    from skill_run.rules.validate import build_config, read_sources, report_on

    settings = dict(example)
    version = settings.pop("bridge", None) or example_version(rule)
    if version is None:
        return "needs bridge: no recorded release is in the rule's range"
    env = {key.removeprefix("env."): str(settings.pop(key)) for key in list(settings) if key.startswith("env.")}
    options = {key: settings.pop(key, None) for key in ("world_size", "te", "gpu", "recipe", "model")}
    options["te"] = _text(options["te"])
    for key in ("gpu", "recipe", "model"):
        if options[key] is not None and not isinstance(options[key], str):
            raise InputError(f"`{key}` of an example must be text")
    _check_model_id(options["model"])
    recipe = options.pop("recipe")
    sources = read_sources(settings, bridge=str(version))
    config = build_config(sources, bridge=str(version), recipe=recipe, env=env or None, **options)
    if config.remarks:
        return f"written with a fault: {config.remarks[0].message}"
    report = report_on(config, RuleSet([rule]), "example")
    if any(finding.rule == rule.id for finding in report.findings):
        return "fails"
    if report.not_checked:
        return f"needs {', '.join(report.not_checked[0].needs)}"
    return "passes" if report.rules_checked else "not applicable"


def _judge_batch(rule: Rule, example: Mapping[str, Any]) -> str:
    """Return what a batch rule says of an example batch (keys as in a batch, beside cp, tp, sp, bridge and config)."""
    from skill_run.batch.inspect import inspect_batch

    settings = dict(example)
    options = {key: settings.pop(key) for key in ("cp", "tp", "sp", "bridge", "config") if key in settings}
    if not isinstance(options.get("config", {}), dict):
        raise InputError("`config` of an example must be a mapping of settings, not a file or text")
    options["bridge"] = _text(options.get("bridge"))
    report = inspect_batch(settings, **options)
    return "fails" if any(finding.rule == rule.id for finding in report.findings) else "passes"


def _check_model_id(model: str | None) -> None:
    """Refuse a model that is or could be a path: the rules beside a config must not choose what is opened."""
    if model is None:
        return
    named = model.startswith((".", "/", "~", "\\")) or ".." in model or model.endswith(".json")
    if named or os.path.lexists(model):
        raise InputError("`model` of an example must be a model id such as Qwen/Qwen3-8B, not a file or folder")


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _example_faults(rule: Rule) -> Iterable[tuple[str, str]]:
    for key, examples in (("fails", rule.fails), ("passes", rule.passes)):
        for number, example in enumerate(examples, start=1):
            try:
                outcome = judge_example(rule, example)
            except (InputError, BundleError) as error:
                outcome = f"raises: {error}"
            if outcome != key:
                yield key, f"example {number} of `{key}`: the rule says: {outcome}"


def check_rule_files(root: Path, only: Sequence[str] = ()) -> list[str]:
    """Check the rule files of a bundle (all, or the named ids) and that ids are unique; return the faults."""
    faults: list[str] = []
    seen: dict[str, str] = {}
    for path in sorted(root.glob("skills/*/rules/*.yaml")):
        shown = str(path.relative_to(root))
        if path.stem in seen:
            faults.append(f"{shown}:1: the id '{path.stem}' is taken by {seen[path.stem]}")
        seen[path.stem] = shown
        if not only or path.stem in only:
            faults += check_rule(path, path.parts[-3], shown)[1]
    return faults


def main(arguments: Sequence[str]) -> int:
    """Check a skills folder from the command line; return the exit code."""
    root = Path(arguments[0]).resolve().parent
    faults = check_rule_files(root, arguments[1:])
    for fault in faults:
        print(fault)
    count = len(list(root.glob("skills/*/rules/*.yaml")))
    print(f"{count} rule files, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
