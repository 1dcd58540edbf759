"""Tests of skill_run.report.html and html_lanes, without a browser."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from skill_run.batch.inspect import InspectionReport, Sequence, inspect_batch
from skill_run.report.finding import Finding
from skill_run.report.html import render_html
from skill_run.report.pack_map import COLOURS

Inspect = Callable[..., InspectionReport]
Pack = Callable[..., dict[str, Any]]

NASTY = [
    "<script>alert(1)</script>",
    "\" onmouseover=\"alert(1)' onfocus='alert(2)",
    "</style></script><!--<img src=x onerror=alert(1)>",
    "{{script}}{{body}}$style\\1\\g<0>",
    "\x00\x1b\u202e\ud800\u2028javascript:alert(1)",
    "&lt;b&gt;&#60;script&#62;",
]
VOID = {"meta", "rect", "line", "path", "br", "img", "link", "input"}
ATTRIBUTES = {
    "aria-hidden", "aria-label", "aria-labelledby", "charset", "class", "content", "d", "dir", "height", "hidden",
    "http-equiv", "id", "lang", "name", "patterntransform", "patternunits", "preserveaspectratio", "role", "scope",
    "tabindex", "viewbox", "width", "x", "x1", "x2", "y", "y1", "y2",
}  # fmt: skip


class Page(HTMLParser):
    """A page taken apart, which must be well nested."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.cells: list[dict[str, str]] = []
        self.rows: list[list[str]] = []
        self._open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        found = {name: value or "" for name, value in attrs}
        self.attributes += [(tag, name, value) for name, value in found.items()]
        if found.get("role") == "gridcell":
            self.cells.append(found)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("script", "style"):
            self.text += data
        if self._open and self._open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def page_of(report: InspectionReport) -> Page:
    return Page(render_html(report))


def hostile(text: str, pack: Pack) -> InspectionReport:
    """Return a report with `text` wherever text can be."""
    finding = Finding(
        text, "error", text, text, (text,), "never", text, fix={text: text}, evidence=({text: text},), docs=text
    )
    return replace(
        inspect_batch(pack([8, 8]), cp=2),
        source=text,
        path=text,
        generation=text,
        because=text,
        meaning=text,
        findings=(finding,),
        notes=(text,),
        statistics={text: text, "table": {text: [text]}, "a_histogram": {text: 3}},
    )


def test_the_page_shows_verdict_findings_map_preview_lengths_and_notes(pack: Pack) -> None:
    batch = pack([5, 8, 6], multiple=4)
    batch["loss_mask"][0, 6:8] = 1
    page = page_of(inspect_batch(batch, cp=2))
    for part in ("1 corruption", "batch-loss-on-padding", "Pack map", "Context parallel preview", "Logical lengths"):
        assert part in page.text
    assert "2 padding tokens" in page.text
    assert "cu_seqlens_q_padded: physical" in page.text
    assert "padding that is trained" in page.text
    assert "no seq_offsets key" in page.text


def test_a_clean_batch_says_so(pack: Pack) -> None:
    page = page_of(inspect_batch(pack([8, 8])))
    assert "no findings" in page.text
    assert "Nothing is wrong with what was checked." in page.text
    assert "Context parallel preview" not in page.text


def test_each_sequence_is_a_cell_with_its_numbers_and_a_line_of_the_table(pack: Pack) -> None:
    page = page_of(inspect_batch(pack([5, 8, 6], multiple=4, total=32)))
    assert [cell["aria-label"] for cell in page.cells] == [
        "row 0, sequence 0: start 0, end 8, logical 5, physical 8, trained 3",
        "row 0, sequence 1: start 8, end 16, logical 8, physical 8, trained 4",
        "row 0, sequence 2: start 16, end 24, logical 6, physical 8, trained 3",
        "row 0, tail filler: start 24, end 32, logical 0, physical 8, trained 0",
    ]
    assert [(cell["x"], cell["width"]) for cell in page.cells] == [
        ("0%", "25%"),
        ("25%", "25%"),
        ("50%", "25%"),
        ("75%", "25%"),
    ]
    assert [cell["class"] for cell in page.cells] == ["s0", "s1", "s2", "filler"]
    assert ["0", "2", "16", "6", "8", "3"] in page.rows
    assert ["0", "3 (filler)", "24", "0", "8", "0"] in page.rows


