"""Every recorded upstream behaviour that a config can show is covered by a rule of the bundle."""

from __future__ import annotations

import json
from pathlib import Path

from skill_run.bundle.load import load_rules

BEHAVIOURS: dict[str, list[str]] = json.loads((Path(__file__).parent / "data" / "behaviours.json").read_text("utf-8"))
CONFIG_CHECKABLE = 167


def test_every_config_checkable_behaviour_has_a_rule() -> None:
    rules = {rule.id for rule in load_rules()}
    uncovered = {name: ids for name, ids in BEHAVIOURS.items() if not ids or not set(ids) <= rules}
    assert uncovered == {}
    assert len(BEHAVIOURS) >= CONFIG_CHECKABLE
