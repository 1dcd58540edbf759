# ruff: noqa: N802 - libcst calls these methods by the names of its nodes.
"""Plan what becomes of each call and mapping of a script, before anything is rewritten."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import libcst as cst

from skill_run.bridge.release import NO_DEFAULT, by_version, load_release, matches
from skill_run.recipe.migrate.dataset import NEW_SPECS, OLD_SPECS, SWITCH, Drop, Plan, Rename, plan_dataset
from skill_run.recipe.migrate.fields import changed_default
from skill_run.recipe.migrate.model import Build, Held, Notes, Opaque, Symbol
from skill_run.recipe.migrate.python.scan import Dicts, Script
from skill_run.recipe.migrate.python.syntax import code_of, literal
from skill_run.recipe.migrate.steps import (
    DEAD_EVAL,
    EVAL_MOVED,
    SWITCH_SINCE,
    ClassMove,
    class_move,
    data,
    given_fields,
    gone,
    home_of,
    written_after,
)

# Keywords that no other class or function has, so that they tell a dataset wherever they stand.
TELLING: Final = frozenset({OLD_SPECS, NEW_SPECS, "pack_sequences_in_batch", "enable_in_batch_packing", SWITCH})
_MODELS: Final = "megatron.bridge.models"


@dataclass(slots=True)
class Edits:
    """Changes of the keywords of one call, or of the keys of one mapping: `puts` are (name, code, beside)."""

    renames: dict[str, str] = field(default_factory=dict)
    drops: set[str] = field(default_factory=set)
    puts: list[tuple[str, str, str | None]] = field(default_factory=list)
    cls: str | None = None


class Planner(cst.CSTVisitor):
    """Visits every call and mapping of a script; `calls` and `mappings` hold the edits by node."""

    def __init__(self, script: Script, before: str, after: str, notes: Notes) -> None:
        super().__init__()
        self.script = script
        self.before, self.after = before, after
        self.notes = notes
        self.calls: dict[int, Edits] = {}
        self.mappings: dict[int, Edits] = {}
        self.needs: dict[str, set[str]] = {}
        self.eval_lines: dict[int, list[tuple[str, str]]] = {}
        self.placed: set[int] = set()
        self.made: dict[str, cst.Call] = {}

    # -- visiting --------------------------------------------------------------------------------------------------

    def visit_Call(self, node: cst.Call) -> None:
        """Plan one call by what it calls."""
        if id(node) in self.script.guarded:
            return
        func, args = node.func, node.args
        found = self.script.qualified(func)
        name = found[1] if found else None
        if name == "partial" and args and found and found[0] == "functools":
            inner = self.script.qualified(args[0].value)
            if inner is not None:
                self.known(node, inner, whole=False)
            return
        if found is not None and found[0].startswith("megatron."):
            self.known(node, found, whole=True)
            return
        local = func.value if isinstance(func, cst.Name) else func.attr.value if isinstance(func, cst.Attribute) else ""
        if local in self.script.subclasses:
            self.dataset(node, self.script.subclasses[local], whole=False, rename_class=False)
        elif self.passes_on(local, node):
            self.generic(node)

    def visit_Dict(self, node: cst.Dict) -> None:
        """Plan a mapping whose keys tell that it describes a dataset."""
        if id(node) not in self.mappings and id(node) not in self.script.guarded:
            held = self.keys(node)
            if TELLING & held.keys():
                self.mappings[id(node)] = self.edits(None, held, node, whole=False)

    def visit_Assign(self, node: cst.Assign) -> None:
        """Note `X.train = TrainingConfig(...)`, where eval settings become lines behind it."""
        value = node.value
        if not isinstance(value, cst.Call):
            return
        for target in node.targets:
            if isinstance(target.target, cst.Name):
                self.made.setdefault(target.target.value, value)
            if isinstance(target.target, cst.Attribute) and target.target.attr.value == "train":
                self.eval_lines[id(node)] = self.eval_settings(value, code_of(target.target.value))

    # -- calls -----------------------------------------------------------------------------------------------------

    def known(self, node: cst.Call, found: tuple[str, str], *, whole: bool) -> None:
        """Plan a call of something that a Megatron module has."""
        module, name = found
        sections = data()["class_sections"]
        if name == "ConfigContainer":
            self.container(node)
        elif name in _datasets(self.before) or class_move(name, frozenset(), self.before, self.after):
            self.dataset(node, name, whole=whole)
        elif name == "PackedSequenceSpecs":
            self.specs(node)
        elif name in sections or (module.startswith(_MODELS) and name[:1].isupper()):
            self.section(node, sections.get(name, "model"), name, whole)
        else:
            self.function(node, name)

    def passes_on(self, local: str, node: cst.Call) -> bool:
        """Tell whether a call hands keywords of a dataset on: dict(), replace(), update(), a function with `**`."""
        if not TELLING & {arg.keyword.value for arg in node.args if arg.keyword is not None}:
            return False
        names, takes_any = self.script.functions.get(local, (frozenset(), local in ("dict", "replace", "update")))
        return takes_any and not TELLING & names

    def generic(self, node: cst.Call) -> None:
        held = self.keywords(node)
        self.calls[id(node)] = self.edits(None, held, node, whole=False)

    def keywords(self, node: cst.Call) -> dict[str, Held]:
        return {arg.keyword.value: self.script.held(arg.value) for arg in node.args if arg.keyword is not None}

    def keys(self, node: Dicts) -> dict[str, Held]:
        if isinstance(node, cst.Call):
            return self.keywords(node)
        found: dict[str, Held] = {}
        for element in node.elements:
            if isinstance(element, cst.DictElement):
                key = literal(element.key)
                if isinstance(key, str):
                    found[key] = self.script.held(element.value)
        return found

    def dataset(self, node: cst.Call, cls: str, *, whole: bool, rename_class: bool = True) -> None:
        """Plan a call that makes a dataset; the keys of a mapping that it unpacks are planned with it."""
        held = self.keywords(node)
        unpacked = [arg.value for arg in node.args if arg.star == "**"]
        below: list[Dicts] = []
        for value in unpacked:
            mapping = self.script.dicts.get(value.value) if isinstance(value, cst.Name) else value
            if isinstance(mapping, cst.Dict | cst.Call):
                below.append(mapping)
                held = {**self.keys(mapping), **held}
        if len(below) < len(unpacked):
            whole = False
        edits = self.edits(cls, held, node, whole=whole)
        if not rename_class:
            edits.cls = None
        self.calls[id(node)] = edits
        for mapping in below:
            own = self.keys(mapping)
            puts = [put for put in edits.puts if put[2] in own]
            edits.puts = [put for put in edits.puts if put not in puts]
            target = self.calls if isinstance(mapping, cst.Call) else self.mappings
            target[id(mapping)] = Edits(edits.renames, edits.drops, puts)

    def edits(self, cls: str | None, held: Mapping[str, Held], node: cst.CSTNode, *, whole: bool) -> Edits:
        """Return the edits of one dataset's keywords, and note what they are for."""
        move = class_move(cls, given_fields(held), self.before, self.after) if cls else None
        move = move or self.same_class(cls, held)
        plan = plan_dataset(cls or "", held, self.before, self.after, whole=whole, move=move)
        line = self.script.line(node)
        edits = Edits()
        assert plan is not None
        for stop in plan.stops:
            self.notes.by_hand(f"{cls or 'dataset'}({stop.field}=...)", stop.reason, stop.do, line)
        if plan.blocked:
            return edits
        if cls is not None and plan.cls != cls:
            edits.cls = plan.cls
        self.take(edits, plan, held, node, cls)
        return edits

    def take(self, edits: Edits, plan: Plan, held: Mapping[str, Held], node: cst.CSTNode, cls: str | None) -> None:
        for edit in plan.edits:
            line = self.argument_line(node, edit.old if isinstance(edit, Rename) else edit.name)
            if isinstance(edit, Rename):
                edits.renames[edit.old] = edit.new
                self.notes.changed(f"{edit.old}= -> {edit.new}=", edit.why, line)
            elif isinstance(edit, Drop):
                edits.drops.add(edit.name)
                self.notes.changed(f"{edit.name}= removed", edit.why, line)
            else:
                code = self.switch_code(held.get(OLD_SPECS), line) if isinstance(edit.value, Opaque) else None
                code = code or self.code(edit.value)
                edits.puts.append((edit.name, code, edit.beside))
                line = self.argument_line(node, edit.beside or "")
                self.notes.changed(f"{edit.name}={code} added", edit.why, line)

    def argument_line(self, node: cst.CSTNode, name: str) -> int | None:
        for arg in node.args if isinstance(node, cst.Call) else ():
            if arg.keyword is not None and arg.keyword.value == name:
                return self.script.line(arg) or self.script.line(node)
        return self.script.line(node)

    def same_class(self, cls: str | None, held: Mapping[str, Held]) -> ClassMove:
        """Return the move of a class that keeps its name, or is not known: its renamed fields."""
        renamed = {}
        for name in held:
            new = written_after(f"dataset.{name}", self.before, self.after, cls).partition(".")[2]
            if new != name:
                renamed[name] = new
        here, there = matches(SWITCH_SINCE, self.before), matches(SWITCH_SINCE, self.after)
        return ClassMove(cls or "", cls or "", there, "plain", renamed, {}, {}, frozenset(), crosses=here != there)

    # -- values ----------------------------------------------------------------------------------------------------

    def code(self, value: Held) -> str:
        """Return a value as source text, and note the imports that it needs."""
        if isinstance(value, Build):
            self.need(home_of(value.cls, self.after) or "", value.cls)
            return f"{value.cls}({', '.join(f'{k}={self.code(v)}' for k, v in value.values.items())})"
        if isinstance(value, Symbol):
            self.need(value.module, value.name)
            return value.name
        if isinstance(value, Opaque):
            return value.text
        return repr(value) if not isinstance(value, str) else '"' + repr("'" + value)[2:-1].replace('"', '\\"') + '"'

    def need(self, module: str, symbol: str) -> None:
        """Note that the result has to import a symbol."""
        self.needs.setdefault(module, set()).add(symbol)

    def switch_code(self, specs: Held | None, line: int | None) -> str:
        """Return the code that is true when `specs`, which only the code knows, is not None."""
        text = specs.text if isinstance(specs, Opaque) else "None"
        node = cst.parse_expression(text.strip())
        if isinstance(node, cst.Name | cst.Attribute):
            return f"{text} is not None"
        if isinstance(node, cst.Call) and code_of(node.func).rpartition(".")[2].endswith("PackedSequenceSpecs"):
            return "True"
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value in self.script.makers:
            return "True"
        if isinstance(node, cst.IfExp):
            test = code_of(node.test)
            if code_of(node.orelse) == "None":
                return test if isinstance(node.test, cst.Comparison) else f"bool({test})"
            if code_of(node.body) == "None":
                return f"not ({test})"
        do = f"make sure that {SWITCH} is true exactly when {NEW_SPECS} is not None"
        self.notes.by_hand(SWITCH, f"whether {text} is None is not known", do, line)
        return "True"

    # -- other classes and functions -------------------------------------------------------------------------------

    def specs(self, node: cst.Call) -> None:
        """Plan PackedSequenceSpecs(...): fields that only one of the releases has."""
        old, new = load_release(self.before).specs, load_release(self.after).specs
        edits = Edits()
        for name, value in self.keywords(node).items():
            if name in old and name not in new:
                self.lose(edits, node, "PackedSequenceSpecs", name, value, old[name].default)
        self.calls[id(node)] = edits

    def lose(self, edits: Edits, node: cst.Call, owner: str, name: str, value: Held, default: object) -> None:
        line = self.argument_line(node, name)
        if value is None or (default is not NO_DEFAULT and value == default and not isinstance(value, Opaque)):
            edits.drops.add(name)
            self.notes.changed(
                f"{name}= removed", f"{owner} of {self.after} does not have it; it held its default", line
            )
            return
        reason = f"{owner} of {self.after} has no field {name}"
        self.notes.by_hand(f"{owner}({name}=...)", reason, f"remove {name}, or keep what it did in another way", line)

    def section(self, node: cst.Call, section: str, cls: str, whole: bool) -> None:
        """Plan a call that makes another section of the config."""
        edits = self.calls.setdefault(id(node), Edits())
        for name, value in self.keywords(node).items():
            path = f"{section}.{name}"
            if section == "train" and name in DEAD_EVAL:
                continue
            new = written_after(path, self.before, self.after, None)
            if new != path and new.startswith(section + "."):
                edits.renames[name] = new.partition(".")[2]
                why = f"{self.after} calls it {edits.renames[name]}"
                self.notes.changed(f"{name}= -> {edits.renames[name]}=", why, self.argument_line(node, name))
            elif gone(path, self.before, self.after):
                spec = load_release(self.before).field(path)
                self.lose(edits, node, cls, name, value, spec.default if spec else NO_DEFAULT)
        if whole and not any(arg.star for arg in node.args):
            self.pin_defaults(edits, node, section, cls)
        if cls == "TrainingConfig" and id(node) not in self.placed:
            self.placed.add(id(node))

    def pin_defaults(self, edits: Edits, node: cst.Call, section: str, cls: str) -> None:
        for pin in data()["field_pins"]:
            path = pin["field"]
            name = path.partition(".")[2]
            exact = data()["class_sections"].get(cls) == section
            if not exact or not path.startswith(section + ".") or name in self.keywords(node):
                continue
            pinned = changed_default(path, self.before, self.after)
            if pinned is not NO_DEFAULT:
                edits.puts.append((name, self.code(pinned), None))
                self.notes.changed(f"{name}={self.code(pinned)} added", pin["why"], self.script.line(node))

    def function(self, node: cst.Call, name: str) -> None:
        """Plan a call of a helper function: renamed arguments, and defaults that changed."""
        edits = Edits()
        given = self.keywords(node)
        for row in data()["arguments"]:
            forward = matches(row["bridge"], self.after) and not matches(row["bridge"], self.before)
            back = matches(row["bridge"], self.before) and not matches(row["bridge"], self.after)
            old, new = (row["old"], row["new"]) if forward else (row["new"], row["old"])
            if name in row["functions"] and (forward or back) and old in given:
                edits.renames[old] = new
                why = f"{name} of {self.after} calls it {new}"
                self.notes.changed(f"{old}= -> {new}=", why, self.argument_line(node, old))
        for row in data()["argument_defaults"]:
            if name in row["functions"]:
                self.pin_argument(edits, node, row, given)
        if edits.renames or edits.puts:
            self.calls[id(node)] = edits

    def pin_argument(self, edits: Edits, node: cst.Call, row: Mapping[str, object], given: Mapping[str, Held]) -> None:
        values = row["values"]
        assert isinstance(values, dict)
        one, other = by_version(values, self.before), by_version(values, self.after)
        names = {str(row["argument"]), SWITCH}
        positional = sum(1 for arg in node.args if arg.keyword is None and not arg.star)
        if one == other or names & given.keys() or positional > int(str(row["position"])):
            return
        line = self.script.line(node)
        if any(arg.star for arg in node.args):
            reason = f"{row['why']}, and whether the call sets it is not known"
            self.notes.by_hand(str(row["argument"]), reason, f"pass it explicitly; it was {one}", line)
            return
        name = SWITCH if matches(SWITCH_SINCE, self.after) else str(row["argument"])
        edits.puts.append((name, repr(one), None))
        self.notes.changed(f"{name}={one} added", str(row["why"]), line)

    # -- eval settings ---------------------------------------------------------------------------------------------

    def eval_settings(self, call: cst.Call, container: str | None) -> list[tuple[str, str]]:
        """Take the eval settings out of a TrainingConfig call; returns them as (name, code)."""
        found = self.script.qualified(call.func)
        if found is None or found[1] != "TrainingConfig" or not matches(EVAL_MOVED, self.after):
            return []
        edits = self.calls.setdefault(id(call), Edits())
        taken = []
        for arg in call.args:
            if arg.keyword is not None and arg.keyword.value in DEAD_EVAL and code_of(arg.value) != "None":
                name = arg.keyword.value
                edits.drops.add(name)
                taken.append((name, code_of(arg.value)))
                why = "eval settings moved to validation in 0.4"
                self.notes.changed(f"train: {name}= -> validation: {name}=", why, self.script.line(arg))
        self.placed.add(id(call))
        return taken

    def container(self, node: cst.Call) -> None:
        """Plan ConfigContainer(...): eval settings of `train` go to `validation`."""
        edits = self.calls.setdefault(id(node), Edits())
        by_name = {arg.keyword.value: arg.value for arg in node.args if arg.keyword is not None}
        train = by_name.get("train")
        if isinstance(train, cst.Name):
            train = self.made.get(train.value)
        taken = self.eval_settings(train, None) if isinstance(train, cst.Call) else []
        if not taken:
            return
        validation = by_name.get("validation")
        if isinstance(validation, cst.Call):
            inner = self.calls.setdefault(id(validation), Edits())
            inner.puts += [(name, code, None) for name, code in taken]
        elif validation is None:
            self.need(home_of("ValidationConfig", self.after) or "", "ValidationConfig")
            arguments = ", ".join(f"{name}={code}" for name, code in taken)
            edits.puts.append(("validation", f"ValidationConfig({arguments})", "train"))
        else:
            do = f"set {', '.join(name for name, _ in taken)} in {code_of(validation)}"
            reason = "the validation section is made elsewhere"
            self.notes.by_hand("TrainingConfig", reason, do, self.script.line(node))


def _datasets(version: str) -> frozenset[str]:
    return frozenset(load_release(version).datasets)