def test_the_preview_shows_the_chunks_of_each_rank(pack: Pack) -> None:
    page = page_of(inspect_batch(pack([8, 16], multiple=8), cp=2))
    labels = [cell["aria-label"] for cell in page.cells]
    assert "rank 1: tokens 2 to 5, sequence 0, chunks 1 to 2 of 4" in labels
    assert ["1", "12", "6", "86", "1.000"] in page.rows


def test_tokens_on_two_ranks_and_on_none_have_lanes(pack: Pack) -> None:
    labels = [cell["aria-label"] for cell in page_of(inspect_batch(pack([6, 10, 8]), cp=2)).cells]
    assert any(label.startswith("held more than once: ") for label in labels)
    assert any(label.startswith("on no rank: ") for label in labels)
    clean = [cell["aria-label"] for cell in page_of(inspect_batch(pack([8, 16]), cp=2)).cells]
    assert not any(label.startswith(("held", "on no")) for label in clean)


def test_broken_boundaries_and_loose_tokens_are_drawn(pack: Pack) -> None:
    batch = pack([8, 8, 8])
    del batch["token_count"]
    batch["cu_seqlens_q"] = np.array([[0, 8, 6, 20]], dtype=np.int32)
    text = render_html(inspect_batch(batch))
    assert 'class="snag"' in text
    assert "row 0, in no sequence: from 20, to 24" in text
    assert ["0", "1", "8", "-2", "-2", "-"] in Page(text).rows


@pytest.mark.parametrize("text", [*NASTY, pytest.param("z" * 1_000_000, id="huge")])
def test_text_of_the_input_never_becomes_markup(text: str, pack: Pack) -> None:
    usual = page_of(hostile("name", pack))
    page = page_of(hostile(text, pack))
    assert page.tags == usual.tags
    assert {(tag, name) for tag, name, _ in page.attributes} == {(tag, name) for tag, name, _ in usual.attributes}
    assert len(page.text) < 100_000
    if "<script>" in text:
        assert page.text.count(text) >= 10


def test_the_page_holds_only_attributes_that_do_nothing(pack: Pack) -> None:
    batch = pack([6, 10, 8])
    batch["loss_mask"][0] = 1
    page = page_of(replace(hostile(NASTY[0], pack), cp=inspect_batch(batch, cp=2).cp))
    assert {name for _, name, _ in page.attributes} <= ATTRIBUTES
    assert set(page.tags) & {"a", "img", "link", "iframe", "object", "embed", "form", "base", "audio", "video"} == set()


def test_nothing_comes_from_elsewhere(pack: Pack) -> None:
    text = render_html(inspect_batch(pack([8, 8]), cp=2))
    assert "http" not in text.replace("http-equiv", "")
    assert "//" not in re.sub(r"(?m)^\s*//.*$", "", text)
    assert "@import" not in text
    assert set(re.findall(r"url\((.*?)\)", text)) <= {"#hatch"}


