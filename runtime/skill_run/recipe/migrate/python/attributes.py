"""Rewrite attributes of a config object that were renamed or moved to another section."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

import libcst as cst

from skill_run.bridge.release import index, matches
from skill_run.config.config import Config
from skill_run.recipe.migrate.dataset import NEW_SPECS, OLD_SPECS
from skill_run.recipe.migrate.model import Notes
from skill_run.recipe.migrate.python.scan import Script
from skill_run.recipe.migrate.python.syntax import dotted, name_node
from skill_run.recipe.migrate.steps import DEAD_EVAL, EVAL_MOVED, can_import, class_move, data

# Names that nothing but a config has, so that they are renamed whatever they hang on.
_TELLING: Final = frozenset(
    {OLD_SPECS, NEW_SPECS, "pack_sequences_in_batch", "enable_in_batch_packing", "cuda_graph_scope"}
)


@dataclass(slots=True)
class Attributes:
    """Renames of attributes: pairs of dotted names of the two releases."""

    script: Script
    config: Config | None
    before: str
    after: str
    notes: Notes
    pairs: list[tuple[str, str]] = field(default_factory=list)
    telling: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Collect the renames between the two releases."""
        cls = self.config.dataset_type if self.config is not None else None
        for row in index()["renames"]:
            old = row["old"] if matches(row["bridge"], self.before) else row["new"]
            new = row["old"] if matches(row["bridge"], self.after) else row["new"]
            if old != new and ("datasets" not in row or cls in row["datasets"]):
                self.pairs.append((old, new))
        if matches(EVAL_MOVED, self.after) and matches(EVAL_MOVED, self.before):
            # What the file sets in the right place already must not be overruled by what nobody read.
            text = self.script.wrapper.module.code
            names = [name for name in DEAD_EVAL if f"validation.{name}" not in text]
            self.pairs += [(f"train.{name}", f"validation.{name}") for name in names]
        if cls is not None:
            move = class_move(cls, frozenset(), self.before, self.after)
            known = {old for old, _ in self.pairs}
            fields = move.fields if move is not None else {}
            self.pairs += [
                (f"dataset.{old}", f"dataset.{new}") for old, new in fields.items() if f"dataset.{old}" not in known
            ]
        self.telling = {
            old.partition(".")[2]: new.partition(".")[2] for old, new in self.pairs if old.partition(".")[2] in _TELLING
        }

    def rewrite(self, original: cst.Attribute, updated: cst.Attribute) -> cst.BaseExpression:
        """Return an attribute under its new name, itself when it is none of a config that changed."""
        leaf = original.attr.value
        for old, new in self.pairs:
            section, _, name = old.partition(".")
            if name != leaf:
                continue
            there, _, other = new.partition(".")
            where = self.section_of(original.value)
            if section == there:
                if where == section or leaf in self.telling:
                    self.note(original, old, new)
                    return updated.with_changes(attr=cst.Name(other))
            elif where == section:
                return self._across(original, updated, old, new)
        return updated

    def section_of(self, node: cst.BaseExpression) -> str | None:
        """Return the section that an expression is, by its last name or by what the variable was assigned."""
        if isinstance(node, cst.Attribute):
            return node.attr.value
        if isinstance(node, cst.Name):
            return self.script.aliases.get(node.value, node.value).rpartition(".")[2]
        return None

    def _across(self, original: cst.Attribute, updated: cst.Attribute, old: str, new: str) -> cst.BaseExpression:
        """Return an attribute that moved to another section of the same config."""
        section, name = new.split(".", 1)
        inner = updated.value
        if isinstance(inner, cst.Attribute):
            self.note(original, old, new)
            return updated.with_changes(value=inner.with_changes(attr=cst.Name(section)), attr=cst.Name(name))
        alias = self.script.aliases.get(inner.value) if isinstance(inner, cst.Name) else None
        if alias is not None and "." in alias:
            self.note(original, old, new)
            return name_node(f"{alias.rpartition('.')[0]}.{section}.{name}")
        reason = f"{old} is {new} in {self.after}, and which config it belongs to is not known here"
        self.notes.by_hand(f"{dotted(original)}", reason, f"set {new} of the config", self.script.line(original))
        return updated

    def note(self, node: cst.Attribute, old: str, new: str) -> None:
        """Note a rename at the line of a node."""
        self.notes.changed(f"{old} -> {new}", f"{self.after} calls it {new}", self.script.line(node))

    def rewrite_token(self, original: cst.SimpleString, updated: cst.SimpleString) -> cst.SimpleString:
        """Return text that is an override token, or the path of a module, for the target release."""
        if id(original) in self.script.guarded or original.prefix not in ("", "r"):
            return updated
        text = original.raw_value
        for old, new in self.pairs:
            match = re.match(rf"[+~]{{0,2}}{re.escape(old)}(?=[.=])", text)
            if match is not None:
                self.notes.changed(f"{old} -> {new}", f"{self.after} calls it {new}", self.script.line(original))
                self._needs_switch(original, new)
                written = updated.value.replace(old, new, 1)
                return updated.with_changes(value=written)
        if text.startswith("megatron.bridge.") and re.fullmatch(r"[\w.]+", text):
            self._module_text(original, text)
        return updated

    def _needs_switch(self, node: cst.SimpleString, new: str) -> None:
        if new == f"dataset.{NEW_SPECS}":
            do = "add the override ++dataset.enable_offline_packing=true, unless the recipe packs already"
            reason = f"from 0.6 on {NEW_SPECS} and enable_offline_packing must be set together"
            self.notes.by_hand(f"override {new}", reason, do, self.script.line(node))

    def _module_text(self, node: cst.SimpleString, text: str) -> None:
        module, _, symbol = text.rpartition(".")
        as_module = text in data()["modules"] and not can_import(text, None, self.after)
        as_symbol = module in data()["modules"] and not can_import(module, symbol, self.after)
        if as_module or as_symbol:
            do = "import it from its new place"
            self.notes.by_hand(f'"{text}"', f"{self.after} has no such module", do, self.script.line(node))
