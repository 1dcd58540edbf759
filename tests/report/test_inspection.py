"""Tests of skill_run.report.inspection."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from skill_run.batch.inspect import InspectionReport, Sequence, inspect_batch
from skill_run.errors import InputError
from skill_run.report.finding import Finding
from skill_run.report.inspection import render_inspection
from skill_run.report.render import FORMATS

Inspect = Callable[..., InspectionReport]
Pack = Callable[..., dict[str, Any]]
Check = dict[str, Callable[[str], Any]]
COLOR = re.compile(r"\x1b\[[0-9;]*m")
NASTY = "\n::error::x ##[group] \x1b]0;owned\x07 \u202e\ud800 ]]> [x](http://y) <b>"


@pytest.fixture(scope="session")
def schema() -> Draft202012Validator:
    folder = files("skill_run.report")
    known = {name: json.loads((folder / name).read_text("utf-8")) for name in ("report.schema.json",)}
    registry: Any = Registry().with_resources(
        (name, Resource.from_contents(contents)) for name, contents in known.items()
    )
    return Draft202012Validator(json.loads((folder / "inspection.schema.json").read_text("utf-8")), registry=registry)


@pytest.fixture(scope="session")
def hostile(pack: Pack) -> InspectionReport:
    """Return a report with nasty text wherever text can be."""
    finding = Finding(
        NASTY,
        "error",
        NASTY,
        NASTY,
        (NASTY,),
        "never",
        NASTY,
        fix={NASTY: NASTY},
        evidence=({NASTY: NASTY},),
        docs=NASTY,
    )
    return replace(
        inspect_batch(pack([8, 8]), cp=2),
        source=NASTY,
        path=NASTY,
        generation=NASTY,
        because=NASTY,
        meaning=NASTY,
        findings=(finding,),
        notes=(NASTY,),
        statistics={NASTY: NASTY, "table": {NASTY: [NASTY]}, "a_histogram": {NASTY: 3}},
    )


def text_of(report: InspectionReport, **options: Any) -> str:
    return render_inspection(report, "text", **options)


def test_a_clean_batch_reads_as_header_map_table_preview_and_verdict(pack: Pack) -> None:
    batch = pack([5, 8, 6], multiple=4, total=32)
    assert (
        text_of(inspect_batch(batch, cp=2), width=80)
        == """\
Inspected <mapping>: offline packed batch, as Megatron-Bridge 0.6 and newer make
  it (two-dimensional cu_seqlens_q: offline packing of 0.6 or newer)
  cu_seqlens_q: logical (real tokens), cu_seqlens_q_padded: physical (padded)
  tokens 32, rows 1, sequences 3, fill 59.4 %, padding 13, trained 10

Map, 1 token a column: A trained, a not trained, . padding, | boundary
  row 0 aaAAA...|bbbBBBB|ccCCC..|.......

  row  sequence  letter  start  logical  physical  trained
    0         0       A      0        5         8        3
    0         1       B      8        8         8        4
    0         2       C     16        6         8        3
    0         3  filler     24        0         8        0
  logical lengths: 5: 1, 6: 1, 8: 1

Context parallel size 2: every token is on exactly one rank. The busiest rank
  has 1.000 times the mean attention work.
  rank  tokens  trained  work  of mean
     0      16        2    72    1.000
     1      16        8    72    1.000

note: no seq_offsets key: no release of Megatron-Bridge emits one; the boundary
  arrays are used
