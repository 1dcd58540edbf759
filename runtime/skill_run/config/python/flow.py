"""Statements and functions of a Python config script, followed as far as control flow can be told."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from skill_run.config.model import CONDITION, Unknown
from skill_run.config.python.builtins import SPECIAL
from skill_run.config.python.calls import Arguments, Caller, is_harmless
from skill_run.config.python.heap import MISSING, Cell, Changes, Func, LocalClass, Obj, Scope
from skill_run.config.python.objects import EndedError, LostError
from skill_run.config.python.values import Dotted, is_plain

MAX_CALLS: Final = 12
MAX_ROUNDS: Final = 256

# How a block ends: None when it runs to its end, else ("return", value), ("raise" | "break" | "continue", None).
Flow = tuple[str, Any] | None


class _Partly(ast.Pass):
    """Stands where an exception is handled: some of the body before it ran."""

    def __init__(self, node: ast.Try | ast.TryStar | ast.With | ast.AsyncWith) -> None:
        super().__init__(lineno=node.lineno, col_offset=node.col_offset)
        self.tried = node


class _Pending:
    """The statements that are still to follow. Putting others before them copies none of them."""

    def __init__(self, statements: Sequence[ast.stmt]) -> None:
        self.blocks: list[tuple[Sequence[ast.stmt], int]] = [(statements, 0)]

    def take(self) -> ast.stmt | None:
        """Return the next statement, None at the end."""
        while self.blocks:
            statements, at = self.blocks.pop()
            if at < len(statements):
                self.blocks.append((statements, at + 1))
                return statements[at]
        return None

    def put_first(self, statements: Sequence[ast.stmt]) -> None:
        self.blocks.append((statements, 0))

    def has_more(self) -> bool:
        return any(at < len(statements) for statements, at in self.blocks)

    def rest(self) -> list[ast.stmt]:
        return [statement for statements, at in reversed(self.blocks) for statement in statements[at:]]


_METHODS: Final[dict[type[ast.stmt], str]] = {
    _Partly: "_partly",
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
    ast.Nonlocal: "_nonlocal",
    ast.Pass: "_nothing",
    ast.Assert: "_nothing",
}


class Interpreter(Caller):
    """Follows a whole module."""

    def __init__(self, name: str, known_recipes: Callable[[str], bool]) -> None:
        super().__init__(name, known_recipes, SPECIAL)
        self.depth = 0
        self.rounds = 16 * MAX_ROUNDS
        self.called: set[ast.AST] = set()
        self.definitions: dict[str, list[ast.AST]] = {}
        self.declared: set[str] = set()
        self._writes: dict[ast.AST, bool] = {}
        self._generators: dict[ast.AST, bool] = {}
        self._bound: dict[ast.AST | None, frozenset[str]] = {}
        self.module.variables["__name__"] = "__main__"

    def run_module(self, tree: ast.Module) -> None:
        """Follow the statements of the module as a program."""
        for part in ast.walk(tree):
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self.definitions.setdefault(part.name, []).append(part)
            elif isinstance(part, ast.Global | ast.Nonlocal):
                self.declared.update(part.names)
        self.block(tree.body, self.module, "module")

    def _lose(self, statement: ast.stmt, scope: Scope) -> None:
        """Give up on one statement of the module: what it may change is unknown."""
        reason = f"may be changed in line {statement.lineno}, which cannot be followed"
        self.poison(reason)
        parts = list(ast.walk(statement))
        self.charge(len(parts))
        for part in parts:
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                self.heap.bind(scope, part.id, self.opaque(reason))

    # Blocks

    def block(self, statements: Sequence[ast.stmt], scope: Scope, top: str) -> Flow:
        """Follow statements; top says what the block is the whole of: module, function, loop, round or nothing.

        A round is one of an unknown number of rounds of a loop, which a break ends like any other end.
        """
        pending = _Pending(statements)
        while (statement := pending.take()) is not None:
            self.tick()
            self.heap.here = self.location(statement)
            try:
                inlined = self._inlined(statement, scope)
                if inlined is not None:
                    pending.put_first(inlined)
                    continue
                bodies = self._alternatives(statement, scope)
                if bodies is not None:
                    flow, consumed = self._fork(bodies, pending, scope, top, statement.lineno)
                    if flow is not None or consumed:
                        return flow
                    continue
                method = _METHODS.get(type(statement))
                if method is None:
                    raise LostError
                flow = getattr(self, method)(statement, scope)
            except EndedError:
                return ("raise", None)
            except LostError:
                if top != "module":
                    raise
                self._lose(statement, scope)
                continue
            if flow is not None:
                return flow  # type: ignore[no-any-return]
        return None

    def _inlined(self, statement: ast.stmt, scope: Scope) -> list[ast.stmt] | None:
        """Return the statements that run in the place of a compound statement, None when that is not one list."""
        if isinstance(statement, ast.If):
            truth = self.truth(self.eval(statement.test, scope))
            return None if truth is None else statement.body if truth else statement.orelse
        if isinstance(statement, ast.With | ast.AsyncWith) and not _suppresses(statement):
            for item in statement.items:
                value = self.eval(item.context_expr, scope)
                if item.optional_vars is not None:
                    self.bind(item.optional_vars, self.opaque(self.describe(value)), scope)
            return statement.body
        if isinstance(statement, ast.Try | ast.TryStar) and not statement.handlers:
            return [*statement.body, *statement.orelse, *statement.finalbody]
        return None

    def _alternatives(self, statement: ast.stmt, scope: Scope) -> list[list[ast.stmt]] | None:
        """Return the blocks that may run instead of each other, None for a statement that is no such choice."""
        if isinstance(statement, ast.If):
            return [statement.body, statement.orelse]
        if isinstance(statement, ast.With | ast.AsyncWith):
            return [statement.body, [_Partly(statement)]]
        if isinstance(statement, ast.Try | ast.TryStar):
            end = statement.finalbody
            for handler in statement.handlers:
                if handler.name is not None:
                    self.heap.bind(scope, handler.name, self.opaque("is an exception"))
            handled = [[_Partly(statement), *handler.body, *end] for handler in statement.handlers]
            return [[*statement.body, *statement.orelse, *end], *handled]
        if isinstance(statement, ast.Match):
            subject = self.describe(self.eval(statement.subject, scope))
            for case in statement.cases:
                for part in ast.walk(case.pattern):
                    name = getattr(part, "name", None) or getattr(part, "rest", None)
                    if isinstance(name, str):
                        self.heap.bind(scope, name, self.opaque(subject))
            bodies = [case.body for case in statement.cases]
            last = statement.cases[-1]
            catches_all = isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None and last.guard is None
            return bodies if catches_all else [*bodies, []]
        return None

    def _fork(
        self, bodies: list[list[ast.stmt]], pending: _Pending, scope: Scope, top: str, line: int
    ) -> tuple[Flow, bool]:
        """Try blocks apart and join what they do; True when what is pending was followed with them.

        Blocks that end in different ways (one returns, one goes on) are tried again together with what comes after.
        """
        more = pending.has_more()
        outcomes = self._outcomes(bodies, [], scope, "" if more else top)
        consumed = not more
        kinds = {_kind(flow) for flow, _ in outcomes} - {"raise"}
        if more and (len(kinds) > 1 or "lost" in kinds):
            outcomes = self._outcomes(bodies, pending.rest(), scope, top)
            consumed = True
        return self._joined(outcomes, top, f"{CONDITION} in line {line}"), consumed

    def _outcomes(
        self, bodies: list[list[ast.stmt]], rest: Sequence[ast.stmt], scope: Scope, top: str
    ) -> list[tuple[Flow, Changes]]:
        found: list[tuple[Flow, Changes]] = []
        for body in bodies:
            try:
                found.append(self.heap.trial(partial(self.block, [*body, *rest], scope, top)))
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
            ends = {"function": {"", "return"}, "loop": {"", "continue"}, "round": {"", "continue", "break"}}
            if not kinds <= ends.get(top, set()):
                raise LostError
            kinds = {"return"} if top == "function" else {"continue"}
        self.heap.join([changes for _, changes in alive], reason)
        kind = kinds.pop()
        if kind != "return":
            return (kind, None) if kind else None
        values = [flow[1] if flow is not None else None for flow, _ in alive]
        return ("return", self.heap.merge(values, reason, [changes.world for _, changes in alive]))

    def _partly(self, node: _Partly, scope: Scope) -> Flow:
        """Follow a try body and make what it changes unknown, since nobody can tell how far it came."""
        with contextlib.suppress(LostError):
            _, changes = self.heap.trial(lambda: self.block(node.tried.body, scope, ""))
            self.heap.blur(changes, f"{CONDITION} (an exception) in line {node.lineno}", everything=True)
            return None
        self._lose(node.tried, scope)
        return None

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
            self.charge(len(left.items or ()))
            items = Unknown(self.describe(right)) if more is None or left.items is None else (*left.items, *more)
            self.heap.put(left, left.fields, "items", items)
            return None
        plain = is_plain(left) and is_plain(right)
        self.bind(node.target, (self.computed if plain else self.combined)(node.op, left, right), scope)
        return None

    def _delete(self, node: ast.Delete, scope: Scope) -> Flow:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.heap.bind(scope, target.id, MISSING)
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
            self.heap.bind(scope, name, Dotted(alias.name if alias.asname else name))
        return None

    def _import_from(self, node: ast.ImportFrom, scope: Scope) -> Flow:
        for alias in node.names:
            full = f"{node.module}.{alias.name}" if node.module else alias.name
            self.heap.bind(scope, alias.asname or alias.name, Dotted(full, symbol=True))
        return None

    def _function(self, node: ast.FunctionDef, scope: Scope) -> Flow:
        self.heap.bind(scope, node.name, self.function(node.name, node, scope))
        return None

    def _class(self, node: ast.ClassDef, scope: Scope) -> Flow:
        made = LocalClass(node.name, self.heap.new("object", cls=node.name), {})
        for base_node in node.bases:
            base = self.eval(base_node, scope)
            if isinstance(base, LocalClass):
                self.tick(len(base.body.fields) + len(base.methods))
                made.body.fields.update(base.body.fields)
                made.methods.update(base.methods)
        inner = self.heap.scope(scope)
        self.block(node.body, inner, "")
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                inner.variables.setdefault(statement.target.id, Unknown("is given when the object is made"))
        where = self.location(node)
        for name, value in inner.variables.items():
            if isinstance(value, Func) and value.scope is inner:
                # A method sees the scope around its class, not the class body.
                made.methods[name] = Func(name, value.node, scope, value.defaults)
            else:
                made.body.fields[name] = Cell(value, where)
        self.heap.bind(scope, node.name, made)
        return None

    def _return(self, node: ast.Return, scope: Scope) -> Flow:
        return ("return", self.eval(node.value, scope) if node.value is not None else None)

    def _raise(self, node: ast.Raise, scope: Scope) -> Flow:
        return ("raise", None)

    def _nothing(self, node: ast.stmt, scope: Scope) -> Flow:
        return None

    def _break(self, node: ast.Break, scope: Scope) -> Flow:
        return ("break", None)

    def _continue(self, node: ast.Continue, scope: Scope) -> Flow:
        return ("continue", None)

    def _global(self, node: ast.Global, scope: Scope) -> Flow:
        scope.elsewhere.update(dict.fromkeys(node.names, self.module))
        return None

    def _nonlocal(self, node: ast.Nonlocal, scope: Scope) -> Flow:
        for name in node.names:
            owner = scope.parent
            while owner is not None and name not in owner.variables and name not in self._names_bound(owner.function):
                owner = owner.parent
            scope.elsewhere[name] = owner or self.module
        return None

    def _names_bound(self, node: ast.AST | None) -> frozenset[str]:
        """Return the names that a function's own statements bind, whether or not they have run."""
        if node not in self._bound:
            parts = _own_nodes(node) if node is not None else []
            names = {part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
            self._bound[node] = frozenset(names)
        return self._bound[node]

    # Loops

    def _for(self, node: ast.For, scope: Scope) -> Flow:
        over = self.eval(node.iter, scope)
        items = self.iterate(over)
        if items is not None and len(items) <= MAX_ROUNDS and self.rounds >= len(items):
            self.rounds -= len(items)
            try:
                flow, changes = self.heap.trial(lambda: self._unrolled(node, over, items, scope), alternative=False)
                self.heap.commit(changes)
                return flow  # type: ignore[no-any-return]
            except LostError:
                pass
        return self._any_number_of_times(
            node, lambda: self.bind(node.target, Unknown(self.describe(over)), scope), scope
        )

    def _unrolled(self, node: ast.For, over: Any, items: Sequence[Any], scope: Scope) -> Flow:
        for item in items:
            self.bind(node.target, item, scope)
            flow = self.block(node.body, scope, "loop")
            if isinstance(over, Obj) and over.kind == "list" and over.items != tuple(items):
                raise LostError
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
            return self.block(node.body, scope, "round")

        for _ in range(3):
            flow, changes = self.heap.trial(once)
            if _kind(flow) == "return":
                raise LostError
            if not self.heap.blur(changes, reason):
                break
        return self._fork([node.orelse, []], _Pending(()), scope, "", node.lineno)[0] if node.orelse else None

    # Functions

    def call_function(self, function: Func, arguments: Arguments, node: ast.AST, own: Obj | None = None) -> Any:
        """Follow a call of a function of the file; one that cannot be followed may change what it is given."""
        self.called.add(function.node)
        body = function.node.body
        if self.depth >= MAX_CALLS or (isinstance(body, list) and self._is_generator(function)):
            return self._not_followed(function, arguments)
        scope = self.heap.scope(function.scope)
        scope.function = function.node
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

    def _is_generator(self, function: Func) -> bool:
        if function.node not in self._generators:
            parts = _own_nodes(function.node)
            self._generators[function.node] = any(isinstance(part, ast.Yield | ast.YieldFrom) for part in parts)
        return self._generators[function.node]

    def _not_followed(self, function: Func, arguments: Arguments) -> Obj:
        reason = f"may be changed by {function.name}(), which cannot be followed"
        for value in arguments.values():
            self.heap.taint(value, reason)
            for obj in self.reached(value):
                self.heap.taint(obj, reason)
        if self.writes(function.node):
            self.poison(reason)
            scope: Scope | None = function.scope
            while scope is not None:
                self.charge(len(self.declared) + len(scope.variables))
                for name in self.declared & scope.variables.keys():
                    self.heap.put(scope, scope.variables, name, Unknown(reason))
                scope = scope.parent
        return self.heap.root("opaque", reason=f"comes from {function.name}(), which cannot be followed")

    def writes(self, node: ast.AST) -> bool:
        """Tell whether following a function could change anything but its own variables."""
        if node not in self._writes:
            self._writes[node] = False
            self._writes[node] = any(map(self._part_writes, ast.walk(node)))
        return self._writes[node]

    def _part_writes(self, part: ast.AST) -> bool:
        if isinstance(part, ast.Attribute | ast.Subscript):
            return isinstance(part.ctx, ast.Store | ast.Del)
        if isinstance(part, ast.Global | ast.Nonlocal):
            return True
        if not isinstance(part, ast.Call):
            return False
        name = getattr(part.func, "attr", None) or getattr(part.func, "id", "")
        if name in self.definitions:
            return any(self.writes(node) for node in self.definitions[name])
        return name is None or not is_harmless(name)

    def _bind_parameters(self, function: Func, arguments: Arguments, scope: Scope, own: Obj | None) -> None:
        spec = function.node.args
        decorators = getattr(function.node, "decorator_list", [])
        static = any(isinstance(item, ast.Name) and item.id == "staticmethod" for item in decorators)
        given = [own, *arguments.positional] if own is not None and not static else list(arguments.positional)
        names = [parameter.arg for parameter in (*spec.posonlyargs, *spec.args)]
        keywords = dict(arguments.keywords)
        self.charge(len(names) + len(given) + len(keywords))
        for index, name in enumerate([*names, *(parameter.arg for parameter in spec.kwonlyargs)]):
            if index < len(given) and index < len(names):
                value = given[index]
            elif name in keywords:
                value = keywords.pop(name).value
            elif name in function.defaults and not arguments.vague:
                value = function.defaults[name]
            else:
                value = self.heap.root("opaque", reason=f"is the parameter {name} of {function.name}()", named=True)
            scope.variables[name] = value
        if spec.vararg is not None:
            scope.variables[spec.vararg.arg] = self.heap.sequence("tuple", given[len(names) :])
        if spec.kwarg is not None:
            rest = self.heap.new("dict", reason="are arguments that cannot be told" if arguments.vague else None)
            rest.fields.update(keywords)
            scope.variables[spec.kwarg.arg] = rest


def _kind(flow: Flow) -> str:
    return "" if flow is None else flow[0]


def _suppresses(node: ast.With | ast.AsyncWith) -> bool:
    """Tell whether a with statement is contextlib.suppress(...)."""
    for item in node.items:
        function = item.context_expr.func if isinstance(item.context_expr, ast.Call) else None
        name = getattr(function, "attr", None) or getattr(function, "id", None)
        if name == "suppress":
            return True
    return False


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
