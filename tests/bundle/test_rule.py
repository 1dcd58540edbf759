"""A rule as data: defaults, wording on one line, and what depends on the version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from cel_expr_python import cel

from skill_run.bundle.rule import Rule, rule_from_data
from skill_run.rules.environment import build_environment, compile_expression

RuleData = Callable[..., dict[str, Any]]


def made(data: dict[str, Any]) -> Rule:
    return rule_from_data(data, skill="first", file="skills/first/rules/no-cp.yaml")


def test_what_a_rule_file_leaves_out_has_its_default(rule_data: RuleData) -> None:
    rule = made(rule_data(fails=None, passes=None))
    assert (rule.bridge, rule.when, rule.computed, rule.advice, rule.explanation) == ("*", "true", "", "", "")
    assert (rule.fields, rule.fix, rule.semantic_fix, rule.fails, rule.passes) == ((), {}, False, (), ())


def test_texts_are_joined_to_one_line(rule_data: RuleData) -> None:
    rule = made(rule_data(message="two\n  lines\n", advice=" some\nadvice ", explanation="a\n\nb"))
    assert (rule.message, rule.advice, rule.explanation) == ("two lines", "some advice", "a b")


def test_a_rule_is_broken_where_it_applies_and_does_not_hold(rule_data: RuleData) -> None:
    rule = made(rule_data(when="a || b", require="c\n"))
    assert rule.violation == "(a || b) && !(c)"


@pytest.mark.parametrize("key", ["when", "require"])
@pytest.mark.parametrize("value", [True, False])
def test_a_condition_may_be_a_plain_truth_value(rule_data: RuleData, key: str, value: bool) -> None:
    rule = made(rule_data(**{key: value}))
    compile_expression(build_environment([rule.violation]), rule.violation, cel.Type.BOOL)


@pytest.mark.parametrize(
    ("version", "severity", "phase"),
    [("0.3.1", "corruption", "data"), ("0.5.4", "warning", "never"), ("0.7.0.dev0", "error", "validate")],
)
def test_the_first_specifier_that_fits_decides(rule_data: RuleData, version: str, severity: str, phase: str) -> None:
    rule = made(
        rule_data(
            severity={"<0.4": "corruption", "<0.6": "warning", "*": "error"},
            fires={"<0.4": "data", ">=0.6.dev0": "validate", "*": "never"},
        )
    )
    assert (rule.severity_for(version), rule.fires_for(version)) == (severity, phase)


def test_a_version_that_no_specifier_covers_is_harmless(rule_data: RuleData) -> None:
    rule = made(rule_data(severity={"<0.4": "corruption"}, fires={"<0.4": "data"}))
    assert (rule.severity_for("0.6.2"), rule.fires_for("0.6.2")) == ("info", "never")


def test_a_specifier_that_yaml_reads_as_a_number_is_text(rule_data: RuleData) -> None:
    assert made(rule_data(bridge=0.6)).bridge == "0.6"


@pytest.mark.parametrize(
    "changes",
    [
        {"id": [1]},
        {"title": 3},
        {"severity": 3},
        {"severity": {"*": 3}},
        {"fires": "never"},
        {"fires": {"*": ["never"]}},
        {"require": 1},
        {"fields": "model"},
        {"fields": [1]},
        {"fix": []},
        {"evidence": ["x"]},
        {"fails": [1]},
        {"passes": {"a": 1}},
    ],
)
def test_data_of_another_type_is_no_rule(rule_data: RuleData, changes: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        made(rule_data(**changes))


def test_a_key_that_no_rule_has_is_refused(rule_data: RuleData) -> None:
    with pytest.raises(LookupError):
        made(rule_data(colour="red"))
