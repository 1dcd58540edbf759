"""Tests of skill_run.report.render, and of all forms with hostile input."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import skill_run.report.render
from skill_run.config.model import Location
from skill_run.errors import InputError
from skill_run.report.finding import (
    PHASES,
    SEVERITIES,
    BridgeChoice,
    Finding,
    NotChecked,
    ValidationReport,
)
from skill_run.report.render import FORMATS, render

RUNTIME = Path(skill_run.report.render.__file__).parents[2]

NASTY = [
    "",
    "\n::error::x",
    "::stop-commands::x",
    "a,b:c=d%0A%",
    "##[group]##vso[x]",
    "\x1b[31m\x1b]8;;http://x\x07",
    "\x00\x7f\x9b\u2028\u202e\ufeff\ufffe\U000e0001",
    "]]>",
    "<!--<![CDATA[&x;",
    "\ud800\udc80",
    "[x](http://y)",
    "{0}",
    "../../etc/passwd",
    "/a/b",
    "C:\\x",
    "https://[::1]/\n",
]
HUGE = st.sampled_from(["x", "y z ", "\x1b"]).map(lambda unit: unit * 20_000)
TEXTS = st.one_of(st.sampled_from(NASTY), st.text(st.characters(), max_size=30), HUGE)
NUMBERS = st.one_of(st.integers(), st.floats(), st.sampled_from([1, -1]).map(lambda sign: sign * 16**5000))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=5,
)
PLACES = st.integers(min_value=1)
LOCATIONS = st.none() | st.builds(Location, st.none() | TEXTS, st.none() | PLACES, st.none() | PLACES)
FINDINGS = st.builds(
    Finding,
    rule=TEXTS,
    severity=st.sampled_from(SEVERITIES),
    title=TEXTS,
    message=TEXTS,
    fields=st.lists(TEXTS, max_size=2).map(tuple),
    fires=st.sampled_from(PHASES),
    skill=TEXTS,
    location=LOCATIONS,
    fix=st.dictionaries(TEXTS, VALUES, max_size=2),
    fix_is_semantic=st.booleans(),
    evidence=st.lists(st.dictionaries(TEXTS, TEXTS, max_size=2), max_size=2).map(tuple),
    docs=TEXTS,
)
REPORTS = st.builds(
    ValidationReport,
    source=TEXTS,
    bridge=st.builds(BridgeChoice, TEXTS, TEXTS, TEXTS),
    world_size=st.none() | st.integers(min_value=1),
    base=TEXTS,
    upstream_validate=st.sampled_from(["raises", "passes", "unknown"]),
    findings=st.lists(FINDINGS, max_size=3).map(tuple),
    not_checked=st.lists(
        st.builds(NotChecked, TEXTS, TEXTS, st.lists(TEXTS, max_size=3).map(tuple), st.sampled_from(SEVERITIES)),
        max_size=3,
    ).map(tuple),
    rules_checked=st.integers(min_value=0),
)


def filled_with(text: str) -> ValidationReport:
    """Return a report that has `text` at every place that can hold text."""
    found = [
        Finding(
            rule=text,
            severity=severity,
            title=text,
            message=text,
            fields=(text,),
            fires="never",
            skill=text,
            location=Location(text, 1, 1),
            fix={text: [text, {text: text}]},
            evidence=({text: text},),
            docs=f"https://{text}",
        )
        for severity in SEVERITIES
    ]
    entry = NotChecked(text, text, (text,))
    return ValidationReport(text, BridgeChoice(text, "", text), 1, text, "unknown", tuple(found), (entry,))


@pytest.mark.parametrize("text", [*NASTY, pytest.param("z" * 1_000_000, id="huge")])
@pytest.mark.parametrize("form", FORMATS)
def test_every_form_stays_well_formed_with_a_nasty_text_everywhere(
    form: str, text: str, well_formed: dict[str, Callable[[str], Any]]
) -> None:
    well_formed[form](render(filled_with(text), form, verbose=True))


@pytest.mark.parametrize("form", FORMATS)
@settings(derandomize=True, deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))
@given(report=REPORTS, width=st.integers(1, 200), verbose=st.booleans())
def test_every_form_stays_well_formed_whatever_the_input_holds(
    form: str,
    well_formed: dict[str, Callable[[str], Any]],
    report: ValidationReport,
    width: int,
    verbose: bool,
) -> None:
    well_formed[form](render(report, form, width=width, verbose=verbose))


@settings(derandomize=True, deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))
@given(report=REPORTS, width=st.integers(1, 200))
def test_coloured_text_holds_no_control_characters_but_our_colours(report: ValidationReport, width: int) -> None:
    colored = render(report, "text", color=True, width=width)
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == render(report, "text", width=width)


def test_options_reach_the_form_they_concern(four_severities: ValidationReport) -> None:
    assert "\x1b[" in render(four_severities, "text", color=True)
    assert "evidence" in render(four_severities, "text", verbose=True)
    assert len(render(four_severities, "text", width=40).split("\n")) > len(render(four_severities, "text").split("\n"))
    assert 'failures="4"' in render(four_severities, "junit", level="info")
    assert '"uri": "conf.yaml"' in render(four_severities, "sarif", root=Path("/"))


def test_an_unknown_form_is_refused_with_the_known_ones(report: Callable[..., ValidationReport]) -> None:
    with pytest.raises(InputError, match="'xml': use one of text, json, sarif, github, junit"):
        render(report(), "xml")


@pytest.mark.parametrize("form", FORMATS)
def test_only_the_chosen_form_is_imported(form: str) -> None:
    code = f"""
import json, sys
from skill_run.report.finding import BridgeChoice, ValidationReport
from skill_run.report.render import render
render(ValidationReport("s", BridgeChoice("1", "1", "b"), 1, "b", "passes", (), ()), {form!r})
print(json.dumps([name for name in sys.modules]))
"""
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(RUNTIME)},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(json.loads(result.stdout))
    modules = {"text": "text", "json": "as_json", "sarif": "sarif", "github": "github", "junit": "junit"}
    assert {name for name in modules if f"skill_run.report.{modules[name]}" in loaded} == {form}
    assert not {"rich", "jsonschema", "numpy", "mcp"} & loaded
