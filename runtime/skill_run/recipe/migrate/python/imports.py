"""What the imports of a script bind, and what becomes of each one in another release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from skill_run.bridge.recipes import find_recipe
from skill_run.bridge.release import index, matches
from skill_run.recipe.migrate.steps import (
    can_import,
    class_move,
    data,
    function_after,
    home_of,
    is_lost_recipe,
    module_after,
    recipe_after,
    without_successor,
)

BRIDGE: Final = "megatron.bridge"
_RECIPES: Final = "megatron.bridge.recipes"
_UTILS: Final = "megatron.bridge.recipes.utils"


@dataclass(frozen=True, slots=True)
class Binding:
    """A name that an import binds: `symbol` of `module`, or the module itself when symbol is None."""

    module: str
    symbol: str | None
    local: str
    line: int


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of one imported symbol: its new module and name; `do` says what to do when there is none."""

    module: str
    name: str
    do: str = ""
    why: str = ""

    @property
    def lost(self) -> bool:
        """Whether the target release has nothing in its place."""
        return bool(self.do)


def fate_of(module: str, symbol: str, before: str, after: str) -> Fate:
    """Return where a symbol that is imported from `module` is in the target release."""
    if not module.startswith(BRIDGE):
        return Fate(module, symbol)
    if module.startswith(_RECIPES) and not module.startswith(_UTILS):
        return _recipe_fate(module, symbol, before, after)
    move = class_move(symbol, frozenset(), before, after)
    if move is not None:
        home = home_of(move.new, after)
        return Fate(home or module, move.new, why=f"{symbol} is called {move.new} in {after}")
    advice = without_successor(symbol, before, after)
    if advice is not None:
        return Fate(module, symbol, do=advice)
    name = function_after(symbol, before, after)
    if can_import(module, name, after) and name == symbol:
        return Fate(module, symbol)
    home = home_of(name, after) or _function_home(name) or module_after(module, before, after)
    if home is not None and can_import(home, name, after) and _is_recorded(name, home):
        return Fate(home, name, why=f"{name} stands in {home} in {after}")
    return Fate(module, symbol, do=_instead(module, symbol, after))


def _is_recorded(name: str, home: str) -> bool:
    """Tell whether a symbol is known to be in its new module, not only the module to exist."""
    return home in (home_of(name, release) for release in index()["releases"]) or _function_home(name) is not None


def _function_home(name: str) -> str | None:
    return next(
        (row[f"{kind}_module"] for row in data()["functions"] for kind in ("old", "new") if row[kind] == name), None
    )


def _recipe_fate(module: str, symbol: str, before: str, after: str) -> Fate:
    found = recipe_after(symbol, before, after)
    origin = find_recipe(symbol, before)
    if found is None:
        if is_lost_recipe(symbol, before, after):
            return Fate(module, symbol, do=f"choose a recipe that {after} has, and compare its settings")
        return Fate(module, symbol)
    name, there = found
    package = ".".join(there.split(".")[:4])
    if name == symbol and (origin is None or module != origin.module or matches(">=0.6.dev0", after)):
        return Fate(module, symbol)
    if origin is not None and module == ".".join(origin.module.split(".")[:4]):
        return Fate(package, name, why=f"{symbol} is called {name} in {after}")
    return Fate(there, name, why=f"the recipe is {name} of {there} in {after}")


def _instead(module: str, symbol: str, after: str) -> str:
    for row in [*index()["moved_classes"], *index()["moved_modules"]]:
        named = row.get("symbol") in (symbol, None) and module in (row["old"], row["new"])
        if named and row.get("instead") and (row["new"] is None) == matches(row["bridge"], after):
            return f"use {row['instead']}"
    if symbol in data()["processors"]:
        return "declare the dataset with HFDatasetSourceConfig(dataset_name=...) from megatron.bridge.data.builders"
    return f"find out what {after} has instead of {module}.{symbol}"


def bindings_by_name(found: Sequence[Binding], before: str) -> Mapping[str, Binding]:
    """Return what each local name means in the source release; of several imports, one that this release has."""
    chosen: dict[str, Binding] = {}
    for binding in found:
        held = chosen.get(binding.local)
        if held is None or not can_import(held.module, held.symbol, before):
            chosen[binding.local] = binding
    return chosen
