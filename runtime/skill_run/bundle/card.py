"""Load and check cards: a skill's card.yaml and the bundle's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from skill_run.bundle.check import MAX_BYTES, schema_faults
from skill_run.bundle.load import read_yaml
from skill_run.config.text import read_text
from skill_run.config.tree import parse_tree, to_plain
from skill_run.errors import BundleError, InputError


def load_card(path: Path) -> dict[str, Any]:
    """Return a card as plain data; BundleError when it is not YAML or not a mapping."""
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise BundleError(f"{path}:1: a card must be a mapping")
    return data


def card_faults(path: Path, shown: str) -> list[str]:
    """Return the faults of one card as `file:line: sentence`."""
    try:
        root = parse_tree(read_text(path, MAX_BYTES), shown)
    except InputError as error:
        return [str(error)]
    faults = schema_faults("card", root, shown)
    data = to_plain(root)
    if faults or not isinstance(data, dict) or data.get("kind") != "skill":
        return faults
    named = {str(name) for name in _constraints(data)}
    there = {rule.stem for rule in (path.parent / "rules").glob("*.yaml")}
    elsewhere = {f"{rule.parts[-3]}/{rule.stem}" for rule in path.parent.parent.glob("*/rules/*.yaml")}
    lost = sorted(named - there - elsewhere)
    faults += [f"{shown}:1: the rule '{name}' of constraints has no file" for name in lost]
    faults += [f"{shown}:1: the rule file '{name}' is not among constraints" for name in sorted(there - named)]
    return faults


def _constraints(data: dict[str, Any]) -> list[Any]:
    found: list[Any] = []
    for entry in data.get("constraints", []):
        found += entry.get("rules", []) if isinstance(entry, dict) else [entry]
    return found


def check_cards(root: Path) -> tuple[list[str], int]:
    """Check the bundle's card and every skill's; return the faults and the number of cards."""
    paths = [root / "card.yaml", *sorted(root.glob("skills/*/card.yaml"))]
    faults = [fault for path in paths for fault in card_faults(path, str(path.relative_to(root)))]
    without = [
        folder
        for folder in sorted((root / "skills").iterdir())
        if folder.is_dir() and not (folder / "card.yaml").is_file()
    ]
    faults += [f"{folder.relative_to(root)}/card.yaml:1: the skill has no card" for folder in without]
    return faults, len(paths)
