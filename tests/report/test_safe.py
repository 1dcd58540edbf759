"""Tests of skill_run.report.safe."""

from __future__ import annotations

import json
import math

import pytest

from skill_run.report.safe import TEXT_LIMIT, clip, encodable, flow, printable, show_value, strict


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("caf\u00e9", "caf\u00e9"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\x9b31m", "\\x9b31m"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("a\u202eb", "a\\u202eb"),
        ("\udc80", "\\udc80"),
    ],
)
def test_characters_without_a_visible_form_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_flow_joins_lines_into_one_paragraph() -> None:
    assert flow("  one\n  two\t\x07three ") == "one two \\x07three"


def test_flow_clips_a_huge_text_and_tells_how_much_is_missing() -> None:
    assert flow("x" * (TEXT_LIMIT + 5)) == "x" * TEXT_LIMIT + "... (5 more characters)"


def test_clip_keeps_a_text_of_exactly_the_limit() -> None:
    assert clip("abc", 3) == "abc"


def test_encodable_spells_lone_surrogates_and_keeps_the_rest() -> None:
    assert encodable("\u00e9\ud800") == "\u00e9\\ud800"


def test_numbers_that_json_lacks_become_strings_at_any_depth() -> None:
    value = {"a": [math.nan, math.inf, {"b": -math.inf}], "c": 1.5}
    assert strict(value) == {"a": ["NaN", "Infinity", {"b": "-Infinity"}], "c": 1.5}


def test_lone_surrogates_are_spelled_out_in_keys_and_values() -> None:
    assert strict({"\ud800": ["\udc80"]}) == {"\\ud800": ["\\udc80"]}


def test_true_stays_a_boolean_and_null_stays_null() -> None:
    assert json.dumps(strict([True, None, 1])) == "[true, null, 1]"


def test_an_integer_too_long_to_print_becomes_hexadecimal() -> None:
    assert strict(16**5000) == "0x1" + "0" * 5000


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1, "1"), (None, "null"), (False, "false"), ("a2a", '"a2a"'), (["p2p", 2.5], '["p2p", 2.5]'), (math.nan, '"NaN"')],
)
def test_values_are_shown_as_json(value: object, shown: str) -> None:
    assert show_value(value) == shown


def test_a_shown_value_is_one_printable_bounded_line() -> None:
    shown = show_value(["\x1b[31m\n\x7f" * 1000])
    assert shown.isprintable()
    assert len(shown) < 1500
