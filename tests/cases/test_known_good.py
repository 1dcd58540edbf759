"""Configs that upstream ships, publishes or ran: none may get an error, and corruption only for the recorded faults."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from skill_run.bridge.recipes import find_recipe
from skill_run.report.finding import ValidationReport
from skill_run.rules.validate import bundle_rules, judge

ROWS: list[dict[str, Any]] = json.loads(
    gzip.decompress((Path(__file__).parent / "data" / "known_good.json.gz").read_bytes())
)

# Shipped, but refused by the real code all the same.
REFUSED_UPSTREAM = {
    ("glm45_air_106b_pretrain_config", "sequence-parallel-needs-tensor-parallel"): (
        "0.3.1 ships it with sequence_parallel and TP 1, which megatron-core 0.16.1 rejects in model_parallel_config.py"
    ),
}
# Silent faults of shipped configs that the facts record; the count is over the known-good rows as configs.
RECORDED_CORRUPTION = {
    "pp-middle-stage-loses-boundaries": 19,
    "offline-pad-multiple-covers-cp": 3,
}
# Read as recipes, the catalogue knows more about them (layers of a hybrid model, MTP).
RECORDED_CORRUPTION_OF_RECIPES = {
    "pp-middle-stage-loses-boundaries": 9,
    "mamba-packing-leaks-state": 9,
    "mtp-rolls-across-samples": 9,
    "offline-pad-multiple-covers-cp": 1,
}


@pytest.fixture(scope="module")
def as_configs() -> list[tuple[dict[str, Any], ValidationReport]]:
    return [
        (
            row,
            judge(
                row["config"],
                rules=bundle_rules(),
                bridge=row["bridge"],
                world_size=row.get("world_size"),
                model=row.get("model"),
                env=row.get("env"),
            ),
        )
        for row in ROWS
    ]


@pytest.fixture(scope="module")
def as_recipes() -> list[tuple[dict[str, Any], ValidationReport]]:
    rows = [row for row in ROWS if row["kind"] in ("recipe", "perf_recipe") and find_recipe(row["name"], row["bridge"])]
    return [
        (
            row,
            judge(
                None, rules=bundle_rules(), recipe=row["name"], bridge=row["bridge"], world_size=row.get("world_size")
            ),
        )
        for row in rows
    ]


def _errors(judged: list[tuple[dict[str, Any], ValidationReport]]) -> dict[tuple[str, str], str]:
    return {
        (row["name"], finding.rule): row["bridge"]
        for row, report in judged
        for finding in report.findings
        if finding.severity == "error" and (row["name"], finding.rule) not in REFUSED_UPSTREAM
    }


def _corruption(judged: list[tuple[dict[str, Any], ValidationReport]]) -> dict[str, int]:
    return dict(
        Counter(finding.rule for _, report in judged for finding in report.findings if finding.severity == "corruption")
    )


def test_a_known_good_config_gets_no_error(as_configs: list[tuple[dict[str, Any], ValidationReport]]) -> None:
    assert len(as_configs) > 1900
    assert _errors(as_configs) == {}


def test_a_shipped_recipe_gets_no_error(as_recipes: list[tuple[dict[str, Any], ValidationReport]]) -> None:
    assert len(as_recipes) > 1000
    assert _errors(as_recipes) == {}


def test_corruption_in_known_good_configs_is_only_what_is_recorded(
    as_configs: list[tuple[dict[str, Any], ValidationReport]],
) -> None:
    assert _corruption(as_configs) == RECORDED_CORRUPTION


def test_corruption_in_shipped_recipes_is_only_what_is_recorded(
    as_recipes: list[tuple[dict[str, Any], ValidationReport]],
) -> None:
    assert _corruption(as_recipes) == RECORDED_CORRUPTION_OF_RECIPES


def test_the_configs_that_upstream_refuses_are_still_reported(
    as_configs: list[tuple[dict[str, Any], ValidationReport]],
) -> None:
    found = {(row["name"], finding.rule) for row, report in as_configs for finding in report.findings}
    assert set(REFUSED_UPSTREAM) <= found
