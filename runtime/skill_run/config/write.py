"""Write changes back into a config in its own form: YAML, JSON, overrides, Python, a command line or a mapping."""

from __future__ import annotations

import ast
import copy
import json
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

import yaml

from skill_run.config.model import Location, Plain, Source, Unknown
from skill_run.config.overrides import read_overrides, render_override
from skill_run.config.tree import parse_tree, to_plain
from skill_run.config.yaml_text import block_lines, outermost, yaml_editor
from skill_run.config.yaml_text import flow as flow
from skill_run.errors import InputError

_SHELL_WORD: Final = re.compile(r"(?:[^\s'\"\\]|\\\S|'[^']*'|\"(?:[^\"\\]|\\.)*\")+", re.DOTALL)
_SHELL_OPERATOR: Final = re.compile(r"[|&;<>#\n]")
_LINE_BREAK: Final = re.compile(rb"(?<=\n)|(?<=\r)(?!\n)")


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
            if source.form == "json" or is_json(source.text):
                return edit_json(source.text, sets, removes)
            return edit_yaml(source.text, sets, removes, source.name)
        case "python":
            return edit_python(source, sets, removes)
        case "command":
            return edit_command(source.text, source.override_tokens, sets, removes)
        case _:
            return "\n".join(edit_overrides(source.override_tokens, sets, removes)) + "\n"


def is_json(text: str) -> bool:
    """Tell whether a text is a JSON object."""
    if not text.lstrip().startswith("{"):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def edit_json(
    text: str, sets: Mapping[str, Plain], removes: Sequence[str], renames: Mapping[str, str] | None = None
) -> str:
    """Return JSON text with fields renamed, set and removed; order and indentation stay."""
    indent = re.match(r"\s*\{\s*\n([ \t]+)", text)
    data = edit_mapping(rename_fields(json.loads(text), renames or {}), sets, removes)
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


def rename_fields(data: Mapping[str, Any], renames: Mapping[str, str]) -> dict[str, Any]:
    """Return a copy of a nested or dotted mapping with fields renamed, in their places where the section stays."""
    result = copy.deepcopy(dict(data))
    for old, new in renames.items():
        result = _renamed(result, old, new)
    return result


def _renamed(data: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    if old in data:
        return {(new if key == old else key): value for key, value in data.items() if key != new or key == old}
    for key in data:
        if old.startswith(key + ".") and isinstance(data[key], dict):
            if new.startswith(key + "."):
                data[key] = _renamed(data[key], old[len(key) + 1 :], new[len(key) + 1 :])
            else:
                taken = _take(data[key], old[len(key) + 1 :])
                if taken:
                    if not data[key].keys() - {"_target_"}:
                        del data[key]
                    _place(data, new, taken[0])
            return data
    return data


def _take(data: dict[str, Any], path: str) -> list[Any]:
    """Remove a field and return its value in a list, an empty one when it is not there."""
    if path in data:
        return [data.pop(path)]
    for key in list(data):
        if path.startswith(key + ".") and isinstance(data[key], dict):
            return _take(data[key], path[len(key) + 1 :])
    return []


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


def edit_yaml(
    text: str,
    sets: Mapping[str, Plain],
    removes: Sequence[str],
    name: str = "<text>",
    renames: Mapping[str, str] | None = None,
    beside: Mapping[str, str] | None = None,
) -> str:
    """Return YAML text with fields renamed, set and removed; comments, order and style of everything else stay.

    beside: for a field that is new, the field behind which it is to stand; without it, it comes last in its section.
    Where the text cannot be edited in place (a change inside an alias), the whole document is written anew.
    """
    before = to_plain(parse_tree(text, name))
    assert isinstance(before, dict)
    renames = renames or {}
    wanted = edit_mapping(rename_fields(before, renames), sets, removes)
    ways: tuple[Callable[[], str], ...] = (
        lambda: _edit_in_place(text, sets, removes, renames, beside or {}),
        lambda: "\n".join([*block_lines(wanted), ""]),
    )
    for write in ways:
        try:
            edited = write()
            if _same(to_plain(parse_tree(edited, name)), wanted):
                return edited
        except (InputError, yaml.YAMLError):
            continue
    raise InputError(f"{name} cannot be written as YAML with these changes")


def _same(one: object, other: object) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _edit_in_place(
    text: str,
    sets: Mapping[str, Plain],
    removes: Sequence[str],
    renames: Mapping[str, str],
    beside: Mapping[str, str],
) -> str:
    # One change at a time: positions of a later change may lie inside what an earlier one wrote.
    for old, new in renames.items():
        text = _rename_in_place(text, old, new)
    for path, value in sets.items():
        text = yaml_editor(text).set(path, value, beside.get(path))
    for path in outermost(yaml_editor(text), _not_set(removes, sets)):
        text = yaml_editor(text).remove(path)
    return text


def _rename_in_place(text: str, old: str, new: str) -> str:
    editor = yaml_editor(text)
    if old not in editor.entries:
        return text
    if new in editor.entries:
        return _rename_in_place(editor.remove(new), old, new)
    if editor.can_rename(old, new):
        return editor.rename(old, new)
    moved = editor.line_value(old)
    for path in outermost(editor, [old]):
        text = yaml_editor(text).remove(path)
    return yaml_editor(text).insert_text(new, moved)


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
