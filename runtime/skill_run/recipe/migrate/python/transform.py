# ruff: noqa: N802 - libcst calls these methods by the names of its nodes.
"""The rewriting pass over a script: every node once, with what the planning pass decided."""

from __future__ import annotations

import re
from typing import Any

import libcst as cst

from skill_run.config.config import Config
from skill_run.config.model import Source
from skill_run.recipe.migrate.dataset import NEW_SPECS, OLD_SPECS, SWITCH
from skill_run.recipe.migrate.model import Build, Notes, Opaque
from skill_run.recipe.migrate.python.attributes import Attributes
from skill_run.recipe.migrate.python.edits import edit_call, edit_mapping_node
from skill_run.recipe.migrate.python.importing import Imports, add_imports
from skill_run.recipe.migrate.python.plans import Planner
from skill_run.recipe.migrate.python.scan import Script, scan
from skill_run.recipe.migrate.python.syntax import code_of, dotted, literal, name_node
from skill_run.recipe.migrate.steps import class_move, home_of, matches_switch

_WHY_SWITCH = f"from 0.6 on {NEW_SPECS} and {SWITCH} must be set together"
_WHY_ETP = "unset it meant TP before 0.6 and means 1 from 0.6 on, where experts are parallel"
_EP = "expert_model_parallel_size"
_ETP = "expert_tensor_parallel_size"


def rewrite(
    module: cst.Module, source: Source, config: Config | None, before: str, after: str, notes: Notes, etp: int | None
) -> tuple[str, bool]:
    """Return the rewritten text, and whether the expert tensor parallel size `etp` was written down in it."""
    script = scan(module, before)
    planner = Planner(script, before, after, notes)
    script.wrapper.module.visit(planner)
    imports = Imports(script, before, after, notes)
    imports.prepare(script.wrapper.module)
    pass_ = _Rewriter(script, planner, imports, Attributes(script, config, before, after, notes), notes, etp)
    result = script.wrapper.module.visit(pass_)
    needs = planner.needs
    for path, name, alias in pass_.more_imports:
        if alias is None:
            needs.setdefault(path, set()).add(name)
    return add_imports(result, needs).code, pass_.placed


