"""The settings of a draft in the names of its release, flat or nested."""

from __future__ import annotations

from typing import Any

from skill_run.bridge.names import to_written
from skill_run.config.model import Plain
from skill_run.recipe.draft import Draft


def written_settings(draft: Draft) -> dict[str, Plain]:
    """Return the settings by the names of the release."""
    kind = draft.settings.get("dataset.type") or draft.recipe.values.get("dataset.type")
    return {
        to_written(name, draft.bridge, str(kind) if kind else None): value for name, value in draft.settings.items()
    }


def nested_settings(draft: Draft) -> dict[str, Any]:
    """Return the settings as nested sections."""
    tree: dict[str, Any] = {}
    for name, value in written_settings(draft).items():
        *parents, leaf = name.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return tree
