"""Tests of skill_run.report.as_json."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from skill_run.config.model import Location
from skill_run.report.as_json import render_json
from skill_run.report.finding import Finding, ValidationReport

SCHEMA = json.loads((files("skill_run.report") / "report.schema.json").read_text("utf-8"))


def objects(data: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects of a report whose keys are fixed, so not fixes and evidence."""
    if isinstance(data, list):
        for item in data:
            yield from objects(item)
    elif isinstance(data, dict):
        yield data
        for key, value in data.items():
            if key not in ("fix", "evidence"):
                yield from objects(value)


def test_json_holds_exactly_what_to_dict_says(
    four_severities: ValidationReport, well_formed: dict[str, Callable[[str], Any]]
) -> None:
    assert well_formed["json"](render_json(four_severities)) == four_severities.to_dict()


def test_the_schema_is_a_valid_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_the_schema_refuses_a_missing_and_an_extra_key_in_every_object(four_severities: ValidationReport) -> None:
    validator = Draft202012Validator(SCHEMA)
    data = four_severities.to_dict()
    total = len(list(objects(data)))
    assert total >= 10
    for index in range(total):
        for key in list(list(objects(data))[index]):
            broken = copy.deepcopy(data)
            del list(objects(broken))[index][key]
            assert not validator.is_valid(broken), key
        broken = copy.deepcopy(data)
        list(objects(broken))[index]["surprise"] = 1
        assert not validator.is_valid(broken)


@pytest.mark.parametrize(
    "location", [None, Location(), Location("a.yaml"), Location("a.yaml", 1), Location(None, 1, 1)]
)
def test_every_kind_of_place_fits_the_schema(
    location: Location | None,
    finding: Callable[..., Finding],
    report: Callable[..., ValidationReport],
    well_formed: dict[str, Callable[[str], Any]],
) -> None:
    well_formed["json"](render_json(report(findings=(finding(location=location),), world_size=None)))


def test_not_a_number_becomes_a_string_in_strict_json(
    finding: Callable[..., Finding],
    report: Callable[..., ValidationReport],
    well_formed: dict[str, Callable[[str], Any]],
) -> None:
    found = finding(fix={"optimizer.lr": math.nan, "optimizer.min_lr": [-math.inf, {"a": math.inf}]})
    data = well_formed["json"](render_json(report(findings=(found,))))
    assert data["findings"][0]["fix"] == {"optimizer.lr": "NaN", "optimizer.min_lr": ["-Infinity", {"a": "Infinity"}]}
