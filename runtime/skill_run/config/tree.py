"""YAML text to a tree of plain data that remembers the line and column of every value.

Works on libyaml's event stream, so nesting costs no recursion; limits keep aliases, depth and size harmless, and no
tag ever constructs an object.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from skill_run.config.model import Location, Plain
from skill_run.errors import InputError

MAX_BYTES: Final = 4 * 1024 * 1024
MAX_DEPTH: Final = 64
MAX_NODES: Final = 200_000
MAX_DIGITS: Final = 400

_TAG = "tag:yaml.org,2002:"
_SCALAR_TAGS: Final = {_TAG + name for name in ("str", "int", "float", "bool", "null", "timestamp", "binary")}
_COLLECTION_TAGS: Final = {_TAG + name for name in ("map", "seq", "set", "omap", "pairs")} | {_TAG + "python/tuple"}
_KINDS: Final = {"int": "a number", "float": "a number", "bool": "true or false", "null": "null"}
_CONVERTED: Final = {_TAG + name for name in _KINDS}
_WORDS: Final[dict[str, Plain]] = {"true": True, "false": False, "null": None, "~": None, "": None}
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)$")
# OmegaConf, which reads these files upstream, takes 1e-5 for a float although YAML 1.1 does not.
_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?$")
_RESOLVERS = yaml.SafeLoader.yaml_implicit_resolvers


@dataclass(slots=True)
class Leaf:
    """A scalar with its place."""

    value: Plain
    line: int
    column: int


@dataclass(slots=True)
class Sequence:
    """A list of nodes with the place where it starts."""

    items: list[Node] = field(default_factory=list)
    line: int = 0
    column: int = 0
    count: int = 1
    depth: int = 1


@dataclass(slots=True)
class Mapping:
    """A mapping of nodes with the place where it starts; `merged` are the keys that only `<<` gave it."""

    items: dict[str, Node] = field(default_factory=dict)
    line: int = 0
    column: int = 0
    count: int = 1
    depth: int = 1
    merged: set[str] = field(default_factory=set)


Node = Leaf | Sequence | Mapping


class _MergeKey(str):
    """The key `<<` without quotes, which is no key but merges the mappings after it."""


def _scalar(text: str, plain: bool, tag: str | None, where: Location) -> Plain:
    if tag is not None and tag not in _SCALAR_TAGS and tag != "!":
        raise InputError(f"{where}: the YAML tag '{tag[:60]}' is not allowed in a config")
    if tag in _CONVERTED:
        return _convert(tag, text, where)
    if not plain or tag in (_TAG + "str", "!"):
        return text
    if text in _WORDS:
        return _WORDS[text]
    if len(text) <= 20 and _INT.match(text):
        return int(text)
    if len(text) <= 60 and _FLOAT.match(text):
        return float(text.replace("_", ""))
    return _rare_scalar(text, where)


def _rare_scalar(text: str, where: Location) -> Plain:
    tag = next((tag for tag, pattern in _RESOLVERS.get(text[:1], ()) if pattern.match(text)), None)
    return _convert(tag, text, where) if tag in _CONVERTED else text


def _convert(tag: str, text: str, where: Location) -> Plain:
    """Return the value of a scalar with one of the tags in `_CONVERTED`, as YAML 1.1 reads it."""
    name = tag.removeprefix(_TAG)
    if name == "int" and len(text) > MAX_DIGITS:
        raise InputError(f"{where}: a number of {len(text)} digits is out of range")
    try:
        value = getattr(yaml.constructor.SafeConstructor(), f"construct_yaml_{name}")(yaml.ScalarNode(tag, text))
    except (ValueError, LookupError, OverflowError) as error:
        raise InputError(f"{where}: '{text[:60]}' is not {_KINDS[name]} that can be read") from error
    return value  # type: ignore[no-any-return]


def _measure(container: Sequence | Mapping) -> None:
    """Note how many nodes a finished container holds and how deep it is."""
    children = container.items.values() if isinstance(container, Mapping) else container.items
    for child in children:
        if isinstance(child, Leaf):
            container.count += 1
        else:
            container.count += child.count
            container.depth = max(container.depth, child.depth + 1)


def _start(event: yaml.Event) -> tuple[int, int]:
    mark: Any = event.start_mark
    return mark.line + 1, mark.column + 1


class _Builder:
    def __init__(self, name: str) -> None:
        self.name = name
        self.anchors: dict[str, Node] = {}
        self.open_anchors: set[str] = set()
        self.nodes = 0

    def place(self, event: yaml.Event) -> Location:
        return Location(self.name, *_start(event))

    def count(self, amount: int, event: yaml.Event) -> None:
        self.nodes += amount
        if self.nodes > MAX_NODES:
            raise InputError(f"{self.place(event)}: the YAML expands to more than {MAX_NODES} values")

    def too_deep(self, event: yaml.Event) -> InputError:
        return InputError(f"{self.place(event)}: the YAML is nested deeper than {MAX_DEPTH} levels")

    def build(self, text: str) -> Node | None:
        # Frames: (container, key waiting for its value, anchor, where the container starts).
        stack: list[tuple[Sequence | Mapping, str | None, str | None]] = []
        root: Node | None = None
        documents = 0
        key_pending: list[str | None] = []

        def attach(node: Node, event: yaml.Event) -> None:
            nonlocal root
            if not stack:
                root = node
                return
            container = stack[-1][0]
            if isinstance(container, Sequence):
                container.items.append(node)
                return
            key = key_pending[-1]
            if key is None:
                key_pending[-1] = self.key(node, event)
                return
            key_pending[-1] = None
            self.put(container, key, node, event)

        for event in yaml.parse(text, yaml.CSafeLoader):
            if isinstance(event, yaml.ScalarEvent):
                self.count(1, event)
                mark: Any = event.start_mark
                line, column = mark.line + 1, mark.column + 1
                where = Location(self.name, line, column)
                leaf = Leaf(_scalar(event.value, event.implicit[0], event.tag, where), line, column)
                if event.anchor:
                    self.anchors[event.anchor] = leaf
                attach(leaf, event)
            elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
                self.count(1, event)
                if len(stack) >= MAX_DEPTH:
                    raise self.too_deep(event)
                if event.tag is not None and event.tag not in _COLLECTION_TAGS and event.tag != "!":
                    raise InputError(f"{self.place(event)}: the YAML tag '{event.tag[:60]}' is not allowed in a config")
                kind = Mapping if isinstance(event, yaml.MappingStartEvent) else Sequence
                line, column = _start(event)
                container = kind(line=line, column=column)
                if event.anchor:
                    self.open_anchors.add(event.anchor)
                stack.append((container, None, event.anchor))
                key_pending.append(None)
            elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
                container, _, anchor = stack.pop()
                key_pending.pop()
                _measure(container)
                if anchor:
                    self.open_anchors.discard(anchor)
                    self.anchors[anchor] = container
                attach(container, event)
            elif isinstance(event, yaml.AliasEvent):
                attach(self.alias(event, len(stack)), event)
            elif isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise InputError(f"{self.place(event)}: the file holds more than one YAML document")
        return root

    def alias(self, event: yaml.AliasEvent, depth: int) -> Node:
        name = event.anchor or ""
        if name in self.open_anchors:
            raise InputError(f"{self.place(event)}: the anchor '{name[:60]}' contains itself")
        node = self.anchors.get(name)
        if node is None:
            raise InputError(f"{self.place(event)}: the alias '{name[:60]}' has no anchor before it")
        if isinstance(node, Leaf):
            self.count(1, event)
            return node
        self.count(node.count, event)
        if depth + node.depth > MAX_DEPTH:
            raise self.too_deep(event)
        return node

    def key(self, node: Node, event: yaml.Event) -> str:
        if isinstance(node, Leaf) and isinstance(node.value, str):
            plain = node.value == "<<" and isinstance(event, yaml.ScalarEvent) and event.implicit[0]
            return _MergeKey("<<") if plain else node.value
        if isinstance(node, Leaf) and node.value is not None:
            return str(node.value)
        if isinstance(node, Leaf):
            return "null"
        raise InputError(f"{self.place(event)}: a mapping key must be text, not a list or a mapping")

    def put(self, container: Mapping, key: str, node: Node, event: yaml.Event) -> None:
        if isinstance(key, _MergeKey):
            merged = node.items if isinstance(node, Sequence) else [node]
            for part in merged:
                if not isinstance(part, Mapping):
                    raise InputError(f"{self.place(event)}: '<<' can only merge mappings")
                for name, value in part.items.items():
                    if name not in container.items:
                        container.items[name] = value
                        container.merged.add(name)
            return
        if key in container.merged:
            container.merged.remove(key)
        elif key in container.items:
            raise InputError(f"{self.place(event)}: the key '{key[:60]}' is given twice in one mapping")
        container.items[key] = node


def parse_tree(text: str, name: str) -> Node | None:
    """Parse one YAML (or JSON) document.

    Returns None for an empty document. Raises InputError with `name:line:column: sentence` for text that is not YAML,
    nested deeper than MAX_DEPTH, expanding to more than MAX_NODES values, or with tags, duplicate keys or cycles.
    """
    try:
        return _Builder(name).build(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = Location(name, mark.line + 1, mark.column + 1) if mark else Location(name)
        raise InputError(f"{where}: not valid YAML: {error.problem or error.context or 'cannot be parsed'}") from error
    except UnicodeEncodeError as error:
        raise InputError(f"{name} is not valid text: character {error.start + 1} is half a surrogate pair") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{name}: not valid YAML: {str(error).splitlines()[0]}") from error


def to_plain(node: Node | None) -> Plain:
    """Return a tree as plain data, without its places."""
    if node is None:
        return None
    if isinstance(node, Leaf):
        return node.value
    if isinstance(node, Sequence):
        return [to_plain(item) for item in node.items]
    return {key: to_plain(item) for key, item in node.items.items()}


def from_plain(data: object, name: str) -> Node:
    """Return plain Python data as a tree with no places.

    Raises InputError for anything that is not plain data, nested deeper than MAX_DEPTH, or holding more than MAX_NODES
    values (one that is shared counts each time).
    """
    return _Planter(name).plant(data, 0)


class _Planter:
    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes = 0

    def plant(self, data: object, depth: int) -> Node:
        self.nodes += 1
        if depth > MAX_DEPTH:
            raise InputError(f"{self.name}: the mapping is nested deeper than {MAX_DEPTH} levels")
        if self.nodes > MAX_NODES:
            raise InputError(f"{self.name}: the mapping holds more than {MAX_NODES} values")
        if isinstance(data, int) and abs(data) >= 10**MAX_DIGITS:
            raise InputError(f"{self.name}: a number of more than {MAX_DIGITS} digits is out of range")
        if data is None or isinstance(data, bool | int | float | str):
            return Leaf(data, 0, 0)
        if isinstance(data, dict):
            return Mapping({self.key(key): self.plant(value, depth + 1) for key, value in data.items()})
        if isinstance(data, list | tuple | set | frozenset):
            return Sequence([self.plant(item, depth + 1) for item in data])
        raise InputError(f"{self.name}: a value of type {type(data).__name__} is not plain config data")

    def key(self, key: object) -> str:
        if not isinstance(key, str):
            raise InputError(f"{self.name}: a key of type {type(key).__name__} is not text")
        return key
