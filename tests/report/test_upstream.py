"""How the text report shows what the real validate() said."""

from __future__ import annotations

from typing import Any

from skill_run.report.layout import set_lines
from skill_run.report.upstream import upstream_lines

ANSWER: dict[str, Any] = {
    "bridge": "0.6.2",
    "outcome": "raises",
    "agrees": True,
    "phase": "validate",
    "error": "ValueError",
    "message": "too\nlong",
    "where": "bridge/training/config.py:12",
    "changed": {"model.kv_channels": [None, 32]},
    "warnings": ["old name"],
    "assumed": ["train.train_iters = 100"],
    "dropped": [],
    "note": None,
}


def shown(verbose: bool = False, **values: Any) -> str:
    return set_lines(upstream_lines({**ANSWER, **values}, (), verbose), color=False, width=200)


def test_the_error_is_told_in_upstreams_own_words_with_its_line() -> None:
    assert "raises ValueError in validate() (bridge/training/config.py:12): too long" in shown()


def test_a_disagreement_is_called_a_fault_of_this_tool() -> None:
    assert "disagree" not in shown()
    assert "fault of skill-run" in shown(agrees=False)


def test_what_was_assumed_is_always_told_and_what_was_set_only_when_asked() -> None:
    assert "train.train_iters = 100" in shown()
    assert "model.kv_channels" not in shown()
    assert "model.kv_channels None -> 32" in shown(verbose=True)


def test_a_config_that_was_not_asked_about_says_why() -> None:
    assert "Another release." in shown(outcome="not-asked", agrees=None, note="Another release.")
