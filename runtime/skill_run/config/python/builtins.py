"""Built-in and standard library functions that a Python config script uses on configs, lists and mappings."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any, Final

from skill_run.config.model import Unknown
from skill_run.config.python.calls import Arguments, Caller, Special
from skill_run.config.python.heap import MISSING, SEQUENCES, Cell, Obj, OneOf, targets_of
from skill_run.config.python.values import MAX_ITEMS, MAX_NAME, Dotted, is_plain


def _setattr(self: Caller, arguments: Arguments, node: ast.Call) -> Any:
    if len(arguments.positional) != 3:
        return self.unfollowed("setattr", arguments)
    target, name, value = arguments.positional
    if isinstance(name, str) and len(name) <= MAX_NAME:
        self.set_attribute(target, name, value, self.location(node))
    else:
        self.heap.taint(target, f"is set under a name that is not known in line {node.lineno}")
    return None


def _delattr(self: Caller, arguments: Arguments, node: ast.Call) -> Any:
    return _setattr(self, Arguments([*arguments.positional, Unknown("is deleted")]), node)


def _getattr(self: Caller, arguments: Arguments, node: ast.Call) -> Any:
    if len(arguments.positional) < 2:
        return self.opaque("comes from getattr()")
    target, name = arguments.positional[:2]
    if isinstance(name, str) and len(name) > MAX_NAME:
        return self.opaque("has a name that is too long")
    if not isinstance(name, str):
        return self.opaque(self.describe(name))
    if (
        isinstance(target, Obj)
        and target.has_attributes
        and len(arguments.positional) > 2
        and name not in target.fields
    ):
        part = self.heap.child(target, name)
        return OneOf(((part, True),), f"is {name}, which not every release has", other=True)
    return self.attribute(target, name)


def _hasattr(self: Caller, arguments: Arguments, node: ast.Call) -> Any:
    target, name = (*arguments.positional, None, None)[:2]
    if isinstance(target, Obj) and target.has_attributes and isinstance(name, str) and name in target.fields:
        return True
    return Unknown(
        f"depends on whether the release has {name[:MAX_NAME]}" if isinstance(name, str) else "comes from hasattr()"
    )


def _isinstance(self: Caller, arguments: Arguments, node: ast.Call) -> Any:
    target, cls = (*arguments.positional, None, None)[:2]
    if isinstance(target, Obj) and isinstance(cls, Dotted) and target.meta.get("cls") == cls.last:
        return True
    types = {"int": int, "str": str, "float": float, "bool": bool}
    if is_plain(target) and isinstance(cls, Dotted) and cls.name in types:
        return isinstance(target, types[cls.name])
    return Unknown("depends on a type")


def _len(self: Caller, arguments: Arguments, node: ast.Call) -> Any:
    value = arguments.get(0, "", None)
    if isinstance(value, str):
        return len(value)
    items = self.iterate(value)
    return len(items) if items is not None else Unknown(self.describe(value))


def _range(self: Caller, arguments: Arguments, node: ast.Call) -> Any:
    values = [self.plain(value) for value in arguments.positional]
    made = self.heap.new("list")
    made.fields["items"] = Unknown("is a range that is not known or too long")
    if all(isinstance(value, int) and abs(value) < 2**60 for value in values) and 1 <= len(values) <= 3:
        found = range(*values) if len(values) < 3 or values[2] else range(0)
        if len(found) <= MAX_ITEMS:
            self.charge(len(found))
            made.fields["items"] = tuple(found)
    return made


def _converted(kind: Any) -> Callable[[Caller, Arguments, ast.Call], Any]:
    def convert(self: Caller, arguments: Arguments, node: ast.Call) -> Any:
        made = self.heap.new(kind)
        value = arguments.get(0, "", MISSING)
        items = [] if value is MISSING else self.iterate(value)
        made.fields["items"] = tuple(items) if items is not None else Unknown(self.describe(value))
        return made

    return convert


def _dict(self: Caller, arguments: Arguments, node: ast.Call) -> Any:
    made = self.heap.new("dict", reason="comes from dict()" if arguments.vague else None)
    for value in arguments.positional:
        pairs = self.iterate(value) if isinstance(value, Obj) and value.kind in SEQUENCES else None
        if pairs is None:
            self._update(made, value)
            continue
        for pair in pairs:
            items = self.iterate(pair)
            if items is None or len(items) != 2 or not is_plain(items[0]):
                made.meta["reason"] = "comes from dict()"
            else:
                made.fields[items[0]] = Cell(items[1], self.location(node))
    made.fields.update(arguments.keywords)
    return made


def counted(self: Caller, found: Iterator[Any]) -> Iterator[Any]:
    """Yield what an iterator gives, one step each."""
    for item in found:
        self.tick()
        yield item


def _paired(join: Callable[..., Iterator[Any]]) -> Callable[[Caller, Arguments, ast.Call], Any]:
    def pair(self: Caller, arguments: Arguments, node: ast.Call) -> Any:
        made = self.heap.new("list")
        lists = [self.iterate(value) for value in arguments.positional]
        if any(items is None for items in lists) or arguments.keywords:
            made.fields["items"] = Unknown("is a list that is not known")
        else:
            made.fields["items"] = tuple(self.heap.sequence("tuple", pair) for pair in counted(self, join(*lists)))
        return made

    return pair


def _reversed(self: Caller, arguments: Arguments, node: ast.Call) -> Any:
    made = _converted("list")(self, arguments, node)
    if made.items is not None:
        made.fields["items"] = made.items[::-1]
    return made


def _sorted(self: Caller, arguments: Arguments, node: ast.Call) -> Any:
    made = _converted("list")(self, arguments, node)
    values = self.plain(made)
    if not self.affords(values):
        made.fields["items"] = Unknown("is too large to compute")
        return made
    try:
        made.fields["items"] = Unknown("is sorted by a key") if arguments.keywords else tuple(sorted(values))
    except TypeError:
        made.fields["items"] = Unknown("cannot be sorted")
    return made


def _replace(self: Caller, arguments: Arguments, node: ast.Call) -> Any:
    target = arguments.get(0, "obj", None)
    if not targets_of(target):
        return self.opaque("comes from replace()")
    made = self.copied(target)
    for obj, _ in targets_of(made):
        obj.fields.update(arguments.keywords)
    if arguments.vague:
        self.heap.taint(made, "comes from replace() with arguments that cannot be told")
    return made


def _copy(self: Caller, arguments: Arguments, node: ast.Call) -> Any:
    return self.copied(arguments.get(0, "x", None))


def _getenv(self: Caller, arguments: Arguments, node: ast.Call) -> Any:
    return self.call_method(self.environ, "get", arguments, node)


def _putenv(self: Caller, arguments: Arguments, node: ast.Call) -> Any:
    name, value = (*arguments.positional, None, None)[:2]
    if isinstance(name, str):
        self.heap.put(self.environ, self.environ.fields, name, Cell(value, self.location(node)))
    return None


SPECIAL: Final[dict[str, Special]] = {
    "setattr": _setattr,
    "delattr": _delattr,
    "getattr": _getattr,
    "hasattr": _hasattr,
    "isinstance": _isinstance,
    "len": _len,
    "range": _range,
    "list": _converted("list"),
    "tuple": _converted("tuple"),
    "set": _converted("set"),
    "frozenset": _converted("set"),
    "iter": _converted("list"),
    "dict": _dict,
    "zip": _paired(lambda *lists: zip(*lists, strict=False)),
    "enumerate": _paired(lambda items, start=0: enumerate(items, start if isinstance(start, int) else 0)),
    "reversed": _reversed,
    "sorted": _sorted,
    "dataclasses.replace": _replace,
    "replace": _replace,
    "copy.replace": _replace,
    "copy.deepcopy": _copy,
    "copy.copy": _copy,
    "os.getenv": _getenv,
    "os.putenv": _putenv,
}
