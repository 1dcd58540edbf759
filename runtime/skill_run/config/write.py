"""Write changes back into a config in its own form: YAML, JSON, overrides, Python, a command line or a mapping."""

from __future__ import annotations

import ast
import copy
import json
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import yaml

from skill_run.config.model import Location, Plain, Source, Unknown
from skill_run.config.overrides import read_overrides, render_override
from skill_run.config.tree import parse_tree, to_plain
from skill_run.errors import InputError

_SHELL_WORD: Final = re.compile(r"(?:[^\s'\"\\]|\\\S|'[^']*'|\"(?:[^\"\\]|\\.)*\")+", re.DOTALL)
_SHELL_OPERATOR: Final = re.compile(r"[|&;<>#\n]")
_PLAIN_TEXT: Final = re.compile(r"[A-Za-z_/][A-Za-z0-9_./+-]*\Z")
_LINE_BREAK: Final = re.compile(rb"(?<=\n)|(?<=\r)(?!\n)")
# Characters that YAML refuses in a quoted text, or folds like a line break.
_UNPRINTABLE: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_NOT_TEXT: Final = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


def write_back(
    source: Source, sets: Mapping[str, Plain], removes: Sequence[str], original: Mapping[str, Any] | None = None
) -> str | dict[str, Any]:
    """Return the input with fields set and removed (written names), in the form it came in.

    A mapping comes back as a mapping, overrides as one token per line, a bare recipe as the overrides it needs. Raises
    InputError when the change cannot be placed; the caller then lists it instead.
    """
    match source.form:
        case "mapping":
            return edit_mapping(original or {}, sets, removes)
        case "container" if not source.text:
            return edit_mapping(original or {}, sets, removes)
        case "container" | "yaml" | "json":
            if source.form == "json" or _is_json(source.text):
                return edit_json(source.text, sets, removes)
            return edit_yaml(source.text, sets, removes, source.name)
        case "python":
            return edit_python(source, sets, removes)
        case "command":
            return edit_command(source.text, source.override_tokens, sets, removes)
        case _:
            return "\n".join(edit_overrides(source.override_tokens, sets, removes)) + "\n"


