"""Hydra overrides (`a.b=1 +c=2 ~d`) to assignments, and assignments back to override tokens.

The grammar is Hydra's own (hydra-core 1.3, OverrideLexer.g4 and OverrideParser.g4) without config groups and sweeps,
which a ConfigContainer does not have.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Final

from skill_run.config.model import Assignment, Location, Operation, Plain, Source, Unknown
from skill_run.errors import InputError

MAX_DEPTH: Final = 64
MAX_CHARS: Final = 1024 * 1024
MAX_OVERRIDES: Final = 10_000
MAX_PATH: Final = 1000

Value = Plain | Unknown

_INT_DIGITS = r"(?:0|[1-9](?:_?[0-9])*)"
_POINT = rf"(?:{_INT_DIGITS}\.|{_INT_DIGITS}?\.[0-9](?:_?[0-9])*)"
_FLOAT = re.compile(
    rf"[+-]?(?:(?:{_INT_DIGITS}|{_POINT})[eE][+-]?[0-9](?:_?[0-9])*|{_POINT}|[Ii][Nn][Ff]|[Nn][Aa][Nn])"
)
_INT = re.compile(rf"[+-]?{_INT_DIGITS}")
_SEGMENT = rf"(?:[A-Za-z_$][A-Za-z0-9_$-]*|{_INT_DIGITS})"
_KEY = re.compile(rf"[A-Za-z_$][A-Za-z0-9_$-]*|{_SEGMENT}(?:\.{_SEGMENT})+")
_INTERPOLATION = r"\$\{[^}]+\}"
_ESCAPE = r"\\[\\()\[\]{}:=, \t]"
_RUN = re.compile(rf"(?:{_INTERPOLATION}|{_ESCAPE}|[A-Za-z0-9_/\-\\+.$%*@?|: \t])+")
_DICT_KEY = re.compile(rf"(?:{_ESCAPE}|[A-Za-z0-9_/\-\\+.$%*@?| \t])+")
_PIECE = re.compile(rf"{_INTERPOLATION}|{_ESCAPE}|.", re.DOTALL)
_QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'", re.DOTALL)
_CALL = re.compile(r"([A-Za-z_][A-Za-z0-9_-]*)[ \t]*\(")
_BARE = re.compile(r"[A-Za-z_/][A-Za-z0-9_/.\-]*")
_SPACES = " \t"

_WORDS: Final[dict[str, Plain]] = {"true": True, "false": False, "null": None}
_SWEEP_FUNCTIONS: Final = {"choice", "range", "interval", "glob", "tag"}
_SWEEP_OR_LIST_FUNCTIONS: Final = {"shuffle", "sort"}
_CAST_FUNCTIONS: Final = {"int", "float", "bool", "str", "json_str"}
_PREFIXES: Final[dict[Operation, str]] = {"set": "", "override": "", "add": "+", "force": "++", "delete": "~"}


class _TokenError(Exception):
    """What is wrong with one token; becomes an InputError that names the token."""


def shorten(text: str, limit: int = 80) -> str:
    """Return text fit for an error sentence: printable, at most `limit` characters."""
    shown = text if len(text) <= limit else text[: limit - 3] + "..."
    return "".join(char if char.isprintable() else "?" for char in shown)


class _Reader:
    """Reads the value part of one token; `at` is the position of the next character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def spaces(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in _SPACES:
            self.at += 1

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def take(self, char: str) -> bool:
        """Consume `char` with the white space around it, if it comes next."""
        start = self.at
        self.spaces()
        if self.peek() != char:
            self.at = start
            return False
        self.at += 1
        self.spaces()
        return True

    def whole_value(self) -> Value:
        """Read the value up to the end of the token."""
        self.spaces()
        if self.at == len(self.text):
            return ""
        value = self.element(0)
        if self.take(","):
            raise _TokenError(
                "holds a comma at top level, which is a sweep; write a list in brackets or quote the value"
            )
        if self.at != len(self.text):
            raise self.unexpected()
        return value

    def unexpected(self) -> _TokenError:
        if self.at == len(self.text):
            return _TokenError("ends too early: a bracket is not closed or a value is missing")
        if self.text[self.at :].lstrip(_SPACES).startswith("="):
            return _TokenError("has '=' inside its value; quote it: \"key='value'\"")
        shown = shorten(self.text[self.at :].lstrip(_SPACES)[:1] or " ")
        return _TokenError(f"cannot be read at '{shown}' (character {self.at + 1} of the value); quote the value")

    def element(self, depth: int) -> Value:
        if depth > MAX_DEPTH:
            raise _TokenError(f"is nested deeper than {MAX_DEPTH} levels")
        char = self.peek()
        if char == "[":
            return self.sequence(depth)
        if char == "{":
            return self.mapping(depth)
        if char and char in "'\"":
            return self.quoted()
        call = _CALL.match(self.text, self.at)
        if call is not None:
            return self.function(call.group(1))
        return self.primitive()

    def sequence(self, depth: int) -> Value:
        self.take("[")
        items: list[Plain] = []
        unknown: Unknown | None = None
        if not self.take("]"):
            while True:
                item = self.element(depth + 1)
                if isinstance(item, Unknown):
                    unknown = unknown or item
                else:
                    items.append(item)
                if self.close("]"):
                    break
        return unknown or items

    def mapping(self, depth: int) -> Value:
        self.take("{")
        found: dict[str, object] = {}
        if not self.take("}"):
            while True:
                key = self.dict_key()
                if not self.take(":"):
                    raise self.unexpected()
                found[key] = self.element(depth + 1)
                if self.close("}"):
                    break
        return found  # type: ignore[return-value]

    def close(self, char: str) -> bool:
        """Read the closing bracket (True) or the comma before the next item (False)."""
        start = self.at
        self.spaces()
        if self.peek() == char:
            # White space after a closing bracket is not part of it in Hydra's lexer.
            self.at += 1
            return True
        self.at = start
        if self.take(","):
            return False
        raise self.unexpected()

    def dict_key(self) -> str:
        match = _DICT_KEY.match(self.text, self.at)
        if match is None:
            raise self.unexpected()
        self.at = match.end()
        text, _ = _unescape(_strip(match.group()))
        if not text:
            raise _TokenError("has a mapping key that is empty")
        return text

    def quoted(self) -> Value:
        match = _QUOTED.match(self.text, self.at)
        if match is None:
            raise _TokenError("has a quote that is not closed")
        self.at = match.end()
        quote = match.group()[0]
        # Hydra unescapes only backslashes that stand before a quote of the same kind or before the closing quote.
        text = re.sub(
            rf"(?<!\\)(\\+){quote}", lambda run: run.group(1)[: len(run.group(1)) // 2] + quote, match.group()[1:]
        )
        return _interpolated(text[:-1])

    def function(self, name: str) -> Value:
        start = self.at
        self.skip_call()
        of_list = name in _SWEEP_OR_LIST_FUNCTIONS and "[" in self.text[start : self.at]
        if name in _SWEEP_FUNCTIONS or (name in _SWEEP_OR_LIST_FUNCTIONS and not of_list):
            raise _TokenError(f"is a sweep ({name}(...)), which one training run cannot have")
        if name in _CAST_FUNCTIONS or of_list:
            return Unknown(f"is computed by Hydra's {name}(...)")
        raise _TokenError(f"calls {shorten(name, 40)}(...), which Hydra does not know; quote the value")

    def skip_call(self) -> None:
        """Move behind the closing parenthesis of a call."""
        depth = 0
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in "'\"":
                self.quoted()
                continue
            self.at += 1
            depth += (char == "(") - (char == ")")
            if char == ")" and depth == 0:
                return
        raise _TokenError("has a parenthesis that is not closed")

    def primitive(self) -> Value:
        match = _RUN.match(self.text, self.at)
        if match is None:
            raise self.unexpected()
        raw = match.group()
        self.at = match.end()
        stripped = _strip(raw)
        if not stripped:
            raise self.unexpected()
        if len(stripped) != len(raw) and self.peek() and self.peek() in "'\"":
            raise self.unexpected()
        return _primitive(stripped)


def _strip(raw: str) -> str:
    """Strip white space around a value, but keep an escaped space at its end."""
    stripped = raw.strip(_SPACES)
    backslashes = len(stripped) - len(stripped.rstrip("\\"))
    end = raw.rstrip(_SPACES)
    if backslashes % 2 and len(end) < len(raw):
        return stripped + raw[len(end)]
    return stripped


def _unescape(text: str) -> tuple[str, bool]:
    """Return the text with Hydra's escapes removed, and whether it holds an interpolation."""
    if "\\" not in text and "$" not in text:
        return text, False
    pieces = _PIECE.findall(text)
    interpolated = any(len(piece) > 2 for piece in pieces)
    return "".join(piece[1] if len(piece) == 2 else piece for piece in pieces), interpolated


def _primitive(text: str) -> Value:
    lowered = text.lower()
    if lowered in _WORDS:
        return _WORDS[lowered]
    if _INT.fullmatch(text):
        if len(text) > 400:
            raise _TokenError(f"holds a number of {len(text)} digits, which is out of range")
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return _interpolated(_unescape(text)[0])


def _interpolated(text: str) -> Value:
    """Apply OmegaConf's reading of `${...}`: an interpolation is unknown, an escaped one is text."""
    if "${" not in text:
        return text
    pieces = []
    end = 0
    for match in re.finditer(r"(?<!\\)(\\*)\$\{", text):
        slashes = len(match.group(1))
        if slashes % 2 == 0:
            return Unknown(f"is the interpolation {shorten(text, 60)}")
        pieces += [text[end : match.start()], "\\" * (slashes // 2), "${"]
        end = match.end()
    return "".join(pieces) + text[end:]


def _is_path_part(key: str) -> bool:
    return bool(key) and "." not in key


def flatten_value(path: str, value: object) -> Iterator[tuple[str, Value]]:
    """Yield one (path, value) per leaf of a mapping, as a YAML file would give it.

    A mapping with a key that cannot be part of a path (a dot, nothing at all) is one value, and so is an empty one.
    """
    if isinstance(value, dict) and value and all(_is_path_part(key) for key in value):
        for key, inner in value.items():
            yield from flatten_value(f"{path}.{key}", inner)
    else:
        yield path, _closed(value)


def _closed(value: object) -> Value:
    """Return a value that is known as a whole, or the first unknown part of it."""
    if isinstance(value, dict):
        for inner in value.values():
            found = _closed(inner)
            if isinstance(found, Unknown):
                return found
    return value  # type: ignore[return-value]


def _split(token: str) -> tuple[Operation, str, str | None]:
    """Return the operation, the key and the raw value (None when there is no '=') of a token."""
    operation: Operation = "override"
    rest = token
    for prefix, found in (("++", "force"), ("+", "add"), ("~", "delete")):
        if rest.startswith(prefix):
            operation, rest = found, rest[len(prefix) :]  # type: ignore[assignment]
            break
    key, equal, value = rest.partition("=")
    if not equal and operation != "delete":
        raise _TokenError("has no '='; an override is written key=value")
    if not _KEY.fullmatch(key):
        if "@" in key or "/" in key:
            raise _TokenError(
                "names a Hydra config group; a training config has only dotted keys such as model.seq_length"
            )
        raise _TokenError(f"has the key '{shorten(key, 40)}', which is not a dotted name")
    return operation, key, value if equal else None


def parse_override(token: str, where: Location) -> list[Assignment]:
    """Return the assignments of one override token; InputError that names the token when it cannot be parsed."""
    try:
        if len(token) > MAX_CHARS:
            raise _TokenError(f"is longer than {MAX_CHARS} characters")
        operation, path, raw = _split(token)
        if raw is None:
            return [Assignment(path, None, where, operation)]
        value = _Reader(raw).whole_value()
    except _TokenError as problem:
        raise InputError(f"override '{shorten(token)}' {problem}") from None
    if operation == "delete":
        return [Assignment(path, _closed(value), where, operation)]
    # `a.b={c: 1}` sets b itself, so Hydra does not look for a key c below it.
    inside: Operation = "force" if operation == "override" else operation
    found = []
    for leaf, inner in flatten_value(path, value):
        if len(leaf) > MAX_PATH:
            raise InputError(f"override '{shorten(token)}' has a key longer than {MAX_PATH} characters")
        found.append(Assignment(leaf, inner, where, operation if leaf == path else inside))
    return found


def read_overrides(tokens: Sequence[str], *, name: str = "overrides") -> Source:
    """Read Hydra overrides in order; the column of a location is the 1-based position of the token.

    Raises InputError that names the token for anything Hydra refuses, and for sweeps.
    """
    if len(tokens) > MAX_OVERRIDES:
        raise InputError(f"{len(tokens)} overrides are given, but at most {MAX_OVERRIDES} are read; put them in a file")
    source = Source("overrides", name, override_tokens=list(tokens))
    for position, token in enumerate(tokens, start=1):
        source.assignments += parse_override(token, Location(column=position))
    return source


def _quote(text: str) -> str:
    escaped = re.sub(r"(?<!\\)(\\*)\$\{", lambda run: run.group(1) * 2 + "\\${", text)
    escaped = re.sub(r"(?<!\\)(\\*)'", lambda run: run.group(1) * 2 + "\\'", escaped)
    escaped = re.sub(r"(?<!\\)\\+\Z", lambda run: run.group() * 2, escaped)
    return f"'{escaped}'"


def _render_key(key: str) -> str:
    written = re.sub(r"[\\()\[\]{}:=, \t]", lambda char: "\\" + char.group(), key)
    if not key or not _DICT_KEY.fullmatch(written):
        raise InputError(f"the key '{shorten(key, 40)}' cannot be written in a Hydra override")
    return written


def _render(value: Plain, depth: int = 0) -> str:
    if depth > MAX_DEPTH:
        raise InputError(f"a value nested deeper than {MAX_DEPTH} levels cannot be written in a Hydra override")
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if math.isfinite(value):
            return repr(value)
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        plain = _BARE.fullmatch(value) and value.lower() not in {*_WORDS, "inf", "nan"}
        return value if plain else _quote(value)
    if isinstance(value, list):
        return "[" + ",".join(_render(item, depth + 1) for item in value) + "]"
    return "{" + ",".join(f"{_render_key(key)}:{_render(item, depth + 1)}" for key, item in value.items()) + "}"


def render_override(path: str, value: Plain, operation: Operation = "override") -> str:
    """Return the token that sets `path` to `value`; reading it back gives the same value.

    Raises InputError for a path or a mapping key that Hydra's grammar cannot express.
    """
    if not _KEY.fullmatch(path):
        raise InputError(f"'{shorten(path, 40)}' cannot be the key of a Hydra override")
    prefix = _PREFIXES[operation]
    if operation == "delete" and value is None:
        return f"{prefix}{path}"
    return f"{prefix}{path}={_render(value)}"
