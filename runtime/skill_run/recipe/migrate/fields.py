"""Plan the migration of named fields, whatever form they are written in: files, mappings and override tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from skill_run.bridge import names
from skill_run.bridge.recipes import Recipe
from skill_run.bridge.release import NO_DEFAULT, index, load_release, matches
from skill_run.config.config import Config
from skill_run.config.model import Assignment, Plain, Source, State, Unknown
from skill_run.recipe.migrate.dataset import Drop, Put, Rename, plan_dataset
from skill_run.recipe.migrate.dataset import Plan as DatasetPlan
from skill_run.recipe.migrate.model import Build, Held, Notes, Opaque, Symbol
from skill_run.recipe.migrate.steps import (
    DEAD_EVAL,
    EVAL_MOVED,
    SWITCH_SINCE,
    ClassMove,
    can_import,
    class_move,
    data,
    given_fields,
    gone,
    target_of,
    without_successor,
    written_after,
)

ETP: Final = "model.expert_tensor_parallel_size"
_TARGET: Final = "._target_"
# How the default of the expert tensor parallel size differs: TP before this release, 1 from it on.
_ETP_IS_ONE: Final = ">=0.6.dev0"


@dataclass(slots=True)
class FieldPlan:
    """Renames (old -> new), values to set and fields to remove, by the names of the input and of the result.

    beside: for a value that is added, the field of the result next to which it reads best.
    """

    renames: dict[str, str] = field(default_factory=dict)
    sets: dict[str, Any] = field(default_factory=dict)
    removes: list[str] = field(default_factory=list)
    beside: dict[str, str] = field(default_factory=dict)
    notes: Notes = field(default_factory=Notes)


@dataclass(frozen=True, slots=True)
class Setting:
    """One migration: the resolved input, both releases, and whether recipe defaults that changed are pinned.

    recipes: the recipe of the input in the source and in the target release. objects: whether the form can hold config
    objects (a file can, an override token cannot).
    """

    config: Config
    before: str
    after: str
    objects: bool = True
    pin_recipe: bool = False
    recipes: tuple[Recipe | None, Recipe | None] = (None, None)


def plan_fields(source: Source, setting: Setting) -> FieldPlan:
    """Return what to change in the fields that a source gives."""
    planner = _Planner(source, setting)
    planner.dataset()
    for assignment in source.assignments:
        planner.other(assignment)
    planner.section_targets()
    planner.pins()
    return planner.plan


class _Planner:
    """Collects the plan of one source."""

    def __init__(self, source: Source, setting: Setting) -> None:
        self.source = source
        self.setting = setting
        self.before, self.after = setting.before, setting.after
        self.plan = FieldPlan()
        self.given: dict[str, Assignment] = {}
        for assignment in source.assignments:
            self.given[assignment.path] = assignment
        self.handled: set[str] = set()
        self.neighbours: list[tuple[str, str]] = []

    def line(self, path: str) -> int | None:
        """Return the line of a field, or of the first field below it."""
        for name, assignment in self.given.items():
            if name == path or name.startswith(path + "."):
                return assignment.location.line
        return None

    # -- the dataset ---------------------------------------------------------------------------------------------

    def dataset(self) -> None:
        """Plan the dataset section as one object of its class."""
        held = self.dataset_fields()
        cls = self.setting.config.dataset_type
        if not held and cls is None:
            return
        whole = f"dataset{_TARGET}" in self.given or self.source.form == "container"
        advice = without_successor(cls, self.before, self.after) if cls else None
        if cls is not None and advice is not None and self.names_class():
            reason = f"{cls} does not exist in {self.after}"
            self.plan.notes.by_hand(f"dataset class {cls}", reason, advice, self.line("dataset"))
            self.handled |= {path for path in self.given if path.startswith("dataset.")}
            return
        move = class_move(cls, given_fields(held), self.before, self.after) if cls else None
        move = move or self.same_class(cls, held)
        plan = plan_dataset(cls or "", held, self.before, self.after, whole=whole, move=move)
        if plan is None:
            return
        for stop in plan.stops:
            path = f"dataset.{stop.field}"
            self.plan.notes.by_hand(path, stop.reason, stop.do, self.line(path) or self.line("dataset"))
        self.handled |= {path for path in self.given if path.startswith("dataset.")}
        if plan.blocked:
            return
        if cls is not None:
            self.set_class(cls, plan.cls)
        self.apply_dataset(plan)
        self.specs_fields(plan)

    def names_class(self) -> bool:
        """Tell whether the input itself names the dataset's class."""
        return f"dataset{_TARGET}" in self.given or "dataset.type" in self.given

    def same_class(self, cls: str | None, held: Mapping[str, Held]) -> ClassMove:
        """Return the move of a class that keeps its name: its renamed fields."""
        renamed = {}
        for name in held:
            new = written_after(f"dataset.{name}", self.before, self.after, cls).partition(".")[2]
            if new != name:
                renamed[name] = new
        here, there = matches(SWITCH_SINCE, self.before), matches(SWITCH_SINCE, self.after)
        return ClassMove(cls or "", cls or "", there, "plain", renamed, {}, {}, frozenset(), crosses=here != there)

    def dataset_fields(self) -> dict[str, Held]:
        """Return the dataset's fields as nested values; what nobody can tell is Opaque."""
        tree: dict[str, Any] = {}
        for path, assignment in self.given.items():
            if not path.startswith("dataset.") or path in (f"dataset{_TARGET}", "dataset.type"):
                continue
            node = tree
            *parents, leaf = path.split(".")[1:]
            for parent in parents:
                below = node.get(parent)
                node[parent] = below if isinstance(below, dict) else {}
                node = node[parent]
            value = assignment.value
            node[leaf] = Opaque(value.reason) if isinstance(value, Unknown) else value
        return tree

    def set_class(self, old: str, new: str) -> None:
        """Write the dataset's new class where the input names the old one."""
        if old == new:
            return
        for path, value in ((f"dataset{_TARGET}", target_of(new, self.after)), ("dataset.type", new)):
            if path in self.given and value is not None:
                self.plan.sets[path] = value
                self.plan.notes.changed(f"{old} -> {new}", f"{self.after} has no {old}", self.line(path))

    def apply_dataset(self, plan: DatasetPlan) -> None:
        for edit in plan.edits:
            if isinstance(edit, Rename):
                self.rename(f"dataset.{edit.old}", f"dataset.{edit.new}", edit.why)
            elif isinstance(edit, Drop):
                self.drop(f"dataset.{edit.name}", edit.why)
            else:
                self.put(edit)
        self.plan.beside = {path: self.moved(near) for path, near in self.plan.beside.items()}

    def put(self, edit: Put) -> None:
        path = f"dataset.{edit.name}"
        line = self.line(f"dataset.{edit.beside}") if edit.beside else self.line("dataset")
        if isinstance(edit.value, Build | Symbol) and not self.setting.objects:
            name = edit.value.cls if isinstance(edit.value, Build) else edit.value.name
            do = "choose the dataset with the launcher's --dataset flag, or set it in Python"
            self.plan.notes.by_hand(path, f"an override cannot make a {name}", do, line)
            return
        value = self.written(edit.value)
        self.plan.sets[path] = value
        if edit.beside:
            near = f"dataset.{edit.beside}"
            before = [other for other, beside in self.neighbours if beside == near]
            self.plan.beside[path] = before[-1] if before else near
            self.neighbours.append((path, near))
        self.plan.notes.changed(f"{path} = {_shown(value)}", edit.why, line)

    def written(self, value: Held) -> Plain:
        """Return an object as the mapping that stands for it in a file."""
        if isinstance(value, Build):
            target = target_of(value.cls, self.after)
            return {"_target_": target, **{key: self.written(item) for key, item in value.values.items()}}
        if isinstance(value, Symbol):
            return {"_target_": f"{value.module}.{value.name}", "_call_": False}
        return True if isinstance(value, Opaque) else value

    def specs_fields(self, plan: DatasetPlan) -> None:
        """Move the class of the packing specs, and take away their fields that the target release does not have."""
        old, new = load_release(self.before), load_release(self.after)
        base = f"dataset.{old.specs_field}"
        if any(isinstance(edit, Drop) and f"dataset.{edit.name}" == base for edit in plan.edits):
            return
        for path in self.given:
            leaf = path.removeprefix(base + ".")
            if leaf == path or leaf not in old.specs or leaf in new.specs:
                continue
            self.lose(path, old.specs[leaf].default, "PackedSequenceSpecs")

    # -- everything else -----------------------------------------------------------------------------------------

    def other(self, assignment: Assignment) -> None:
        path = assignment.path
        if path in self.handled or assignment.operation == "delete":
            return
        if path.endswith((_TARGET, ".type")):
            return
        value = assignment.value
        if path.startswith("train.") and path.partition(".")[2] in DEAD_EVAL:
            self.eval_setting(path, value)
            return
        if gone(_field(path), self.before, self.after) and written_after(path, self.before, self.after, None) == path:
            self.lose(_field(path), self.default(_field(path)), None)
            return
        cls = self.setting.config.dataset_type if path.startswith("dataset.") else None
        new = written_after(path, self.before, self.after, cls)
        if names.is_alias(path, self.before) and value is None:
            return
        if new != path:
            self.rename(_cut(path, new)[0], _cut(path, new)[1], f"{self.after} calls it {_cut(path, new)[1]}")

    def default(self, path: str) -> object:
        spec = load_release(self.before).field(path)
        return NO_DEFAULT if spec is None else spec.default

    def eval_setting(self, path: str, value: Plain | Unknown) -> None:
        """Move an eval setting of `train`: renamed by 0.4, and kept there as a name that nobody reads."""
        new = f"validation.{path.partition('.')[2]}"
        if not matches(EVAL_MOVED, self.after):
            return
        if matches(EVAL_MOVED, self.before) and (value is None or new in self.given):
            return
        why = "eval settings moved to validation in 0.4"
        if matches(EVAL_MOVED, self.before):
            why += "; under train nobody has read them since"
        self.rename(path, new, why)

    def lose(self, path: str, default: object, owner: str | None) -> None:
        """Take away a field that the target release does not have when it holds its default, else list it."""
        if path in self.plan.removes:
            return
        below = [a for name, a in self.given.items() if name.startswith(path + ".")]
        value = self.given[path].value if path in self.given else None
        held = owner or path.partition(".")[0]
        if not below and (value in (None, {}) or (default is not NO_DEFAULT and value == default)):
            self.drop(path, f"{self.after} does not have it in {held}, and it held its default")
            return
        reason = f"{held} of {self.after} has no field {path.rpartition('.')[2]}"
        self.plan.notes.by_hand(path, reason, f"remove {path}, or keep what it did in another way", self.line(path))

    def rename(self, old: str, new: str, why: str) -> None:
        if old in self.plan.renames:
            return
        here = self.values_below(old)
        there = self.values_below(new)
        if there and set(there.values()) != {"None"}:
            if here != there:
                reason = f"{old} and {new} are both set, to different values"
                self.plan.notes.by_hand(old, reason, f"keep one of them, as {new}", self.line(old))
            else:
                self.drop(old, f"{new} says the same")
            return
        self.plan.renames[old] = new
        self.plan.notes.changed(f"{old} -> {new}", why, self.line(old))

    def values_below(self, path: str) -> dict[str, str]:
        return {
            name[len(path) :]: repr(assignment.value)
            for name, assignment in self.given.items()
            if (name == path or name.startswith(path + ".")) and not name.endswith(_TARGET)
        }

    def drop(self, path: str, why: str) -> None:
        if path not in self.plan.removes and any(n == path or n.startswith(path + ".") for n in self.given):
            self.plan.removes.append(path)
            self.plan.notes.changed(f"{path} removed", why, self.line(path))

    # -- classes named by `_target_` -------------------------------------------------------------------------------

    def section_targets(self) -> None:
        """Move the dotted paths of classes, and give a section that appears the class that a dump names."""
        for path, assignment in self.given.items():
            value = assignment.value
            if not path.endswith(_TARGET) or not isinstance(value, str) or path in self.plan.sets:
                continue
            if path == f"dataset{_TARGET}" and path in self.handled and self.setting.config.dataset_type:
                self.move_target(path, value)
                continue
            self.move_target(path, value)
        created = {new.partition(".")[0] for new in self.plan.renames.values()} - {
            path.partition(".")[0] for path in self.given
        }
        if self.source.form == "container" and "validation" in created:
            self.plan.sets["validation._target_"] = target_of("ValidationConfig", self.after)
        self.empty_sections()

    def move_target(self, path: str, value: str) -> None:
        if any(path.startswith(removed + ".") for removed in self.plan.removes):
            return
        module, _, cls = value.rpartition(".")
        if cls not in data()["targets"] or can_import(module, cls, self.after):
            wanted = target_of(cls, self.after)
            if wanted is None or target_of(cls, self.before) != value or wanted == value:
                return
        wanted = target_of(cls, self.after)
        if wanted is None:
            return
        self.plan.sets[self.moved(path)] = wanted
        self.plan.notes.changed(f"{value} -> {wanted}", f"the class stands there in {self.after}", self.line(path))

    def moved(self, path: str) -> str:
        for old, new in self.plan.renames.items():
            if path == old or path.startswith(old + "."):
                return new + path[len(old) :]
        return path

    def empty_sections(self) -> None:
        """Remove a section of a dump that the target release does not have, once all its fields are dealt with."""
        there = load_release(self.after).sections
        for section in load_release(self.before).sections - there:
            fields = [p for p in self.given if p.startswith(section + ".") and not p.endswith(_TARGET)]
            done = {*self.plan.removes, *self.plan.renames}
            if f"{section}{_TARGET}" in self.given and all(path in done for path in fields):
                self.plan.removes.append(f"{section}{_TARGET}")

    # -- defaults --------------------------------------------------------------------------------------------------

    def pins(self) -> None:
        """Write down defaults that changed, so that what is trained stays the same."""
        self.pin_expert_tensor_parallel()
        for pin in data()["field_pins"]:
            self.pin_field(pin["field"], pin["why"])
        if self.setting.pin_recipe:
            self.pin_recipe_values()

    def pin_expert_tensor_parallel(self) -> None:
        if matches(_ETP_IS_ONE, self.before) == matches(_ETP_IS_ONE, self.after):
            return
        value, unknown = expert_tensor_parallel(self.setting.config, self.before)
        line = self.line("model.expert_model_parallel_size") or self.line("model.tensor_model_parallel_size")
        why = "unset it meant TP before 0.6 and means 1 from 0.6 on, where experts are parallel"
        if unknown:
            do = (
                f"set {ETP} to the tensor parallel size of the {self.before} run"
                if (matches(_ETP_IS_ONE, self.after))
                else f"set {ETP} to 1"
            )
            self.plan.notes.by_hand(ETP, f"{why}, and whether it is set is not known: {unknown}", do, line)
        elif value is not None:
            self.plan.sets[ETP] = value
            self.plan.notes.changed(f"{ETP} = {value}", why, line)

    def pin_field(self, path: str, why: str) -> None:
        """Pin a changed class default where the input makes the object from its class."""
        section = path.partition(".")[0]
        if f"{section}{_TARGET}" not in self.given or path in self.given:
            return
        pinned = changed_default(path, self.before, self.after)
        if pinned is not NO_DEFAULT:
            self.plan.sets[path] = pinned
            self.plan.notes.changed(f"{path} = {_shown(pinned)}", why, self.line(section))

    def pin_recipe_values(self) -> None:
        one, other = self.setting.recipes
        if one is None or other is None:
            return
        done = {*self.plan.renames.values(), *self.plan.sets, *self.given}
        for path, value in recipe_pins(one, other, self.after, self.setting.config).items():
            if path not in done:
                self.plan.sets[path] = value
                why = f"the default of recipe {one.name} changed between {self.before} and {self.after}"
                self.plan.notes.changed(f"{path} = {_shown(value)}", why)


