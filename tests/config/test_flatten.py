"""A tree to assignments: dotted paths, and the marks the library leaves in what it writes."""

from __future__ import annotations

from typing import Any

import pytest

from skill_run.config.flatten import flatten
from skill_run.config.model import Assignment, Location
from skill_run.config.tree import Mapping, from_plain, parse_tree


def assignments(text: str) -> list[Assignment]:
    root = parse_tree(text, "c.yaml")
    assert isinstance(root, Mapping)
    return flatten(root, "c.yaml")


def pairs(text: str) -> list[tuple[str, Any]]:
    return [(found.path, found.value) for found in assignments(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\n", [("a", 1)]),
        ("m:\n  a: 1\n  b:\n    c: 2\n", [("m.a", 1), ("m.b.c", 2)]),
        ("m.a: 1\nm.b.c: 2\n", [("m.a", 1), ("m.b.c", 2)]),
        ("m:\n  a.b: 1\n", [("m.a.b", 1)]),
        ("m: null\nn:\n", [("m", None), ("n", None)]),
        ("m: {}\n", [("m", {})]),
        ("m: {a: {}}\n", [("m.a", {})]),
        ("l: []\n", [("l", [])]),
        ("l: [1, {a: 2}, [3]]\n", [("l", [1, {"a": 2}, [3]])]),
        ("x: &x {a: 1}\ny: *x\n", [("x.a", 1), ("y.a", 1)]),
        ("b: 1\na: 2\n", [("b", 1), ("a", 2)]),
    ],
)
def test_mappings_become_dotted_paths_in_file_order(text: str, expected: list[tuple[str, Any]]) -> None:
    assert pairs(text) == expected


def test_dotted_and_nested_spelling_give_the_same_assignments() -> None:
    assert pairs("model:\n  cp: 2\n  sub: {x: 1}\n") == pairs("model.cp: 2\nmodel.sub.x: 1\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("_target_: m.ConfigContainer\nm: {a: 1}\n", [("m.a", 1)]),
        ("d: {_target_: m.GPTDatasetConfig, a: 1}\n", [("d._target_", "m.GPTDatasetConfig"), ("d.a", 1)]),
        ("d: {a: 1, _target_: m.X}\n", [("d._target_", "m.X"), ("d.a", 1)]),
        ("d: {_target_: m.X}\n", [("d._target_", "m.X")]),
        ("d: {_target_: m.X, _partial_: true, _convert_: all, _recursive_: false}\n", [("d._target_", "m.X")]),
        ("d: {s: {_target_: m.Specs, n: 8}}\n", [("d.s._target_", "m.Specs"), ("d.s.n", 8)]),
    ],
)
def test_the_class_of_a_section_is_kept_as_data(text: str, expected: list[tuple[str, Any]]) -> None:
    assert pairs(text) == expected


DTYPE = "{_call_: false, _target_: torch.bfloat16}"
ENUM = "{_args_: [5], _call_: true, _name_: auto, _target_: megatron.core.transformer.enums.AttnBackend}"
ENUM_WITHOUT_NAME = "{_args_: [5], _call_: true, _target_: megatron.core.transformer.enums.AttnBackend}"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (DTYPE, [("m.f", "torch.bfloat16")]),
        ("{_call_: false, _target_: torch._C._nn.gelu}", [("m.f", "torch._C._nn.gelu")]),
        (ENUM, [("m.f", "auto")]),
        (ENUM_WITHOUT_NAME, [("m.f._target_", "megatron.core.transformer.enums.AttnBackend")]),
        (f"[{ENUM}, {DTYPE}, plain]", [("m.f", ["auto", "torch.bfloat16", "plain"])]),
        ("{_call_: false, a: 1}", [("m.f.a", 1)]),
        ("{_name_: auto}", []),
    ],
    ids=["dtype", "function", "enum", "enum of 0.3", "list", "no target", "name alone"],
)
def test_dtypes_functions_and_enums_give_their_names(written: str, expected: list[tuple[str, Any]]) -> None:
    assert pairs(f"m: {{f: {written}}}\n") == expected


@pytest.mark.parametrize("target", ["3", "null", "[a]"])
def test_a_target_that_is_no_text_is_kept_and_does_no_harm(target: str) -> None:
    assert ("m.a", 1) in pairs(f"m: {{_target_: {target}, a: 1}}\n")


@pytest.mark.parametrize(
    ("text", "path", "line", "column"),
    [
        ("m:\n  a: 1\n", "m.a", 2, 6),
        ("m:\n  l:\n  - 1\n", "m.l", 3, 3),
        ("m:\n  f:\n    _call_: false\n    _target_: torch.float32\n", "m.f", 3, 5),
        ("m:\n  _target_: m.X\n", "m._target_", 2, 3),
        ("m:\n", "m", 1, 3),
    ],
)
def test_an_assignment_points_at_its_value(text: str, path: str, line: int, column: int) -> None:
    (found,) = [one for one in assignments(text) if one.path == path]
    assert found.location == Location("c.yaml", line, column)


def test_data_without_places_gives_locations_without_lines() -> None:
    root = from_plain({"m": {"a": 1}}, "<mapping>")
    assert isinstance(root, Mapping)
    assert flatten(root, None) == [Assignment("m.a", 1, Location())]
