"""Inputs of workflows: JSON Schema, and what is taken or refused."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from skill_run.errors import InputError
from skill_run.recipe.inputs import checked_inputs, inputs_of, schema_of
from skill_run.recipe.workflow import find_workflow, workflows

OFFLINE = find_workflow("offline-packed-sft")


@pytest.mark.parametrize("workflow", workflows().values(), ids=lambda workflow: workflow.id)
def test_the_schema_of_every_workflow_is_valid_and_takes_its_defaults(workflow: Any) -> None:
    schema = schema_of(workflow)
    jsonschema.Draft202012Validator.check_schema(schema)
    defaults = {name: entry["default"] for name, entry in schema["properties"].items() if "default" in entry}
    jsonschema.validate(defaults, schema)
    assert checked_inputs(workflow, defaults) == defaults


def test_the_schema_and_the_check_agree_on_what_is_refused() -> None:
    validator = jsonschema.Draft202012Validator(schema_of(OFFLINE))
    for bad in ({"seq_length": 0}, {"peft": "qlora"}, {"tensor_parallel": "all"}, {"sequence_parallel": 2}, {"x": 1}):
        assert not validator.is_valid(bad)
        with pytest.raises(InputError):
            checked_inputs(OFFLINE, bad)


def test_text_from_a_command_line_becomes_numbers_and_truth_values() -> None:
    given = {"tensor_parallel": "4", "context_parallel": "choose", "sequence_parallel": "true", "seq_length": "8192"}
    assert checked_inputs(OFFLINE, given) == {
        "tensor_parallel": 4,
        "context_parallel": "choose",
        "sequence_parallel": True,
        "seq_length": 8192,
    }


def test_an_input_without_a_value_is_as_good_as_absent() -> None:
    assert checked_inputs(OFFLINE, {"data": None}) == {}


def test_pretraining_asks_for_no_adapters() -> None:
    assert "peft" not in inputs_of(find_workflow("long-context-pretrain"))
    assert "peft" in inputs_of(OFFLINE)
