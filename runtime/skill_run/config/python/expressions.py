"""Expressions of a Python config script, evaluated as far as they can be told; nothing is executed."""

from __future__ import annotations

import ast
import builtins
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from skill_run.config.model import CONDITION, Location, Unknown
from skill_run.config.python.heap import MISSING, SEQUENCES, Cell, Func, LocalClass, Obj, OneOf, Scope, targets_of
from skill_run.config.python.objects import SIZE_OF_STEP, EndedError, Objects
from skill_run.config.python.values import (
    MAX_ITEMS,
    MAX_NAME,
    MAX_TEXT,
    Dotted,
    binary,
    compare,
    formatted,
    is_plain,
    unary,
)

_BUILTINS: Final = frozenset(dir(builtins))
_METHODS: Final[dict[type[ast.expr], str]] = {
    ast.Constant: "_constant",
    ast.Name: "_name",
    ast.Attribute: "_attribute",
    ast.Subscript: "_subscript",
    ast.BinOp: "_binary",
    ast.UnaryOp: "_unary",
    ast.BoolOp: "_boolean",
    ast.Compare: "_compare",
    ast.IfExp: "_conditional",
    ast.JoinedStr: "_text",
    ast.FormattedValue: "_formatted",
    ast.List: "_list",
    ast.Tuple: "_tuple",
    ast.Set: "_set",
    ast.Dict: "_dict",
    ast.Lambda: "_lambda",
    ast.NamedExpr: "_named",
    ast.Await: "_await",
    ast.ListComp: "_list_comprehension",
    ast.DictComp: "_dict_comprehension",
    ast.SetComp: "_list_comprehension",
    ast.GeneratorExp: "_list_comprehension",
    ast.Call: "_call",
}