def test_the_policy_admits_exactly_the_style_and_the_script_of_the_page(pack: Pack) -> None:
    text = render_html(hostile(NASTY[2], pack))
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert found is not None
    policy = dict(part.strip().split(" ", 1) for part in found[1].split(";"))
    assert policy["default-src"] == "'none'"
    for name in ("style", "script"):
        (inside,) = re.findall(rf"<{name}>(.*?)</{name}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert policy[f"{name}-src"] == f"'sha256-{digest}'"
    assert "unsafe" not in found[1]


@pytest.mark.parametrize("text", NASTY)
def test_the_page_is_ascii_whatever_the_input_holds(text: str, pack: Pack) -> None:
    page = render_html(hostile(text, pack))
    assert page.isascii()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", page)
    assert not re.search(r"&#(x0*1b|27|8238|x202e|55296);", page)


def test_identifiers_are_used_once_and_labels_point_to_them(pack: Pack) -> None:
    page = page_of(hostile("x", pack))
    known = Counter(value for _, name, value in page.attributes if name == "id")
    assert set(known.values()) == {1}
    assert {value for _, name, value in page.attributes if name == "aria-labelledby"} <= set(known)


def test_every_real_batch_becomes_a_well_nested_page(samples: dict[str, Any], inspected: Inspect) -> None:
    for name in samples:
        page = page_of(inspected(name, cp=2))
        assert page.cells, name


def test_a_huge_batch_makes_a_page_of_bounded_size() -> None:
    sequences = tuple(Sequence(row, at * 4, 3, 4, 2) for row in range(1000) for at in range(200))
    report = InspectionReport("d", "packed_dataset", ">=0.6", "b", "m", 800_000, 1000, sequences, ())
    text = render_html(report)
    page = Page(text)
    assert len(text) < 3_000_000
    assert len(page.cells) <= 200 * 26
    assert "800 more rows not drawn" in page.text
    assert "199000 more sequences not listed" in page.text
    assert any(cell["aria-label"].endswith("175 more sequences: from 100, to 800") for cell in page.cells)


def test_a_loss_mask_that_alternates_makes_a_page_of_bounded_size(pack: Pack) -> None:
    batch = pack([50_000, 81_072])
    batch["loss_mask"][0] = np.arange(131_072) % 2
    batch["padding_mask"] = (np.arange(131_072) % 3 == 0)[None]
    assert len(render_html(inspect_batch(batch, cp=2))) < 150_000


def test_many_findings_are_bounded(pack: Pack) -> None:
    finding = Finding("r", "info", "t", "m", (), "never")
    page = page_of(replace(inspect_batch(pack([8])), findings=(finding,) * 2000))
    assert page.tags["article"] == 500
    assert "1500 more findings" in page.text


def test_findings_come_worst_first(pack: Pack) -> None:
    found = tuple(Finding(name, name, "t", "m", (), "never") for name in ("info", "error", "warning"))
    text = render_html(replace(inspect_batch(pack([8])), findings=found))
    assert re.findall(r'badge (\w+)"', text) == ["error", "warning", "info"]


def test_a_dataset_without_rows_to_draw_shows_its_statistics() -> None:
    statistics = {"fill": 0.97, "columns": {"input_ids": "list<int64>"}, "length_histogram": {"1-9": 4, "10-19": 2}}
    report = InspectionReport("d", "packed_dataset", ">=0.6", "b", "m", 1000, 20, (), (), statistics=statistics)
    page = page_of(report)
    assert "Pack map" not in page.text
    assert ["1-9", "", "4"] in page.rows
    assert ["input ids", "list<int64>"] in page.rows
    assert "97.0 %" in page.text


def test_a_rank_without_loss_mask_says_that_trained_tokens_are_not_known(inspected: Inspect) -> None:
    page = page_of(inspected("0.6.2/getbatch_mult4_cp2_mb0_rank0", cp=2))
    assert "no loss mask" in page.text
    assert "tokens without loss" not in page.text


def seen(colour: str, matrix: list[list[float]]) -> Any:
    """Return a colour in linear light as an eye with the given lack sees it (Machado, Oliveira, Fernandes 2009)."""
    parts = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    light = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return np.array(matrix) @ light


@pytest.mark.parametrize(
    "matrix",
    [
        [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    ],
    ids=["full colour", "protanopia", "deuteranopia", "tritanopia"],
)
def test_neighbours_differ_for_every_kind_of_sight(matrix: list[list[float]]) -> None:
    eyes = [seen(colour, matrix) for colour in COLOURS]
    distances = [float(np.abs(eyes[at] - eyes[at - 1]).sum()) for at in range(len(eyes))]
    assert min(distances) > 0.25, distances


def test_html_escapes_are_those_of_the_library(pack: Pack) -> None:
    text = "<a href='x'>\"&"
    assert html.escape(text) in render_html(replace(inspect_batch(pack([8])), source=text))
