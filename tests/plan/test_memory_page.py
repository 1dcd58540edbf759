"""The table of worked numbers in docs/training/memory.md is what the estimator gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from skill_run.plan.layout import Layout, Run
from skill_run.plan.memory import GIB, estimate_memory
from skill_run.plan.shape import shape_of

PAGE = Path(__file__).parents[2] / "docs" / "training" / "memory.md"
RUNS = Path(__file__).parent / "data" / "published_long_context.yaml"
SHOWN = (
    ("ran", "qwen3-8b-32k"),
    ("ran", "qwen3-30b-32k"),
    ("ran", "gpt-oss-120b-32k"),
    ("ran", "nemotron-3-nano-4b"),
    ("ran", "glm-5.2-200k"),
    ("changed", "qwen3-30b"),
    ("changed", "nemotron-3-nano-4b-tp1"),
    ("changed", "llama3-70b-32k"),
)


def line_of(row: dict[str, Any]) -> str:
    layout = Layout(**row["layout"])
    run = Run(**{key: tuple(value) if isinstance(value, list) else value for key, value in row["run"].items()})
    found = estimate_memory(shape_of(row["model"]), layout, run, world_size=row["gpus"], gpu=row["gpu"])
    states = found.weights + found.gradients + found.optimizer
    rest = found.total - states - found.activations - found.logits
    sizes = " | ".join(f"{size / GIB:.1f}" for size in (states, found.activations, found.logits, rest, found.total))
    level = f", {run.recompute} recompute" if run.recompute else ""
    model, gpus = row["model"].split("/")[1], f"{row['gpus']} {row['gpu'].upper()}"
    name = f"{model}, {run.tokens_per_row} tokens, {gpus}, {layout}{level}"
    return f"| {name} | {sizes} | {found.budget / GIB:.0f} |"


def test_the_worked_numbers_are_what_the_estimator_gives() -> None:
    table = yaml.safe_load(RUNS.read_text("utf-8"))
    page = PAGE.read_text("utf-8").splitlines()
    for group, name in SHOWN:
        assert line_of(next(row for row in table[group] if row["id"] == name)) in page
