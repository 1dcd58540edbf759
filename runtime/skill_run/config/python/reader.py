"""A Python config script to a Source. The text is parsed, never imported or executed.

The script is followed as far as its values can be told: recipes, config classes, assignments, helper functions,
branches and loops. What depends on anything else (arguments, environment, code of other files) is unknown, never passed
over in silence.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable
from typing import Final

from skill_run.config.model import Import, Location, Source
from skill_run.config.python.calls import Arguments
from skill_run.config.python.flow import Interpreter
from skill_run.config.python.heap import Func, LocalClass, Obj, OneOf, TooMuchWorkError
from skill_run.config.python.objects import EndedError, LostError
from skill_run.config.python.snapshot import Snapshot, combine, looks_like_config, take_snapshot
from skill_run.config.python.values import MAX_NAME
from skill_run.errors import InputError

# Python's own parser takes about 1 KiB of memory for a byte of dense text.
MAX_BYTES: Final = 256 * 1024
MAX_BRACKETS: Final = 100
MAX_DEPTH: Final = 150

# Strings and comments whole, so that brackets inside them do not count; an unclosed string runs to the end. Every
# string that opens matches, so that no part of the text is looked at twice.
_TOKEN = re.compile(
    r'"""(?:[^"\\]|\\(?:.|\Z)|"(?!""))*+(?:"""|\Z)'
    r"|'''(?:[^'\\]|\\(?:.|\Z)|'(?!''))*+(?:'''|\Z)"
    r'|"(?:[^"\\\n]|\\(?:.|\Z))*+(?:"|$)'
    r"|'(?:[^'\\\n]|\\(?:.|\Z))*+(?:'|$)"
    r"|\#[^\n]*|[\[({]|[\])}]",
    re.DOTALL | re.MULTILINE,
)


def read_python(text: str, *, name: str, known_recipes: Callable[[str], bool], function: str | None = None) -> Source:
    """Read a Python config script.

    known_recipes: tells whether a function name is a recipe of some release. function: which function of the file
    builds the config, needed only when the file starts no training and several functions build one.

    Raises InputError for text that is not Python (`file:line: ...`), is beyond the limits, or holds no config.
    """
    tree = _parse(text, name)
    imports = _checked(tree, name)
    interpreter = Interpreter(name, known_recipes)
    try:
        interpreter.run_module(tree)
        snapshot = _choose(interpreter, name, function)
    except TooMuchWorkError:
        raise InputError(f"{name}: its loops and calls take too many steps to follow; simplify the script") from None
    except RecursionError:
        raise InputError(f"{name}: its statements are nested too deep to follow") from None
    return Source(
        form="python",
        name=name,
        text=text,
        assignments=snapshot.assignments,
        recipe=snapshot.recipe,
        recipe_location=snapshot.recipe_location,
        base_unknown=snapshot.base_unknown,
        env=snapshot.environment or None,
        imports=imports,
    )


def imports_of(text: str, name: str) -> list[Import]:
    """Return the imports of a Python file in order, whether or not it builds a config; raises as read_python does."""
    return _checked(_parse(text, name), name)


def _parse(text: str, name: str) -> ast.Module:
    if len(text) > MAX_BYTES:
        raise InputError(f"{name} is larger than {MAX_BYTES // 1024} KiB, which no config script is")
    if "\0" in text:
        raise InputError(f"{name} holds a NUL character, so it is not Python text")
    _check_brackets(text, name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except SyntaxError as error:
        raise InputError(f"{name}:{error.lineno or 1}: not valid Python: {error.msg}") from None
    except (MemoryError, RecursionError):
        raise InputError(f"{name}: its expressions are nested too deep to read") from None
    except ValueError as error:
        raise InputError(f"{name}: not valid Python: {str(error)[:120]}") from None


def _check_brackets(text: str, name: str) -> None:
    """Refuse brackets nested so deep that Python's own parser would run out of stack."""
    if text.count("(") + text.count("[") + text.count("{") <= MAX_BRACKETS:
        return
    depth = 0
    for match in _TOKEN.finditer(text):
        char = match.group()
        if char in ("(", "[", "{"):
            depth += 1
            if depth > MAX_BRACKETS:
                line = text.count("\n", 0, match.start()) + 1
                raise InputError(f"{name}:{line}: brackets are nested deeper than {MAX_BRACKETS} levels")
        elif char in (")", "]", "}"):
            depth = max(depth - 1, 0)


def _checked(tree: ast.Module, name: str) -> list[Import]:
    """Check how deep the syntax tree is, and return the imports of the file in order."""
    found: list[Import] = []
    level: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        for node in level:
            if any(len(getattr(node, part, None) or "") > MAX_NAME for part in ("id", "attr", "name", "arg", "module")):
                line = getattr(node, "lineno", 1)
                raise InputError(f"{name}:{line}: holds a name of more than {MAX_NAME} characters")
            if isinstance(node, ast.Import | ast.ImportFrom):
                where = Location(name, node.lineno, node.col_offset + 1)
                if isinstance(node, ast.Import):
                    found += [Import(alias.name, None, where) for alias in node.names]
                else:
                    module = "." * node.level + (node.module or "")
                    found += [Import(module, alias.name, where) for alias in node.names]
        if not level:
            return sorted(found, key=lambda item: (item.location.line or 0, item.location.column or 0))
    raise InputError(f"{name}: its statements or expressions are nested deeper than {MAX_DEPTH} levels")


def _choose(interpreter: Interpreter, name: str, function: str | None) -> Snapshot:
    """Return the config that the file starts a training with, or else the one it builds."""
    if function is not None:
        return _of_function(interpreter, name, function)
    at_top = {key: value for key, value in interpreter.module.variables.items() if _is_config(value, interpreter)}
    distinct = list({id(value): value for value in at_top.values()}.values())
    built = [take_snapshot(value, interpreter) for value in distinct]
    names = list(at_top)
    if not interpreter.started:
        uncalled = _run_uncalled(interpreter)
        if not built:
            built, names = list(uncalled.values()), list(uncalled)
    if interpreter.started:
        best = max(started.rank for started in interpreter.started)
        counted = [started.snapshot for started in interpreter.started if started.rank == best]
        return combine(counted, "differs between the trainings that the file starts")
    if not built:
        raise InputError(f"{name}: no training config was found; expected a recipe call or ConfigContainer(...)")
    if len(built) > 1:
        raise InputError(
            f"{name}: builds several configs ({', '.join(names[:6])}) and starts no training; keep one, or name the "
            "function that builds it"
        )
    return built[0]


def _is_config(value: object, interpreter: Interpreter) -> bool:
    if isinstance(value, OneOf):
        return any(_is_config(obj, interpreter) for obj in value.objects())
    if not isinstance(value, Obj) or not value.has_attributes:
        return False
    if value.meta.get("recipe") or value.meta.get("cls") == "ConfigContainer":
        return True
    call = str(value.meta.get("call") or "")
    return looks_like_config(value) or (value.kind == "opaque" and call.endswith("_config()"))


def _functions(interpreter: Interpreter) -> dict[str, Func]:
    found: dict[str, Func] = {}
    for name, value in interpreter.module.variables.items():
        if isinstance(value, Func):
            found[name] = value
        elif isinstance(value, LocalClass):
            found.update({f"{name}.{method}": function for method, function in value.methods.items()})
    return found


def _run(interpreter: Interpreter, function: Func) -> Snapshot | None:
    """Follow a function that nothing calls, with its defaults; returns the config it builds or is given."""

    def follow() -> Snapshot | None:
        interpreter.charge(len(interpreter.heap.roots))
        before = set(interpreter.heap.roots)
        try:
            result = interpreter.call_function(function, Arguments(), function.node)
        except (EndedError, LostError):
            result = None
        roots = interpreter.heap.roots
        made = [root for key, root in roots.items() if key not in before and _is_config(root, interpreter)]
        config = result if _is_config(result, interpreter) else made[-1] if made else None
        return take_snapshot(config, interpreter) if config is not None else None

    taken, _ = interpreter.heap.trial(follow)
    return taken  # type: ignore[no-any-return]


def _run_uncalled(interpreter: Interpreter) -> dict[str, Snapshot]:
    """Follow the functions that nothing in the file calls; returns the configs they build by function."""
    found: dict[str, tuple[Func, Snapshot]] = {}
    for name, function in _functions(interpreter).items():
        if function.node not in interpreter.called:
            taken = _run(interpreter, function)
            interpreter.called.discard(function.node)
            if taken is not None:
                found[name] = function, taken
    return {name: taken for name, (function, taken) in found.items() if function.node not in interpreter.called}


def _of_function(interpreter: Interpreter, name: str, wanted: str) -> Snapshot:
    function = _functions(interpreter).get(wanted)
    if function is None:
        raise InputError(f"{name}: has no function {wanted[:60]}")
    taken = _run(interpreter, function)
    if taken is None:
        raise InputError(f"{name}: the function {wanted[:60]} builds no config")
    return taken
