"""Tests of skill_run.report.plot."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import skill_run
from skill_run.batch.inspect import InspectionReport, Sequence, inspect_batch
from skill_run.errors import InputError, MissingError
from skill_run.report.pack_map import COLOURS
from skill_run.report.plot import draw_plot, save_plot

Pack = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def matplotlib() -> Any:
    return pytest.importorskip("matplotlib", reason="plots need the extra `plots`")


def pixels(data: bytes) -> Any:
    """Return a PNG as an array [height, width, 3]."""
    from PIL import Image

    with Image.open(BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def holds(data: bytes, colour: str) -> int:
    """Return how many pixels of a PNG have a colour."""
    wanted = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return int((pixels(data) == wanted).all(axis=2).sum())


def svg_texts(data: bytes) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(data).iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("name", ["plot.png", "plot.SVG"])
def test_the_ending_decides_the_form(name: str, tmp_path: Path, pack: Pack) -> None:
    save_plot(inspect_batch(pack([8, 16]), cp=2), tmp_path / name)
    data = (tmp_path / name).read_bytes()
    assert data.startswith(b"\x89PNG" if name.endswith("png") else b"<?xml")


@pytest.mark.parametrize("name", ["plot.pdf", "plot", "png"])
def test_another_ending_is_refused(name: str, tmp_path: Path, pack: Pack) -> None:
    with pytest.raises(InputError, match=r"must end in \.png or \.svg"):
        save_plot(inspect_batch(pack([8])), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path, pack: Pack) -> None:
    with pytest.raises(InputError, match=r"plot\.png cannot be written: No such file"):
        save_plot(inspect_batch(pack([8])), tmp_path / "none" / "plot.png")


def test_the_picture_shows_sequences_and_says_what_it_shows(pack: Pack) -> None:
    report = inspect_batch(pack([8, 16, 24, 16]), cp=2)
    image = draw_plot(report, "png")
    assert all(holds(image, colour) > 500 for colour in COLOURS[:4])
    assert holds(image, COLOURS[4]) == 0
    texts = svg_texts(draw_plot(report, "svg"))
    assert any(text.startswith("Pack map: dark trained") for text in texts)
    assert "Context parallel size 2: every token is on exactly one rank." in texts
    assert {"row 0", "rank 0", "rank 1", "Sequences by length in tokens"} <= set(texts)


def test_trained_padding_and_lost_tokens_are_red(pack: Pack) -> None:
    batch = pack([5, 8, 6], multiple=8)
    assert holds(draw_plot(inspect_batch(batch), "png"), "#b3001b") == 0
    batch["loss_mask"][0, 6:8] = 1
    assert holds(draw_plot(inspect_batch(batch), "png"), "#b3001b") > 500
    lost = inspect_batch(pack([6, 10, 8]), cp=2)
    assert holds(draw_plot(lost, "png"), "#b3001b") > 100
    assert {"twice", "lost"} <= set(svg_texts(draw_plot(lost, "svg")))


@pytest.mark.parametrize("form", ["png", "svg"])
def test_the_same_report_gives_the_same_file(form: Any, pack: Pack) -> None:
    report = inspect_batch(pack([8, 16]), cp=2)
    assert draw_plot(report, form) == draw_plot(report, form)


@pytest.mark.parametrize("text", ["$x^{", "$\\frac{$", "<b>&]]>", "\u4f60\u202e\ud800\x00", "{}%s\\n", "z" * 100_000])
@pytest.mark.parametrize("form", ["png", "svg"])
def test_text_of_the_input_is_only_text(form: Any, text: str, pack: Pack) -> None:
    statistics = {"a_histogram": {text: 3, "b": 1}}
    report = InspectionReport(text, text, text, text, text, 8, 1, (), (), statistics=statistics)
    data = draw_plot(report, form)
    if form == "svg":
        assert any(shown.startswith("<b>&") for shown in svg_texts(data)) == text.startswith("<b>")
    assert draw_plot(replace(inspect_batch(pack([8])), source=text), form)


def test_a_dataset_without_rows_shows_its_histogram() -> None:
    statistics = {"length_histogram": {"1-127": 120, "128-255": 140}}
    report = InspectionReport("d", "packed_dataset", ">=0.6", "b", "m", 100, 2, (), (), statistics=statistics)
    assert {"1-127", "128-255"} <= set(svg_texts(draw_plot(report, "svg")))


def test_nothing_to_draw_is_still_a_picture() -> None:
    report = InspectionReport("d", "packed_dataset", ">=0.6", "b", "m", None, 0, (), ())
    assert draw_plot(report, "png").startswith(b"\x89PNG")


def test_a_huge_report_makes_a_picture_of_bounded_size() -> None:
    sequences = tuple(Sequence(row, at * 4, 3, 4, 2) for row in range(500) for at in range(100))
    report = InspectionReport("d", "packed_dataset", ">=0.6", "b", "m", 200_000, 500, sequences, ())
    height, width, _ = pixels(draw_plot(report, "png")).shape
    assert (width, height) < (2000, 3000)


def test_every_real_batch_can_be_drawn(samples: dict[str, Any], inspected: Callable[..., InspectionReport]) -> None:
    for name in list(samples)[::8]:
        assert draw_plot(inspected(name, cp=2), "png")


def test_without_matplotlib_the_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, pack: Pack) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingError, match=r"pip install 'skill-run\[plots\]'"):
        draw_plot(inspect_batch(pack([8])), "png")


def test_no_display_and_no_state_of_pyplot_is_used(tmp_path: Path) -> None:
    code = """
import sys
from skill_run.batch.inspect import InspectionReport
from skill_run.report.plot import save_plot
import matplotlib
before = dict(matplotlib.rcParams)
save_plot(InspectionReport("d", "packed_dataset", ">=0.6", "b", "m", 1, 1, (), ()), "plot.png")
assert dict(matplotlib.rcParams) == before
assert not {"matplotlib.pyplot", "tkinter"} & set(sys.modules)
"""
    environment = {
        **{name: value for name, value in os.environ.items() if name != "DISPLAY"},
        "PYTHONPATH": str(Path(skill_run.__file__).parents[1]),
        "MPLBACKEND": "tkagg",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "plot.png").exists()


def test_a_pipe_is_not_written_to(tmp_path: Path, pack: Pack) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(InputError, match="not a regular file"):
        save_plot(inspect_batch(pack([8])), tmp_path / "pipe.png")