class _Rewriter(cst.CSTTransformer):
    def __init__(
        self, script: Script, planner: Planner, imports: Imports, attributes: Attributes, notes: Notes, etp: int | None
    ) -> None:
        super().__init__()
        self.script = script
        self.planner = planner
        self.imports = imports
        self.attributes = attributes
        self.notes = notes
        self.etp = etp
        self.placed = False
        self.before, self.after = planner.before, planner.after
        self.more_imports: list[tuple[str, str, str | None]] = []
        self.skipped: set[int] = set()
        # Blank lines and comments before an import that goes, for the statement that comes next.
        self.lead: tuple[cst.EmptyLine, ...] = ()
        self.used = _used_names(script.wrapper.module, planner)
        self.text = script.wrapper.module.code

    # -- names -----------------------------------------------------------------------------------------------------

    def visit_Attribute(self, node: cst.Attribute) -> None:
        self.skipped.add(id(node.attr))

    def visit_Arg(self, node: cst.Arg) -> None:
        if node.keyword is not None:
            self.skipped.add(id(node.keyword))

    def visit_Param(self, node: cst.Param) -> None:
        self.skipped.add(id(node.name))

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.skipped.add(id(node.name))

    def visit_ImportAlias(self, node: cst.ImportAlias) -> bool:
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        new = self.imports.locals.get(original_node.value)
        if new is None or id(original_node) in self.skipped:
            return updated_node
        return updated_node.with_changes(value=new)

    def leave_Annotation(self, original_node: cst.Annotation, updated_node: cst.Annotation) -> cst.Annotation:
        inner = updated_node.annotation
        if not isinstance(inner, cst.SimpleString):
            return updated_node
        written = re.sub(r"[A-Za-z_]\w*", lambda word: self._class_in_text(word.group()), inner.value)
        return updated_node.with_changes(annotation=inner.with_changes(value=written))

    def _class_in_text(self, word: str) -> str:
        """Return a name inside a quoted annotation as the target release has it."""
        move = class_move(word, frozenset(), self.before, self.after)
        return self.imports.locals.get(word, move.new if move is not None else word)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        if id(original_node) in self.script.guarded:
            return updated_node
        moved = self._symbol_of_module(original_node)
        if moved is not None:
            return moved
        return self.attributes.rewrite(original_node, updated_node)

    def _symbol_of_module(self, node: cst.Attribute) -> cst.BaseExpression | None:
        """Return `module.symbol` under its new name, for a module that is bound or written out."""
        path = dotted(node)
        head = path.partition(".")[0] if path else ""
        binding = self.script.names.get(head)
        if path is None or (binding is not None and binding.symbol is not None):
            return None
        found = self.script.qualified(node)
        if found is None or not found[0].startswith("megatron.bridge"):
            return None
        module, symbol = found
        if module not in self._modules():
            return None
        fate = self.imports.fate(module, symbol)
        new_module = self.imports.modules.get(module, module)
        if fate.lost:
            self.notes.by_hand(path, f"it does not exist in {self.after}", fate.do, self.script.line(node))
            return None
        if fate.module == module and fate.name == symbol:
            return None
        prefix = path.rpartition(".")[0]
        line = self.script.line(node)
        self.notes.changed(f"{path} -> {fate.module}.{fate.name}", fate.why or f"it stands there in {self.after}", line)
        if self._module_has(new_module, fate.name, fate.module):
            written = new_module if prefix == module else prefix
            return name_node(f"{written}.{fate.name}")
        self.planner.need(fate.module, fate.name)
        return cst.Name(fate.name)

    def _module_has(self, module: str, name: str, home: str) -> bool:
        from skill_run.recipe.migrate.steps import can_import

        known = module == home or home.startswith(module + ".") or name in ("GPTSFTDatasetConfig",)
        return known and can_import(module, name, self.after)

    def _modules(self) -> set[str]:
        return {binding.module for binding in self.script.names.values() if binding.symbol is None}

    # -- imports ---------------------------------------------------------------------------------------------------

    def leave_ImportFrom(self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom) -> Any:
        changed, more = self.imports.rewrite_from(original_node, updated_node, self.used)
        self.more_imports += more
        return cst.RemoveFromParent() if changed is None else changed

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> cst.Import:
        return self.imports.rewrite_import(original_node, updated_node)

    # -- calls and mappings ----------------------------------------------------------------------------------------

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        edits = self.planner.calls.get(id(original_node))
        if edits is None:
            return self._setattr(original_node, updated_node)
        node = updated_node
        if edits.cls is not None:
            node = self._new_class(original_node, node, edits.cls)
        node = edit_call(node, edits)
        return self._etp_argument(original_node, node)

    def _new_class(self, original: cst.Call, node: cst.Call, cls: str) -> cst.Call:
        """Return the call with the function's own name changed, where renaming the import has not done that."""
        target = original.args[0].value if self._is_partial(original) else original.func
        found = self.script.qualified(target)
        if found is None or self.imports.fate(*found).name == cls:
            return node
        self.planner.need(home_of(cls, self.after) or "", cls)
        if self._is_partial(original):
            args = [node.args[0].with_changes(value=cst.Name(cls)), *node.args[1:]]
            return node.with_changes(args=args)
        return node.with_changes(func=cst.Name(cls))

    def _is_partial(self, node: cst.Call) -> bool:
        found = self.script.qualified(node.func)
        return found == ("functools", "partial")

    def _setattr(self, original: cst.Call, updated: cst.Call) -> cst.Call:
        if not (isinstance(original.func, cst.Name) and original.func.value == "setattr" and len(original.args) == 3):
            return updated
        name = literal(original.args[1].value)
        new = self.attributes.telling.get(name) if isinstance(name, str) else None
        if new is None or id(original) in self.script.guarded:
            return updated
        args = list(updated.args)
        args[1] = args[1].with_changes(value=cst.SimpleString(f'"{new}"'))
        line = self.script.line(original)
        self.notes.changed(f"{name} -> {new}", f"{self.after} calls it {new}", line)
        if new == NEW_SPECS:
            do = f"set {SWITCH} beside it"
            self.notes.by_hand("setattr", _WHY_SWITCH, do, line)
        return updated.with_changes(args=args)

    def _etp_argument(self, original: cst.Call, node: cst.Call) -> cst.Call:
        names = {arg.keyword.value for arg in original.args if arg.keyword is not None}
        if self.etp is None or _EP not in names or _ETP in names or id(original) in self.script.guarded:
            return node
        from skill_run.recipe.migrate.python.plans import Edits

        self.placed = True
        self.notes.changed(f"model.{_ETP} = {self.etp}", _WHY_ETP, self.script.line(original))
        return edit_call(node, Edits(puts=[(_ETP, str(self.etp), _EP)]))

    def leave_Dict(self, original_node: cst.Dict, updated_node: cst.Dict) -> cst.Dict:
        edits = self.planner.mappings.get(id(original_node))
        return updated_node if edits is None else edit_mapping_node(updated_node, edits)

    def leave_Index(self, original_node: cst.Index, updated_node: cst.Index) -> cst.Index:
        """Rename `options["packed_sequence_specs"]`."""
        value = updated_node.value
        new = self.attributes.telling.get(str(value.evaluated_value)) if isinstance(value, cst.SimpleString) else None
        if new is None or not isinstance(value, cst.SimpleString) or id(original_node) in self.script.guarded:
            return updated_node
        self.notes.changed(f"{value.value} -> {new}", f"{self.after} calls it {new}", self.script.line(original_node))
        return updated_node.with_changes(value=cst.SimpleString(value.value[0] + new + value.value[-1]))

    def leave_SimpleString(self, original_node: cst.SimpleString, updated_node: cst.SimpleString) -> cst.SimpleString:
        return self.attributes.rewrite_token(original_node, updated_node)

    # -- statements ------------------------------------------------------------------------------------------------

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> Any:
        if not updated_node.body:
            self.lead = tuple(updated_node.leading_lines)
            return updated_node
        if self.lead:
            if not updated_node.leading_lines:
                updated_node = updated_node.with_changes(leading_lines=self.lead)
            self.lead = ()
        if len(original_node.body) != 1 or id(original_node) in self.script.guarded:
            return updated_node
        statement = original_node.body[0]
        if isinstance(statement, cst.ImportFrom):
            return self._with_aliased_imports(updated_node)
        if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
            return updated_node
        if self._is_switch(statement):
            line = self.script.line(statement)
            self.notes.changed(
                f"{code_of(statement)} removed", f"before 0.6 {OLD_SPECS} alone switches packing on", line
            )
            return cst.RemoveFromParent()
        lines = self._lines_behind(statement)
        return (
            cst.FlattenSentinel([updated_node, *(cst.parse_statement(line) for line in lines)])
            if lines
            else updated_node
        )

    def _with_aliased_imports(self, updated: cst.SimpleStatementLine) -> Any:
        """Add imports under an alias behind the statement that they come from."""
        aliased = [item for item in self.more_imports if item[2] is not None]
        self.more_imports = [item for item in self.more_imports if item[2] is None]
        lines = [cst.parse_statement(f"from {path} import {name} as {alias}") for path, name, alias in aliased]
        return cst.FlattenSentinel([updated, *lines]) if lines else updated

    def _is_switch(self, node: cst.Assign) -> bool:
        target = node.targets[0].target
        going_back = matches_switch(self.before) and not matches_switch(self.after)
        return going_back and isinstance(target, cst.Attribute) and target.attr.value == SWITCH

    def _lines_behind(self, node: cst.Assign) -> list[str]:
        """Return the statements that have to follow an assignment."""
        target = node.targets[0].target
        lines = [
            f"{base_of(target)}.validation.{name} = {code}"
            for name, code in self.planner.eval_lines.get(id(node), ())
            if isinstance(target, cst.Attribute)
        ]
        if matches_switch(self.after) and not matches_switch(self.before):
            lines += self._switch_line(target, node)
        if isinstance(target, cst.Attribute) and target.attr.value == _EP and self.etp is not None and not self.placed:
            self.placed = True
            self.notes.changed(f"model.{_ETP} = {self.etp}", _WHY_ETP, self.script.line(node))
            lines.append(f"{base_of(target)}.{_ETP} = {self.etp}")
        return lines

    def _switch_line(self, target: cst.BaseExpression, node: cst.Assign) -> list[str]:
        if isinstance(target, cst.Attribute) and target.attr.value == OLD_SPECS:
            new, specs = f"{base_of(target)}.{SWITCH}", f"{base_of(target)}.{NEW_SPECS}"
        elif isinstance(target, cst.Subscript) and code_of(target).rstrip("]").endswith(
            (f'"{OLD_SPECS}"', f"'{OLD_SPECS}'")
        ):
            base = code_of(target.value)
            new, specs = f'{base}["{SWITCH}"]', f'{base}["{NEW_SPECS}"]'
        else:
            return []
        if f"{new} =" in self.text:
            return []
        value = self.script.held(node.value)
        known = not isinstance(value, Opaque) and not (isinstance(value, Build) and value.cls != "PackedSequenceSpecs")
        code = str(value is not None) if known else f"{specs} is not None"
        self.notes.changed(f"{new} = {code} added", _WHY_SWITCH, self.script.line(node))
        return [f"{new} = {code}"]

    def leave_IndentedBlock(self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock) -> cst.BaseSuite:
        if updated_node.body or not original_node.body:
            return updated_node
        return updated_node.with_changes(body=[cst.parse_statement("pass")])


def base_of(node: cst.Attribute) -> str:
    """Return the text before the last dot of an attribute."""
    return code_of(node.value)


def _used_names(module: cst.Module, planner: Planner) -> set[str]:
    """Return names that are used outside imports and outside arguments that go."""
    found: set[str] = set()

    def walk(node: cst.CSTNode) -> None:
        if isinstance(node, cst.Import | cst.ImportFrom):
            return
        if isinstance(node, cst.Name):
            found.add(node.value)
        edits = planner.calls.get(id(node)) if isinstance(node, cst.Call) else None
        mapped = planner.mappings.get(id(node)) if isinstance(node, cst.Dict) else None
        for child in node.children:
            named = isinstance(child, cst.Arg) and child.keyword is not None and child.keyword.value
            if edits is not None and named in edits.drops:
                continue
            if mapped is not None and isinstance(child, cst.DictElement) and literal(child.key) in mapped.drops:
                continue
            walk(child)

    walk(module)
    return found
