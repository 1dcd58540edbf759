"""What the values of a Python config script mean: attributes, plain data, truth, and why something is not known."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, Final

from skill_run.config.model import Location, Unknown
from skill_run.config.python.heap import (
    SEQUENCES,
    Cell,
    Func,
    Heap,
    LocalClass,
    Obj,
    OneOf,
    TooMuchWorkError,
    reachable,
    targets_of,
)
from skill_run.config.python.values import (
    MAX_ITEMS,
    MAX_NAME,
    MAX_WEIGHT,
    Dotted,
    PathText,
    attribute_of_name,
    is_plain,
    path_attribute,
    weight,
)

MAX_STEPS: Final = 150_000
# Copying or reading so many items or characters takes about as long as one step.
SIZE_OF_STEP: Final = 16
MAX_PLAIN_DEPTH: Final = 32

COMMAND_LINE: Final = "comes from the command line"
# Starts every reason of a value that is set in one branch of the script and not in another.


class EndedError(Exception):
    """The path that is followed leaves the program."""


class LostError(Exception):
    """Control flow that cannot be followed; the nearest loop or call treats what it touches as unknown."""


class Objects:
    """The heap of one script with the meaning of its values. `name` is the file in locations."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.steps = MAX_STEPS
        self.heap = Heap(self.charge)
        self.module = self.heap.scope()
        self.environ = self.heap.new("dict", environ=True)

    def tick(self, amount: int = 1) -> None:
        self.steps -= amount
        if self.steps < 0:
            raise TooMuchWorkError

    def charge(self, size: int) -> None:
        """Take the work on so many items or characters off the budget; call it before the work."""
        self.tick(size // SIZE_OF_STEP)

    def affords(self, *values: Any) -> bool:
        """Charge what computing with plain data costs; False when the data is too large to compute with at all."""
        cost = weight(list(values))
        if cost > MAX_WEIGHT:
            return False
        self.charge(cost)
        return True

    def reached(self, value: Any) -> Iterator[Obj]:
        """Yield the objects that a value is or holds, and charge the walk."""
        for obj in reachable(value):
            self.tick(1 + len(obj.items or obj.fields) // SIZE_OF_STEP)
            yield obj

    def location(self, node: ast.AST) -> Location:
        line: int | None = getattr(node, "lineno", None)
        return Location(self.name, line, node.col_offset + 1 if line is not None else None)  # type: ignore[attr-defined]

    def opaque(self, reason: str, **meta: Any) -> Obj:
        return self.heap.new("opaque", reason=reason, **meta)

    def describe(self, value: Any) -> str:
        """Return a clause that says why a value is not known."""
        if isinstance(value, Unknown):
            return value.reason
        if isinstance(value, OneOf):
            return value.reason
        if isinstance(value, Dotted):
            return f"is {value.name}, which this file does not define"
        if not isinstance(value, Obj):
            return "is not plain data"
        if isinstance(value.fields.get("items"), Unknown):
            return str(value.fields["items"].reason)
        path: list[str] = []
        top = value
        while top.kind == "inherited" and "home" in top.meta and len(path) < MAX_PLAIN_DEPTH:
            top, name = top.meta["home"]
            path.append(name[:MAX_NAME])
        where = ".".join(reversed(path))
        if top.kind == "opaque":
            reason = str(top.meta["reason"])
            return f"{reason} ({where})" if reason == COMMAND_LINE and where else reason
        if top.meta.get("recipe"):
            return f"is what the recipe sets for {where}" if where else "is a whole config"
        return f"is the default of {where}" if where else f"is a {top.meta.get('cls') or top.kind}"

    def plain(self, value: Any, depth: int = 0) -> Any:
        """Return a value as plain Python data, Unknown when any part of it is not known."""
        if is_plain(value) or isinstance(value, Unknown):
            return value
        if isinstance(value, OneOf):
            found = [self.plain(obj, depth + 1) for obj in value.objects()]
            same = not value.other and all(type(item) is type(found[0]) and item == found[0] for item in found)
            return found[0] if same else Unknown(value.reason)
        if not isinstance(value, Obj) or value.has_attributes or depth > MAX_PLAIN_DEPTH:
            return Unknown(self.describe(value))
        self.tick(1 + len(value.items or value.fields) // SIZE_OF_STEP)
        if value.kind == "dict":
            mapping: dict[Any, Any] = {}
            if value.meta.get("reason"):
                return Unknown(value.meta["reason"])
            for key, cell in value.fields.items():
                mapping[key] = self.plain(cell.value, depth + 1)
                if isinstance(mapping[key], Unknown):
                    return mapping[key]
            return mapping
        if value.items is None:
            return value.fields["items"]
        items = [self.plain(item, depth + 1) for item in value.items]
        return next((item for item in items if isinstance(item, Unknown)), items)

    def truth(self, value: Any) -> bool | None:
        """Return whether a value counts as true, None when that is unknown."""
        if is_plain(value):
            return bool(value)
        if isinstance(value, Func | LocalClass):
            return True
        if isinstance(value, OneOf) and not value.other:
            found = {self.truth(obj) for obj in value.objects()}
            return found.pop() if len(found) == 1 else None
        if isinstance(value, Obj):
            if value.kind in SEQUENCES:
                return bool(value.items) if value.items is not None else None
            if value.kind == "dict":
                return True if value.fields else None if value.meta.get("reason") else False
            return True if value.kind == "object" else None
        return None

    def iterate(self, value: Any) -> list[Any] | None:
        """Return what a loop over a value sees, None when that is unknown or too much."""
        if isinstance(value, Obj):
            self.charge(len(value.items or value.fields))
        if isinstance(value, Obj) and value.kind in SEQUENCES:
            return list(value.items) if value.items is not None else None
        if isinstance(value, Obj) and value.kind == "dict" and not value.meta.get("reason"):
            return list(value.fields)
        if isinstance(value, str) and len(value) <= MAX_ITEMS:
            self.charge(len(value))
            return list(value)
        return None

    def attribute(self, base: Any, name: str) -> Any:
        """Return `base.name`."""
        if isinstance(base, OneOf):
            return self.through(base, [self.attribute(obj, name) for obj in base.objects()])
        if isinstance(base, Dotted):
            if base.name == "os" and name == "environ":
                return self.environ
            if base.name == "sys" and name == "argv":
                return self.opaque(COMMAND_LINE)
            return attribute_of_name(base, name)
        if isinstance(base, Obj):
            if name == "__dict__":
                self.heap.taint(base, "may be changed through its __dict__")
                return self.opaque("comes from __dict__")
            if base.has_attributes:
                return base.fields[name].value if name in base.fields else self.heap.child(base, name)
            return self.opaque(self.describe(base))
        if isinstance(base, LocalClass):
            return base.methods[name] if name in base.methods else self.attribute(base.body, name)
        if isinstance(base, PathText):
            self.charge(len(base))
            return path_attribute(base, name)
        return self.opaque(self.describe(base))

    def set_attribute(self, base: Any, name: str, value: Any, location: Location) -> None:
        """Apply `base.name = value`."""
        for obj, surely in targets_of(base):
            if obj.has_attributes:
                self.set_field(obj, surely, name, Cell(value, location), self.describe(base))

    def set_field(self, obj: Obj, surely: bool, key: Any, cell: Cell, reason: str) -> None:
        """Set a field of an object, or of one that only may be meant."""
        if surely:
            self.heap.put(obj, obj.fields, key, cell)
        else:
            self.heap.weakly(obj, key, cell.value, reason, cell.location)

    def through(self, base: OneOf, values: list[Any]) -> Any:
        """Return what is sure of a part of one of several objects; `values` are the parts in their order."""
        first = values[0]
        if not base.other and all(value is first or (is_plain(value) and self.equal(value, first)) for value in values):
            return first
        targets: dict[int, tuple[Obj, bool]] = {}
        for (holder, meant), value in zip(base.targets, values, strict=True):
            for obj, surely in targets_of(value):
                surely = surely and meant and obj.world.within(holder.world)
                held = targets.get(id(obj))
                targets[id(obj)] = (obj, surely and (held is None or held[1]))
        other = base.other or any(not targets_of(value) or getattr(value, "other", False) for value in values)
        return OneOf(tuple(targets.values()), base.reason, other) if targets else Unknown(base.reason)

    @staticmethod
    def equal(left: Any, right: Any) -> bool:
        """Tell whether two constants are the same constant."""
        return type(left) is type(right) and bool(left == right)

    def set_path(self, root: Obj, path: str, value: Any, location: Location) -> None:
        """Assign to a dotted path below an object."""
        *sections, leaf = path.split(".")
        target: Any = root
        for section in sections:
            inner = self.attribute(target, section)
            if not targets_of(inner):
                inner = self.opaque(self.describe(inner)) if inner is not None else self.heap.new("dict")
                self.set_attribute(target, section, inner, location)
            target = inner
        if isinstance(target, Obj) and target.kind == "dict":
            self.heap.put(target, target.fields, leaf, Cell(value, location))
        else:
            self.set_attribute(target, leaf, value, location)

    def from_plain(self, value: Any) -> Any:
        """Return plain Python data as values of this reader."""
        if isinstance(value, list | tuple | dict):
            self.charge(len(value))
        if isinstance(value, list | tuple):
            return self.heap.sequence("list", [self.from_plain(item) for item in value])
        if isinstance(value, dict):
            made = self.heap.new("dict")
            made.fields = {key: Cell(self.from_plain(item)) for key, item in value.items()}
            return made
        return value

    def copied(self, value: Any, seen: dict[int, Any] | None = None) -> Any:
        """Return a deep copy of a value."""
        if isinstance(value, OneOf):
            copies = tuple((self.copied(obj, seen), surely) for obj, surely in value.targets)
            return OneOf(copies, value.reason, value.other)
        if not isinstance(value, Obj):
            return value
        seen = seen if seen is not None else {}
        if id(value) in seen:
            return seen[id(value)]
        self.tick(1 + len(value.items or value.fields) // SIZE_OF_STEP)
        made = self.heap.new(value.kind)
        made.meta = dict(value.meta)
        seen[id(value)] = made
        if self.heap.is_root(value):
            self.heap.roots[id(made)] = made
        for name, part in value.children.items():
            made.children[name] = self.copied(part, seen)
            made.children[name].meta["home"] = (made, name)
        for key, cell in value.fields.items():
            if isinstance(cell, Cell):
                part = self.copied(cell.value, seen)
                if isinstance(part, Obj) and part.meta.get("home") == (value, key):
                    part.meta["home"] = (made, key)
                made.fields[key] = Cell(part, cell.location)
            else:
                made.fields[key] = tuple(self.copied(item, seen) for item in cell) if isinstance(cell, tuple) else cell
        return made