no findings"""
    )


def test_findings_are_shown_as_for_a_config(pack: Pack) -> None:
    batch = pack([5, 8, 6], multiple=4)
    batch["loss_mask"][0, 6:8] = 1
    text = text_of(inspect_batch(batch), width=100)
    assert re.search(r"\n\ncorruption batch-loss-on-padding: .*\n  .*2 padding tokens", text)
    assert "\n  more: skill-run explain batch-loss-on-padding\n" in text
    assert text.split("\n")[-1].startswith("1 corruption")
    assert "fields: loss_mask" not in text
    assert "fields: loss_mask" in text_of(inspect_batch(batch), verbose=True)


def test_the_map_marks_padding_that_is_trained_and_tokens_of_no_sequence(pack: Pack) -> None:
    batch = pack([5, 8], multiple=8)
    batch["loss_mask"][0, 6] = 1
    assert "row 0 aaAAA.!.|bbbBBBB" in text_of(inspect_batch(batch))
    assert "! padding that is trained" in text_of(inspect_batch(batch), width=200)
    batch = pack([8, 8])
    batch["cu_seqlens_q"][0, -1] = 12
    assert "row 0 aaaaAAAA|bbb????" in text_of(inspect_batch(batch))


def test_the_map_names_only_symbols_it_uses(pack: Pack) -> None:
    (line,) = [line for line in text_of(inspect_batch(pack([8]))).split("\n") if line.startswith("Map")]
    assert line == "Map, 1 token a column: A trained, a not trained"


def test_a_column_that_holds_several_sequences_says_so(pack: Pack) -> None:
    text = text_of(inspect_batch(pack([2] * 2000)), width=40)
    assert "# several sequences" in text
    assert re.search(r"row 0 from 0 +#+\n", text)


@pytest.mark.parametrize("width", [1, 30, 80, 200])
@pytest.mark.parametrize("lengths", [[5, 9, 70], [3] * 300, [40_000, 90_000]])
def test_map_lines_keep_to_the_width(width: int, lengths: list[int], pack: Pack) -> None:
    lines = text_of(inspect_batch(pack(lengths)), width=width).split("\n")
    drawn = [line for line in lines if re.match(r"  row \d+ (from \d+ +)?[A-Za-z.|#]+$", line)]
    assert drawn
    assert all(len(line) <= max(width, 42) for line in drawn)


def test_rows_and_sequences_are_bounded_and_the_rest_is_counted(samples: dict[str, Any], pack: Pack) -> None:
    sequences = tuple(Sequence(row, at * 4, 4, 4, 2) for row in range(40) for at in range(3))
    report = InspectionReport("d", "packed_dataset", ">=0.6", "because", "meaning", 480, 40, sequences, ())
    text = text_of(report)
    assert "8 more rows not drawn" in text
    assert "100 more sequences; --verbose lists them" in text
    assert "more sequences" not in text_of(report, verbose=True)


def test_what_is_duplicated_and_lost_is_told(pack: Pack) -> None:
    text = text_of(inspect_batch(pack([6, 10, 8]), cp=2))
    assert re.search(r"Context parallel size 2: \d+ tokens? held more than once, \d+ tokens? lost\.", text)


def test_the_row_of_the_preview_is_named_when_there_are_several(inspected: Inspect) -> None:
    text = text_of(inspected("0.3.1/batch_offline_mult4_cp2_dprank_global", cp=2))
    assert "Context parallel size 2, row 0: every token" in text


def test_statistics_of_a_dataset_are_values_tables_and_bars() -> None:
    statistics = {"fill": 0.97, "columns": {"input_ids": "list<int64>"}, "length_histogram": {"1-9": 4, "10-19": 2}}
    report = InspectionReport("d", "packed_dataset", ">=0.6", "b", "m", 1_000_000, 20, (), (), statistics=statistics)
    text = text_of(report)
    assert "tokens 1 000 000, rows 20\n" in text
    assert "\n  fill  97.0 %\n" in text
    assert "\ncolumns\n  input ids  list<int64>\n" in text
    assert (
        "\nlength histogram\n    1-9  4  ########################################\n  10-19  2  ####################\n"
        in text
    )


def test_real_batches_render_in_every_form(
    samples: dict[str, Any], inspected: Inspect, schema: Any, well_formed: Check
) -> None:
    for name in samples:
        report = inspected(name, cp=2)
        text = render_inspection(report, "text", verbose=True)
        assert text.isascii()
        schema.validate(json.loads(render_inspection(report, "json")))
        for form in ("text", "sarif", "github", "junit"):
            well_formed[form](render_inspection(report, form))


@pytest.mark.parametrize("form", FORMATS)
def test_every_form_stays_well_formed_with_nasty_text_everywhere(
    form: str, hostile: InspectionReport, well_formed: Check
) -> None:
    rendered = render_inspection(hostile, form, verbose=True)
    if form == "json":
        assert rendered.isascii()
        assert json.loads(rendered)["notes"] == [NASTY.replace("\ud800", "\\ud800")]
    else:
        well_formed[form](rendered)


def test_colours_change_nothing_but_colours(hostile: InspectionReport) -> None:
    colored = text_of(hostile, color=True)
    assert COLOR.search(colored)
    assert COLOR.sub("", colored) == text_of(hostile)


def test_findings_reach_the_forms_for_other_programs(pack: Pack, well_formed: Check, tmp_path: Path) -> None:
    batch = pack([5, 8, 6], multiple=4)
    batch["loss_mask"][0, 6:8] = 1
    file = tmp_path / "batch.npz"
    file.touch()
    report = replace(inspect_batch(batch), source=str(file))
    run = well_formed["sarif"](render_inspection(report, "sarif", root=tmp_path))
    assert run["results"][0]["ruleId"] == "batch-loss-on-padding"
    location = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert location == {"uri": "batch.npz", "uriBaseId": "%SRCROOT%"}
    assert run["properties"]["summary"]["corruption"] == 1
    assert not any(
        "validate" in note["message"]["text"] for note in run["invocations"][0]["toolExecutionNotifications"]
    )
    (command,) = well_formed["github"](render_inspection(report, "github"))
    assert command[0] == "error"
    assert command[1]["file"] == str(file)
    suite = well_formed["junit"](render_inspection(report, "junit"))
    assert suite.attrib["failures"] == "1"
    assert suite.find("testcase[@name='summary']").attrib["classname"] == "skill-run inspect"


def test_the_level_decides_what_fails_in_junit(pack: Pack, well_formed: Check) -> None:
    batch = pack([5, 8, 6], multiple=4)
    batch["loss_mask"][0, 6:8] = 1
    suite = well_formed["junit"](render_inspection(inspect_batch(batch), "junit", level="error"))
    assert suite.attrib["failures"] == "0"


def test_the_schema_refuses_what_the_report_does_not_say(pack: Pack, schema: Any) -> None:
    data = inspect_batch(pack([8, 8]), cp=2).to_dict()
    schema.validate(data)
    for change in ({"path": "new"}, {"tokens": "8"}, {"findings": [{"rule": "x"}]}, {"extra": 1}, {"cp": {}}):
        assert not schema.is_valid({**data, **change}), change


def test_an_unknown_form_is_refused_with_the_known_ones(pack: Pack) -> None:
    with pytest.raises(InputError, match="'xml': use one of text, json, sarif, github, junit"):
        render_inspection(inspect_batch(pack([8])), "xml")


def test_a_report_with_numbers_at_their_limits_can_be_shown() -> None:
    sequences = (Sequence(0, -(2**63), 2**63, -(2**63), None), Sequence(0, 0, 10**30, 10**30, None))
    report = InspectionReport("d", "packed_dataset", ">=0.6", "b", "m", 10**30, 1, sequences, ())
    assert "row 0 " in text_of(report)


def test_a_float_statistic_that_json_lacks_is_text(schema: Any) -> None:
    report = InspectionReport("d", "packed_dataset", ">=0.6", "b", "m", 1, 1, (), (), statistics={"fill": np.nan * 1.0})
    assert '"fill": "NaN"' in render_inspection(report, "json")
