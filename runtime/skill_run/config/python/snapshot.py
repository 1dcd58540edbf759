"""A config object of a Python script, at one moment, as assignments in written names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from skill_run.config.model import NOWHERE, Assignment, Location, Plain, Unknown
from skill_run.config.python.heap import SEQUENCES, Cell, Obj, OneOf, targets_of
from skill_run.config.python.objects import Objects
from skill_run.config.python.values import MAX_NAME

MAX_PATH: Final = 12
SECTIONS: Final = (
    *("model", "dataset", "train", "validation", "optimizer", "scheduler", "ddp", "dist", "checkpoint", "tokenizer"),
    *("logger", "rng", "comm_overlap", "mixed_precision", "peft", "profiling", "ft", "rerun_state_machine"),
)


@dataclass(slots=True)
class Snapshot:
    """Assignments over a recipe, over defaults (neither is set), or over something that cannot be known."""

    assignments: list[Assignment] = field(default_factory=list)
    recipe: str | None = None
    recipe_location: Location = NOWHERE
    base_unknown: str | None = None
    environment: dict[str, str] = field(default_factory=dict)


def take_snapshot(config: Any, objects: Objects) -> Snapshot:
    """Return what a value holds as a whole config."""
    if isinstance(config, OneOf):
        taken = [take_snapshot(obj, objects) for obj in config.objects()]
        if config.other:
            taken.append(Snapshot(base_unknown=f"the config {config.reason}"))
        return combine(taken, config.reason)
    if not isinstance(config, Obj) or not config.has_attributes:
        return Snapshot(base_unknown=f"the config {objects.describe(config)}")
    made = Snapshot(environment=_environment(objects))
    recipe = config.meta.get("recipe")
    if config.kind == "inherited" and recipe is not None:
        made.recipe, made.recipe_location = recipe, config.meta["where"]
    elif config.kind != "object" or config.meta.get("cls") != "ConfigContainer":
        made.base_unknown = _why_unknown(config, objects)
    if config.meta.get("vague") and made.base_unknown is None:
        made.recipe, made.base_unknown = None, config.meta["vague"]
    _Writer(objects, made.assignments).parts(config, "", config.kind == "object", 0)
    return made


def _environment(objects: Objects) -> dict[str, str]:
    """Return the environment variables that are set to known text."""
    objects.tick(len(objects.environ.fields))
    cells = objects.environ.fields.items()
    return {key: str(cell.value) for key, cell in cells if isinstance(key, str) and isinstance(cell.value, str)}


def _why_unknown(config: Obj, objects: Objects) -> str:
    reason = objects.describe(config)
    call = config.meta.get("call")
    if call is not None and reason == f"comes from {call}":
        return f"{call} is not a recipe of this release's catalogue"
    return f"{config.meta['cls']}() is not a ConfigContainer" if config.kind == "object" else f"the config {reason}"


class _Writer:
    """Walks an object and appends assignments. fresh: nothing of the object comes from a recipe."""

    def __init__(self, objects: Objects, found: list[Assignment]) -> None:
        self.objects = objects
        self.found = found

    def add(self, path: str, value: Plain | Unknown, location: Location) -> None:
        self.found.append(Assignment(path, value, location))

    def parts(self, obj: Obj, path: str, fresh: bool, depth: int) -> None:
        if depth > MAX_PATH:
            self.add(path, Unknown("is nested too deep"), NOWHERE)
            return
        for name, cell in obj.fields.items():
            self.field(obj, name, cell, f"{path}.{name}" if path else name, fresh, depth + 1)
        for name, part in obj.children.items():
            if name in obj.fields:
                continue
            inner = f"{path}.{name}" if path else name
            if part.kind == "opaque":
                self.add(inner, Unknown(self.objects.describe(part)), part.meta.get("tainted", NOWHERE))
            self.parts(part, inner, False, depth + 1)

    def field(self, owner: Obj, name: str, cell: Cell, path: str, fresh: bool, depth: int) -> None:
        value = cell.value
        self.objects.tick()
        if isinstance(value, OneOf):
            self.one_of(owner, name, value, cell.location, path, fresh, depth)
        elif not isinstance(value, Obj):
            plain = self.objects.plain(value)
            self.add(path, str(plain) if isinstance(plain, str) else plain, cell.location)
        elif value.kind == "inherited" and value.meta.get("home") == (owner, name):
            self.parts(value, path, False, depth)
        elif value.kind == "object":
            cls = str(value.meta.get("cls"))
            if fresh:
                self.add(f"{path}._target_", cls, cell.location)
            else:
                self.add(path, {"_target_": cls}, cell.location)
            self.parts(value, path, True, depth)
        elif value.kind == "opaque":
            self.add(path, Unknown(self.objects.describe(value)), cell.location)
            if value.meta.get("cls"):
                self.add(f"{path}._target_", value.meta["cls"], cell.location)
            self.parts(value, path, False, depth)
        elif value.kind == "dict":
            self.mapping(value, path, cell.location, fresh, depth)
        else:
            self.add(path, self.objects.plain(value), cell.location)

    def one_of(
        self, owner: Obj, name: str, value: OneOf, location: Location, path: str, fresh: bool, depth: int
    ) -> None:
        """What the possible parts have in common."""
        merged: list[Assignment] | None = [Assignment(path, Unknown(value.reason), location)] if value.other else None
        for obj in value.objects():
            writer = _Writer(self.objects, [])
            writer.field(owner, name, Cell(obj, location), path, fresh, depth + 1)
            merged = writer.found if merged is None else _common(merged, writer.found, value.reason)
        self.found += merged or []

    def mapping(self, value: Obj, path: str, location: Location, fresh: bool, depth: int) -> None:
        """A mapping is its leaves; an empty one is {}, which also says that a mapping from a recipe is replaced."""
        if any(not isinstance(key, str) or not key or "." in key or len(key) > MAX_NAME for key in value.fields):
            self.add(path, Unknown("has keys that are not names"), location)
            return
        if value.meta.get("reason"):
            self.add(path, Unknown(value.meta["reason"]), location)
        elif not fresh or not value.fields:
            self.add(path, {}, location)
        if depth <= MAX_PATH:
            for key, cell in value.fields.items():
                self.field(value, key, cell, f"{path}.{key}", True, depth + 1)
        else:
            self.add(path, Unknown("is nested too deep"), location)


def looks_like_config(obj: Obj) -> bool:
    """Tell whether fields of config sections are set on an object."""
    for name in SECTIONS:
        cell = obj.fields.get(name)
        part = cell.value if isinstance(cell, Cell) else obj.children.get(name)
        if any(obj.kind not in (*SEQUENCES, "dict") and _is_set(obj, 0) for obj, _ in targets_of(part)):
            return True
    return False


def _is_set(part: Obj, depth: int) -> bool:
    if part.fields or part.kind == "object" or depth > MAX_PATH:
        return True
    return any(_is_set(child, depth + 1) for child in part.children.values())


def combine(snapshots: list[Snapshot], reason: str) -> Snapshot:
    """Return what several configs have in common; what differs between them is unknown."""
    first, *others = snapshots
    for other in others:
        made = Snapshot(recipe=first.recipe, recipe_location=first.recipe_location)
        made.base_unknown = first.base_unknown or other.base_unknown
        if first.recipe != other.recipe and made.base_unknown is None:
            made.base_unknown = f"the config is {first.recipe} or {other.recipe}: it {reason}"
        if made.base_unknown is not None:
            made.recipe = None
        made.assignments = _common(first.assignments, other.assignments, reason)
        shared = first.environment.items() & other.environment.items()
        made.environment = {key: value for key, value in first.environment.items() if (key, value) in shared}
        first = made
    return first


def _common(left: list[Assignment], right: list[Assignment], reason: str) -> list[Assignment]:
    sides = [{item.path: item for item in side} for side in (left, right)]
    found: list[Assignment] = []
    for path in dict.fromkeys([*sides[0], *sides[1]]):
        one, two = sides[0].get(path), sides[1].get(path)
        item = two or one
        assert item is not None
        same = one is not None and two is not None and type(one.value) is type(two.value) and one.value == two.value
        if same:
            found.append(item)
            continue
        # A class that differs makes the whole part unknown, not only the name of its class.
        found.append(Assignment(path.removesuffix("._target_"), Unknown(reason), item.location, item.operation))
    return found
