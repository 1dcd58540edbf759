"""Makers of small rules, configs and reports, so that a test shows only what it is about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from skill_run.bundle.rule import Rule, rule_from_data
from skill_run.config.config import Config
from skill_run.report.finding import ValidationReport
from skill_run.rules.evaluate import RuleSet
from skill_run.rules.validate import build_config, read_sources, report_on


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the cache of parsed rules out of the user's own cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def rule() -> Callable[..., Rule]:
    """Return a maker of rules: one that wants context parallelism off, changed by keywords."""
    usual: dict[str, Any] = {
        "id": "no-cp",
        "title": "context parallelism must be off",
        "severity": "error",
        "fires": {"*": "validate"},
        "require": "model.context_parallel_size == 1",
        "message": "The size is {model.context_parallel_size}.",
        "evidence": [{"says": "an example"}],
    }

    def make(**changes: Any) -> Rule:
        return rule_from_data({**usual, **changes}, skill="example", file="skills/example/rules/no-cp.yaml")

    return make


@pytest.fixture(scope="session")
def config() -> Callable[..., Config]:
    """Return a resolver of a dotted mapping, by default for 0.6.2; keywords are those of build_config."""

    def make(settings: dict[str, Any], bridge: str | None = "0.6.2", **options: Any) -> Config:
        return build_config(read_sources(settings, bridge=bridge), bridge=bridge, **options)

    return make


@pytest.fixture(scope="session")
def judged(config: Callable[..., Config]) -> Callable[..., ValidationReport]:
    """Return a judge of a dotted mapping by the given rules only."""

    def make(settings: dict[str, Any], *rules: Rule, bridge: str | None = "0.6.2", **options: Any) -> ValidationReport:
        return report_on(config(settings, bridge, **options), RuleSet(rules), "conf")

    return make


@pytest.fixture
def config_file(tmp_path: Path) -> Callable[..., Path]:
    """Return a writer of a config file in a folder of its own, away from any house rules."""
    (tmp_path / ".git").mkdir()

    def write(text: str, name: str = "conf.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        return path

    return write
