"""Compare a config before and after a migration by its canonical values, whatever the fields are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from skill_run.bridge import names
from skill_run.bridge.recipes import Recipe
from skill_run.bridge.release import load_release
from skill_run.config.config import Config
from skill_run.config.model import Plain, State, Value
from skill_run.recipe.migrate.model import Change, Difference

_RECIPE: Final = "recipe"
_LAUNCHER: Final = "run_recipe.py"
# What a moved source of data, or a switch that only one release has, consists of.
_SOURCES: Final = (
    *("dataset.type", "dataset.hf_", "dataset.dataset_name", "dataset.process_example_fn", "dataset.source"),
    *(
        "dataset.validation_source",
        "dataset.test_source",
        "dataset.preprocessing",
        "dataset.maker",
        "dataset.val_maker",
    ),
    *("dataset.test_maker", "dataset.dataset_subset", "dataset.split", "dataset.hf_kwargs"),
)


def compare(
    before: Config, after: Config, changes: Sequence[Change], recipes: tuple[Recipe | None, Recipe | None]
) -> list[Difference]:
    """Return the canonical fields that have another value after the migration, with the step that explains each."""
    found = []
    explained = _explained(changes)
    for canonical in sorted({*before.values, *after.values}):
        one, other = before.get(canonical), after.get(canonical)
        if _same(one, other):
            continue
        why = _why(canonical, before, after, explained, recipes)
        found.append(Difference(canonical, _value(one), _value(other), why))
    return found


def _same(one: Value, other: Value) -> bool:
    if State.UNKNOWN in (one.state, other.state):
        # What nobody can tell before is not told after either; a value that became known was pinned.
        return one.state is other.state or one.value == other.value or State.SET not in (one.state, other.state)
    return one.value == other.value


def _value(value: Value) -> Plain:
    return "unknown" if value.state is State.UNKNOWN else value.value


def _explained(changes: Sequence[Change]) -> dict[str, str]:
    """Return the reasons of the changes by every dotted name in them."""
    found: dict[str, str] = {}
    for change in changes:
        for word in change.what.replace("=", " ").split():
            if "." in word:
                found.setdefault(word.strip(",()"), change.why)
    return found


def _why(
    canonical: str,
    before: Config,
    after: Config,
    explained: Mapping[str, str],
    recipes: tuple[Recipe | None, Recipe | None],
) -> str:
    for name in (canonical, before.written(canonical), after.written(canonical)):
        for told, why in explained.items():
            if name == told or name.startswith(told + "."):
                return why
    if canonical.startswith(_SOURCES):
        return "the dataset has another class in this release"
    if canonical == names.to_canonical("dataset.enable_offline_packing", after.release.version):
        return "only from 0.6 on there is a switch beside the packing specs"
    held = before.values.get(canonical)
    if _LAUNCHER in (before.get(canonical).reason, after.get(canonical).reason):
        return "run_recipe.py of only one of the releases sets it by itself"
    if held is not None and held.reason == _RECIPE and recipes[1] is not None:
        return f"the default of the recipe changed; --pin-recipe keeps {held.value!r}"
    if held is None and after.values[canonical].reason == _RECIPE:
        return "the recipe of this release sets it, and the old one left it to the default"
    fields = [load_release(c.release.version).field(c.written(canonical), c.dataset_type) for c in (before, after)]
    if None in fields:
        return "only one of the releases has this field"
    return ""