def _is_json(text: str) -> bool:
    if not text.lstrip().startswith("{"):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def edit_json(text: str, sets: Mapping[str, Plain], removes: Sequence[str]) -> str:
    """Return JSON text with fields set and removed; order and indentation stay."""
    indent = re.match(r"\s*\{\s*\n([ \t]+)", text)
    data = edit_mapping(json.loads(text), sets, removes)
    try:
        written = json.dumps(data, indent=indent.group(1) if indent else 2, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise InputError("JSON cannot hold an infinite number or NaN, so the change must be made by hand") from error
    return written + "\n"


def edit_mapping(data: Mapping[str, Any], sets: Mapping[str, Plain], removes: Sequence[str]) -> dict[str, Any]:
    """Return a copy of a nested or dotted mapping with fields set and removed; a dotted mapping stays dotted.

    A mapping below a section goes when nothing but its class name is left in it, a section when nothing at all is.
    """
    result = copy.deepcopy(dict(data))
    for path, value in sets.items():
        _place(result, path, value)
    for path in _not_set(removes, sets):
        _remove(result, path, frozenset())
    return result


def _not_set(removes: Sequence[str], sets: Mapping[str, Plain]) -> list[str]:
    return [path for path in removes if not any(name == path or name.startswith(path + ".") for name in sets)]


def _place(data: dict[str, Any], path: str, value: Plain) -> None:
    if path in data:
        data[path] = value
        return
    for cut in range(len(path), 0, -1):
        head, rest = path[:cut], path[cut + 1 :]
        if rest and path[cut : cut + 1] == "." and isinstance(data.get(head), dict):
            _place(data[head], rest, value)
            return
        if rest and path[cut : cut + 1] == "." and head in data and data[head] is None:
            data[head] = {}
            _place(data[head], rest, value)
            return
    if any("." in key for key in data):
        data[path] = value
        return
    head, _, rest = path.partition(".")
    if not rest:
        data[head] = value
        return
    data[head] = {}
    _place(data[head], rest, value)


def _remove(data: dict[str, Any], path: str, worthless: frozenset[str]) -> None:
    data.pop(path, None)
    for key in list(data):
        if path.startswith(key + ".") and isinstance(data[key], dict):
            _remove(data[key], path[len(key) + 1 :], frozenset({"_target_"}))
            if not data[key].keys() - worthless:
                del data[key]


def edit_overrides(tokens: Sequence[str], sets: Mapping[str, Plain], removes: Sequence[str]) -> list[str]:
    """Return override tokens with fields set (in place where the token exists, else appended) and removed."""
    pending = dict(sets)
    # Backwards, since the last of several tokens for one field is the one that counts.
    edited = [_edited(token, pending, removes) for token in reversed(tokens)]
    # `++` sets a key whether or not the base has it, which is all that is known here.
    added = [render_override(path, value, "force") for path, value in pending.items()]
    return [token for token in reversed(edited) if token is not None] + added


def _edited(token: str, pending: dict[str, Plain], removes: Sequence[str]) -> str | None:
    """Return a token with its pending value (which is then done), as it is, or None when it is to be removed.

    Raises InputError when only a part of its value is to be removed and another part is unknown.
    """
    parsed = read_overrides([token]).assignments
    kept = [assignment for assignment in parsed if assignment.path not in removes]
    if not kept:
        return None
    if len(kept) < len(parsed):
        key = token.lstrip("+").partition("=")[0]
        rest: dict[str, Plain] = {}
        for assignment in kept:
            if isinstance(assignment.value, Unknown):
                raise InputError(f"the value of {key} must be changed by hand: {assignment.path} is not known")
            rest[assignment.path[len(key) + 1 :]] = assignment.value
        return render_override(key, edit_mapping({}, rest, ()), parsed[0].operation)
    if len(parsed) == 1 and parsed[0].path in pending:
        return render_override(parsed[0].path, pending.pop(parsed[0].path), parsed[0].operation)
    return token


def edit_command(text: str, tokens: Sequence[str], sets: Mapping[str, Plain], removes: Sequence[str]) -> str:
    """Return a command line with its override words (`tokens`) changed and removed in place, new ones behind them.

    Raises InputError when there is no override to add behind and the text is more than one plain command.
    """
    pending = dict(sets)
    words = list(_SHELL_WORD.finditer(text))
    pieces: list[str] = []
    anchor: int | None = None
    for number in range(len(words) - 1, -1, -1):
        gap = text[words[number - 1].end() if number else 0 : words[number].start()]
        token = _unquoted(words[number].group())
        if token not in tokens:
            pieces += [words[number].group(), gap]
            continue
        anchor = len(pieces) if anchor is None else anchor
        new = _edited(token, pending, removes)
        if new is not None:
            pieces += [words[number].group() if new == token else shlex.quote(new), gap]
    added = "".join(" " + shlex.quote(render_override(path, value, "force")) for path, value in pending.items())
    if added and anchor is None and _SHELL_OPERATOR.search(text.strip()):
        raise InputError("add these overrides to the launch command by hand: the text holds more than that command")
    pieces.insert(anchor or 0, added)
    return "".join(reversed(pieces)) + "\n"


def _unquoted(word: str) -> str:
    try:
        return "".join(shlex.split(word))
    except ValueError:
        return word


def flow(value: Plain) -> str:
    """Return a value as one-line YAML."""
    if isinstance(value, str):
        plain = _PLAIN_TEXT.match(value) and value.lower() not in _NOT_TEXT
        quoted = json.dumps(value, ensure_ascii=False)
        return value if plain else _UNPRINTABLE.sub(lambda char: f"\\u{ord(char.group()):04x}", quoted)
    if isinstance(value, list):
        return "[" + ", ".join(flow(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{flow(key)}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    return json.dumps(value)


class _YamlEditor:
    """Makes one change by the character positions of the parsed nodes, so that comments and order stay."""

    def __init__(self, text: str, root: yaml.MappingNode) -> None:
        self.text = text
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.entries: dict[str, _Entry] = {}
        self.mappings: dict[str, yaml.MappingNode] = {"": root}
        self._walk("", root)

    def _walk(self, path: str, mapping: yaml.MappingNode) -> None:
        for key, value in mapping.value:
            name = f"{path}.{key.value}" if path else str(key.value)
            entry = self.entries[name] = _Entry(key, value, mapping)
            if isinstance(value, yaml.MappingNode) and not entry.is_alias:
                self.mappings[name] = value
                self._walk(name, value)

    def leaves(self, path: str) -> set[str]:
        """Return the names below a mapping that hold a value themselves."""
        inside = (name for name in self.entries if name.startswith(path + "."))
        return {name for name in inside if name not in self.mappings or not self.mappings[name].value}

    def set(self, path: str, value: Plain) -> str:
        """Return the text with a field set."""
        if path in self.entries:
            return self._replace(self.entries[path], flow(value))
        parent, _, leaf = path.rpartition(".")
        while parent not in self.mappings and parent not in self.entries:
            parent, _, extra = parent.rpartition(".")
            leaf = f"{extra}.{leaf}"
        if parent not in self.mappings:
            return self._replace(self.entries[parent], "{" + _nested_flow(leaf, value) + "}")
        return self._insert(self.mappings[parent], leaf, value)

    def remove(self, path: str) -> str:
        """Return the text without a field."""
        if path not in self.entries:
            return self.text
        entry = self.entries[path]
        start = entry.key.start_mark.index
        if entry.mapping.flow_style:
            return self._remove_from_line(entry)
        line = self.text.rfind("\n", 0, start) + 1
        if self.text[line:start].strip():
            raise InputError(f"{path} cannot be removed: it shares its line with something else")
        return self.text[:line] + self.text[self._line_end(entry) + 1 :]

    def _remove_from_line(self, entry: _Entry) -> str:
        around = entry.mapping.value
        at = next(place for place, (key, _) in enumerate(around) if key is entry.key)
        start, end = entry.key.start_mark.index, self._end(entry)
        if at + 1 < len(around):
            end = around[at + 1][0].start_mark.index
        elif at:
            start = self._end(_entry(entry.mapping, at - 1))
        return self.text[:start] + self.text[end:]

    def _replace(self, entry: _Entry, new: str) -> str:
        start, end = entry.value.start_mark.index, self._end(entry)
        if entry.is_block:
            start = self.text.index(":", entry.key.end_mark.index) + 1
        return self.text[:start] + (" " if entry.is_block or end <= start else "") + new + self.text[end:]

    def _insert(self, mapping: yaml.MappingNode, leaf: str, value: Plain) -> str:
        dotted = any("." in str(key.value) for key, _ in mapping.value)
        if mapping.flow_style:
            written = f"{leaf}: {flow(value)}" if dotted else _nested_flow(leaf, value)
            at = self._end(_entry(mapping, -1)) if mapping.value else mapping.start_mark.index + 1
            return self.text[:at] + (", " if mapping.value else "") + written + self.text[at:]
        lines = [f"{leaf}: {flow(value)}"] if dotted else _nested_block(leaf, value)
        lead = self.newline + " " * mapping.value[0][0].start_mark.column
        at = self._line_end(_entry(mapping, -1))
        if self.text[at - 1 : at] == "\r":
            at -= 1
        return self.text[:at] + "".join(lead + line for line in lines) + self.text[at:]

    def _line_end(self, entry: _Entry) -> int:
        """Return the position of the line break after an entry, with the comment on its last line."""
        start = entry.key.end_mark.index if entry.is_alias else self._end(entry)
        at = self.text.find("\n", start)
        return len(self.text) if at < 0 else at

    def _end(self, entry: _Entry) -> int:
        """Return the position after a value, without the white space and comments that follow it."""
        if entry.is_alias:
            raise InputError("the YAML has an alias where a change is needed")
        if not entry.is_block:
            start, end = entry.value.start_mark.index, entry.value.end_mark.index
            return start + len(self.text[start:end].rstrip())
        if isinstance(entry.value, yaml.MappingNode):
            return self._end(_entry(entry.value, -1))
        return self._end(_Entry(entry.value, entry.value.value[-1], entry.mapping))


@dataclass(frozen=True, slots=True)
class _Entry:
    """A key and its value in a mapping."""

    key: yaml.Node
    value: yaml.Node
    mapping: yaml.MappingNode

    @property
    def is_alias(self) -> bool:
        # An alias is the node of its anchor, which stands before the key.
        return bool(self.value.start_mark.index < self.key.start_mark.index)

    @property
    def is_block(self) -> bool:
        return isinstance(self.value, yaml.CollectionNode) and not self.value.flow_style


def _entry(mapping: yaml.MappingNode, at: int) -> _Entry:
    key, value = mapping.value[at]
    return _Entry(key, value, mapping)


def _nested_flow(leaf: str, value: Plain) -> str:
    head, _, rest = leaf.partition(".")
    return f"{head}: {{{_nested_flow(rest, value)}}}" if rest else f"{head}: {flow(value)}"


def _nested_block(leaf: str, value: Plain) -> list[str]:
    head, _, rest = leaf.partition(".")
    if not rest:
        return [f"{head}: {flow(value)}"]
    return [f"{head}:", *("  " + line for line in _nested_block(rest, value))]


def edit_yaml(text: str, sets: Mapping[str, Plain], removes: Sequence[str], name: str = "<text>") -> str:
    """Return YAML text with fields set and removed; comments, order and style of everything else stay.

    Where the text cannot be edited in place (a change inside an alias), the whole document is written anew.
    """
    before = to_plain(parse_tree(text, name))
    assert isinstance(before, dict)
    wanted = edit_mapping(before, sets, removes)
    ways: tuple[Callable[[], str], ...] = (
        lambda: _edit_in_place(text, sets, removes),
        lambda: "\n".join([*_block(wanted), ""]),
    )
    for write in ways:
        try:
            edited = write()
            if _same(to_plain(parse_tree(edited, name)), wanted):
                return edited
        except (InputError, yaml.YAMLError):
            continue
    raise InputError(f"{name} cannot be written as YAML with these changes")


def _block(data: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for key, value in data.items():
        if isinstance(value, dict) and value:
            lines += [f"{flow(key)}:", *("  " + line for line in _block(value))]
        else:
            lines.append(f"{flow(key)}: {flow(value)}")
    return lines or ["{}"]


def _same(one: object, other: object) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _edit_in_place(text: str, sets: Mapping[str, Plain], removes: Sequence[str]) -> str:
    # One change at a time: positions of a later change may lie inside what an earlier one wrote.
    for path, value in sets.items():
        text = _editor(text).set(path, value)
    for path in _outermost(_editor(text), _not_set(removes, sets)):
        text = _editor(text).remove(path)
    return text


def _editor(text: str) -> _YamlEditor:
    root = yaml.compose(text, yaml.CSafeLoader)
    if not isinstance(root, yaml.MappingNode) or not root.value:
        raise InputError("the YAML has no mapping to change")
    return _YamlEditor(text, root)


def _outermost(editor: _YamlEditor, removes: Sequence[str]) -> list[str]:
    """Replace the removed leaves of a mapping that loses all of them by the mapping itself."""
    found: dict[str, None] = {}
    for path in removes:
        whole, parent = path, path.rpartition(".")[0]
        while parent in editor.entries:
            kept = editor.leaves(parent) - set(removes)
            if kept - ({f"{parent}._target_"} if "." in parent else set()):
                break
            whole, parent = parent, parent.rpartition(".")[0]
        found[whole] = None
    return list(found)


def edit_python(source: Source, sets: Mapping[str, Plain], removes: Sequence[str]) -> str:
    """Return Python text with fields set: the assigned expression is replaced, or a line is added after the last one.

    Raises InputError when a field can be placed in neither way, and when reading the result does not give the values.
    """
    places = {assignment.path: assignment.location for assignment in source.assignments}
    for path in removes:
        if path in places:
            raise InputError(f"{places[path]} sets {path}, which must be changed by hand")
    tree = ast.parse(source.text)
    lines = _LINE_BREAK.split(source.text.encode())
    starts = list(accumulate((len(line) for line in lines), initial=0))
    edits: dict[tuple[int, int], bytes] = {}
    added: list[str] = []
    for path, value in sets.items():
        node = _value_node(tree, path, places.get(path), lines)
        if node is None or node.end_lineno is None or node.end_col_offset is None:
            added.append(f"{path} = {_literal(value)}")
            continue
        span = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        if edits.setdefault(span, _literal(value).encode()) != _literal(value).encode():
            raise InputError(f"{places[path]} sets {path} together with another field, so it must be changed by hand")
    if added:
        anchor = _last_attribute_assignment(tree, {place.line for place in places.values() if place.line is not None})
        if anchor is None:
            raise InputError("the Python file has no place for new settings")
        statement, config = anchor
        first, last = lines[statement.lineno - 1], lines[(statement.end_lineno or statement.lineno) - 1]
        indent = first[: len(first) - len(first.lstrip())].decode()
        block = "".join(f"{indent}{config}.{line}\n" for line in added)
        at = starts[statement.end_lineno or statement.lineno]
        edits[at, at] = (block if last.endswith((b"\n", b"\r")) else "\n" + block).encode()
    data = source.text.encode()
    for (start, end), new in sorted(edits.items(), reverse=True):
        data = data[:start] + new + data[end:]
    return _checked_python(data.decode(), source, sets)


def _checked_python(text: str, source: Source, sets: Mapping[str, Plain]) -> str:
    from skill_run.config.read import read_config_text

    found = {a.path: a.value for a in read_config_text(text, name=source.name, form="python").assignments}
    for path, value in sets.items():
        if not isinstance(value, dict) and found.get(path) != value:
            raise InputError(f"{path} is computed in the Python file, so it must be changed by hand")
    return text


def _literal(value: Plain) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    return repr(value)


def _value_node(tree: ast.Module, path: str, place: Location | None, lines: Sequence[bytes]) -> ast.expr | None:
    """Return the expression whose value an assignment at `place` gives to a field."""
    if place is None or place.line is None:
        return None
    leaf = path.rpartition(".")[2]
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == leaf and _is_at(node, place, lines):
            return node.value
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                named = isinstance(key, ast.Constant) and key.value == leaf
                if named and (_is_at(key, place, lines) or _is_at(value, place, lines)):  # type: ignore[arg-type]
                    return value
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and target.attr == leaf and _is_at(target, place, lines):
                    return node.value
    return None


def _is_at(node: ast.expr | ast.keyword, place: Location, lines: Sequence[bytes]) -> bool:
    if node.lineno != place.line:
        return False
    # ast counts bytes, a location may count characters.
    characters = len(lines[node.lineno - 1][: node.col_offset].decode(errors="replace"))
    return place.column in (None, node.col_offset + 1, characters + 1)


def _last_attribute_assignment(tree: ast.Module, lines: set[int]) -> tuple[ast.Assign, str] | None:
    found: tuple[ast.Assign, str] | None = None
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and node.lineno in lines and isinstance(node.targets[0], ast.Attribute):
            target = node.targets[0]
            root: ast.expr = target
            depth = 0
            while isinstance(root, ast.Attribute):
                root, depth = root.value, depth + 1
            if isinstance(root, ast.Name) and depth >= 2 and (found is None or node.lineno > found[0].lineno):
                found = (node, root.id)
    return found
