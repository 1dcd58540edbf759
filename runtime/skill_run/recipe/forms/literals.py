"""Plain values, comments and docstrings as Python source; text of a user is always quoted and never code."""

from __future__ import annotations

import math
import textwrap
from typing import Final

from skill_run.config.model import Plain

WIDTH: Final = 120
_INDENT: Final = "    "


def quoted(text: str) -> str:
    """Return text as a Python string literal, in double quotes where that needs no escape."""
    written = repr(text)
    return f'"{written[1:-1]}"' if written[0] == "'" and '"' not in text else written


def _flat(value: Plain) -> str:
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, list):
        return "[" + ", ".join(_flat(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quoted(str(key))}: {_flat(item)}" for key, item in value.items()) + "}"
    return repr(value)


def literal(value: Plain, *, indent: int = 0, used: int = 0) -> str:
    """Return a plain value as source; a list or mapping that does not fit takes one line for each item.

    indent: levels of the line that it stands in; used: characters of that line around it.
    """
    text = _flat(value)
    if not isinstance(value, list | dict) or not value or indent * 4 + used + len(text) <= WIDTH:
        return text
    inner, outer = _INDENT * (indent + 1), _INDENT * indent
    if isinstance(value, list):
        lines = [f"{inner}{literal(item, indent=indent + 1, used=1)},\n" for item in value]
        return "[\n" + "".join(lines) + outer + "]"
    keys = [quoted(str(key)) for key in value]
    parts = [literal(item, indent=indent + 1, used=len(k) + 3) for k, item in zip(keys, value.values(), strict=True)]
    return "{\n" + "".join(f"{inner}{k}: {part},\n" for k, part in zip(keys, parts, strict=True)) + outer + "}"


def one_line(text: str) -> str:
    """Return text in one line of printable characters, so that nothing in it ends a comment."""
    words = " ".join(text.split())
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in words)


def comment(text: str, indent: int = 0) -> list[str]:
    """Return text as comment lines."""
    start = _INDENT * indent + "# "
    return textwrap.wrap(one_line(text), WIDTH, initial_indent=start, subsequent_indent=start)


def docstring(lines: list[str]) -> str:
    """Return lines as a module docstring."""
    escaped = [line.replace("\\", "\\\\").replace('"""', '\\"\\"\\"') for line in lines]
    return '"""' + "\n".join(escaped) + '\n"""'
