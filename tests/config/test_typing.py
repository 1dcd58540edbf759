"""Values against the declared types of their fields."""

from __future__ import annotations

import math
from typing import Any

import pytest

from skill_run.bridge.names import canonical_field
from skill_run.bridge.release import FieldSpec, index
from skill_run.config.typing import INT64, check_value, shown

FIELD = "train.log_interval_of_a_test"


def checked(value: Any, kind: str, *, name: str = FIELD, loose: bool = False) -> tuple[Any, str | None]:
    return check_value(name, value, FieldSpec(kind, nullable=False, loose=loose))


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        ("int", 0, 0),
        ("int", -1, -1),
        ("int", INT64, INT64),
        ("int", -INT64, -INT64),
        ("float", 1, 1.0),
        ("float", 1.5, 1.5),
        ("float", math.inf, math.inf),
        ("bool", True, True),
        ("bool", False, False),
        ("str", "", ""),
        ("str", "text", "text"),
        ("dtype", "torch.bfloat16", "torch.bfloat16"),
        ("ints", [], []),
        ("ints", [2, 4], [2, 4]),
        ("strs", "a2a", ["a2a"]),
        ("strs", ["a2a", "p2p"], ["a2a", "p2p"]),
        ("strs", [], []),
        ("strs", "", [""]),
        ("map", {}, {}),
        ("map", {"a": [1]}, {"a": [1]}),
        ("specs", {"a": 1}, {"a": 1}),
        ("any", "x", "x"),
        ("any", [1, {"a": None}], [1, {"a": None}]),
        ("any", True, True),
    ],
)
def test_a_value_of_the_right_type_is_kept_in_the_fields_own_form(kind: str, value: object, kept: object) -> None:
    found, problem = checked(value, kind)
    assert problem is None
    assert found == kept
    assert type(found) is type(kept)


@pytest.mark.parametrize("kind", ["int", "float", "bool", "str", "dtype", "ints", "strs", "map", "specs", "any"])
def test_null_is_left_to_the_rules(kind: str) -> None:
    assert checked(None, kind) == (None, None)


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        ("int", True, "is true, but it must be a whole number"),
        ("int", 1.0, "is 1.0, but it must be a whole number"),
        ("int", "2", "is '2', but it must be a whole number"),
        ("int", [2], "is [2], but it must be a whole number"),
        ("int", {"a": 2}, "is {'a': 2}, but it must be a whole number"),
        ("float", False, "is false, but it must be a number"),
        ("float", "1e-5", "is '1e-5', but it must be a number"),
        ("bool", 1, "is 1, but it must be true or false"),
        ("bool", "true", "is 'true', but it must be true or false"),
        ("str", 3, "is 3, but it must be text"),
        ("dtype", 16, "is 16, but it must be a dtype name"),
        ("ints", 2, "is 2, but it must be a list of whole numbers"),
        ("ints", [2, True], "is [2, True], but it must be a list of whole numbers"),
        ("ints", [2, "x"], "is [2, 'x'], but it must be a list of whole numbers"),
        ("ints", [2, None], "is [2, None], but it must be a list of whole numbers"),
        ("strs", 3, "is 3, but it must be a name or a list of names"),
        ("strs", [3], "is [3], but it must be a name or a list of names"),
        ("strs", {"a": 1}, "is {'a': 1}, but it must be a name or a list of names"),
        ("map", 3, "is 3, but it must be a mapping"),
        ("map", "x", "is 'x', but it must be a mapping"),
        ("specs", [1], "is [1], but it must be a mapping"),
        ("int", math.nan, "is NaN, which is not a number a run can use"),
        ("float", math.nan, "is NaN, which is not a number a run can use"),
        ("int", INT64 + 1, "is out of range: no count or size in a config needs more than 63 bits"),
        ("int", -(2**70), "is out of range: no count or size in a config needs more than 63 bits"),
        ("ints", [1, 2**64], "is out of range: no count or size in a config needs more than 63 bits"),
        ("any", 2**64, "is out of range: no count or size in a config needs more than 63 bits"),
    ],
)
def test_a_value_of_another_type_is_refused_with_what_it_must_be(kind: str, value: object, problem: str) -> None:
    assert checked(value, kind)[1] == problem


@pytest.mark.parametrize(
    ("kind", "value", "accepted"),
    [
        ("int", [1], True),
        ("int", True, True),
        ("bool", 1, True),
        ("str", 3, True),
        ("strs", {"a": 1}, True),
        ("int", "2", False),
        ("float", "x", False),
        ("bool", "true", False),
    ],
)
def test_a_type_that_was_only_seen_refuses_text_for_numbers_and_switches_alone(
    kind: str, value: object, accepted: bool
) -> None:
    assert (checked(value, kind, loose=True)[1] is None) is accepted


SIZES = [name for name in index()["at_least_one"] if (spec := canonical_field(name)) is not None and spec.kind == "int"]


def test_every_parallel_size_batch_size_and_length_is_at_least_one() -> None:
    assert {
        "model.tensor_model_parallel_size",
        "model.pipeline_model_parallel_size",
        "model.context_parallel_size",
        "model.expert_model_parallel_size",
        "model.expert_tensor_parallel_size",
        "train.micro_batch_size",
        "train.global_batch_size",
        "dataset.seq_length",
        "model.seq_length",
    } <= set(SIZES)


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("value", [0, -1, -(2**40)])
def test_zero_and_negative_sizes_are_refused(name: str, value: int) -> None:
    assert checked(value, "int", name=name)[1] == f"is {value}, but it must be at least 1"


@pytest.mark.parametrize("name", SIZES)
def test_a_size_of_one_is_accepted(name: str) -> None:
    assert checked(1, "int", name=name) == (1, None)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (None, "None"),
        ("a", "'a'"),
        ("x" * 100, "'" + "x" * 56 + "..."),
        (10**60, "a number of more than 60 digits"),
        (-(10**70), "a number of more than 60 digits"),
        (10**50, "1" + "0" * 50),
        ("a\nb", "'a\\nb'"),
    ],
)
def test_a_value_is_shown_in_one_short_line(value: object, text: str) -> None:
    assert shown(value) == text
