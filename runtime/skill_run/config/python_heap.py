"""The objects, scopes and undo journal behind reading a Python config script.

A branch whose condition cannot be told is tried on the journal, undone, and joined with its alternatives: what they
agree on stays, what differs becomes unknown.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from skill_run.config.model import NOWHERE, Location, Unknown
from skill_run.config.python_values import Dotted, is_plain

# object: built by a class call, what is not set has the class default. inherited: part of a recipe's or a default
# config, what is not set stays as it was. opaque: nobody can tell what is not set. oneof: one of several objects.
Kind = Literal["object", "inherited", "opaque", "oneof", "list", "tuple", "set", "dict"]

SEQUENCES: Final = ("list", "tuple", "set")
MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Cell:
    """A value with the place where it was set."""

    value: Any
    location: Location = NOWHERE


class Obj:
    """A mutable object. fields: attributes or mapping entries as cells, `items` of a sequence; meta: kind and the like.

    children: parts that were only read; they exist as long as the object, so the journal need not know them.
    """

    __slots__ = ("children", "fields", "meta", "serial")

    def __init__(self, kind: Kind, serial: int, **meta: Any) -> None:
        self.serial = serial
        self.fields: dict[Any, Any] = {}
        self.children: dict[str, Obj] = {}
        self.meta: dict[str, Any] = {"kind": kind, **meta}

    @property
    def kind(self) -> Kind:
        return self.meta["kind"]  # type: ignore[no-any-return]

    @property
    def has_attributes(self) -> bool:
        return self.kind in ("object", "inherited", "opaque")

    @property
    def items(self) -> tuple[Any, ...] | None:
        """The items of a sequence, None when they cannot be told."""
        found = self.fields.get("items")
        return found if isinstance(found, tuple) else None


class Scope:
    """Variables of a module, function or comprehension."""

    __slots__ = ("globals", "parent", "serial", "variables")

    def __init__(self, serial: int, parent: Scope | None = None) -> None:
        self.serial = serial
        self.parent = parent
        self.variables: dict[str, Any] = {}
        self.globals: set[str] = set()

    def find(self, name: str) -> Any:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.variables:
                return scope.variables[name]
            scope = scope.parent
        return MISSING


@dataclass(frozen=True, slots=True)
class Perhaps:
    """A part of a config that some releases have and others lack (`getattr(cfg, "validation", None)`)."""

    part: Obj


@dataclass(eq=False, slots=True)
class Func:
    """A function or lambda of the file."""

    name: str
    node: ast.FunctionDef | ast.Lambda
    scope: Scope
    writes: bool | None = None


@dataclass(eq=False, slots=True)
class LocalClass:
    """A class of the file: values of its body and its methods."""

    name: str
    fields: dict[str, Any]
    methods: dict[str, Func]


Owner = Obj | Scope
_Key = tuple[int, Any]


@dataclass(slots=True)
class _Journal:
    start: int
    log: dict[_Key, tuple[Owner, dict[Any, Any], Any]] = field(default_factory=dict)


Changes = dict[_Key, tuple[Owner, dict[Any, Any], Any]]


class Heap:
    """Makes objects and records changes to those that are older than the innermost open journal."""

    def __init__(self) -> None:
        self.serial = 0
        self.journals: list[_Journal] = []
        self.roots: list[Obj] = []

    def new(self, kind: Kind, **meta: Any) -> Obj:
        self.serial += 1
        return Obj(kind, self.serial, **meta)

    def scope(self, parent: Scope | None = None) -> Scope:
        self.serial += 1
        return Scope(self.serial, parent)

    def sequence(self, kind: Kind, items: Sequence[Any]) -> Obj:
        made = self.new(kind)
        made.fields["items"] = tuple(items)
        return made

    def root(self, kind: Kind, **meta: Any) -> Obj:
        """Make an object that may be a whole config."""
        made = self.new(kind, **meta)
        self.roots.append(made)
        return made

    def put(self, owner: Owner, table: dict[Any, Any], key: Any, value: Any) -> None:
        """Set `table[key]`; MISSING deletes it."""
        if self.journals and owner.serial < self.journals[-1].start:
            log = self.journals[-1].log
            mark = (id(table), key)
            if mark not in log:
                log[mark] = (owner, table, table.get(key, MISSING))
        if value is MISSING:
            table.pop(key, None)
        else:
            table[key] = value

    def child(self, parent: Obj, name: str) -> Obj:
        """Return the part of a config that was never set, the same object every time."""
        found = parent.children.get(name)
        if found is None:
            found = Obj("inherited", parent.serial, home=(parent, name))
            parent.children[name] = found
        return found

    def trial(self, action: Callable[[], Any]) -> tuple[Any, Changes]:
        """Run an action and undo it; returns its result and the changes it made."""
        self.serial += 1
        journal = _Journal(self.serial)
        self.journals.append(journal)
        try:
            result = action()
        finally:
            self.journals.pop()
            changes: Changes = {}
            for mark, (owner, table, original) in journal.log.items():
                changes[mark] = (owner, table, table.get(mark[1], MISSING))
                if original is MISSING:
                    table.pop(mark[1], None)
                else:
                    table[mark[1]] = original
        return result, changes

    def commit(self, changes: Changes) -> None:
        """Apply the changes of a trial."""
        for (_, key), (owner, table, value) in changes.items():
            self.put(owner, table, key, value)

    def join(self, alternatives: Sequence[Changes], reason: str) -> None:
        """Apply what alternatives agree on; what differs becomes unknown."""
        if len(alternatives) == 1:
            self.commit(alternatives[0])
            return
        seen: dict[tuple[int, int], Obj] = {}
        marks: dict[_Key, tuple[Owner, dict[Any, Any]]] = {}
        for changes in alternatives:
            for mark, (owner, table, _) in changes.items():
                marks[mark] = (owner, table)
        for mark, (owner, table) in marks.items():
            original = table.get(mark[1], MISSING)
            values = [changes[mark][2] if mark in changes else original for changes in alternatives]
            merged = values[0]
            for value in values[1:]:
                merged = self._merge_at(owner, table, mark[1], merged, value, reason, seen)
            if merged is not original:
                self.put(owner, table, mark[1], merged)

    def blur(self, changes: Changes, reason: str) -> bool:
        """Make everything that changes touch unknown; True when anything became different."""
        different = False
        for (_, key), (owner, table, value) in changes.items():
            original = table.get(key, MISSING)
            if original is value or _same(original, value):
                continue
            merged = self._merge_at(owner, table, key, original, value, reason, {})
            if isinstance(owner, Scope) and not _is_unknown(merged):
                merged = Unknown(reason)
            if not _same(original, merged):
                different = True
                self.put(owner, table, key, merged)
        return different

    def _merge_at(
        self, owner: Owner, table: dict[Any, Any], key: Any, left: Any, right: Any, reason: str, seen: dict[Any, Obj]
    ) -> Any:
        if left is right:
            return left
        if isinstance(owner, Scope):
            if left is MISSING or right is MISSING:
                return right if left is MISSING else left
            return self.merge(left, right, reason, seen)
        if table is owner.meta:
            if key == "kind":
                return "opaque" if "opaque" in (left, right) else left
            return right if left is MISSING or left is None else left
        if key == "items" and owner.kind in SEQUENCES:
            return self._merge_items(left, right, reason, seen)
        if owner.has_attributes:
            left, right = (self._never_set(owner, key, side, other) for side, other in ((left, right), (right, left)))
        return self._merge_cells(left, right, reason, seen)

    def _never_set(self, owner: Obj, key: Any, side: Any, other: Any) -> Any:
        """Return the inherited part for a part that one alternative replaces and this one leaves as it was."""
        replaced = isinstance(other, Cell) and isinstance(other.value, Obj) and other.value.has_attributes
        return Cell(self.child(owner, key), other.location) if side is MISSING and replaced else side

    def _merge_items(self, left: Any, right: Any, reason: str, seen: dict[Any, Obj]) -> Any:
        if isinstance(left, tuple) and isinstance(right, tuple) and len(left) == len(right):
            return tuple(self.merge(a, b, reason, seen) for a, b in zip(left, right, strict=True))
        return Unknown(reason)

    def _merge_cells(self, left: Any, right: Any, reason: str, seen: dict[Any, Obj]) -> Cell:
        location = (right if isinstance(right, Cell) else left).location
        if not isinstance(left, Cell) or not isinstance(right, Cell):
            return Cell(Unknown(reason), location)
        return Cell(self.merge(left.value, right.value, reason, seen), location)

    def merge(self, left: Any, right: Any, reason: str, seen: dict[Any, Obj]) -> Any:
        """Return what is sure of a value that is one of two."""
        if left is right or _same(left, right):
            return left
        if isinstance(left, Dotted) and isinstance(right, Dotted) and left.last == right.last:
            return Dotted(left.last)
        left, right = (value.part if isinstance(value, Perhaps) else value for value in (left, right))
        if isinstance(left, Obj) and isinstance(right, Obj):
            if left.has_attributes and right.has_attributes:
                return self._merge_objects(left, right, reason, seen)
            if left.kind == right.kind and left.kind in SEQUENCES:
                made = self.new(left.kind)
                made.fields["items"] = self._merge_items(left.items, right.items, reason, seen)
                return made
            if left.kind == right.kind == "dict":
                made = self.new("dict")
                for key in [*left.fields, *(key for key in right.fields if key not in left.fields)]:
                    cells = left.fields.get(key, MISSING), right.fields.get(key, MISSING)
                    made.fields[key] = self._merge_cells(cells[0], cells[1], reason, seen)
                return made
        for one in (left, right):
            if isinstance(one, Obj) and one.has_attributes:
                made = self.new("opaque", reason=reason)
                if one in self.roots:
                    self.roots.append(made)
                return made
        return left if isinstance(left, Unknown) else Unknown(reason)

    def _merge_objects(self, left: Obj, right: Obj, reason: str, seen: dict[Any, Obj]) -> Obj:
        # One merged object per pair, so that names for the same parts keep naming the same object.
        pair = (id(left), id(right))
        if pair in seen:
            return seen[pair]
        same = left.kind == right.kind and all(left.meta.get(k) == right.meta.get(k) for k in ("cls", "recipe"))
        if left.kind == "inherited" and not left.meta.get("recipe"):
            same = False
        kind: Kind = left.kind if same else "opaque"
        made = self.new(kind, **{k: v for k, v in left.meta.items() if k not in ("kind", "home")})
        if not same:
            recipes = [side.meta.get("recipe") for side in (left, right)]
            made.meta.update(recipe=None, call=None, cls=None)
            made.meta["reason"] = f"is {recipes[0]} or {recipes[1]}: it {reason}" if all(recipes) else reason
        seen[pair] = made
        if left in self.roots or right in self.roots:
            self.roots.append(made)
        names = [*left.fields, *left.children, *right.fields, *right.children]
        for name in dict.fromkeys(names):
            a, b = (self._part(side, name) for side in (left, right))
            if isinstance(a, Cell) or isinstance(b, Cell):
                cells = [side.fields.get(name, MISSING) for side in (left, right)]
                first, second = (part.value if isinstance(part, Cell) else part for part in (a, b))
                location = next((c.location for c in reversed(cells) if isinstance(c, Cell)), NOWHERE)
                both = isinstance(first, Obj) and isinstance(second, Obj)
                value = self.merge(first, second, reason, seen) if both else MISSING
                made.fields[name] = (
                    Cell(value, location)
                    if value is not MISSING
                    else self._merge_cells(cells[0], cells[1], reason, seen)
                )
            else:
                part = self._merge_objects(a, b, reason, seen)
                part.meta.update(kind="inherited", home=(made, name))
                made.children[name] = part
        return made

    def _part(self, side: Obj, name: str) -> Any:
        return side.fields[name] if name in side.fields else self.child(side, name)

    def taint(self, obj: Obj, reason: str, seen: set[int] | None = None) -> None:
        """Make everything that an object holds unknown, since code that is not followed may have changed it."""
        seen = seen if seen is not None else set()
        if id(obj) in seen:
            return
        seen.add(id(obj))
        if obj.kind == "oneof":
            for target in obj.meta["targets"]:
                self.taint(target, reason, seen)
            return
        if obj.kind in SEQUENCES:
            for item in obj.items or ():
                if isinstance(item, Obj):
                    self.taint(item, reason, seen)
            self.put(obj, obj.fields, "items", Unknown(reason))
            return
        if obj.kind != "dict":
            self.put(obj, obj.meta, "kind", "opaque")
        self.put(obj, obj.meta, "reason", reason)
        parts = [(name, part) for name, part in obj.children.items() if name not in obj.fields]
        for name, cell in list(obj.fields.items()):
            if isinstance(cell.value, Obj) and cell.value.has_attributes and obj.kind != "dict":
                parts.append((name, cell.value))
            else:
                if isinstance(cell.value, Obj):
                    self.taint(cell.value, reason, seen)
                self.put(obj, obj.fields, name, Cell(Unknown(reason), cell.location) if obj.kind == "dict" else MISSING)
        for name, part in parts:
            self.taint(part, reason, seen)
            self.put(part, part.meta, "kind", "inherited")
            self.put(part, part.meta, "home", (obj, name))


def _is_unknown(value: Any) -> bool:
    return isinstance(value, Unknown) or (isinstance(value, Obj) and value.kind == "opaque")


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, Cell) and isinstance(right, Cell):
        return _same(left.value, right.value)
    return is_plain(left) and type(left) is type(right) and left == right


def reachable(value: Any) -> Iterator[Obj]:
    """Yield the objects with attributes that a value is or holds in lists and mappings."""
    stack = [value]
    seen: set[int] = set()
    while stack:
        item = stack.pop()
        if isinstance(item, Perhaps):
            item = item.part
        if not isinstance(item, Obj) or id(item) in seen:
            continue
        seen.add(id(item))
        if item.has_attributes:
            yield item
        elif item.kind == "oneof":
            stack += item.meta["targets"]
        elif item.kind == "dict":
            stack += [cell.value for cell in item.fields.values()]
        else:
            stack += item.items or ()
