"""The workflows of the cards as data: what is found, on which releases, and how expressions are evaluated."""

from __future__ import annotations

import pytest

from skill_run.bridge.release import known_releases, load_release
from skill_run.errors import InputError
from skill_run.recipe.workflow import evaluate, find_workflow, inputs_in, is_derived, workflows


def known(name: str) -> int:
    return {"derived.pad_multiple": 8}[name]


def test_the_workflows_that_people_ask_for_are_there() -> None:
    assert {
        "offline-packed-sft",
        "in-batch-packed-sft",
        "energon-in-batch-packed-sft",
        "energon-native-packed-sft",
        "long-context-sft",
        "long-context-pretrain",
        "two-level-cp",
    } <= set(workflows())


def test_offline_packing_works_on_every_release() -> None:
    assert find_workflow("offline-packed-sft").releases == known_releases()


def test_every_data_set_class_of_a_workflow_is_one_of_its_release() -> None:
    for workflow in workflows().values():
        for release in workflow.releases:
            classes = workflow.classes_for(release)
            assert not classes or set(classes) & set(load_release(release).datasets), (workflow.id, release)


def test_settings_of_a_release_join_the_common_ones() -> None:
    offline = find_workflow("offline-packed-sft")
    assert "dataset.enable_offline_packing" in offline.settings_for("0.6.2")
    assert "dataset.enable_offline_packing" not in offline.settings_for("0.5.1")


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        (True, True),
        (4096, 4096),
        ("inputs.length", 10),
        ("inputs.length * 2", 20),
        ("inputs.name", "it's \" \\ quoted"),
        ("inputs.name + '!'", "it's \" \\ quoted!"),
        ("[inputs.length, 2]", [10, 2]),
        ("derived.pad_multiple", 8),
    ],
)
def test_an_expression_is_evaluated_with_inputs_as_values(expression: object, value: object) -> None:
    inputs = {"length": 10, "name": "it's \" \\ quoted"}
    assert evaluate(expression, inputs, known) == value


def test_what_an_expression_uses_is_told() -> None:
    assert inputs_in("inputs.a * inputs.b") == {"a", "b"}
    assert inputs_in(4) == frozenset()
    assert is_derived("derived.pad_multiple")
    assert not is_derived("'derived.pad_multiple'")


def test_an_unknown_workflow_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(InputError, match="there is no workflow 'x'; there are all-to-all-cp"):
        find_workflow("x")
