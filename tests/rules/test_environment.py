"""The CEL environment: typed names, functions, and what does not compile."""

from __future__ import annotations

from typing import Any

import pytest
from cel_expr_python import cel

from skill_run.errors import BundleError
from skill_run.rules.derived import DERIVED
from skill_run.rules.environment import (
    FUNCTIONS,
    INPUTS,
    MAX_EXPRESSION,
    MAX_HOUSE_EXPRESSION,
    build_environment,
    check_house_expression,
    compile_expression,
    kind_of,
    variables_in,
)


def evaluated(expression: str, **data: Any) -> Any:
    environment = build_environment([expression])
    values = {name.replace("__", "."): value for name, value in data.items()}
    return compile_expression(environment, expression).eval(environment.Activation(values)).plain_value()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.context_parallel_size", "int"),
        ("model.sequence_parallel", "bool"),
        ("optimizer.lr", "float"),
        ("model.cp_comm_type", "strs"),
        ("model.hierarchical_context_parallel_sizes", "ints"),
        ("mixed_precision", "str"),
        ("dataset.type", "str"),
        ("dataset.dataset_kwargs.pad_to_max_length", "bool"),
        ("dataset.offline_packing_specs.pad_seq_to_mult", "int"),
        ("hf.rope_scaling.factor", "float"),
        ("given.dataset.offline_packing_specs", "bool"),
        ("given.peft", "bool"),
        ("given.env.NCCL_DEBUG", "bool"),
        ("env.NCCL_DEBUG", "str"),
        ("world_size", "int"),
        ("te", "str"),
        ("gpu", "str"),
        ("packing.offline", "bool"),
        ("derived.pad_multiple", "int"),
        ("derived.family", "str"),
    ],
)
def test_a_name_that_rules_may_use_has_its_type(name: str, kind: str) -> None:
    assert kind_of(name) == kind


@pytest.mark.parametrize(
    "name",
    [
        "model.context_paralel_size",
        "given.model.no_such",
        "given.",
        "given",
        "env",
        "env.A.B",
        "derived.nothing",
        "x",
        "",
    ],
)
def test_a_name_that_does_not_exist_has_no_type(name: str) -> None:
    assert kind_of(name) is None


def test_names_are_found_once_in_the_order_in_which_an_expression_mentions_them() -> None:
    found = variables_in("given.peft && derived.cp_chunks > 2 && world_size > derived.cp_chunks")
    assert found == ("given.peft", "derived.cp_chunks", "world_size")


@pytest.mark.parametrize("quoted", ["'model.seq_length'", '"model.seq_length"', r"'it\'s model.seq_length'"])
def test_a_name_inside_a_string_is_not_a_variable(quoted: str) -> None:
    assert variables_in(f"model.cp_comm_type == [{quoted}]") == ("model.cp_comm_type",)


def test_a_method_call_mentions_the_field_it_is_called_on() -> None:
    path = "dataset.offline_packing_specs.packed_train_data_path"
    assert variables_in(f"{path}.endsWith('.npy')") == (path,)


def test_functions_macros_and_bound_names_are_not_variables() -> None:
    expression = "lcm(model.seq_length, 4) > 1 && model.recompute_modules.all(item, item.startsWith('mla'))"
    assert variables_in(expression) == ("model.seq_length", "model.recompute_modules")


FUNCTION_VALUES = (
    ("lcm(4, 6)", 12),
    ("lcm(1, 7)", 7),
    ("gcd(12, 18)", 6),
    ("least(3, -2)", -2),
    ("greatest(3, -2)", 3),
    ("prod([2, 3, 4])", 24),
    ("prod([])", 1),
    ("version_at_least('2.10.0', '2.9')", True),
    ("version_at_least('2.10', '2.10')", True),
    ("version_at_least('2.10.0.dev1', '2.10')", False),
    ("version_at_least('1.13', '2')", False),
    ("version_at_least('newest', '2')", False),
)


@pytest.mark.parametrize(("expression", "value"), FUNCTION_VALUES)
def test_the_functions_of_rules_compute_what_they_are_named_after(expression: str, value: object) -> None:
    assert evaluated(expression) == value


