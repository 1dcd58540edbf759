# ruff: noqa: N802 - libcst calls these methods by the names of its nodes.
"""Read a script once before it is rewritten: imports, what names stand for, and the calls that make datasets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from skill_run.recipe.migrate.model import Build, Held, Opaque, Symbol
from skill_run.recipe.migrate.python.imports import Binding, bindings_by_name
from skill_run.recipe.migrate.python.syntax import code_of, dotted, literal

Dicts = cst.Dict | cst.Call


@dataclass(slots=True)
class Script:
    """What one reading of a script found.

    names: imported names; aliases: a variable that is assigned once -> the dotted expression; dicts: a variable that is
    assigned one mapping -> that node; unpacked: mapping nodes that a call unpacks; functions: local function -> its
    parameter names and whether it takes any keyword; subclasses: local class -> the imported class it derives from;
    makers: local functions that always return packing specs; kept: import nodes that are one branch of an
    alternative; guarded: nodes inside code for a choice of releases.
    """

    wrapper: MetadataWrapper
    names: Mapping[str, Binding] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    dicts: dict[str, Dicts] = field(default_factory=dict)
    unpacked: dict[int, str] = field(default_factory=dict)
    functions: dict[str, tuple[frozenset[str], bool]] = field(default_factory=dict)
    subclasses: dict[str, str] = field(default_factory=dict)
    makers: set[str] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)
    guarded: set[int] = field(default_factory=set)
    positions: Mapping[cst.CSTNode, Any] = field(default_factory=dict)

    def line(self, node: cst.CSTNode) -> int | None:
        """Return the line of a node of the script as it came."""
        where = self.positions.get(node)
        return None if where is None else int(where.start.line)

    def qualified(self, node: cst.CSTNode) -> tuple[str, str] | None:
        """Return module and name of what an expression refers to, None when no import tells."""
        path = dotted(node)
        if path is None:
            return None
        head, _, rest = path.partition(".")
        binding = self.names.get(head)
        if binding is None:
            module, _, name = path.rpartition(".")
            return (module, name) if path.startswith("megatron.") else None
        if binding.symbol is not None:
            full = f"{binding.module}.{binding.symbol}" + (f".{rest}" if rest else "")
        elif binding.local == binding.module.partition(".")[0]:
            full = path
        else:
            full = f"{binding.module}.{rest}" if rest else binding.module
        module, _, name = full.rpartition(".")
        return module, name

    def held(self, node: cst.BaseExpression) -> Held:
        """Return what is known of a value: a literal, an imported symbol, an object made with literals, or Opaque."""
        if isinstance(node, cst.Name | cst.Attribute):
            found = self.qualified(node)
            if found is not None and found[0].startswith("megatron."):
                return Symbol(*found)
        if isinstance(node, cst.Call):
            return self._object(node)
        value: Held = literal(node)
        return value

    def _object(self, node: cst.Call) -> Held:
        if isinstance(node.func, cst.Name) and node.func.value == "dict" and all(arg.keyword for arg in node.args):
            values = {arg.keyword.value: self.held(arg.value) for arg in node.args if arg.keyword is not None}
            return values if not _unknown(values) else Opaque(code_of(node))  # type: ignore[return-value]
        found = self.qualified(node.func)
        if (
            found is None
            or not found[0].startswith("megatron.bridge.data")
            or any(not arg.keyword for arg in node.args)
        ):
            return Opaque(code_of(node))
        return Build(found[1], {a.keyword.value: self.held(a.value) for a in node.args if a.keyword})  # type: ignore[misc]


def _unknown(values: Mapping[str, Held]) -> bool:
    return any(isinstance(value, Opaque | Build | Symbol) for value in values.values())


def scan(module: cst.Module, before: str) -> Script:
    """Read a parsed script."""
    wrapper = MetadataWrapper(module)
    script = Script(wrapper, positions=wrapper.resolve(PositionProvider))
    reader = _Reader(script)
    wrapper.module.visit(reader)
    script.names = bindings_by_name(reader.bindings, before)
    script.aliases = {name: path for name, path in reader.assigned.items() if path is not None}
    script.dicts = {name: node for name, node in reader.mappings.items() if node is not None}
    for name, returned in reader.returned.items():
        found = [script.qualified(node.func) for node in returned if isinstance(node, cst.Call)]
        if returned and len(found) == len(returned) and all(f and f[1] == "PackedSequenceSpecs" for f in found):
            script.makers.add(name)
    for name, base in reader.bases:
        origin = script.qualified(base)
        if origin is not None:
            script.subclasses[name] = origin[1]
    return script


def import_bindings(node: cst.Import | cst.ImportFrom, line: int) -> list[Binding]:
    """Return what an import statement binds; nothing for a star import."""
    if isinstance(node, cst.Import):
        found = []
        for alias in node.names:
            path = dotted(alias.name) or ""
            local = alias.evaluated_alias or path.partition(".")[0]
            found.append(Binding(path, None, local, line))
        return found
    if isinstance(node.names, cst.ImportStar) or node.relative or node.module is None:
        return []
    module = dotted(node.module) or ""
    return [
        Binding(module, alias.evaluated_name, alias.evaluated_alias or alias.evaluated_name, line)
        for alias in node.names
    ]


class _Reader(cst.CSTVisitor):
    def __init__(self, script: Script) -> None:
        super().__init__()
        self.script = script
        self.bindings: list[Binding] = []
        self.assigned: dict[str, str | None] = {}
        self.mappings: dict[str, Dicts | None] = {}
        self.bases: list[tuple[str, cst.BaseExpression]] = []
        self.returned: dict[str, list[cst.BaseExpression | None]] = {}

    def visit_Import(self, node: cst.Import) -> None:
        self.bindings += import_bindings(node, self.script.line(node) or 0)

    def visit_ImportFrom(self, node: cst.ImportFrom) -> None:
        self.bindings += import_bindings(node, self.script.line(node) or 0)

    def visit_Assign(self, node: cst.Assign) -> None:
        for target in node.targets:
            if isinstance(target.target, cst.Name):
                self._assigns(target.target.value, node.value)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        if isinstance(node.target, cst.Name) and node.value is not None:
            self._assigns(node.target.value, node.value)

    def _assigns(self, name: str, value: cst.BaseExpression) -> None:
        path = dotted(value) if isinstance(value, cst.Attribute) else None
        self.assigned[name] = None if name in self.assigned else path
        is_mapping = isinstance(value, cst.Dict) or (
            isinstance(value, cst.Call) and isinstance(value.func, cst.Name) and value.func.value == "dict"
        )
        self.mappings[name] = value if is_mapping and name not in self.mappings else None  # type: ignore[assignment]

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        params = node.params
        self.returned[node.name.value] = [part.value for part in _below(node.body) if isinstance(part, cst.Return)]
        names = frozenset(p.name.value for p in (*params.params, *params.kwonly_params, *params.posonly_params))
        self.script.functions[node.name.value] = names, params.star_kwarg is not None
        for name in names:
            # A parameter hides a variable of the same name, and callers decide what it is.
            self.assigned[name] = None
            self.mappings.setdefault(name, None)

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        for base in node.bases[:1]:
            self.bases.append((node.name.value, base.value))

    def visit_Try(self, node: cst.Try) -> None:
        self.script.kept |= _alternatives(node)

    def visit_If(self, node: cst.If) -> None:
        if _asks_for_release(code_of(node.test)):
            for part in _below(node):
                self.script.guarded.add(id(part))

    def visit_IfExp(self, node: cst.IfExp) -> None:
        if _asks_for_release(code_of(node.test)):
            self.script.guarded |= {id(part) for part in _below(node)}


def _asks_for_release(test: str) -> bool:
    """Tell whether a condition chooses between releases, so that its branches are for different ones."""
    words = ("validation", "enable_offline_packing", "offline_packing_specs", "packed_sequence_specs", "eval_iters")
    asks = "hasattr" in test or "getattr" in test or "fields(" in test
    return (asks and any(word in test for word in words)) or "__version__" in test or "version(" in test.lower()


def _below(node: cst.CSTNode) -> list[cst.CSTNode]:
    found: list[cst.CSTNode] = [node]
    for child in node.children:
        found += _below(child)
    return found


def _alternatives(node: cst.Try) -> set[int]:
    """Return the import nodes of `try: import ... except ImportError: import ...`."""
    caught = " ".join(code_of(handler.type) for handler in node.handlers if handler.type is not None)
    if not any(name in caught for name in ("ImportError", "ModuleNotFoundError", "Exception")):
        return set()
    found = [part for part in _below(node) if isinstance(part, cst.Import | cst.ImportFrom)]
    return {id(part) for part in found}
