"""Values that a Python config script can hold as far as they can be told, and arithmetic on them within limits."""

from __future__ import annotations

import ast
import math
import operator
import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from skill_run.config.model import Unknown

MAX_BITS: Final = 4096
MAX_TEXT: Final = 65_536
MAX_ITEMS: Final = 4096
MAX_WEIGHT: Final = 4 * MAX_TEXT
MAX_NAME: Final = 200
MAX_DOTTED: Final = 4000

_DTYPES: Final = {
    *(
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "half",
        "float",
        "double",
        "int8",
        "uint8",
        "int32",
        "int64",
        "long",
    ),
    *("float8_e4m3fn", "float8_e5m2", "bool"),
}
_CONSTANTS: Final[dict[str, float]] = {"math.inf": math.inf, "math.pi": math.pi, "math.e": math.e, "math.nan": math.nan}
_CAMEL = re.compile(r"[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*")
_FORMAT = re.compile(r"(?:[^{}]?[<>=^])?[-+ ]?#?0?[0-9]{0,3}[,_]?(?:\.[0-9]{1,3})?[a-zA-Z%]?")
# What Python's own operators and functions raise on values of a wrong type or range.
COMPUTING_ERRORS: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class PathText(str):
    """A pathlib path: text that `/` joins."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Dotted:
    """An imported or built-in name such as `math.lcm`. symbol: it came out of a module, so it may be any object."""

    name: str
    symbol: bool = False

    @property
    def last(self) -> str:
        return self.name.rpartition(".")[2]


def is_plain(value: object) -> bool:
    """Tell whether a value is a scalar constant."""
    return value is None or isinstance(value, bool | int | float | str)


def weight(value: Any) -> int:
    """Return about how many characters plain data has as text; the count stops soon after MAX_WEIGHT."""
    total = 0
    stack = [value]
    while stack and total <= MAX_WEIGHT:
        part = stack.pop()
        if isinstance(part, str):
            total += len(part)
        elif isinstance(part, int):
            total += part.bit_length() // 8
        elif isinstance(part, list | tuple):
            stack += part
        elif isinstance(part, dict):
            stack += [*part.keys(), *part.values()]
        total += 1
    return total


def is_class_name(name: str) -> bool:
    """Tell whether a name is written like a class."""
    return _CAMEL.fullmatch(name) is not None


def attribute_of_name(base: Dotted, attribute: str) -> object:
    """Return what `base.attribute` of an imported name stands for: a dtype, an enum member's name, or a name."""
    full = f"{base.name}.{attribute}"
    if len(full) > MAX_DOTTED:
        return Unknown("is a name too long to follow")
    if full in _CONSTANTS:
        return _CONSTANTS[full]
    if base.name == "torch" and attribute in _DTYPES:
        return full
    if is_class_name(base.last) and not attribute.startswith("__"):
        return attribute
    return Dotted(full, base.symbol)


def _fits(value: object) -> bool:
    if isinstance(value, int):
        return value.bit_length() <= MAX_BITS
    if isinstance(value, str | list | tuple):
        return len(value) <= MAX_TEXT
    return isinstance(value, float) or value is None


def _power(base: Any, exponent: Any) -> Any:
    whole = isinstance(base, int) and isinstance(exponent, int) and exponent > 0
    if whole and base.bit_length() * exponent > MAX_BITS:
        raise OverflowError
    return base**exponent


def _times(left: Any, right: Any) -> Any:
    for text, count in ((left, right), (right, left)):
        if isinstance(text, str) and isinstance(count, int) and len(text) * count > MAX_TEXT:
            raise OverflowError
    return left * right


def _shift(left: Any, right: Any) -> Any:
    if right > MAX_BITS:
        raise OverflowError
    return left << right


