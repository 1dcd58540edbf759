"""Write changes back into a config in its own form: YAML and JSON text, overrides, Python, a command line, a mapping."""

from __future__ import annotations

import ast
import copy
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml

from skill_run.config.model import Plain, Source
from skill_run.config.overrides import read_overrides, render_override
from skill_run.config.tree import parse_tree, to_plain
from skill_run.errors import InputError

_PLAIN_TEXT: Final = re.compile(r"[A-Za-z_./][A-Za-z0-9_./+-]*$")


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
        case "container" | "yaml":
            return edit_yaml(source.text, sets, removes, source.name)
        case "json":
            data = edit_mapping(json.loads(source.text), sets, removes)
            return json.dumps(data, indent=2, ensure_ascii=False) + "\n"
        case "python":
            return edit_python(source, sets, removes)
        case "command":
            return edit_command(source.text, sets)
        case _:
            return "\n".join(edit_overrides(source.override_tokens, sets, removes)) + "\n"


def edit_mapping(data: Mapping[str, Any], sets: Mapping[str, Plain], removes: Sequence[str]) -> dict[str, Any]:
    """Return a copy of a nested or dotted mapping with fields set and removed; a dotted mapping stays dotted."""
    result = copy.deepcopy(dict(data))
    for path in removes:
        _remove(result, path)
    for path, value in sets.items():
        _place(result, path, value)
    return result


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


def _remove(data: dict[str, Any], path: str) -> None:
    data.pop(path, None)
    for key in list(data):
        if path.startswith(key + ".") and isinstance(data[key], dict):
            _remove(data[key], path[len(key) + 1 :])
            if not {k for k in data[key] if k != "_target_"}:
                del data[key]


def edit_overrides(tokens: Sequence[str], sets: Mapping[str, Plain], removes: Sequence[str]) -> list[str]:
    """Return override tokens with fields set (in place where the token exists, else appended) and removed."""
    pending = dict(sets)
    result: list[str] = []
    for token in tokens:
        parsed = read_overrides([token]).assignments
        paths = [assignment.path for assignment in parsed]
        if any(path in removes for path in paths):
            continue
        if len(parsed) == 1 and paths[0] in pending:
            operation = "force" if token.startswith("++") else "add" if token.startswith("+") else "override"
            result.append(render_override(paths[0], pending.pop(paths[0]), operation))  # type: ignore[arg-type]
        else:
            result.append(token)
    # `++` sets a key whether or not the base has it, which is all that is known here.
    result += [render_override(path, value, "force") for path, value in pending.items()]
    return result


def edit_command(text: str, sets: Mapping[str, Plain]) -> str:
    """Return a command line with overrides appended; the last one wins over flags and earlier overrides."""
    tokens = [shlex.quote(render_override(path, value, "force")) for path, value in sets.items()]
    return " ".join([text.rstrip(), *tokens]) + "\n"


