"""Check one value against the type a release declares for its field."""

from __future__ import annotations

import math
from typing import Final

from skill_run.bridge.release import FieldSpec, index
from skill_run.config.model import Plain

INT64: Final = 2**63 - 1
_WORDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "dtype": "a dtype name",
    "ints": "a list of whole numbers",
    "strs": "a name or a list of names",
    "map": "a mapping",
    "specs": "a mapping",
}


def shown(value: object) -> str:
    """Return a value fit for an error sentence."""
    if isinstance(value, int) and abs(value) >= 10**60:
        return "a number of more than 60 digits"
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= 60 else text[:57] + "..."


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _fits(value: Plain, kind: str) -> bool:
    match kind:
        case "int":
            return _is_int(value)
        case "float":
            return _is_int(value) or isinstance(value, float)
        case "bool":
            return isinstance(value, bool)
        case "str" | "dtype":
            return isinstance(value, str)
        case "ints":
            return isinstance(value, list) and all(_is_int(item) for item in value)
        case "strs":
            return isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value))
        case "map" | "specs":
            return isinstance(value, dict)
        case _:
            return True


def check_value(canonical: str, value: Plain, spec: FieldSpec) -> tuple[Plain, str | None]:
    """Return the value in the field's own form and None, or the value and what is wrong with it.

    A name where a list of names belongs becomes a list of one; a whole number where a float belongs becomes a float.
    """
    if value is None:
        return None, None
    if isinstance(value, float) and math.isnan(value) and spec.kind in ("int", "float"):
        return value, "is NaN, which is not a number a run can use"
    if not _fits(value, spec.kind):
        if spec.loose and not (isinstance(value, str) and spec.kind in ("int", "float", "bool")):
            return value, None
        return value, f"is {shown(value)}, but it must be {_WORDS[spec.kind]}"
    numbers = value if isinstance(value, list) else [value]
    for number in numbers:
        if _is_int(number) and abs(number) > INT64:  # type: ignore[arg-type]
            return value, "is out of range: no count or size in a config needs more than 63 bits"
    if canonical in index()["at_least_one"] and _is_int(value) and value < 1:  # type: ignore[operator]
        return value, f"is {value}, but it must be at least 1"
    if spec.kind == "strs" and isinstance(value, str):
        return [value], None
    if spec.kind == "float":
        return float(value), None  # type: ignore[arg-type]
    return value, None
