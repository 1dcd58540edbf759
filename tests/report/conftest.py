"""Reports to render, and checks that a rendered form is well formed."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from skill_run import __version__
from skill_run.batch.inspect import InspectionReport, inspect_batch
from skill_run.config.model import Location
from skill_run.report.finding import BridgeChoice, Finding, NotChecked, ValidationReport

URI_REFERENCE = re.compile(r"(?:[A-Za-z0-9._~/:-]|%[0-9A-F]{2})+")
GITHUB_COMMAND = re.compile(r"::(error|warning|notice) ((?:[a-z]+=[^,:]*)(?:,[a-z]+=[^,:]*)*)::(.*)")


@pytest.fixture(scope="session")
def finding() -> Callable[..., Finding]:
    """Return a maker of findings: an offline packing error, changed by keywords."""
    usual = Finding(
        rule="offline-mbs-1",
        severity="error",
        title="micro_batch_size must be 1 with offline packing",
        message="micro_batch_size is 4, but one pack is already a whole micro-batch.",
        fields=("train.micro_batch_size",),
        fires="validate",
        skill="sequence-packing",
        location=Location("conf.yaml", 12, 3),
        fix={"train.micro_batch_size": 1},
        evidence=({"bridge": "0.6.2", "file": "training/config.py", "says": "asserts it"},),
    )
    return lambda **changes: replace(usual, **changes)


@pytest.fixture(scope="session")
def report() -> Callable[..., ValidationReport]:
    """Return a maker of reports: one without findings, changed by keywords."""
    usual = ValidationReport(
        source="conf.yaml",
        bridge=BridgeChoice("0.6.2", "0.6.2", "--bridge asks for it."),
        world_size=16,
        base="dataclass defaults of 0.6.2",
        upstream_validate="passes",
        findings=(),
        not_checked=(),
        rules_checked=63,
    )
    return lambda **changes: replace(usual, **changes)


@pytest.fixture(scope="session")
def four_severities(finding: Callable[..., Finding], report: Callable[..., ValidationReport]) -> ValidationReport:
    """Return a report with a finding of each severity and rules that were not checked."""
    return report(
        upstream_validate="raises",
        findings=(
            finding(),
            finding(rule="pad-covers-cp", severity="corruption", title="pads cover CP", fires="never"),
            finding(rule="slow-layout", severity="warning", title="slow layout", fires="setup", location=None),
            finding(rule="sp-is-reset", severity="info", title="upstream resets SP", fix={}),
        ),
        not_checked=(
            NotChecked("enough-gpus", "the GPUs suffice", ("world_size",)),
            NotChecked("heads-per-tp", "heads divide by TP", ("model.num_attention_heads",)),
            NotChecked("groups-per-tp", "groups divide by TP", ("model.num_query_groups",)),
        ),
    )


@pytest.fixture(scope="session")
def samples() -> dict[str, Any]:
    """Return the real batches of tests/batch by name, as JSON."""
    data = gzip.decompress((Path(__file__).parents[1] / "batch" / "data" / "samples.json.gz").read_bytes())
    return dict(json.loads(data))


@pytest.fixture(scope="session")
def inspected(samples: dict[str, Any]) -> Callable[..., InspectionReport]:
    """Return a function that inspects a real batch by name, with keys changed, with the options of `inspect_batch`."""

    def inspect(name: str, changes: dict[str, Any] | None = None, **options: Any) -> InspectionReport:
        return inspect_batch({**arrays(samples[name]), **(changes or {})}, **options)

    return inspect


def arrays(value: Any) -> Any:
    """Return JSON with the arrays it describes."""
    if isinstance(value, dict):
        if "__array__" in value:
            return np.array(value["data"], dtype=value["__array__"]).reshape(value["shape"])
        return {key: arrays(item) for key, item in value.items()}
    return [arrays(item) for item in value] if isinstance(value, list) else value


@pytest.fixture(scope="session")
def pack() -> Callable[..., dict[str, Any]]:
    """Return a maker of offline packed rows of 0.6: logical lengths in slots of a multiple, the second half trained."""

    def make(lengths: list[int], multiple: int = 1, total: int | None = None) -> dict[str, Any]:
        slots = [-(-length // multiple) * multiple for length in lengths]
        total = sum(slots) if total is None else total
        physical = np.array([0, *np.cumsum(slots), *([total] if sum(slots) < total else [])], dtype=np.int32)
        logical = np.array([0, *np.cumsum(lengths)], dtype=np.int32)
        logical = np.pad(logical, (0, physical.size - logical.size), mode="edge")
        tokens = np.arange(10, 10 + total)
        labels = np.append(tokens[1:], 9)
        mask, positions = np.zeros(total, dtype=np.int64), np.zeros(total, dtype=np.int64)
        for start, length, slot in zip(physical.tolist(), lengths, slots, strict=False):
            labels[start + length - 1] = 9
            mask[start + length // 2 : start + length] = 1
            positions[start : start + slot] = np.arange(slot)
        batch = {
            "tokens": tokens[None],
            "labels": labels[None],
            "loss_mask": mask[None],
            "position_ids": positions[None],
            "token_count": [sum(slots)],
            "max_seqlen_q": np.array([[max(*slots, total - sum(slots))]], dtype=np.int32),
            "cu_seqlens_q": (physical if multiple == 1 else logical)[None],
        }
        return batch if multiple == 1 else {**batch, "cu_seqlens_q_padded": physical[None]}

    return make


@pytest.fixture(scope="session")
def well_formed() -> dict[str, Callable[[str], Any]]:
    """Return for each form a function that parses it, and fails if it is not well formed."""
    return {"text": check_text, "json": check_json, "sarif": check_sarif, "github": check_github, "junit": check_junit}


def check_text(text: str) -> list[str]:
    lines = text.split("\n")
    assert all(line.isprintable() for line in lines)
    assert not any(line.strip().startswith("::") or "##[" in line or "##vso[" in line for line in lines)
    return lines


def strict_json(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    assert text.isascii()
    data = json.loads(text, parse_constant=refuse)
    json.dumps(data, ensure_ascii=False).encode("utf-8")
    return data


def check_json(text: str) -> Any:
    schema = json.loads((files("skill_run.report") / "report.schema.json").read_text("utf-8"))
    data = strict_json(text)
    Draft202012Validator(schema).validate(data)
    return data


def check_sarif(text: str) -> Any:
    log = strict_json(text)
    assert set(log) == {"$schema", "version", "runs"}
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    assert set(run) == {"tool", "columnKind", "invocations", "results", "properties"}
    driver = run["tool"]["driver"]
    assert set(driver) == {"name", "version", "rules"}
    assert (driver["name"], driver["version"]) == ("skill-run", __version__)
    assert len({rule["id"] for rule in driver["rules"]}) == len(driver["rules"])
    for rule in driver["rules"]:
        check_sarif_rule(rule)
    for invocation in run["invocations"]:
        assert isinstance(invocation["executionSuccessful"], bool)
        assert all(isinstance(note["message"]["text"], str) for note in invocation["toolExecutionNotifications"])
    for result in run["results"]:
        check_sarif_result(result, driver["rules"])
    return run


def check_sarif_rule(rule: dict[str, Any]) -> None:
    required = {"id", "shortDescription", "fullDescription", "help", "defaultConfiguration", "properties"}
    assert required <= set(rule) <= required | {"name", "helpUri"}
    assert rule.get("name") != rule["id"]
    assert all(isinstance(rule[key]["text"], str) for key in ("shortDescription", "fullDescription", "help"))
    assert rule["defaultConfiguration"]["level"] in {"error", "warning", "note"}
    if "helpUri" in rule:
        assert re.fullmatch(r"https?://[!-~]*", rule["helpUri"])


def check_sarif_result(result: dict[str, Any], rules: list[dict[str, Any]]) -> None:
    keys = {"ruleId", "ruleIndex", "level", "message", "locations", "partialFingerprints", "properties"}
    assert set(result) == keys
    assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
    assert result["level"] in {"error", "warning", "note"}
    assert isinstance(result["message"]["text"], str)
    assert all(isinstance(value, str) and value for value in result["partialFingerprints"].values())
    for location in result["locations"]:
        physical = location["physicalLocation"]
        assert URI_REFERENCE.fullmatch(physical["artifactLocation"]["uri"])
        assert set(physical.get("region", {})) <= {"startLine", "startColumn"}
        assert all(number >= 1 for number in physical.get("region", {}).values())


def check_github(text: str) -> list[tuple[str, dict[str, str], str]]:
    """Parse as the runner does: one command a line, `%` escapes undone last."""
    commands = []
    for line in re.split(r"[\r\n]", text) if text else []:
        match = GITHUB_COMMAND.fullmatch(line)
        assert match, line
        assert line.isprintable()
        pairs = (item.split("=", 1) for item in match[2].split(","))
        commands.append((match[1], {key: unescape(value) for key, value in pairs}, unescape(match[3])))
    return commands


def unescape(text: str) -> str:
    assert not re.search(r"%(?!25|0D|0A|3A|2C)", text)
    for escape, char in (("%2C", ","), ("%3A", ":"), ("%0A", "\n"), ("%0D", "\r"), ("%25", "%")):
        text = text.replace(escape, char)
    return text


def check_junit(text: str) -> ElementTree.Element:
    assert text.isascii()
    root = ElementTree.fromstring(text)
    (suite,) = root
    cases = suite.findall("testcase")
    assert (root.tag, suite.tag) == ("testsuites", "testsuite")
    assert int(suite.attrib["tests"]) == len(cases)
    assert int(suite.attrib["failures"]) == len(suite.findall("testcase/failure"))
    assert int(suite.attrib["skipped"]) == len(suite.findall("testcase/skipped"))
    assert all({"classname", "name"} <= set(case.attrib) for case in cases)
    return suite
