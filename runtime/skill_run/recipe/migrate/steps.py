"""What changes between two releases, read from the release data: names, classes, imports, recipes, defaults.

Source: bridge/data/releases.json (renamed fields) and bridge/data/migrations.json (the rest), which were extracted from
the released wheels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from skill_run.bridge import names
from skill_run.bridge.recipes import catalogue, find_recipe, is_recorded_in_full
from skill_run.bridge.release import by_version, index, load_release, matches, read_data

PACKING_SPECS: Final = "dataset.offline_packing_specs"
PACKING_SWITCH: Final = "dataset.enable_offline_packing"
DEAD_EVAL: Final = ("eval_iters", "eval_interval", "skip_train")
# From this release on the eval settings stand in their own section; those of `train` are kept and read by nobody.
EVAL_MOVED: Final = ">=0.4.dev0"
# From this release on a switch stands beside the packing specs.
SWITCH_SINCE: Final = ">=0.6.dev0"


@cache
def data() -> dict[str, Any]:
    """Return `migrations.json`."""
    loaded: dict[str, Any] = read_data("migrations.json")
    return loaded


@dataclass(frozen=True, slots=True)
class ClassMove:
    """A dataset class that has another name or shape in the target release.

    fields: the source release's field -> the target's. forward: whether it goes to the newer class. kind: `local` (same
    fields), `hub` (a Hugging Face dataset for text), `conversation` (one for chat or images) or `plain`. pins: defaults
    of the source class that the target class does not have. by_hand: fields of the older class with what to do.
    dropped: fields of the older class that the newer one has no use for. crosses: whether only one of the two releases
    has a switch beside the packing specs.
    """

    old: str
    new: str
    forward: bool
    kind: str
    fields: Mapping[str, str]
    pins: Mapping[str, Any]
    by_hand: Mapping[str, str]
    dropped: frozenset[str]
    crosses: bool = True


def matches_switch(version: str) -> bool:
    """Tell whether a release has a switch beside the packing specs."""
    return matches(SWITCH_SINCE, version)


def given_fields(held: Mapping[str, object]) -> frozenset[str]:
    """Return the names of the fields that are not null."""
    return frozenset(name for name, value in held.items() if value is not None)


def class_move(cls: str, given: frozenset[str], before: str, after: str) -> ClassMove | None:
    """Return the move of a dataset class between two releases; `given` are the names of the fields that it is given."""
    for row in data()["datasets"]:
        forward = not matches(row["bridge"], before) and matches(row["bridge"], after)
        back = matches(row["bridge"], before) and not matches(row["bridge"], after)
        if (forward and row["old"] == cls) or (back and row["new"] == cls and _is_kind(row["kind"], given)):
            fields = row["fields"] if forward else {new: old for old, new in row["fields"].items()}
            return ClassMove(
                old=cls,
                new=row["new"] if forward else row["old"],
                forward=forward,
                kind=row["kind"],
                fields=fields,
                pins=row.get("pins" if forward else "back_pins", {}),
                by_hand=row.get("by_hand", {}),
                dropped=frozenset(row.get("dropped", ())) if forward else frozenset(),
            )
    return None


def _is_kind(kind: str, given: frozenset[str]) -> bool:
    """Tell which of the older classes a newer one goes back to: the hub class when it has a hub source."""
    return kind not in ("local", "hub") or (kind == "hub") == ("hf_dataset" in given)


def without_successor(cls: str, before: str, after: str) -> str | None:
    """Return what to do about a dataset class that nothing in the target release replaces."""
    for row in data()["without_successor"]:
        if row["class"] == cls and not matches(row["bridge"], before) and matches(row["bridge"], after):
            return str(row["do"])
    return None


def target_of(cls: str, version: str) -> str | None:
    """Return the dotted path under which a dump of the release names a class, None when it does not have it."""
    module = by_version(data()["targets"].get(cls, {}), version)
    return None if module is None else f"{module}.{cls}"


def home_of(symbol: str, version: str) -> str | None:
    """Return the module from which a script for the release imports a symbol; None when nothing is recorded."""
    module = by_version(data()["homes"].get(symbol, {}), version)
    if module is not None:
        return str(module)
    homes = by_version(data()["symbols"].get(symbol, {}), version)
    return homes[0] if homes else None


def function_after(name: str, before: str, after: str) -> str:
    """Return the name that a helper function has in the target release."""
    for row in data()["functions"]:
        if matches(row["bridge"], after) != matches(row["bridge"], before):
            if name == row["old"] and matches(row["bridge"], after):
                return str(row["new"])
            if name == row["new"] and matches(row["bridge"], before):
                return str(row["old"])
    return name


def can_import(module: str, symbol: str | None, version: str) -> bool:
    """Tell whether a release has a module and, as far as it is recorded, the symbol in it."""
    span = _module_span(module)
    if span is not None and not matches(span, version):
        return False
    if symbol is None:
        return True
    for table in (data()["symbols"], data()["homes"]):
        if symbol in table and by_version(table[symbol], version) is None:
            return False
    for row in data()["functions"]:
        if symbol in (row["old"], row["new"]) and (symbol == row["new"]) != matches(row["bridge"], version):
            return False
    homes = by_version(data()["symbols"].get(symbol, {}), version)
    return homes is None or module in homes or _is_unrelated(module, symbol)


def _is_unrelated(module: str, symbol: str) -> bool:
    """Tell whether no release has this symbol in this module, so that it is another one of the same name."""
    return not any(module in homes for homes in data()["symbols"][symbol].values())


def _module_span(module: str) -> str | None:
    """Return the specifier of the releases that have a module; None when all have it or nothing is recorded."""
    while module:
        if module in data()["modules"]:
            return str(data()["modules"][module])
        module = module.rpartition(".")[0]
    return None


def module_after(module: str, before: str, after: str) -> str | None:
    """Return where what a module held is in the target release, None when that is not one module."""
    for row in index()["moved_modules"]:
        old, new = row["old"], row["new"]
        if old is None or new is None or matches(row["bridge"], before) == matches(row["bridge"], after):
            continue
        here, there = (old, new) if matches(row["bridge"], after) else (new, old)
        if module == here:
            return str(there)
    return None


def recipe_after(name: str, before: str, after: str) -> tuple[str, str] | None:
    """Return name and module of a recipe in the target release; None when it has none of this or an equal name."""
    found = find_recipe(name, after)
    if found is not None:
        return found.name, found.module
    origin = find_recipe(name, before)
    if origin is None:
        return None
    for other in catalogue(before).values():
        # An alias is the same function, so its record holds the very same values.
        if other.values is origin.values and find_recipe(other.name, after) is not None:
            same = catalogue(after)[other.name]
            return same.name, same.module
    return None


def is_lost_recipe(name: str, before: str, after: str) -> bool:
    """Tell whether the target release surely has no recipe under this or an equal name."""
    return is_recorded_in_full(name) and find_recipe(name, before) is not None and not recipe_after(name, before, after)


def written_after(path: str, before: str, after: str, dataset_type: str | None) -> str:
    """Return the target release's name of a field that the source release writes as `path`."""
    canonical = names.to_canonical(path, before, dataset_type)
    return names.to_written(canonical, after, dataset_type)


def gone(path: str, before: str, after: str) -> bool:
    """Tell whether a field outside the dataset is one of the source release and none of the target release."""
    section = path.partition(".")[0]
    old, new = load_release(before), load_release(after)
    if section not in old.sections:
        return False
    if section not in new.sections:
        return True
    return old.field(path) is not None and new.field(path) is None and not names.is_alias(path, after)