_BINARY: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: _times,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
    ast.LShift: _shift,
    ast.RShift: operator.rshift,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.BitXor: operator.xor,
}
_UNARY: Final[dict[type[ast.unaryop], Callable[[Any], Any]]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}
_COMPARE: Final[dict[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
    ast.Is: lambda left, right: left is right if left is None or right is None else left == right,
    ast.IsNot: lambda left, right: left is not right if left is None or right is None else left != right,
}


def _computed(function: Callable[..., Any], *values: Any) -> Any:
    """Apply a function to plain values; Unknown when it raises or the result is beyond the limits."""
    try:
        result = function(*values)
    except COMPUTING_ERRORS as error:
        return Unknown(f"cannot be computed ({type(error).__name__})")
    return result if _fits(result) else Unknown("is too large to compute")


def binary(kind: type[ast.operator], left: Any, right: Any) -> Any:
    """Apply a binary operator to two constants."""
    if kind is ast.Div and (isinstance(left, PathText) or isinstance(right, PathText)):
        if isinstance(left, str) and isinstance(right, str):
            return PathText(posixpath.join(left, right))
        return Unknown("is not a path")
    if kind is ast.Mod and isinstance(left, str):
        return Unknown("is formatted with %")
    function = _BINARY.get(kind)
    return _computed(function, left, right) if function is not None else Unknown("uses an operator that is not read")


def unary(kind: type[ast.unaryop], value: Any) -> Any:
    """Apply a unary operator other than `not` to a constant."""
    return _computed(_UNARY[kind], value)


def compare(kind: type[ast.cmpop], left: Any, right: Any) -> bool | None:
    """Compare two known values; None when Python would raise."""
    try:
        return bool(_COMPARE[kind](left, right))
    except COMPUTING_ERRORS:
        return None


def formatted(value: Any, conversion: int, spec: str) -> str | Unknown:
    """Return one `{value!r:spec}` of an f-string."""
    try:
        if conversion in (ord("r"), ord("a")):
            value = repr(value) if conversion == ord("r") else ascii(value)
        elif conversion == ord("s"):
            value = str(value)
        if spec and not _FORMAT.fullmatch(spec):
            return Unknown("uses a format that is not read")
        return format(str(value) if isinstance(value, PathText) else value, spec)
    except COMPUTING_ERRORS:
        return Unknown("cannot be formatted")


def _rounded(value: Any, digits: Any = None) -> Any:
    return round(value, digits) if digits is None or abs(digits) <= 100 else Unknown("is rounded too finely")


def _of_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(*values: Any) -> Any:
        if sum(v.bit_length() for v in values if isinstance(v, int)) > MAX_BITS:
            raise OverflowError
        return function(*values)

    return apply


def _total(values: Any, start: Any = 0) -> Any:
    return sum(values, start) if not isinstance(start, str | list) else Unknown("is not a sum of numbers")


# Functions of plain data only; lists and mappings arrive as Python lists and dicts.
PURE: Final[dict[str, Callable[..., Any]]] = {
    "max": max,
    "min": min,
    "int": int,
    "float": float,
    "bool": bool,
    "abs": abs,
    "sum": _total,
    "round": _rounded,
    "pow": _power,
    "any": any,
    "all": all,
    "math.lcm": _of_numbers(math.lcm),
    "math.gcd": _of_numbers(math.gcd),
    "math.prod": lambda values: _of_numbers(math.prod)(values) if len(values) <= MAX_BITS else math.nan,
    "math.ceil": math.ceil,
    "math.floor": math.floor,
    "math.trunc": math.trunc,
    "math.sqrt": math.sqrt,
    "math.isqrt": math.isqrt,
    "math.log": math.log,
    "math.log2": math.log2,
    "math.log10": math.log10,
    "math.pow": math.pow,
    "os.path.join": posixpath.join,
    "os.path.basename": posixpath.basename,
    "os.path.dirname": posixpath.dirname,
    "os.fspath": str,
    "str": lambda value="": str(value),
    "repr": repr,
}

TEXT_METHODS: Final = {
    *("lower", "upper", "strip", "lstrip", "rstrip", "startswith", "endswith", "title", "capitalize", "isdigit"),
    *("removeprefix", "removesuffix", "find", "count"),
}


def call_pure(name: str, values: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """Call one of the PURE functions with plain values."""
    return _computed(lambda: PURE[name](*values, **keywords))


def text_method(text: str, method: str, values: Sequence[Any]) -> Any:
    """Call a method of a string with plain arguments."""
    if method in TEXT_METHODS:
        return _computed(getattr(text, method), *values)
    if method == "split" or method == "rsplit":
        return _computed(getattr(text, method), *values)
    if method == "join" and len(values) == 1 and isinstance(values[0], list):
        items = values[0]
        if all(isinstance(item, str) for item in items):
            if sum(map(len, items)) + len(text) * len(items) > MAX_TEXT:
                return Unknown("is too large to compute")
            return text.join(items)
    if method == "replace" and len(values) == 2 and all(isinstance(value, str) for value in values):
        if (len(text) + 1) * (len(values[1]) + 1) > MAX_TEXT:
            return Unknown("is too large to compute")
        return text.replace(values[0], values[1])
    return Unknown(f"comes from the string method {method}()")


def path_attribute(path: PathText, attribute: str) -> Any:
    """Return an attribute of a pathlib path."""
    pure: dict[str, Callable[[], Any]] = {
        "parent": lambda: PathText(posixpath.dirname(path) or "."),
        "name": lambda: posixpath.basename(path),
        "stem": lambda: posixpath.splitext(posixpath.basename(path))[0],
        "suffix": lambda: posixpath.splitext(path)[1],
    }
    return pure[attribute]() if attribute in pure else Unknown(f"is the {attribute} of a path")
