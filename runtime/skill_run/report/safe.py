"""Text and values that come from the input, made harmless for terminals, XML, JSON and CI logs."""

from __future__ import annotations

import json
import math
from typing import Any

TEXT_LIMIT = 4000
VALUE_LIMIT = 200


def printable(text: str) -> str:
    """Return `text` on one line, with each character that has no visible form written as an escape such as `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def flow(text: str) -> str:
    """Return `text` as one printable paragraph: runs of white space become one space, too long a text is clipped."""
    return printable(" ".join(clip(text).split()))


def clip(text: str, limit: int = TEXT_LIMIT) -> str:
    """Return `text` cut to about `limit` characters, with a note of how many were left out."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}... ({len(text) - limit} more characters)"


def encodable(text: str) -> str:
    """Return `text` with lone surrogates, which no encoding can write, spelled out as `\\udc80`."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def strict(value: Any) -> Any:
    """Return plain data as every JSON parser accepts it: what JSON cannot say becomes a string.

    That is `NaN`, `Infinity` and `-Infinity`, integers too long for Python to print (in hexadecimal), and lone
    surrogates inside strings.
    """
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, int) and not isinstance(value, bool):
        return _integer(value)
    if isinstance(value, list):
        return [strict(item) for item in value]
    if isinstance(value, dict):
        return {encodable(key): strict(item) for key, item in value.items()}
    return value


def show_value(value: Any) -> str:
    """Return a value as a person reads it: JSON on one printable line, clipped."""
    return printable(clip(json.dumps(strict(value), ensure_ascii=False, allow_nan=False), VALUE_LIMIT))


def _integer(value: int) -> int | str:
    try:
        str(value)
    except ValueError:  # Python refuses to print more digits than sys.get_int_max_str_digits()
        return hex(value)
    return value
