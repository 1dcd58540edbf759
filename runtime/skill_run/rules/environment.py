"""The CEL environment of the rules: typed variables for fields, packing.* and derived.*, and a few functions."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from cel_expr_python import cel
from packaging.version import Version

from skill_run.bridge.names import canonical_field
from skill_run.errors import BundleError
from skill_run.rules.derived import DERIVED

_STRINGS = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'")
_NAMES = re.compile(r"(?<![\w.)\]])([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(\s*\()?")
MAX_EXPRESSION: Final = 2000
# Bounds of a team's own expressions, which come with a config: each loop multiplies what the one before it made.
MAX_HOUSE_EXPRESSION: Final = 1000
MAX_HOUSE_LOOPS: Final = 2
# In strings too, since what CEL takes for a string is not told here exactly.
_LOOPS = re.compile(r"\b(?:map|filter|all|exists|exists_one)\b")

INPUTS: Final = {
    "world_size": "int",
    "te": "str",
    "gpu": "str",
    "gpu_memory_gib": "int",
    "tokens_per_rank": "int",
    "max_tokens_per_rank": "int",
}
_TYPES: Final = {
    "int": cel.Type.INT,
    "bool": cel.Type.BOOL,
    "str": cel.Type.STRING,
    "dtype": cel.Type.STRING,
    "float": cel.Type.DOUBLE,
    "ints": cel.Type.List(cel.Type.INT),
    "strs": cel.Type.List(cel.Type.STRING),
}


def _product(values: list[int]) -> int:
    return math.prod(values)


def _at_least(version: str, floor: str) -> bool:
    try:
        return Version(version) >= Version(floor)
    except ValueError:
        return False


def _functions() -> list[Any]:
    integer, integers, text = cel.Type.INT, cel.Type.List(cel.Type.INT), cel.Type.STRING
    table = [
        ("lcm", [integer, integer], integer, math.lcm),
        ("gcd", [integer, integer], integer, math.gcd),
        ("least", [integer, integer], integer, min),
        ("greatest", [integer, integer], integer, max),
        ("prod", [integers], integer, _product),
        ("version_at_least", [text, text], cel.Type.BOOL, _at_least),
    ]
    return [
        cel.FunctionDecl(
            name,
            [
                cel.Overload(
                    f"skill_{name}", return_type=result, parameters=parameters, is_member=False, impl=implementation
                )
            ],
        )
        for name, parameters, result, implementation in table
    ]


FUNCTIONS: Final = ("lcm", "gcd", "least", "greatest", "prod", "version_at_least")


@lru_cache(maxsize=4096)
def variables_in(expression: str) -> tuple[str, ...]:
    """Return the variables an expression mentions, in order; unknown names are left to the compiler to reject."""
    found: dict[str, None] = {}
    for match in _NAMES.finditer(_STRINGS.sub("''", expression)):
        name = match.group(1)
        if match.group(2):
            name = name.rpartition(".")[0]
        if name and kind_of(name) is not None:
            found[name] = None
    return tuple(found)


@lru_cache(maxsize=4096)
def kind_of(name: str) -> str | None:
    """Return the kind of a rule variable (int, bool, str, float, ints, strs, any), None when there is no such name."""
    if name in INPUTS:
        return INPUTS[name]
    if name in DERIVED:
        return DERIVED[name][0]
    section, _, rest = name.partition(".")
    if section == "given":
        told = rest in INPUTS or rest.startswith("env.") or (rest and canonical_field(rest) is not None)
        return "bool" if told else None
    if section == "env":
        return "str" if rest and "." not in rest else None
    spec = canonical_field(name)
    return None if spec is None else spec.kind


def build_environment(expressions: Iterable[str]) -> Any:
    """Return a CEL environment that declares every variable the expressions mention."""
    names = {name for expression in expressions for name in variables_in(expression)}
    variables = {name: _TYPES.get(kind_of(name) or "any", cel.Type.DYN) for name in sorted(names)}
    return cel.NewEnv(variables=variables, extensions=[cel.CelExtension("skill_run", _functions())])


def compile_expression(environment: Any, expression: str, expected: Any = None) -> Any:
    """Compile one expression; BundleError with the reason when it does not compile or has another type."""
    if len(expression) > MAX_EXPRESSION:
        raise BundleError(f"an expression is longer than {MAX_EXPRESSION} characters")
    try:
        compiled = environment.compile(expression)
    except (RuntimeError, ValueError, TypeError) as error:
        reason = str(error).split("\n", 1)[0].replace("INVALID_ARGUMENT: ERROR: ", "")
        raise BundleError(f"`{expression}` does not compile: {reason}") from error
    if expected is not None and compiled.return_type() != expected:
        raise BundleError(f"`{expression}` gives {compiled.return_type().name()}, but {expected.name()} is needed")
    return compiled


def check_house_expression(expression: str) -> None:
    """Raise BundleError for an expression of a house rule whose evaluation could take too much memory."""
    if len(expression) > MAX_HOUSE_EXPRESSION:
        raise BundleError(f"an expression of a house rule is longer than {MAX_HOUSE_EXPRESSION} characters")
    if len(_LOOPS.findall(expression)) > MAX_HOUSE_LOOPS:
        raise BundleError(
            f"an expression of a house rule names map, filter, all, exists or exists_one more than {MAX_HOUSE_LOOPS} "
            "times; split the rule"
        )
