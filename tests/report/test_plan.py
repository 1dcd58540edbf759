"""Tests of skill_run.report.plan."""

from __future__ import annotations

import pytest

from skill_run.plan.plan import PackingPlan, plan_packing
from skill_run.report.plan import render_plan

LENGTHS = {300: 4000, 1200: 900, 3900: 200, 7000: 40}


@pytest.fixture(scope="module")
def plan() -> PackingPlan:
    return plan_packing(LENGTHS, model="Qwen/Qwen3-8B", gpus=16, pack_sizes=(2048, 8192, 32768), cp=2)


def test_every_pack_size_has_a_line_and_the_recommended_one_a_star(plan: PackingPlan) -> None:
    lines = render_plan(plan).splitlines()

    first = next(at for at, line in enumerate(lines) if line.split()[:2] == ["pack", "fill"])
    sizes = [line.split()[0] for line in lines[first + 1 : first + 4]]
    assert sizes == [f"{size}{'*' * (size == plan.recommendation.pack_size)}" for size in (2048, 8192, 32768)]


def test_reasons_settings_and_commands_are_told(plan: PackingPlan) -> None:
    text = render_plan(plan)
    flat = " ".join(text.split())

    assert f"Recommended: packs of {plan.recommendation.pack_size} tokens" in text
    assert all(f"- {reason}" in flat for reason in plan.recommendation.reasons)
    assert all(f"  {line}" in text for line in (*plan.overrides, *plan.commands))
    assert "Memory of the fullest GPU: weights" in text


def test_lines_hold_the_width_but_for_commands_and_tables(plan: PackingPlan) -> None:
    prose = [line for line in render_plan(plan, width=90).splitlines() if line.startswith(("- ", "note", "Qwen"))]

    assert prose
    assert max(map(len, prose)) <= 90


def test_verbose_adds_the_reasons_of_the_layout_the_formula_and_the_limits(plan: PackingPlan) -> None:
    short, full = render_plan(plan), render_plan(plan, verbose=True)

    assert "You fixed it." in " ".join(full.split())
    assert "You fixed it." not in " ".join(short.split())
    assert "one layer's forward pass at round rates" in " ".join(full.split())
    assert "parameters of the stage" in full


def test_an_impossible_exchange_has_no_figures_but_a_reason() -> None:
    text = render_plan(plan_packing(LENGTHS, tp=8, cp=2))

    (line,) = [line for line in text.splitlines() if line.split()[:2] == ["2", "a2a"]]
    assert "impossible: 8 key-value groups over TP 8 cannot be divided by 2 for a2a" in line
    assert line.split()[2:6] == ["-"] * 4


def test_a_plan_without_a_recommendation_says_why() -> None:
    text = render_plan(plan_packing({1: 5}, pack_sizes=(512,)))

    assert "No pack size can be recommended:\n- 512 is out: no sample is left to pack." in text
    assert "Settings" not in text


def test_control_characters_of_a_name_do_not_reach_the_terminal(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("it") / "a\x1b[31m.txt"
    path.write_text("400\n")

    assert "\x1b" not in render_plan(plan_packing(path))
