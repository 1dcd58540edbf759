"""Rule files and small bundles to load and check."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RULE: dict[str, Any] = {
    "id": "no-cp",
    "title": "context parallelism must be off",
    "severity": "error",
    "fires": {"*": "validate"},
    "require": "model.context_parallel_size == 1",
    "message": "The size is {model.context_parallel_size}.",
    "evidence": [{"says": "an example"}],
    "fails": [{"model.context_parallel_size": 2}],
    "passes": [{"model.context_parallel_size": 1}],
}


@pytest.fixture(autouse=True)
def cache_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give every test a cache folder of its own, and return it."""
    home = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    return home / "skill-run"


@pytest.fixture(scope="session")
def rule_data() -> Callable[..., dict[str, Any]]:
    """Return a maker of rule data: a rule against context parallelism, changed by keywords (None drops a key)."""

    def make(**changes: Any) -> dict[str, Any]:
        return {key: value for key, value in {**RULE, **changes}.items() if value is not None}

    return make


@pytest.fixture(scope="session")
def rule_text(rule_data: Callable[..., dict[str, Any]]) -> Callable[..., str]:
    """Return a writer of rule files: one line for each key, in the order of RULE and then of the keywords."""

    def write(**changes: Any) -> str:
        return "".join(f"{key}: {json.dumps(value)}\n" for key, value in rule_data(**changes).items())

    return write


@pytest.fixture
def bundle(tmp_path: Path, rule_text: Callable[..., str]) -> Callable[..., Path]:
    """Return a maker of bundles: `skill/rule` names to the text of the rule file."""

    def make(**rules: str) -> Path:
        root = tmp_path / "bundle"
        (root / "skills").mkdir(parents=True, exist_ok=True)
        for name, text in (rules or {"first__no_cp": rule_text()}).items():
            skill, _, rule = name.replace("_", "-").partition("--")
            path = root / "skills" / skill / "rules" / f"{rule}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        return root

    return make