def test_every_function_of_rules_is_tested_here() -> None:
    assert {expression.partition("(")[0] for expression, _ in FUNCTION_VALUES} == set(FUNCTIONS)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("model.context_paralel_size > 1", "undeclared reference"),
        ("model.context_parallel_size > '1'", "no matching overload"),
        ("'a2a' == model.cp_comm_type", "no matching overload"),
        ("model.context_parallel_size >", "yntax error"),
        ("cos(1)", "undeclared reference"),
    ],
)
def test_a_typing_error_does_not_compile_and_the_reason_is_told(expression: str, reason: str) -> None:
    with pytest.raises(BundleError, match=reason) as caught:
        compile_expression(build_environment([expression]), expression)
    assert str(caught.value).startswith(f"`{expression}` does not compile: ")
    assert "\n" not in str(caught.value)


def test_an_expression_of_another_type_than_needed_is_refused() -> None:
    expression = "model.context_parallel_size + 1"
    with pytest.raises(BundleError, match="gives INT, but BOOL is needed"):
        compile_expression(build_environment([expression]), expression, cel.Type.BOOL)


def test_an_expression_longer_than_the_limit_is_refused() -> None:
    longest = "1 > 0".ljust(MAX_EXPRESSION)
    assert compile_expression(build_environment([]), longest, cel.Type.BOOL) is not None
    with pytest.raises(BundleError, match=f"longer than {MAX_EXPRESSION} characters"):
        compile_expression(build_environment([]), longest + " ")


def test_a_deeply_nested_expression_is_refused_in_one_sentence() -> None:
    deep = "(" * 900 + "true" + ")" * 900
    with pytest.raises(BundleError, match="recursion"):
        compile_expression(build_environment([]), deep)


def test_a_list_field_takes_list_operations() -> None:
    assert evaluated("'a2a' in model.cp_comm_type", model__cp_comm_type=["a2a", "p2p"]) is True
    assert evaluated("size(model.cp_comm_type)", model__cp_comm_type=["a2a", "p2p"]) == 2


def test_division_of_whole_numbers_cuts_the_rest_off() -> None:
    assert evaluated("model.seq_length / 3", model__seq_length=8) == 2


@pytest.mark.parametrize(
    ("expression", "decided"),
    [
        ("world_size > 1 && model.sequence_parallel", False),
        ("world_size > 1 || !model.sequence_parallel", True),
    ],
)
def test_one_known_side_decides_although_the_other_is_unknown(expression: str, decided: bool) -> None:
    assert evaluated(expression, model__sequence_parallel=False) is decided


def test_an_unknown_value_leaves_the_expression_undecided_and_is_named() -> None:
    assert 'No value with name "world_size"' in str(evaluated("world_size > 1"))


def test_every_input_and_derived_value_can_be_declared_with_its_type() -> None:
    kinds = {"int": cel.Type.INT, "bool": cel.Type.BOOL, "str": cel.Type.STRING}
    for name in (*INPUTS, *DERIVED):
        environment = build_environment([name])
        compile_expression(environment, name, kinds[str(kind_of(name))])


@pytest.mark.parametrize(
    "expression",
    [
        "[1].map(a, a).map(b, b).map(c, c)",
        "[1].all(a, [1].exists(b, [1].exists_one(c, true)))",
        "[1].filter(a, true) . // x\n map // y\n (a, a).map(a, a)",
        "'\\'.map' + [r'\\'].map(a, a)[0] + ['].map('].map(a, a)[0]",
        "x" * (MAX_HOUSE_EXPRESSION + 1),
    ],
)
def test_loops_and_length_of_a_house_expression_are_bounded(expression: str) -> None:
    with pytest.raises(BundleError, match="an expression of a house rule"):
        check_house_expression(expression)


@pytest.mark.parametrize(
    "expression", ["[1].map(a, a).all(a, a > 0)", "model.recompute_modules.all_of.mapped.map_", "x" * 1000]
)
def test_a_modest_house_expression_is_allowed(expression: str) -> None:
    check_house_expression(expression)
