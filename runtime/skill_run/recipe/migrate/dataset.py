"""What becomes of one dataset's fields when its class changes: renames, moved sources, switches and pinned defaults.

Works on the field names and values of a single dataset object, whatever it is written in; the forms apply the edits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from skill_run.bridge.release import NO_DEFAULT, load_release
from skill_run.recipe.migrate.model import Build, Held, Opaque
from skill_run.recipe.migrate.steps import ClassMove, class_move, given_fields

OLD_SPECS: Final = "packed_sequence_specs"
NEW_SPECS: Final = "offline_packing_specs"
SWITCH: Final = "enable_offline_packing"


@dataclass(frozen=True, slots=True)
class Rename:
    """A field that keeps its value under another name."""

    old: str
    new: str
    why: str


@dataclass(frozen=True, slots=True)
class Put:
    """A field that is set; `beside` is the field next to which it reads best."""

    name: str
    value: Held
    why: str
    beside: str | None = None


@dataclass(frozen=True, slots=True)
class Drop:
    """A field that goes."""

    name: str
    why: str


Edit = Rename | Put | Drop


@dataclass(frozen=True, slots=True)
class Stop:
    """Something of a dataset that a person has to move. blocks: the class cannot be changed before that is done."""

    field: str
    reason: str
    do: str
    blocks: bool = False


@dataclass(slots=True)
class Plan:
    """The edits of one dataset, in order, and what is left to the user."""

    cls: str
    edits: list[Edit] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)

    @property
    def blocked(self) -> bool:
        """Whether the dataset has to stay as it is."""
        return any(stop.blocks for stop in self.stops)

    def touches(self, name: str) -> bool:
        """Tell whether a field of the source is already dealt with."""
        return any(getattr(edit, "old", getattr(edit, "name", None)) == name for edit in self.edits) or any(
            stop.field == name for stop in self.stops
        )


def is_set(value: Held) -> bool:
    """Tell whether a value is, or may be, something else than null, false or empty."""
    return isinstance(value, Opaque) or (value is not None and value is not False and value != {})


def plan_fields(plan: Plan, move: ClassMove, held: Mapping[str, Held], before: str, after: str, whole: bool) -> None:
    """Add the edits that follow from the field tables of both classes: renames, what is gone, pinned defaults.

    whole: the object is made from its class's defaults, so that what it leaves out matters too.
    """
    there = load_release(after).datasets.get(move.new, {})
    origin = load_release(before).datasets.get(move.old, {})
    for name, value in held.items():
        if plan.touches(name):
            continue
        if name in move.fields:
            plan.edits.append(Rename(name, move.fields[name], f"{move.new} calls it {move.fields[name]}"))
        elif name in there or name.startswith("_") or name not in origin:
            continue
        else:
            _lost(plan, move, name, value, origin[name].default, after)
    if whole:
        for name, default in move.pins.items():
            if name not in held:
                why = f"{move.old} had {default!r} as default and {move.new} has another, which changes the batches"
                plan.edits.append(Put(name, default, why))


def _lost(plan: Plan, move: ClassMove, name: str, value: Held, default: object, after: str) -> None:
    same = default is not NO_DEFAULT and value == default and not isinstance(value, Opaque)
    if name in move.dropped:
        plan.edits.append(Drop(name, f"{move.new} of {after} takes it from elsewhere"))
    elif same or value is None:
        plan.edits.append(Drop(name, f"{move.new} of {after} does not have it, and it held its default"))
    elif name in move.by_hand:
        plan.stops.append(Stop(name, f"{move.new} has another {name}", move.by_hand[name]))
    else:
        reason = f"{move.new} of {after} has no field {name}"
        plan.stops.append(Stop(name, reason, f"remove {name}, or keep what it did in another way"))


def plan_switch(plan: Plan, move: ClassMove, held: Mapping[str, Held], whole: bool) -> None:
    """Add `enable_offline_packing` beside the specs, which 0.6 asks for together, or take it away going back."""
    if not move.crosses:
        return
    if not move.forward:
        if SWITCH in held:
            if held[SWITCH] is False and NEW_SPECS in held and held[NEW_SPECS] is not None:
                reason = f"{SWITCH} is false although {NEW_SPECS} is set, which 0.6 refuses"
                plan.stops.append(Stop(SWITCH, reason, f"set {OLD_SPECS} to null when nothing is to be packed"))
                return
            plan.edits.append(Drop(SWITCH, f"before 0.6 {OLD_SPECS} alone switches packing on"))
        return
    if OLD_SPECS not in held or SWITCH in held:
        return
    specs = held[OLD_SPECS]
    if _packs_nothing(specs, whole):
        why = (
            "a packed_sequence_size of 0 or less switched packing off in silence before 0.6, and is refused from 0.6 on"
        )
        plan.edits += [Drop(OLD_SPECS, why)]
        return
    if specs is None and whole:
        return
    why = f"from 0.6 on {NEW_SPECS} and {SWITCH} must be set together"
    plan.edits.append(Put(SWITCH, Opaque() if isinstance(specs, Opaque) else specs is not None, why, OLD_SPECS))


def _packs_nothing(specs: Held, whole: bool) -> bool:
    values = specs.values if isinstance(specs, Build) else specs
    if not isinstance(values, Mapping):
        return False
    size = values.get("packed_sequence_size", -1 if whole else 1)
    return isinstance(size, int) and not isinstance(size, bool) and size <= 0


def plan_dataset(
    cls: str, held: Mapping[str, Held], before: str, after: str, *, whole: bool, move: ClassMove | None = None
) -> Plan | None:
    """Return the edits of one dataset object of class `cls`; None when the two releases agree about it.

    held: its fields by the source release's names; values are plain, or Opaque where only the user's code knows them.
    whole: see plan_fields.
    """
    from skill_run.recipe.migrate.source import plan_source

    move = move or class_move(cls, given_fields(held), before, after)
    if move is None:
        return None
    plan = Plan(move.new)
    plan_source(plan, move, held, whole)
    if plan.blocked:
        return plan
    plan_switch(plan, move, held, whole)
    plan_fields(plan, move, held, before, after, whole)
    return plan
