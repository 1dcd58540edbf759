"""Change YAML text by the positions of its nodes, so that comments, order and style of everything else stay."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from skill_run.config.model import Plain
from skill_run.errors import InputError

_PLAIN_TEXT: Final = re.compile(r"[A-Za-z_/][A-Za-z0-9_./+-]*\Z")
# Characters that YAML refuses in a quoted text, or folds like a line break.
_UNPRINTABLE: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_NOT_TEXT: Final = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


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


class YamlEditor:
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

    def set(self, path: str, value: Plain, beside: str | None = None) -> str:
        """Return the text with a field set; a new one stands behind the field `beside` of its own section."""
        if path in self.entries:
            return self._replace(self.entries[path], flow(value))
        if beside in self.entries and beside.rpartition(".")[0] == path.rpartition(".")[0]:
            entry = self.entries[beside]
            if not (entry.mapping.flow_style or entry.is_alias or "." in str(entry.key.value)):
                return self._insert_behind(entry, path.rpartition(".")[2], value)
        parent, _, leaf = path.rpartition(".")
        while parent not in self.mappings and parent not in self.entries:
            parent, _, extra = parent.rpartition(".")
            leaf = f"{extra}.{leaf}"
        if parent not in self.mappings:
            return self._replace(self.entries[parent], "{" + _nested_flow(leaf, value) + "}")
        return self._insert(self.mappings[parent], leaf, value)

    def can_rename(self, old: str, new: str) -> bool:
        """Tell whether another text for the key alone renames a field."""
        entry = self.entries[old]
        prefix = old[: len(old) - len(str(entry.key.value))]
        return not entry.is_alias and new.startswith(prefix) and self._is_one_key(new[len(prefix) :], entry)

    def _is_one_key(self, key: str, entry: _Entry) -> bool:
        return "." not in key or "." in str(entry.key.value)

    def rename(self, old: str, new: str) -> str:
        """Return the text with the key of a field changed; its value and comments stay as they are."""
        key = self.entries[old].key
        start, end = key.start_mark.index, key.end_mark.index
        quote = self.text[start] if self.text[start] in "'\"" else ""
        prefix = old[: len(old) - len(str(key.value))]
        return f"{self.text[:start]}{quote}{new[len(prefix) :]}{quote}{self.text[end:]}"

    def line_value(self, path: str) -> str:
        """Return a value as it is written, with the comment behind it; a value over several lines in one line."""
        entry = self.entries[path]
        start, end = entry.value.start_mark.index, self._end(entry)
        written = self.text[start:end]
        if entry.is_block or "\n" in written:
            raise InputError(f"{path} is written over several lines, so it cannot be moved as it stands")
        comment = "" if entry.mapping.flow_style else self.text[end : self._line_end(entry)].rstrip("\r")
        return written + (comment if comment.lstrip().startswith("#") else "")

    def insert_text(self, path: str, written: str) -> str:
        """Return the text with a new field whose value is written as given."""
        parent, _, leaf = path.rpartition(".")
        if parent in self.mappings and self.mappings[parent].value:
            return self._insert_lines(self.mappings[parent], leaf, written)
        if parent in self.entries or "." in parent:
            raise InputError(f"there is no section for {path}")
        root = self.mappings[""]
        if any("." in str(key.value) for key, _ in root.value):
            return self._insert_lines(root, path, written)
        if root.flow_style:
            raise InputError(f"there is no section for {path}")
        at = self._entry_line_end(root)
        lead = self.newline + " " * root.value[0][0].start_mark.column
        return f"{self.text[:at]}{lead}{parent}:{lead}  {leaf}: {written}{self.text[at:]}"

    def _insert_lines(self, mapping: yaml.MappingNode, leaf: str, written: str) -> str:
        if mapping.flow_style:
            at = self._end(_entry(mapping, -1))
            return f"{self.text[:at]}, {leaf}: {written.partition(' #')[0].rstrip()}{self.text[at:]}"
        at = self._entry_line_end(mapping)
        lead = self.newline + " " * mapping.value[0][0].start_mark.column
        return f"{self.text[:at]}{lead}{leaf}: {written}{self.text[at:]}"

    def _entry_line_end(self, mapping: yaml.MappingNode) -> int:
        """Return the position behind the last line of a mapping, before its line break."""
        at = self._line_end(_entry(mapping, -1))
        return at - 1 if self.text[at - 1 : at] == "\r" else at

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

    def _insert_behind(self, entry: _Entry, leaf: str, value: Plain) -> str:
        at = self._line_end(entry)
        at = at - 1 if self.text[at - 1 : at] == "\r" else at
        lead = self.newline + " " * entry.key.start_mark.column
        return f"{self.text[:at]}{lead}{leaf}: {flow(value)}{self.text[at:]}"

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


def block_lines(data: Mapping[str, Any]) -> list[str]:
    """Return a mapping as the lines of block YAML."""
    lines: list[str] = []
    for key, value in data.items():
        if isinstance(value, dict) and value:
            lines += [f"{flow(key)}:", *("  " + line for line in block_lines(value))]
        else:
            lines.append(f"{flow(key)}: {flow(value)}")
    return lines or ["{}"]


def yaml_editor(text: str) -> YamlEditor:
    """Return an editor of the text; InputError when its top level is no mapping."""
    root = yaml.compose(text, yaml.CSafeLoader)
    if not isinstance(root, yaml.MappingNode) or not root.value:
        raise InputError("the YAML has no mapping to change")
    return YamlEditor(text, root)


def outermost(editor: YamlEditor, removes: Sequence[str]) -> list[str]:
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