def changed_default(path: str, before: str, after: str) -> Any:
    """Return the source release's default of a field when the target's differs, else NO_DEFAULT."""
    old, new = load_release(before).field(path), load_release(after).field(path)
    if old is None or new is None or NO_DEFAULT in (old.default, new.default) or old.default == new.default:
        return NO_DEFAULT
    return old.default


def recipe_pins(one: Recipe, other: Recipe, after: str, config: Config) -> dict[str, Plain]:
    """Return what one recipe sets and the other sets to something else, by the target release's names."""
    found: dict[str, Plain] = {}
    for canonical, value in one.values.items():
        held = config.get(canonical)
        same = canonical in other.values and other.values[canonical] == value
        if same or canonical.endswith(".type") or held.value != value or not names.exists(canonical, after):
            continue
        found[names.to_written(canonical, after, str(other.values.get("dataset.type")))] = value
    return found


def expert_tensor_parallel(config: Config, before: str) -> tuple[int | None, str]:
    """Return the value that an unset expert tensor parallel size had, and why it is not known whether it was unset.

    None and an empty reason when the default plays no part: it is set, experts are not parallel, or TP is 1.
    """
    expert, tensor = config.get("model.expert_model_parallel_size"), config.get("model.tensor_model_parallel_size")
    held = config.get(ETP)
    if held.state is State.SET and held.value is not None:
        return None, ""
    for size in (expert, tensor):
        if isinstance(size.value, int) and size.value <= 1 and size.state is not State.UNKNOWN:
            return None, ""
    if held.state is State.UNKNOWN:
        parallel = [size for size in (expert, tensor) if size.state is State.SET]
        return None, (held.reason or "it is computed") if parallel else ""
    if State.UNKNOWN in (expert.state, tensor.state):
        unknown = expert if expert.state is State.UNKNOWN else tensor
        return None, unknown.reason or "it is computed"
    value = 1 if matches(_ETP_IS_ONE, before) else tensor.value
    return (value if isinstance(value, int) else None), ""


def _field(path: str) -> str:
    return ".".join(path.split(".")[:2])


def _cut(old: str, new: str) -> tuple[str, str]:
    """Return the pair of names that a rename of two long names comes down to: their common end left out."""
    for rename in index()["renames"]:
        for one, other in ((rename["old"], rename["new"]), (rename["new"], rename["old"])):
            if (old == one or old.startswith(one + ".")) and (new == other or new.startswith(other + ".")):
                return one, other
    return old, new


def _shown(value: object) -> str:
    from skill_run.config.yaml_text import flow

    text = flow(value)  # type: ignore[arg-type]
    return text if len(text) <= 120 else text[:117] + "..."