def flow(value: Plain) -> str:
    """Return a value as one-line YAML."""
    if isinstance(value, str):
        if _PLAIN_TEXT.match(value) and value.lower() not in (
            "true",
            "false",
            "null",
            "yes",
            "no",
            "on",
            "off",
            "y",
            "n",
        ):
            return value
        return json.dumps(value)
    if isinstance(value, list):
        return "[" + ", ".join(flow(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{flow(key)}: {flow(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


class _YamlEditor:
    """Places edits by the character positions of the parsed nodes, so that comments and order stay."""

    def __init__(self, text: str, root: yaml.MappingNode) -> None:
        self.text = text
        self.edits: list[tuple[int, int, str]] = []
        self.nodes: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        self.mappings: dict[str, yaml.MappingNode] = {"": root}
        self.shared: set[int] = set()
        self._walk("", root)

    def _walk(self, path: str, node: yaml.MappingNode) -> None:
        if id(node) in self.shared:
            raise InputError("the YAML uses aliases where a change is needed")
        self.shared.add(id(node))
        for key, value in node.value:
            name = f"{path}.{key.value}" if path else str(key.value)
            self.nodes[name] = (key, value)
            if isinstance(value, yaml.MappingNode):
                self.mappings[name] = value
                self._walk(name, value)

    def _end(self, node: yaml.Node) -> int:
        start, end = node.start_mark.index, node.end_mark.index
        return start + len(self.text[start:end].rstrip())

    def set(self, path: str, value: Plain) -> None:
        if path in self.nodes:
            node = self.nodes[path][1]
            start = node.start_mark.index
            if self._end(node) <= start:
                self.edits.append((start, start, " " + flow(value)))
            else:
                self.edits.append((start, self._end(node), flow(value)))
            return
        parent, _, leaf = path.rpartition(".")
        while parent not in self.mappings and parent not in self.nodes:
            parent, _, extra = parent.rpartition(".")
            leaf = f"{extra}.{leaf}"
        if parent not in self.mappings:
            node = self.nodes[parent][1]
            self.edits.append((node.start_mark.index, self._end(node), "{" + _nested_flow(leaf, value) + "}"))
            return
        self._insert(self.mappings[parent], leaf, value, dotted=not parent and any("." in name for name in self._top()))

    def _top(self) -> list[str]:
        return [str(key.value) for key, _ in self.mappings[""].value]

    def _insert(self, mapping: yaml.MappingNode, leaf: str, value: Plain, dotted: bool) -> None:
        if mapping.flow_style:
            start = mapping.start_mark.index + 1
            more = ", " if mapping.value else ""
            self.edits.append((start, start, _nested_flow(leaf, value) + more))
            return
        first = mapping.value[0][0]
        indent = " " * first.start_mark.column
        lines = [f"{leaf}: {flow(value)}"] if dotted or "." not in leaf else _nested_block(leaf, value)
        at = first.start_mark.index
        self.edits.append((at, at, ("\n" + indent).join(lines) + "\n" + indent))

    def remove(self, path: str) -> None:
        if path not in self.nodes:
            return
        key, value = self.nodes[path]
        start = self.text.rfind("\n", 0, key.start_mark.index) + 1
        end = self.text.find("\n", self._end(value) if self._end(value) > key.start_mark.index else key.end_mark.index)
        if self.text[start : key.start_mark.index].strip():
            raise InputError(f"{path} cannot be removed from a one-line mapping")
        self.edits.append((start, len(self.text) if end < 0 else end + 1, ""))

    def apply(self) -> str:
        text = self.text
        for start, end, new in sorted(self.edits, key=lambda edit: (edit[0], edit[1]), reverse=True):
            text = text[:start] + new + text[end:]
        return text


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

    Where the text cannot be edited in place (aliases), the whole document is written anew.
    """
    before = to_plain(parse_tree(text, name))
    assert isinstance(before, dict)
    wanted = edit_mapping(before, sets, removes)
    try:
        edited = _edit_in_place(text, sets, removes)
        if _same(to_plain(parse_tree(edited, name)), wanted):
            return edited
    except (InputError, yaml.YAMLError):
        pass
    return yaml.safe_dump(wanted, sort_keys=False, default_flow_style=False)


def _same(one: object, other: object) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _edit_in_place(text: str, sets: Mapping[str, Plain], removes: Sequence[str]) -> str:
    result = text
    # One change at a time: positions of a later change may lie inside what an earlier one wrote.
    for path in _outermost(result, removes):
        editor = _editor(result)
        editor.remove(path)
        result = editor.apply()
    for path, value in sets.items():
        editor = _editor(result)
        editor.set(path, value)
        result = editor.apply()
    return result


def _editor(text: str) -> _YamlEditor:
    root = yaml.compose(text, yaml.CSafeLoader)
    if not isinstance(root, yaml.MappingNode) or not root.value:
        raise InputError("the YAML has no mapping to change")
    return _YamlEditor(text, root)


def _outermost(text: str, removes: Sequence[str]) -> list[str]:
    """Replace the removed leaves of a mapping that loses all of them by the mapping itself."""
    editor = _editor(text)
    found: list[str] = []
    for path in removes:
        parent = path.rpartition(".")[0]
        inside = [name for name in editor.nodes if name.startswith(parent + ".") and not name.endswith("._target_")]
        whole = parent if parent in editor.nodes and parent.count(".") and set(inside) <= set(removes) else path
        if whole not in found:
            found.append(whole)
    return found


def edit_python(source: Source, sets: Mapping[str, Plain], removes: Sequence[str]) -> str:
    """Return Python text with fields set: the assigned expression is replaced, or a line is added after the last one.

    Raises InputError when a field can be placed in neither way.
    """
    text = source.text
    lines = text.splitlines(keepends=True)
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line.encode()))
    data = text.encode()
    places = {a.path: a.location.line for a in source.assignments if a.location.line is not None}
    tree = ast.parse(text)
    edits: list[tuple[int, int, bytes]] = []
    added: list[str] = []
    anchor = _last_attribute_assignment(tree, set(places.values()))
    for path, value in sets.items():
        node = _value_node(tree, path.rpartition(".")[2], places.get(path))
        if node is not None and node.end_lineno is not None and node.end_col_offset is not None:
            start = offsets[node.lineno - 1] + node.col_offset
            edits.append((start, offsets[node.end_lineno - 1] + node.end_col_offset, repr(value).encode()))
        elif anchor is not None:
            added.append(f"{anchor[1]}.{path} = {value!r}")
        else:
            raise InputError("the Python file has no place for new settings")
    for path in removes:
        line = places.get(path)
        if line is not None and anchor is not None:
            raise InputError(f"line {line} sets {path}, which must be changed by hand")
    if added and anchor is not None:
        statement, _ = anchor
        at = offsets[statement.end_lineno or statement.lineno]
        indent = " " * statement.col_offset
        edits.append((at, at, "".join(f"{indent}{line}\n" for line in added).encode()))
    for start, end, new in sorted(edits, reverse=True):
        data = data[:start] + new + data[end:]
    return data.decode()


def _value_node(tree: ast.Module, leaf: str, line: int | None) -> ast.expr | None:
    if line is None:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == leaf and line in (node.lineno, node.value.lineno):
            return node.value
        if isinstance(node, ast.Assign) and node.lineno == line:
            target = node.targets[-1]
            if isinstance(target, ast.Attribute) and target.attr == leaf:
                return node.value
    return None


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
