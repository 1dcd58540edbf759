"""The recipe catalogue of each release: what a recipe function sets, in canonical names."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from skill_run.bridge.release import known_releases, read_data
from skill_run.config.model import Plain

_FINE_TUNING: Final = frozenset({"sft", "peft", "finetune", "lora"})


@dataclass(frozen=True, slots=True)
class Recipe:
    """One recipe function. `values` maps canonical names to what the recipe sets; `gpus` is the count in its name."""

    name: str
    kind: str
    module: str
    values: dict[str, Plain]
    hf_model: str | None = None
    provider: str | None = None
    gpus: int | None = None
    env: dict[str, str] = field(default_factory=dict)
    benchmark: bool = False


@cache
def catalogue(version: str) -> dict[str, Recipe]:
    """Return the recipes of a recorded release by name; aliases have their own entries."""
    found: dict[str, Recipe] = {}
    for name, raw in read_data(f"recipes-{version}.json").items():
        for key in (name, *raw.get("aliases", ())):
            found.setdefault(
                key,
                Recipe(
                    name=key,
                    kind=raw["kind"],
                    module=raw["module"],
                    values=raw["set"],
                    hf_model=raw.get("hf_model"),
                    provider=raw.get("provider"),
                    gpus=raw.get("gpus"),
                    env=raw.get("env", {}),
                    benchmark=bool(raw.get("benchmark")),
                ),
            )
    return found


def find_recipe(name: str, version: str) -> Recipe | None:
    """Return a recipe of the release by its function name (a dotted path is cut to its last part)."""
    return catalogue(version).get(name.rpartition(".")[2])


def releases_with(name: str) -> list[str]:
    """Return the recorded releases whose catalogue has this recipe."""
    return [version for version in known_releases() if find_recipe(name, version) is not None]


def is_recorded_in_full(name: str) -> bool:
    """Tell whether the catalogue has every recipe of this kind: all fine-tuning recipes are in it, not all others."""
    return not _FINE_TUNING.isdisjoint(name.rpartition(".")[2].split("_"))


def nearest_recipe(name: str, version: str) -> str | None:
    """Return the recipe name closest to a misspelt one, or None when nothing is close."""
    found = difflib.get_close_matches(name, list(catalogue(version)), n=1, cutoff=0.9)
    return found[0] if found else None
