"""Model families with opt-outs: told from a recipe name, a provider class, a Hugging Face id or config.json."""

from __future__ import annotations

from functools import cache
from typing import Any

from skill_run.bridge.release import read_data
from skill_run.config.model import Plain


@cache
def _families() -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = read_data("families.json")
    return data


def family_of(
    recipe: str | None = None, provider: str | None = None, model: str | None = None, model_type: str | None = None
) -> str:
    """Return the family slug ("" when no known family fits)."""
    for entry in _families():
        if (
            (recipe and any(recipe.startswith(prefix) for prefix in entry["recipes"]))
            or (provider and any(provider.startswith(prefix) for prefix in entry["providers"]))
            or (model_type and model_type in entry["model_types"])
            or (model and any(part in model.lower() for part in entry["models"]))
        ):
            return str(entry["slug"])
    return ""


def provider_sets(slug: str) -> tuple[str, ...]:
    """Return the canonical fields that a family's provider or recipes set by themselves."""
    return next((tuple(entry.get("provider_sets", ())) for entry in _families() if entry["slug"] == slug), ())


def architecture_of(model: str | None) -> dict[str, Plain]:
    """Return what is known of a public model's architecture from its id alone; {} for any other model."""
    if model is None:
        return {}
    entries: list[dict[str, Any]] = read_data("architectures.json")
    name = model.lower()
    return next((dict(entry["facts"]) for entry in entries if any(name.startswith(m) for m in entry["models"])), {})
