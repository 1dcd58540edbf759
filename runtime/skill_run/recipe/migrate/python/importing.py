"""Rewrite import statements, and add those that the rewritten code needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import libcst as cst

from skill_run.bridge.release import load_release
from skill_run.recipe.migrate.model import Notes
from skill_run.recipe.migrate.python.imports import BRIDGE, Fate, fate_of
from skill_run.recipe.migrate.python.scan import Script
from skill_run.recipe.migrate.python.syntax import added, code_of, dotted, name_node, removed
from skill_run.recipe.migrate.steps import can_import, data, home_of, module_after


@dataclass(slots=True)
class Imports:
    """Decides on every import of a script.

    locals: local name -> its new name, for symbols that are renamed. modules: a module bound by `import m as x` or used
    by its dotted path -> its new module. unused: local names whose imports go when nothing uses them any more.
    """

    script: Script
    before: str
    after: str
    notes: Notes
    locals: dict[str, str] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)
    keep: set[int] = field(default_factory=set)
    bound: set[tuple[str, str]] = field(default_factory=set)
    present: set[str] = field(default_factory=set)

    def prepare(self, module: cst.Module) -> None:
        """Decide which alternatives stay, and how local names change."""
        valid: dict[str, list[int]] = {}
        statements = _imports(module)
        for statement in module.body:
            inner = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) and statement.body else None
            if isinstance(inner, cst.ImportFrom) and inner.module is not None and self._stays(inner):
                self.present.add(code_of(inner.module))
        for node in statements:
            for local, (name, symbol) in _locals(node).items():
                branch = id(node) in self.script.kept | self.script.guarded and name.startswith(BRIDGE)
                if branch and can_import(name, symbol, self.after) and _surely_there(name, symbol, self.after):
                    valid.setdefault(local, []).append(id(node))
        for node in statements:
            alternative = id(node) in self.script.kept | self.script.guarded
            if alternative and any(local in valid for local in _locals(node)):
                self.keep.add(id(node))
                continue
            for local, (name, symbol) in _locals(node).items():
                if symbol is None:
                    self._module(name)
                    continue
                fate = self.fate(name, symbol)
                if fate.name != symbol and local == symbol:
                    self.locals[local] = fate.name

    def _stays(self, node: cst.ImportFrom) -> bool:
        """Tell whether some name of an import statement is in the same module after the migration."""
        bound = [(name, symbol) for name, symbol in _locals(node).values() if symbol is not None]
        return any(self.fate(name, symbol).module == name for name, symbol in bound)

    def _module(self, name: str) -> None:
        if name.startswith(BRIDGE) and not can_import(name, None, self.after):
            new = module_after(name, self.before, self.after)
            if new is not None:
                self.modules[name] = new

    def fate(self, module: str, symbol: str) -> Fate:
        """Return what becomes of a symbol of a module."""
        return fate_of(module, symbol, self.before, self.after)

    # -- statements ------------------------------------------------------------------------------------------------

    def rewrite_from(
        self, original: cst.ImportFrom, updated: cst.ImportFrom, used: set[str]
    ) -> tuple[cst.ImportFrom | None, list[tuple[str, str, str | None]]]:
        """Return the statement rewritten (None when nothing of it is left) and imports to add as (module, name, as)."""
        module = dotted(original.module) if original.module is not None and not original.relative else None
        if module is None or not module.startswith(BRIDGE) or id(original) in self.keep:
            return updated, []
        if isinstance(original.names, cst.ImportStar):
            self._star(original, module)
            return updated, []
        line = self.script.line(original)
        fates = [self.fate(module, alias.evaluated_name) for alias in original.names]
        homes = []
        gone: set[int] = set()
        for place, (alias, fate) in enumerate(zip(original.names, fates, strict=True)):
            local = alias.evaluated_alias or alias.evaluated_name
            if fate.lost:
                if local not in used:
                    gone.add(place)
                    self.notes.changed(
                        f"import of {local} removed", f"{self.after} does not have it, nor is it used", line
                    )
                    continue
                what = f"from {module} import {alias.evaluated_name}"
                self.notes.by_hand(what, f"it does not exist in {self.after}", fate.do, line)
            elif (fate.module, fate.name) != (module, alias.evaluated_name):
                told = f"{module}.{alias.evaluated_name} -> {fate.module}.{fate.name}"
                self.notes.changed(told, fate.why or f"it stands there in {self.after}", line)
            homes.append(fate.module)
        return self._placed(updated, module, fates, homes, gone)

    def _placed(
        self, updated: cst.ImportFrom, module: str, fates: list[Fate], homes: list[str], gone: set[int]
    ) -> tuple[cst.ImportFrom | None, list[tuple[str, str, str | None]]]:
        assert not isinstance(updated.names, cst.ImportStar)
        if not homes:
            return None, []
        stays = module if module in homes else homes[0]
        names = list(updated.names)
        extra: list[tuple[str, str, str | None]] = []
        seen: set[tuple[str, str | None]] = set()
        for place, fate in enumerate(fates):
            if place in gone:
                continue
            alias = names[place].evaluated_alias
            if fate.module != stays or (stays != module and stays in self.present):
                extra.append((fate.module, fate.name, alias))
                gone.add(place)
            elif (fate.name, alias) in seen or (alias is None and (stays, fate.name) in self.bound):
                gone.add(place)
            else:
                seen.add((fate.name, alias))
                if alias is None:
                    self.bound.add((stays, fate.name))
                if fate.name != names[place].evaluated_name:
                    names[place] = names[place].with_changes(name=cst.Name(fate.name))
        kept = removed(names, gone)
        if not kept:
            return None, extra
        if isinstance(kept[-1].comma, cst.Comma) and updated.lpar is None:
            kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        changed = updated.with_changes(names=kept)
        return (changed if stays == module else changed.with_changes(module=name_node(stays))), extra

    def _star(self, node: cst.ImportFrom, module: str) -> None:
        if not can_import(module, None, self.after) or module in _moved_from(self.before, self.after):
            there = module_after(module, self.before, self.after)
            do = "import the names you use one by one" + (f", from {there}" if there else "")
            reason = f"what `import *` takes from {module} is not known, and {self.after} has other names there"
            self.notes.by_hand(f"from {module} import *", reason, do, self.script.line(node))

    def rewrite_import(self, original: cst.Import, updated: cst.Import) -> cst.Import:
        """Return `import a.b as c` with a module that moved."""
        names = []
        for alias, old in zip(updated.names, original.names, strict=True):
            module = dotted(old.name) or ""
            new = self.modules.get(module)
            if new is None:
                if module.startswith(BRIDGE) and not can_import(module, None, self.after):
                    do = "import what it held one by one from its new places"
                    what = f"import {module}"
                    self.notes.by_hand(what, f"{self.after} has no such module", do, self.script.line(original))
                names.append(alias)
                continue
            self.notes.changed(
                f"import {module} -> {new}", f"the module moved in {self.after}", self.script.line(original)
            )
            names.append(alias.with_changes(name=name_node(new)))
        return updated.with_changes(names=names)


def _surely_there(module: str, symbol: str | None, version: str) -> bool:
    """Tell whether a class or module is one that not every release has, so that the alternative is about it."""
    recorded = symbol in data()["homes"] or symbol in data()["symbols"] or symbol in load_release(version).imports
    return recorded or symbol is None or module in data()["modules"]


def _moved_from(before: str, after: str) -> set[str]:
    """Return modules that lose a recorded symbol between two releases."""
    found = set()
    for symbol, homes in data()["symbols"].items():
        old, new = home_of(symbol, before), home_of(symbol, after)
        if old is not None and old != new and not can_import(old, symbol, after):
            found |= {module for modules in homes.values() for module in modules}
    return found | {"megatron.bridge.training.config"}


def _imports(module: cst.CSTNode) -> list[cst.Import | cst.ImportFrom]:
    found: list[cst.Import | cst.ImportFrom] = []
    for child in module.children:
        found += [child] if isinstance(child, cst.Import | cst.ImportFrom) else _imports(child)
    return found


def _locals(node: cst.Import | cst.ImportFrom) -> dict[str, tuple[str, str | None]]:
    from skill_run.recipe.migrate.python.scan import import_bindings

    return {binding.local: (binding.module, binding.symbol) for binding in import_bindings(node, 0)}


def add_imports(module: cst.Module, needs: Mapping[str, set[str]]) -> cst.Module:
    """Return the script with `from module import name` for what it needs and does not import yet."""
    body: list[Any] = list(module.body)
    for path in sorted(needs):
        names = sorted(name for name in needs[path] if not _imports_name(body, path, name))
        if not names:
            continue
        at = next((at for at, part in enumerate(body) if _from_statement(part, path) is not None), None)
        if at is None:
            line = cst.parse_statement(f"from {path} import {', '.join(names)}\n")
            body = _inserted(body, path, line)
        else:
            body[at] = _extended(body[at], names)
    return module.with_changes(body=body)


def _from_statement(statement: cst.CSTNode, path: str | None = None) -> cst.ImportFrom | None:
    """Return the `from ... import` of a statement that is nothing else, of one module when `path` names it."""
    if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
        inner = statement.body[0]
        if isinstance(inner, cst.ImportFrom) and inner.module is not None and not inner.relative:
            named = path is None or (code_of(inner.module) == path and not isinstance(inner.names, cst.ImportStar))
            return inner if named else None
    return None


def _imports_name(body: Sequence[cst.CSTNode], path: str, name: str) -> bool:
    for part in body:
        inner = _from_statement(part, path)
        aliases = () if inner is None or isinstance(inner.names, cst.ImportStar) else inner.names
        if any(alias.evaluated_name == name and alias.evaluated_alias is None for alias in aliases):
            return True
    return False


def _extended(statement: cst.SimpleStatementLine, names: list[str]) -> cst.SimpleStatementLine:
    inner = statement.body[0]
    assert isinstance(inner, cst.ImportFrom)
    assert not isinstance(inner.names, cst.ImportStar)
    aliases = list(inner.names)
    start = inner.lpar.whitespace_after if inner.lpar is not None else cst.SimpleWhitespace("")
    for name in names:
        at = next((at for at, alias in enumerate(aliases) if alias.evaluated_name > name), len(aliases))
        aliases = added(aliases, at, cst.ImportAlias(cst.Name(name)), start)
    return statement.with_changes(body=[inner.with_changes(names=aliases)])


def _inserted(body: list[Any], path: str, line: Any) -> list[Any]:
    """Return the statements with an import where sorted imports would have it, else behind the last one at the top."""
    last = 0
    for at, statement in enumerate(body):
        if not isinstance(statement, cst.SimpleStatementLine):
            continue
        inner = statement.body[0] if statement.body else None
        found = _from_statement(statement)
        module = code_of(found.module) if found is not None and found.module is not None else ""
        if module.startswith(BRIDGE) and module > path:
            # Comments and blank lines stay before the group.
            first = line.with_changes(leading_lines=statement.leading_lines)
            rest = statement.with_changes(leading_lines=())
            return [*body[:at], first, rest, *body[at + 1 :]]
        docstring = at == 0 and isinstance(inner, cst.Expr) and isinstance(inner.value, cst.SimpleString)
        if isinstance(inner, cst.Import | cst.ImportFrom) or docstring:
            last = at + 1
    return [*body[:last], line, *body[last:]]
