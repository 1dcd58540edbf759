"""Statements and functions of a Python config script, followed as far as control flow can be told."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any, Final

from skill_run.config.model import Unknown
from skill_run.config.python_calls import Arguments, Caller
from skill_run.config.python_heap import MISSING, Cell, Changes, Func, LocalClass, Obj, Scope, reachable
from skill_run.config.python_objects import EndedError, LostError
from skill_run.config.python_values import Dotted, binary, is_plain

MAX_CALLS: Final = 12
MAX_ROUNDS: Final = 256

# How a block ends: None when it runs to its end, else ("return", value), ("raise" | "break" | "continue", None).
Flow = tuple[str, Any] | None

_METHODS: Final[dict[type[ast.stmt], str]] = {
    ast.Expr: "_expression",
    ast.Assign: "_assign",
    ast.AnnAssign: "_annotated",
    ast.AugAssign: "_augmented",
    ast.Delete: "_delete",
    ast.Import: "_import",
    ast.ImportFrom: "_import_from",
    ast.FunctionDef: "_function",
    ast.AsyncFunctionDef: "_function",
    ast.ClassDef: "_class",
    ast.Return: "_return",
    ast.Raise: "_raise",
    ast.Break: "_break",
    ast.Continue: "_continue",
    ast.For: "_for",
    ast.AsyncFor: "_for",
    ast.While: "_while",
    ast.Global: "_global",
}


class Interpreter(Caller):
    """Follows a whole module."""

    def __init__(self, name: str, known_recipes: Callable[[str], bool]) -> None:
        super().__init__(name, known_recipes)
        self.depth = 0
        self.rounds = 16 * MAX_ROUNDS
        self.called: set[ast.AST] = set()
        self.module.variables["__name__"] = "__main__"

    def run_module(self, tree: ast.Module) -> None:
        """Follow the statements of the module as a program."""
        try:
            self.block(tree.body, self.module, "")
        except LostError:
            self.poison("may be changed by code that cannot be followed")

    def poison(self, reason: str) -> None:
        """Make every config unknown."""
        self.tick(len(self.heap.roots))
        for root in list(self.heap.roots.values()):
            self.heap.taint(root, reason)

    # Blocks

    def block(self, statements: Sequence[ast.stmt], scope: Scope, top: str) -> Flow:
        """Follow statements; top says what the end of the block is the end of ("function", "loop" or neither)."""
        rest = list(statements)
        at = 0
        while at < len(rest):
            statement = rest[at]
            at += 1
            self.tick()
            self.heap.here = self.location(statement)
            try:
                inlined = self._inlined(statement, scope)
                if inlined is not None:
                    rest, at = [*inlined, *rest[at:]], 0
                    continue
                bodies = self._alternatives(statement, scope)
                if bodies is not None:
                    flow, consumed = self._fork(bodies, rest[at:], scope, top, statement.lineno)
                    if flow is not None or consumed:
                        return flow
                    continue
                method = _METHODS.get(type(statement))
                flow = getattr(self, method)(statement, scope) if method is not None else None
            except EndedError:
                return ("raise", None)
            if flow is not None:
                return flow  # type: ignore[no-any-return]
        return None

    def _inlined(self, statement: ast.stmt, scope: Scope) -> list[ast.stmt] | None:
        """Return the statements that run in the place of a compound statement, None when that is not one list."""
        if isinstance(statement, ast.If):
            truth = self.truth(self.eval(statement.test, scope))
            return None if truth is None else statement.body if truth else statement.orelse
        if isinstance(statement, ast.With | ast.AsyncWith):
            for item in statement.items:
                value = self.eval(item.context_expr, scope)
                if item.optional_vars is not None:
                    self.bind(item.optional_vars, self.opaque(self.describe(value)), scope)
            return statement.body
        if isinstance(statement, ast.Try) and not statement.handlers:
            return [*statement.body, *statement.orelse, *statement.finalbody]
        return None

    def _alternatives(self, statement: ast.stmt, scope: Scope) -> list[list[ast.stmt]] | None:
        """Return the blocks that may run instead of each other, None for a statement that is no such choice."""
        if isinstance(statement, ast.If):
            return [statement.body, statement.orelse]
        if isinstance(statement, ast.Try):
            end = statement.finalbody
            for handler in statement.handlers:
                if handler.name is not None:
                    self.heap.put(scope, scope.variables, handler.name, self.opaque("is an exception"))
            handled = [[*handler.body, *end] for handler in statement.handlers]
            return [[*statement.body, *statement.orelse, *end], *handled]
        if isinstance(statement, ast.Match):
            subject = self.describe(self.eval(statement.subject, scope))
            for case in statement.cases:
                for part in ast.walk(case.pattern):
                    name = getattr(part, "name", None) or getattr(part, "rest", None)
                    if isinstance(name, str):
                        self.heap.put(scope, scope.variables, name, self.opaque(subject))
            bodies = [case.body for case in statement.cases]
            last = statement.cases[-1]
            catches_all = isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None and last.guard is None
            return bodies if catches_all else [*bodies, []]
        return None

    def _fork(
        self, bodies: list[list[ast.stmt]], rest: Sequence[ast.stmt], scope: Scope, top: str, line: int
    ) -> tuple[Flow, bool]:
        """Try blocks apart and join what they do; True when `rest` was followed with them.

        Blocks that end in different ways (one returns, one goes on) are tried again together with what comes after.
        """
        outcomes = self._outcomes(bodies, [], scope, "" if rest else top)
        consumed = not rest
        kinds = {_kind(flow) for flow, _ in outcomes} - {"raise"}
        if rest and (len(kinds) > 1 or "lost" in kinds):
            outcomes = self._outcomes(bodies, rest, scope, top)
            consumed = True
        return self._joined(outcomes, top, f"depends on a condition in line {line}"), consumed

    def _outcomes(
        self, bodies: list[list[ast.stmt]], rest: Sequence[ast.stmt], scope: Scope, top: str
    ) -> list[tuple[Flow, Changes]]:
        found: list[tuple[Flow, Changes]] = []
        for body in bodies:
            try:
                found.append(self.heap.trial(lambda body=body: self.block([*body, *rest], scope, top)))
            except LostError:
                found.append((("lost", None), Changes(self.heap.world)))
        return found

    def _joined(self, outcomes: list[tuple[Flow, Changes]], top: str, reason: str) -> Flow:
        alive = [outcome for outcome in outcomes if _kind(outcome[0]) != "raise"]
        if not alive:
            self.heap.commit(outcomes[0][1])
            return ("raise", None)
        kinds = {_kind(flow) for flow, _ in alive}
        if len(kinds) > 1 or "lost" in kinds:
            ends = {"function": {"", "return"}, "loop": {"", "continue"}}.get(top, set())
            if not kinds <= ends:
                raise LostError
            kinds -= {""}
        self.heap.join([changes for _, changes in alive], reason)
        kind = kinds.pop()
        if kind != "return":
            return (kind, None) if kind else None
        values = [flow[1] if flow is not None else None for flow, _ in alive]
        return ("return", self.heap.merge(values, reason, [changes.world for _, changes in alive]))

    # Simple statements

    def _expression(self, node: ast.Expr, scope: Scope) -> Flow:
        self.eval(node.value, scope)
        return None

    def _assign(self, node: ast.Assign, scope: Scope) -> Flow:
        value = self.eval(node.value, scope)
        for target in node.targets:
            self.bind(target, value, scope)
        return None

    def _annotated(self, node: ast.AnnAssign, scope: Scope) -> Flow:
        if node.value is not None:
            self.bind(node.target, self.eval(node.value, scope), scope)
        return None

    def _augmented(self, node: ast.AugAssign, scope: Scope) -> Flow:
        left, right = self.eval(node.target, scope), self.eval(node.value, scope)
        if isinstance(left, Obj) and left.kind == "list" and isinstance(node.op, ast.Add):
            more = self.iterate(right)
            items = Unknown(self.describe(right)) if more is None or left.items is None else (*left.items, *more)
            self.heap.put(left, left.fields, "items", items)
            return None
        plain = is_plain(left) and is_plain(right)
        self.bind(
            node.target, binary(type(node.op), left, right) if plain else self.combined(node.op, left, right), scope
        )
        return None

    def _delete(self, node: ast.Delete, scope: Scope) -> Flow:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.heap.put(scope, scope.variables, target.id, MISSING)
                continue
            if isinstance(target, ast.Subscript):
                base = self.eval(target.value, scope)
                key = self.plain(self.eval(target.slice, scope)) if not isinstance(target.slice, ast.Slice) else None
                if isinstance(base, Obj) and base.kind == "dict" and is_plain(key) and not base.meta.get("reason"):
                    self.heap.put(base, base.fields, key, MISSING)
                    continue
            self.bind(target, Unknown(f"is deleted in line {node.lineno}"), scope)
        return None

    def _import(self, node: ast.Import, scope: Scope) -> Flow:
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            self.heap.put(scope, scope.variables, name, Dotted(alias.name if alias.asname else name))
        return None

    def _import_from(self, node: ast.ImportFrom, scope: Scope) -> Flow:
        for alias in node.names:
            full = f"{node.module}.{alias.name}" if node.module else alias.name
            self.heap.put(scope, scope.variables, alias.asname or alias.name, Dotted(full, symbol=True))
        return None

    def _function(self, node: ast.FunctionDef, scope: Scope) -> Flow:
        self.heap.put(scope, scope.variables, node.name, Func(node.name, node, scope))
        return None

    def _class(self, node: ast.ClassDef, scope: Scope) -> Flow:
        inner = self.heap.scope(scope)
        made = LocalClass(node.name, {}, {})
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                made.methods[statement.name] = Func(statement.name, statement, scope)  # type: ignore[arg-type]
            elif isinstance(statement, ast.Assign | ast.AnnAssign):
                method = _METHODS[type(statement)]
                getattr(self, method)(statement, inner)
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    inner.variables.setdefault(statement.target.id, Unknown("is given when the object is made"))
        where = self.location(node)
        made.fields.update({name: Cell(value, where) for name, value in inner.variables.items()})
        self.heap.put(scope, scope.variables, node.name, made)
        return None

    def _return(self, node: ast.Return, scope: Scope) -> Flow:
        return ("return", self.eval(node.value, scope) if node.value is not None else None)

    def _raise(self, node: ast.Raise, scope: Scope) -> Flow:
        return ("raise", None)

    def _break(self, node: ast.Break, scope: Scope) -> Flow:
        return ("break", None)

    def _continue(self, node: ast.Continue, scope: Scope) -> Flow:
        return ("continue", None)

    def _global(self, node: ast.Global, scope: Scope) -> Flow:
        scope.globals.update(node.names)
        return None

    # Loops

    def _for(self, node: ast.For, scope: Scope) -> Flow:
        over = self.eval(node.iter, scope)
        items = self.iterate(over)
        if items is not None and len(items) <= MAX_ROUNDS and self.rounds >= len(items):
            self.rounds -= len(items)
            try:
                flow, changes = self.heap.trial(lambda: self._unrolled(node, items, scope), alternative=False)
                self.heap.commit(changes)
                return flow  # type: ignore[no-any-return]
            except LostError:
                pass
        return self._any_number_of_times(
            node, lambda: self.bind(node.target, self.opaque(self.describe(over)), scope), scope
        )

    def _unrolled(self, node: ast.For, items: Sequence[Any], scope: Scope) -> Flow:
        for item in items:
            self.bind(node.target, item, scope)
            flow = self.block(node.body, scope, "loop")
            if _kind(flow) == "break":
                return None
            if _kind(flow) in ("return", "raise"):
                return flow
        return self.block(node.orelse, scope, "")

    def _while(self, node: ast.While, scope: Scope) -> Flow:
        if self.truth(self.eval(node.test, scope)) is False:
            return self.block(node.orelse, scope, "")
        return self._any_number_of_times(node, lambda: None, scope)

    def _any_number_of_times(self, node: ast.For | ast.While, start: Callable[[], None], scope: Scope) -> Flow:
        """Follow a loop whose rounds are not known: what a round changes becomes unknown, until nothing new changes."""
        reason = f"is set in the loop in line {node.lineno}, which cannot be followed"

        def once() -> Flow:
            start()
            return self.block(node.body, scope, "loop")

        for _ in range(3):
            flow, changes = self.heap.trial(once)
            if _kind(flow) == "return":
                raise LostError
            if not self.heap.blur(changes, reason):
                break
        return self.block(node.orelse, scope, "")

    # Functions

    def call_function(self, function: Func, arguments: Arguments, node: ast.AST, own: Obj | None = None) -> Any:
        """Follow a call of a function of the file; one that cannot be followed may change what it is given."""
        self.called.add(function.node)
        body = function.node.body
        if self.depth >= MAX_CALLS or (isinstance(body, list) and _is_generator(function)):
            return self._not_followed(function, arguments)
        scope = self.heap.scope(function.scope)
        self._bind_parameters(function, arguments, scope, own)
        self.depth += 1
        try:
            if not isinstance(body, list):
                return self.eval(body, scope)
            flow, changes = self.heap.trial(lambda: self.block(body, scope, "function"), alternative=False)
        except LostError:
            return self._not_followed(function, arguments)
        finally:
            self.depth -= 1
        if _kind(flow) == "raise":
            raise EndedError
        self.heap.commit(changes)
        return flow[1] if flow is not None else None

    def _not_followed(self, function: Func, arguments: Arguments) -> Obj:
        reason = f"may be changed by {function.name}(), which cannot be followed"
        for value in arguments.values():
            for obj in reachable(value):
                self.heap.taint(obj, reason)
        if _writes(function):
            self.poison(reason)
        return self.heap.root("opaque", reason=f"comes from {function.name}(), which cannot be followed")

    def _bind_parameters(self, function: Func, arguments: Arguments, scope: Scope, own: Obj | None) -> None:
        spec = function.node.args
        decorators = getattr(function.node, "decorator_list", [])
        static = any(isinstance(item, ast.Name) and item.id == "staticmethod" for item in decorators)
        given = [own, *arguments.positional] if own is not None and not static else list(arguments.positional)
        names = [parameter.arg for parameter in (*spec.posonlyargs, *spec.args)]
        defaults = dict(zip(reversed(names), reversed(spec.defaults), strict=False))
        defaults |= {p.arg: d for p, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None}
        keywords = dict(arguments.keywords)
        for index, name in enumerate([*names, *(parameter.arg for parameter in spec.kwonlyargs)]):
            if index < len(given) and index < len(names):
                value = given[index]
            elif name in keywords:
                value = keywords.pop(name).value
            elif name in defaults and not arguments.vague:
                value = self.eval(defaults[name], function.scope)
            else:
                value = self.heap.root("opaque", reason=f"is the parameter {name} of {function.name}()")
            scope.variables[name] = value
        if spec.vararg is not None:
            scope.variables[spec.vararg.arg] = self.heap.sequence("tuple", given[len(names) :])
        if spec.kwarg is not None:
            rest = self.heap.new("dict", reason="are arguments that cannot be told" if arguments.vague else None)
            rest.fields.update(keywords)
            scope.variables[spec.kwarg.arg] = rest


def _kind(flow: Flow) -> str:
    return "" if flow is None else flow[0]


def _is_generator(function: Func) -> bool:
    return any(isinstance(part, ast.Yield | ast.YieldFrom) for part in _own_nodes(function.node))


def _own_nodes(node: ast.AST) -> list[ast.AST]:
    """Return the nodes of a function without those of functions inside it."""
    found: list[ast.AST] = []
    stack = list(ast.iter_child_nodes(node))
    while stack:
        part = stack.pop()
        found.append(part)
        if not isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            stack += ast.iter_child_nodes(part)
    return found


def _writes(function: Func) -> bool:
    """Tell whether a function's text changes any object."""
    if function.writes is None:
        function.writes = any(
            (isinstance(part, ast.Attribute | ast.Subscript) and isinstance(part.ctx, ast.Store | ast.Del))
            or (
                isinstance(part, ast.Call)
                and isinstance(part.func, ast.Name)
                and part.func.id in ("setattr", "delattr")
            )
            for part in ast.walk(function.node)
        )
    return function.writes
