from __future__ import annotations

import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import skill_run
from skill_run.errors import InputError
from skill_run.plan.figures import draw_figure, save_figure
from skill_run.plan.plan import PackingPlan, plan_packing

LENGTHS = {300: 4000, 1200: 900, 3900: 200, 7000: 40}


@pytest.fixture(autouse=True)
def matplotlib() -> Any:
    return pytest.importorskip("matplotlib", reason="figures need the extra `plots`")


@pytest.fixture(scope="module")
def plan() -> PackingPlan:
    return plan_packing(LENGTHS, model="Qwen/Qwen3-8B", gpus=32, cp=2)


def texts(data: bytes) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(data).iter("{http://www.w3.org/2000/svg}text")]


def test_the_picture_names_its_axes_with_units_its_pack_sizes_and_every_line(plan: PackingPlan) -> None:
    told = texts(draw_figure(plan, "svg"))

    assert "length of a sample (tokens, log scale); vertical lines: pack sizes compared" in told
    assert {"share (%)", "context parallel size (GPUs)", "time of one layer's forward pass (us)"} <= set(told)
    assert f"{plan.recommendation.pack_size} (recommended)" in told
    assert {str(each.pack_size) for each in plan.candidates} - {str(plan.recommendation.pack_size)} <= set(told)
    for comm in ("p2p", "all_gather", "a2a", "a2a+p2p"):
        assert any(line.startswith(f"{comm} transfer") for line in told)


def test_lines_are_told_apart_without_colour(plan: PackingPlan) -> None:
    from PIL import Image

    with Image.open(BytesIO(draw_figure(plan, "png"))) as image:
        grey = np.asarray(image.convert("L"))
    # Ground, fill and lines of different lightness.
    assert [int((abs(grey.astype(int) - level) < 12).sum() > 500) for level in (255, 202, 75, 28)] == [1, 1, 1, 1]


def test_the_same_plan_gives_the_same_file(plan: PackingPlan) -> None:
    assert draw_figure(plan, "svg") == draw_figure(plan, "svg")


@pytest.mark.parametrize("name", ["plan.png", "plan.SVG"])
def test_the_ending_decides_the_form(name: str, tmp_path: Path, plan: PackingPlan) -> None:
    save_figure(plan, tmp_path / name)

    data = (tmp_path / name).read_bytes()
    assert data.startswith(b"\x89PNG" if name.endswith("png") else b"<?xml")
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["plan.pdf", "plan", "png"])
def test_another_ending_is_refused(name: str, tmp_path: Path, plan: PackingPlan) -> None:
    with pytest.raises(InputError, match=r"must end in \.png or \.svg"):
        save_figure(plan, tmp_path / name)


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path: Path, plan: PackingPlan) -> None:
    with pytest.raises(InputError, match="cannot be written: No such file or directory"):
        save_figure(plan, tmp_path / "nowhere" / "plan.png")


@pytest.mark.parametrize("lengths", [{1: 3}, {7: 1}, {2**30: 2, 5: 1}], ids=str)
def test_lengths_at_the_edges_are_drawn_without_traffic_if_need_be(lengths: dict[int, int]) -> None:
    told = texts(draw_figure(plan_packing(lengths, pack_sizes=(512,)), "svg"))

    assert "share (%)" in told


def test_a_name_with_characters_that_fonts_lack_is_drawn(plan: PackingPlan, tmp_path: Path) -> None:
    path = tmp_path / "$x_{\u4e2d}$.txt"
    path.write_text("400\n900\n")

    assert any("$x_{\\u4e2d}$" in line for line in texts(draw_figure(plan_packing(path), "svg")))


def test_without_matplotlib_the_extra_is_named(tmp_path: Path) -> None:
    # A folder that comes first and holds a module of this name, which cannot be imported.
    (tmp_path / "matplotlib.py").write_text("raise ImportError('no matplotlib')", "utf-8")
    code = (
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(Path(skill_run.__file__).parents[1])!r}]\n"
        "from pathlib import Path\n"
        "from skill_run.errors import MissingError\n"
        "from skill_run.plan.figures import save_figure\n"
        "from skill_run.plan.plan import plan_packing\n"
        "plan = plan_packing({400: 10}, pack_sizes=(512,))\n"
        f"try: save_figure(plan, Path({str(tmp_path / 'plan.png')!r}))\n"
        "except MissingError as error: print(error.exit_code, error)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "3 figures need matplotlib: pip install 'skill-run[plots]'\n"
