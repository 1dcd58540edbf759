"""The objects, scopes and undo journal behind reading a Python config script.

A branch whose condition cannot be told is followed on the journal, undone, and joined with its alternatives: what they
agree on stays, what differs becomes unknown. A name that means one object in one branch and another object in the other
becomes a OneOf, so that a write through it reaches both.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from skill_run.config.model import NOWHERE, Location, Unknown
from skill_run.config.python.values import Dotted, is_plain

# object: built by a class call, what is not set has the class default. inherited: part of a recipe's or a default
# config, what is not set stays as it was. opaque: nobody can tell what is not set.
Kind = Literal["object", "inherited", "opaque", "list", "tuple", "set", "dict"]

SEQUENCES: Final = ("list", "tuple", "set")
MISSING: Final = object()
MAX_TARGETS: Final = 64


class TooMuchWorkError(Exception):
    """The script needs more steps than a reader may take."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A value with the place where it was set."""

    value: Any
    location: Location = NOWHERE


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """One alternative of a branch, inside the world that the branch is in."""

    parent: World | None = None

    def within(self, other: World | None) -> bool:
        """Tell whether this world is `other` or lies inside it."""
        world: World | None = self
        while world is not None:
            if world is other:
                return True
            world = world.parent
        return False


class Obj:
    """A mutable object. fields: attributes or mapping entries as cells, `items` of a sequence; meta: kind and the like.

    children: parts that were only read; the journal need not know when they are made, since reading changes nothing.
    world: the alternative in which it was made; in the others it does not exist.
    """

    __slots__ = ("children", "fields", "meta", "serial", "world")

    def __init__(self, kind: Kind, serial: int, world: World, **meta: Any) -> None:
        self.serial = serial
        self.world = world
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


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of several objects. surely: wherever that object exists, it is the one that is meant.

    other: it may also be something that is no object of the file (None, a constant, something unknown).
    """

    targets: tuple[tuple[Obj, bool], ...]
    reason: str
    other: bool = False

    def objects(self) -> list[Obj]:
        return [target for target, _ in self.targets]


class Scope:
    """Variables of a module, function or comprehension.

    elsewhere: names declared global or nonlocal. function: the node of the function that the scope is one call of.
    """

    __slots__ = ("elsewhere", "function", "is_comprehension", "parent", "serial", "variables")

    def __init__(self, serial: int, parent: Scope | None = None, is_comprehension: bool = False) -> None:
        self.serial = serial
        self.parent = parent
        self.is_comprehension = is_comprehension
        self.variables: dict[str, Any] = {}
        self.elsewhere: dict[str, Scope] = {}
        self.function: ast.AST | None = None

    def find(self, name: str) -> Any:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.variables:
                return scope.variables[name]
            scope = scope.parent
        return MISSING


@dataclass(eq=False, slots=True)
class Func:
    """A function or lambda of the file, with its defaults as they were when it was defined."""

    name: str
    node: ast.FunctionDef | ast.Lambda
    scope: Scope
    defaults: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class LocalClass:
    """A class of the file: the values of its body and its methods."""

    name: str
    body: Obj
    methods: dict[str, Func]


Owner = Obj | Scope
_Key = tuple[int, Any]


@dataclass(slots=True)
class Changes:
    """What following some statements changed: owner, table and new value by place; and the world they were in."""

    world: World
    places: dict[_Key, tuple[Owner, dict[Any, Any], Any]] = field(default_factory=dict)


@dataclass(slots=True)
class _Journal:
    start: int
    log: dict[_Key, tuple[Owner, dict[Any, Any], Any]] = field(default_factory=dict)


class Heap:
    """Makes objects and records changes to those that are older than the innermost open journal."""

    def __init__(self, charge: Callable[[int], None]) -> None:
        """charge: told how many items are worked on, before the work."""
        self.charge = charge
        self.serial = 0
        self.world = World()
        self.journals: list[_Journal] = []
        self.roots: dict[int, Obj] = {}
        # The statement that is being followed.
        self.here = NOWHERE

    def new(self, kind: Kind, **meta: Any) -> Obj:
        self.serial += 1
        return Obj(kind, self.serial, self.world, **meta)

    def scope(self, parent: Scope | None = None, *, comprehension: bool = False) -> Scope:
        self.serial += 1
        return Scope(self.serial, parent, comprehension)

    def bind(self, scope: Scope, name: str, value: Any) -> None:
        """Set a variable where its declaration says; MISSING unsets it."""
        owner = scope.elsewhere.get(name, scope)
        self.put(owner, owner.variables, name, value)

    def sequence(self, kind: Kind, items: Sequence[Any]) -> Obj:
        made = self.new(kind)
        made.fields["items"] = tuple(items)
        return made

    def root(self, kind: Kind, **meta: Any) -> Obj:
        """Make an object that may be a whole config."""
        made = self.new(kind, **meta)
        self.roots[id(made)] = made
        return made

    def is_root(self, obj: Obj) -> bool:
        """Tell whether an object may be a whole config."""
        return id(obj) in self.roots

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

    def weakly(self, owner: Obj, key: Any, value: Any, reason: str, location: Location) -> None:
        """Set a field of an object that may or may not be the one that is meant."""
        old = owner.fields.get(key, MISSING)
        self.put(
            owner, owner.fields, key, self._merge_at(owner, owner.fields, key, (old, Cell(value, location)), reason)
        )

    def child(self, parent: Obj, name: str) -> Obj:
        """Return the part of a config that was never set, the same object every time."""
        found = parent.children.get(name)
        if found is None:
            found = Obj("inherited", parent.serial, parent.world, home=(parent, name))
            parent.children[name] = found
        return found

    def trial(self, action: Callable[[], Any], *, alternative: bool = True) -> tuple[Any, Changes]:
        """Run an action and undo it; returns its result and the changes it made.

        alternative: the action is one branch of several, so that what it makes exists in that branch only.
        """
        self.serial += 1
        journal = _Journal(self.serial)
        self.journals.append(journal)
        outside = self.world
        if alternative:
            self.world = World(outside)
        changes = Changes(self.world)
        try:
            result = action()
        finally:
            self.world = outside
            self.journals.pop()
            for mark, (owner, table, original) in journal.log.items():
                changes.places[mark] = (owner, table, table.get(mark[1], MISSING))
                if original is MISSING:
                    table.pop(mark[1], None)
                else:
                    table[mark[1]] = original
        return result, changes

    def commit(self, changes: Changes) -> None:
        """Apply the changes of a trial."""
        for (_, key), (owner, table, value) in changes.places.items():
            self.put(owner, table, key, value)

    def join(self, alternatives: Sequence[Changes], reason: str) -> None:
        """Apply what alternatives agree on; what differs becomes unknown."""
        if len(alternatives) == 1:
            self.commit(alternatives[0])
            return
        marks: dict[_Key, tuple[Owner, dict[Any, Any]]] = {}
        for changes in alternatives:
            for mark, (owner, table, _) in changes.places.items():
                marks[mark] = (owner, table)
        worlds = [changes.world for changes in alternatives]
        for mark, (owner, table) in marks.items():
            original = table.get(mark[1], MISSING)
            values = [changes.places[mark][2] if mark in changes.places else original for changes in alternatives]
            merged = self._merge_at(owner, table, mark[1], values, reason, worlds)
            if merged is not original:
                self.put(owner, table, mark[1], merged)

    def blur(self, changes: Changes, reason: str, *, everything: bool = False) -> bool:
        """Make what changes touch unknown; True when anything became different.

        everything: also what ends with the value it had, since it may have had another one in between.
        """
        different = False
        for (_, key), (owner, table, value) in changes.places.items():
            original = table.get(key, MISSING)
            if not everything and (original is value or _same(original, value)):
                continue
            merged = self._merge_at(owner, table, key, (original, value), reason)
            if isinstance(owner, Scope) and (original is MISSING or everything):
                merged = self.merge((Unknown(reason), merged), reason)
            elif everything and isinstance(merged, Cell):
                merged = Cell(self.merge((Unknown(reason), merged.value), reason), merged.location)
            if not _same(original, merged):
                different = True
                self.put(owner, table, key, merged)
        return different

    def _merge_at(
        self,
        owner: Owner,
        table: dict[Any, Any],
        key: Any,
        values: Sequence[Any],
        reason: str,
        worlds: Sequence[World] | None = None,
    ) -> Any:
        """Return what is sure of one place that has one of several values."""
        first = values[0]
        if all(value is first for value in values):
            return first
        if isinstance(owner, Scope):
            bound = [index for index, value in enumerate(values) if value is not MISSING]
            kept = [worlds[index] for index in bound] if worlds is not None else None
            return self.merge([values[index] for index in bound], reason, kept)
        if table is owner.children:
            return MISSING
        if table is owner.meta:
            if key == "kind":
                return "opaque" if "opaque" in values else first
            return next((value for value in reversed(values) if value is not MISSING and value is not None), None)
        if key == "items" and owner.kind in SEQUENCES:
            if all(isinstance(value, tuple) and len(value) == len(first) for value in values):
                self.charge(len(first) * len(values))
                return tuple(self.merge(items, reason, worlds) for items in zip(*values, strict=True))
            return Unknown(reason)
        return self._merge_cells(owner, key, values, reason, worlds)

    def _merge_cells(
        self, owner: Obj, key: Any, values: Sequence[Any], reason: str, worlds: Sequence[World] | None
    ) -> Cell:
        location = next(value.location for value in reversed(values) if isinstance(value, Cell))
        replaced = any(isinstance(value, Cell) and targets_of(value.value) for value in values)
        if not replaced and not all(isinstance(value, Cell) for value in values):
            return Cell(Unknown(reason), location)
        # Where an alternative does not set a part that another one replaces, the part that was there stays.
        before = self.child(owner, key) if owner.has_attributes else Unknown(reason)
        found = [value.value if isinstance(value, Cell) else before for value in values]
        return Cell(self.merge(found, reason, worlds), location)

    def merge(self, values: Sequence[Any], reason: str, worlds: Sequence[World] | None = None) -> Any:
        """Return what is sure of a value that is one of several; worlds: the alternative each comes from."""
        first = values[0]
        if all(value is first or _same(value, first) for value in values):
            return first
        if all(isinstance(value, Dotted) and value.last == values[0].last for value in values):
            return Dotted(values[0].last)
        targets: dict[int, tuple[Obj, bool]] = {}
        other = False
        for index, value in enumerate(values):
            other = other or (value.other if isinstance(value, OneOf) else not isinstance(value, Obj))
            for obj, surely in targets_of(value):
                if _is_blank(obj):
                    other = True
                    continue
                fresh = surely and worlds is not None and obj.world.within(worlds[index])
                held = targets.get(id(obj))
                targets[id(obj)] = (obj, fresh and (held is None or held[1]))
        if not targets:
            return next((value for value in values if isinstance(value, Unknown)), Unknown(reason))
        if len(targets) > MAX_TARGETS:
            raise TooMuchWorkError
        return OneOf(tuple(targets.values()), reason, other)

    def taint(self, value: Any, reason: str, seen: set[int] | None = None) -> None:
        """Make everything that a value holds unknown, since code that is not followed may have changed it."""
        seen = seen if seen is not None else set()
        for obj, _ in targets_of(value):
            if id(obj) not in seen:
                seen.add(id(obj))
                self._taint_object(obj, reason, seen)

    def _taint_object(self, obj: Obj, reason: str, seen: set[int]) -> None:
        self.charge(len(obj.items or obj.fields))
        if obj.kind in SEQUENCES:
            for item in obj.items or ():
                self.taint(item, reason, seen)
            self.put(obj, obj.fields, "items", Unknown(reason))
            return
        self.put(obj, obj.meta, "reason", reason)
        self.put(obj, obj.meta, "tainted", self.here)
        if obj.kind == "dict":
            for key, cell in list(obj.fields.items()):
                self.taint(cell.value, reason, seen)
                self.put(obj, obj.fields, key, Cell(Unknown(reason), cell.location))
            return
        self.put(obj, obj.meta, "kind", "opaque")
        # The code may also have put new parts in the place of those that other names stand for: they come apart.
        for name, cell in list(obj.fields.items()):
            self.taint(cell.value, reason, seen)
            self.put(obj, obj.fields, name, MISSING)
        for name, part in list(obj.children.items()):
            self.taint(part, reason, seen)
            self.put(obj, obj.children, name, MISSING)


def _is_blank(obj: Obj) -> bool:
    """Tell whether an object holds nothing and is part of nothing, so that it need not be remembered."""
    held = obj.fields or obj.children or "home" in obj.meta or obj.meta.get("named")
    return obj.kind == "opaque" and not held


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, Cell) and isinstance(right, Cell):
        return left.value is right.value or _same(left.value, right.value)
    if isinstance(left, OneOf) and isinstance(right, OneOf):
        return left.targets == right.targets and left.other == right.other
    if isinstance(left, Unknown) and isinstance(right, Unknown):
        return True
    return is_plain(left) and type(left) is type(right) and left == right


def targets_of(value: Any) -> tuple[tuple[Obj, bool], ...]:
    """Return the objects that a value may be, each with whether it surely is the one meant wherever it exists."""
    if isinstance(value, Obj):
        return ((value, True),)
    if isinstance(value, LocalClass):
        return ((value.body, True),)
    return value.targets if isinstance(value, OneOf) else ()


def reachable(value: Any) -> Iterator[Obj]:
    """Yield the objects that a value is or holds in lists and mappings."""
    stack = [value]
    seen: set[int] = set()
    while stack:
        for obj, _ in targets_of(stack.pop()):
            if id(obj) in seen:
                continue
            seen.add(id(obj))
            yield obj
            if obj.kind == "dict":
                stack += [cell.value for cell in obj.fields.values()]
            elif obj.kind in SEQUENCES:
                stack += obj.items or ()