class Evaluator(Objects):
    """Evaluates expressions and binds targets. The subclass follows calls."""

    def _call(self, node: ast.Call, scope: Scope) -> Any:
        raise NotImplementedError

    def eval(self, node: ast.expr, scope: Scope) -> Any:
        """Return the value of an expression."""
        self.tick()
        method = _METHODS.get(type(node))
        return (
            getattr(self, method)(node, scope) if method is not None else Unknown("is an expression that is not read")
        )

    def _constant(self, node: ast.Constant, scope: Scope) -> Any:
        value = node.value
        if isinstance(value, int) and value.bit_length() > MAX_TEXT:
            return Unknown("is a number too large to use")
        return value if is_plain(value) else Unknown("is not plain data")

    def _name(self, node: ast.Name, scope: Scope) -> Any:
        found = scope.find(node.id)
        if found is not MISSING:
            return found
        if node.id in _BUILTINS:
            return Dotted(node.id)
        if node.id == "__file__":
            return Unknown("is the path of the script")
        made = self.heap.root("opaque", reason=f"{node.id} is not defined in this file", named=True)
        self.module.variables[node.id] = made
        return made

    def _attribute(self, node: ast.Attribute, scope: Scope) -> Any:
        return self.attribute(self.eval(node.value, scope), node.attr)

    def _subscript(self, node: ast.Subscript, scope: Scope) -> Any:
        base = self.eval(node.value, scope)
        if isinstance(base, Dotted):
            return base
        if isinstance(node.slice, ast.Slice):
            key = self._slice(node.slice, scope)
        else:
            key = self.plain(self.eval(node.slice, scope))
        if isinstance(base, OneOf):
            return self.through(base, [self.item(obj, key) for obj in base.objects()])
        return self.item(base, key)

    def item(self, base: Any, key: Any) -> Any:
        """Return `base[key]`; the key is plain data or a slice."""
        if isinstance(base, Obj) and base.kind == "dict":
            return self._entry(base, key)
        if isinstance(base, Obj) and base.has_attributes:
            return self.attribute(base, key) if isinstance(key, str) else self.opaque(self.describe(base))
        held = base.items if isinstance(base, Obj) else base
        if not isinstance(held, tuple | str):
            return self.opaque(self.describe(base))
        if isinstance(key, Unknown):
            return Unknown(key.reason)
        try:
            found = held[key]
        except (LookupError, TypeError, ValueError):
            return Unknown("is outside its list")
        if isinstance(key, slice):
            self.charge(len(found))
        return self.heap.sequence("list", found) if isinstance(key, slice) and isinstance(found, tuple) else found

    def _entry(self, base: Obj, key: Any) -> Any:
        if isinstance(key, Unknown) or not is_plain(key):
            return self.opaque(self.describe(key))
        if key in base.fields:
            return base.fields[key].value
        shown = key[:MAX_NAME] if isinstance(key, str) else key
        if base.meta.get("environ"):
            return Unknown(f"comes from the environment variable {shown}")
        return Unknown(base.meta.get("reason") or f"is not in its mapping ({shown!r})")

    def _slice(self, node: ast.Slice, scope: Scope) -> Any:
        ends = [
            self.plain(self.eval(end, scope)) if end is not None else None
            for end in (node.lower, node.upper, node.step)
        ]
        return next((end for end in ends if isinstance(end, Unknown)), slice(*ends))

    def _binary(self, node: ast.BinOp, scope: Scope) -> Any:
        left, right = self.eval(node.left, scope), self.eval(node.right, scope)
        if is_plain(left) and is_plain(right):
            return self.computed(node.op, left, right)
        return self.combined(node.op, left, right)

    def computed(self, op: ast.operator, left: Any, right: Any) -> Any:
        """Apply an operator to two constants."""
        found = binary(type(op), left, right)
        if isinstance(found, str):
            self.charge(len(found))
        return found

    def combined(self, op: ast.operator, left: Any, right: Any) -> Any:
        """Apply an operator to lists and mappings."""
        sides = [side for side in (left, right) if isinstance(side, Obj)]
        if isinstance(op, ast.Add) and len(sides) == 2 and left.kind == right.kind and left.kind in SEQUENCES:
            if left.items is not None and right.items is not None and len(left.items) + len(right.items) <= MAX_ITEMS:
                self.charge(len(left.items) + len(right.items))
                return self.heap.sequence(left.kind, left.items + right.items)
        elif isinstance(op, ast.Mult) and len(sides) == 1 and sides[0].items is not None:
            count = right if sides[0] is left else left
            if isinstance(count, int) and len(sides[0].items) * max(count, 0) <= MAX_ITEMS:
                self.charge(len(sides[0].items) * max(count, 0))
                return self.heap.sequence(sides[0].kind, sides[0].items * count)
        elif isinstance(op, ast.BitOr) and len(sides) == 2 and left.kind == right.kind == "dict":
            self.charge(len(left.fields) + len(right.fields))
            made = self.heap.new("dict", reason=left.meta.get("reason") or right.meta.get("reason"))
            made.fields = {**left.fields, **right.fields}
            return made
        return Unknown(self.describe(left if not is_plain(left) else right))

    def _unary(self, node: ast.UnaryOp, scope: Scope) -> Any:
        value = self.eval(node.operand, scope)
        if isinstance(node.op, ast.Not):
            truth = self.truth(value)
            return Unknown(self.describe(value)) if truth is None else not truth
        return unary(type(node.op), value) if is_plain(value) else Unknown(self.describe(value))

    def _boolean(self, node: ast.BoolOp, scope: Scope) -> Any:
        stops_at = isinstance(node.op, ast.Or)

        def first_of(index: int) -> Any:
            value = self.eval(node.values[index], scope)
            if index + 1 == len(node.values):
                return value
            truth = self.truth(value)
            if truth is not None:
                return value if truth is stops_at else first_of(index + 1)
            return self.either([lambda: value, lambda: first_of(index + 1)], node.lineno)

        return first_of(0)

    def either(self, actions: Sequence[Callable[[], Any]], line: int) -> Any:
        """Return what is sure of the result of one of several actions, and join what they change."""
        outcomes = []
        for action in actions:
            with contextlib.suppress(EndedError):
                outcomes.append(self.heap.trial(action))
        if not outcomes:
            raise EndedError
        reason = f"{CONDITION} in line {line}"
        self.heap.join([changes for _, changes in outcomes], reason)
        return self.heap.merge([value for value, _ in outcomes], reason, [changes.world for _, changes in outcomes])

    def _compare(self, node: ast.Compare, scope: Scope) -> Any:
        left = self.eval(node.left, scope)
        unknown: Any = None
        for op, operand in zip(node.ops, node.comparators, strict=True):
            right = self.eval(operand, scope)
            result = self._compared(op, left, right)
            if result is False:
                return False
            if result is None:
                unknown = unknown or Unknown(self.describe(left if not is_plain(left) else right))
            left = right
        return unknown if unknown is not None else True

    def _compared(self, op: ast.cmpop, left: Any, right: Any) -> bool | None:
        if isinstance(op, ast.Is | ast.IsNot) and (left is None or right is None):
            other = right if left is None else left
            if is_plain(other):
                return (other is None) is isinstance(op, ast.Is)
            decided = isinstance(other, Func | LocalClass)
            if targets_of(other) and not getattr(other, "other", False):
                decided = all(self._exists(obj) for obj, _ in targets_of(other))
            return isinstance(op, ast.IsNot) if decided else None
        if isinstance(left, Dotted) and isinstance(right, Dotted) and left == right:
            return isinstance(op, ast.Eq | ast.Is)
        left, right = self.plain(left), self.plain(right)
        if isinstance(left, Unknown) or isinstance(right, Unknown) or not self.affords(left, right):
            return None
        return compare(type(op), left, right)

    def _exists(self, obj: Obj) -> bool:
        return not obj.has_attributes or obj.kind == "object" or bool(obj.meta.get("recipe"))

    def _conditional(self, node: ast.IfExp, scope: Scope) -> Any:
        truth = self.truth(self.eval(node.test, scope))
        if truth is not None:
            return self.eval(node.body if truth else node.orelse, scope)
        return self.either([lambda: self.eval(node.body, scope), lambda: self.eval(node.orelse, scope)], node.lineno)

    def _text(self, node: ast.JoinedStr, scope: Scope) -> Any:
        pieces: list[str] = []
        size = 0
        for part in node.values:
            value = self.eval(part, scope)
            if not isinstance(value, str):
                return Unknown(self.describe(value))
            size += len(value)
            if size > MAX_TEXT:
                return Unknown("is too large to compute")
            pieces.append(value)
        self.charge(size)
        return "".join(pieces)

    def _formatted(self, node: ast.FormattedValue, scope: Scope) -> Any:
        value = self.eval(node.value, scope)
        spec = self.eval(node.format_spec, scope) if node.format_spec is not None else ""
        if not is_plain(value) or not isinstance(spec, str):
            return Unknown(self.describe(value if not is_plain(value) else spec))
        self.affords(value)
        return formatted(value, node.conversion, spec)

    def _elements(self, nodes: Sequence[ast.expr], scope: Scope) -> Any:
        items: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                value = self.eval(node.value, scope)
                more = self.iterate(value)
                if more is None:
                    return Unknown(self.describe(value))
                items += more
            else:
                items.append(self.eval(node, scope))
        return items

    def _made(self, kind: Any, nodes: Sequence[ast.expr], scope: Scope) -> Obj:
        items = self._elements(nodes, scope)
        made = self.heap.new(kind)
        made.fields["items"] = items if isinstance(items, Unknown) else tuple(items)
        return made

    def _list(self, node: ast.List, scope: Scope) -> Any:
        return self._made("list", node.elts, scope)

    def _tuple(self, node: ast.Tuple, scope: Scope) -> Any:
        return self._made("tuple", node.elts, scope)

    def _set(self, node: ast.Set, scope: Scope) -> Any:
        return self._made("set", node.elts, scope)

    def _dict(self, node: ast.Dict, scope: Scope) -> Any:
        made = self.heap.new("dict")
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            value = self.eval(value_node, scope)
            if key_node is None:
                self._update(made, value)
                continue
            key = self.plain(self.eval(key_node, scope))
            if isinstance(key, Unknown) or not is_plain(key):
                made.meta["reason"] = self.describe(key)
            else:
                made.fields[key] = Cell(value, self.location(value_node))
        return made

    def _update(self, target: Obj, value: Any) -> None:
        """Apply `target.update(value)`."""
        if isinstance(value, Obj) and value.kind == "dict":
            self.charge(len(value.fields))
            for key, cell in value.fields.items():
                self.heap.put(target, target.fields, key, cell)
            if not value.meta.get("reason"):
                return
        self.heap.put(target, target.meta, "reason", self.describe(value))

    def _lambda(self, node: ast.Lambda, scope: Scope) -> Any:
        return self.function("lambda", node, scope)

    def function(self, name: str, node: Any, scope: Scope) -> Func:
        """Make a function of the file; its defaults are evaluated now."""
        spec = node.args
        names = [parameter.arg for parameter in (*spec.posonlyargs, *spec.args)]
        self.charge(len(names))
        nodes = dict(zip(reversed(names), reversed(spec.defaults), strict=False))
        nodes |= {p.arg: d for p, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None}
        return Func(name, node, scope, {key: self.eval(default, scope) for key, default in nodes.items()})

    def _named(self, node: ast.NamedExpr, scope: Scope) -> Any:
        value = self.eval(node.value, scope)
        owner = scope
        while owner.is_comprehension and owner.parent is not None:
            owner = owner.parent
        self.heap.bind(owner, node.target.id, value)
        return value

    def _await(self, node: ast.Await, scope: Scope) -> Any:
        return self.eval(node.value, scope)

    def _comprehended(self, node: Any, scope: Scope, element: Callable[[Scope], Any]) -> list[Any] | Unknown:
        """Run the loops of a comprehension and collect what `element` returns for each round."""
        found: list[Any] = []
        inner = self.heap.scope(scope, comprehension=True)

        def rounds(index: int) -> Unknown | None:
            if index == len(node.generators):
                found.append(element(inner))
                return None if len(found) <= MAX_ITEMS else Unknown("is too large to compute")
            generator = node.generators[index]
            over = self.eval(generator.iter, inner)
            items = self.iterate(over)
            if items is None:
                return Unknown(self.describe(over))
            for item in items:
                self.bind(generator.target, item, inner)
                for test in generator.ifs:
                    value = self.eval(test, inner)
                    truth = self.truth(value)
                    if truth is None:
                        return Unknown(self.describe(value))
                    if not truth:
                        break
                else:
                    problem = rounds(index + 1)
                    if problem is not None:
                        return problem
            return None

        return rounds(0) or found

    def _list_comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp, scope: Scope) -> Any:
        items = self._comprehended(node, scope, lambda inner: self.eval(node.elt, inner))
        made = self.heap.new("set" if isinstance(node, ast.SetComp) else "list")
        made.fields["items"] = items if isinstance(items, Unknown) else tuple(items)
        return made

    def _dict_comprehension(self, node: ast.DictComp, scope: Scope) -> Any:
        pairs = self._comprehended(
            node, scope, lambda inner: (self.plain(self.eval(node.key, inner)), self.eval(node.value, inner))
        )
        made = self.heap.new("dict")
        if isinstance(pairs, Unknown):
            made.meta["reason"] = pairs.reason
            return made
        for key, value in pairs:
            if isinstance(key, Unknown) or not is_plain(key):
                made.meta["reason"] = self.describe(key)
            else:
                made.fields[key] = Cell(value, self.location(node))
        return made

    def bind(self, target: ast.expr, value: Any, scope: Scope) -> None:
        """Bind a value to the target of an assignment."""
        location = self.location(target)
        if isinstance(target, ast.Name):
            self.heap.bind(scope, target.id, value)
        elif isinstance(target, ast.Attribute):
            self.set_attribute(self.owner_of(target.value, scope), target.attr, value, location)
        elif isinstance(target, ast.Subscript):
            self._set_item(target, value, scope, location)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, value, scope)
        elif isinstance(target, ast.Tuple | ast.List):
            items = self._unpacked(target.elts, self.iterate(value))
            if items is None:
                items = [self.opaque(self.describe(value)) for _ in target.elts]
            for element, item in zip(target.elts, items, strict=True):
                self.bind(element, item, scope)

    def _unpacked(self, targets: Sequence[ast.expr], items: list[Any] | None) -> list[Any] | None:
        """Return one value per target of an unpacking, None when the values are not known or do not fit."""
        starred = [index for index, target in enumerate(targets) if isinstance(target, ast.Starred)]
        if items is None or len(starred) > 1 or (not starred and len(items) != len(targets)):
            return None
        if not starred:
            return items
        after = len(targets) - starred[0] - 1
        if len(items) < len(targets) - 1:
            return None
        middle = self.heap.sequence("list", items[starred[0] : len(items) - after])
        return [*items[: starred[0]], middle, *items[len(items) - after :]]

    def owner_of(self, node: ast.expr, scope: Scope) -> Any:
        """Return the object that an attribute is set on; one that is unknown becomes an object so that it can be."""
        owner = self.eval(node, scope)
        if isinstance(owner, Dotted) and owner.symbol and isinstance(node, ast.Attribute):
            return self.attribute(self.owner_of(node.value, scope), node.attr)
        if isinstance(owner, Unknown) or owner is None or (isinstance(owner, Dotted) and owner.symbol):
            owner = self.heap.root("opaque", reason=self.describe(owner) if owner is not None else "was None before")
            if isinstance(node, ast.Name | ast.Attribute):
                self.bind(node, owner, scope)
        return owner

    def _set_item(self, target: ast.Subscript, value: Any, scope: Scope, location: Location) -> None:
        base = self.eval(target.value, scope)
        key: Any = Unknown("is a slice")
        if not isinstance(target.slice, ast.Slice):
            key = self.plain(self.eval(target.slice, scope))
        for obj, surely in targets_of(base):
            if is_plain(key) and (obj.kind == "dict" or (obj.has_attributes and isinstance(key, str))):
                self.set_field(obj, surely, key, Cell(value, location), self.describe(base))
            elif surely and obj.kind in SEQUENCES and self._set_element(obj, key, value):
                continue
            else:
                self.heap.taint(obj, f"is set under a key that is not known in line {location.line}")

    def _set_element(self, obj: Obj, key: Any, value: Any) -> bool:
        self.charge(len(obj.items or ()) // SIZE_OF_STEP)
        items = list(obj.items or ())
        if not isinstance(key, int) or not -len(items) <= key < len(items):
            return False
        items[key] = value
        self.heap.put(obj, obj.fields, "items", tuple(items))
        return True
