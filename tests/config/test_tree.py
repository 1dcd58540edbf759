"""YAML and plain data to a tree with places: values, places, merges, and every limit."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skill_run.config.tree import (
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_NODES,
    Leaf,
    Mapping,
    Node,
    Sequence,
    from_plain,
    parse_tree,
    to_plain,
)
from skill_run.errors import InputError


def read(text: str) -> Any:
    return to_plain(parse_tree(text, "c.yaml"))


def node_at(text: str, *path: str | int) -> Node:
    node = parse_tree(text, "c.yaml")
    assert node is not None
    for step in path:
        if isinstance(step, int):
            assert isinstance(node, Sequence)
            node = node.items[step]
        else:
            assert isinstance(node, Mapping)
            node = node.items[step]
    return node


def refusal(text: str) -> str:
    with pytest.raises(InputError) as caught:
        parse_tree(text, "c.yaml")
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert len(sentence) < 200
    return sentence


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-1", -1),
        ("+1", 1),
        ("-0", 0),
        ("1_000", 1000),
        ("0x1F", 31),
        ("0b11", 3),
        ("017", 15),
        ("0o17", "0o17"),
        ("08", "08"),
        ("1:30", 90),
        ("9223372036854775808", 2**63),
        ("1.5", 1.5),
        ("1.", 1.0),
        (".5", 0.5),
        ("1e-5", 1e-5),
        ("1e5", 1e5),
        ("1E5", 1e5),
        ("-1.5e-3", -1.5e-3),
        ("1e400", math.inf),
        (".inf", math.inf),
        ("-.inf", -math.inf),
        ("true", True),
        ("True", True),
        ("FALSE", False),
        ("yes", True),
        ("off", False),
        ("y", "y"),
        ("null", None),
        ("Null", None),
        ("~", None),
        ("", None),
        ("none", "none"),
        ("None", "None"),
        ("nan", "nan"),
        ("bf16_mixed", "bf16_mixed"),
        ("a2a+p2p", "a2a+p2p"),
        ("torch.bfloat16", "torch.bfloat16"),
        ("2020-01-01", "2020-01-01"),
        ("=", "="),
        ("<<", "<<"),
        ('"1"', "1"),
        ("'true'", "true"),
        ('"null"', "null"),
        ('"a\\u00e9\\n"', "a\u00e9\n"),
        ("!!str 3", "3"),
        ("! 3", "3"),
        ('!!int "3"', 3),
        ("!!float 3", 3.0),
        ('!!bool "yes"', True),
        ("!!null x", None),
        ("[]", []),
        ("{}", {}),
        ("[1, a, null]", [1, "a", None]),
        ("!!python/tuple [1, 2]", [1, 2]),
        ("!!set {x, y}", {"x": None, "y": None}),
    ],
)
def test_a_value_is_read_as_upstream_reads_it(text: str, value: object) -> None:
    found = read(f"key: {text}\n")["key"]
    assert found == value
    assert type(found) is type(value)


def test_not_a_number_is_read_as_a_float() -> None:
    assert math.isnan(read("key: .nan\n")["key"])


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("1: a\n", ["1"]),
        ("1.5: a\n", ["1.5"]),
        ("true: a\n", ["True"]),
        ("~: a\n", ["null"]),
        ("? long\n: a\n", ["long"]),
        ('"<<": 1\n', ["<<"]),
        ('"a.b": 1\n', ["a.b"]),
        ("model.context_parallel_size: 1\n", ["model.context_parallel_size"]),
    ],
)
def test_a_key_is_always_text(text: str, keys: list[str]) -> None:
    assert list(read(text)) == keys


@pytest.mark.parametrize("text", ["", "\n\n", "# a comment\n  # another\n", "---\n...\n"])
def test_text_without_a_value_is_no_config(text: str) -> None:
    assert read(text) is None


@pytest.mark.parametrize(
    "text", ["a: 1\n", "---\na: 1\n", "---\na: 1\n...\n", "%YAML 1.1\n---\na: 1\n", "\ufeffa: 1\n"]
)
def test_one_document_is_read_with_or_without_its_marks(text: str) -> None:
    assert read(text) == {"a": 1}


@pytest.mark.parametrize(
    ("text", "path", "place"),
    [
        ("a: 1\n", ("a",), (1, 4)),
        ("a:   1  # note\n", ("a",), (1, 6)),
        ("# head\n\nm:\n  a: 1\n  b: 2\n", ("m", "b"), (5, 6)),
        ("m: {a: 1, b: 2}\n", ("m", "b"), (1, 14)),
        ("m: {a: 1, b: 2}\n", ("m",), (1, 4)),
        ("m:\n  n:\n    a: 1\n", ("m", "n"), (3, 5)),
        ("l:\n- 1\n- 2\n", ("l", 1), (3, 3)),
        ("l: [1, [2, 3]]\n", ("l", 1, 0), (1, 9)),
        ("a:\nb: 1\n", ("a",), (1, 3)),
        ("a: |\n  text\n", ("a",), (1, 4)),
        ("a: 1\r\nb: 2\r\n", ("b",), (2, 4)),
        ('a: "\u4e2d\U0001f600"\nb: {c: "\u4e2d", d: 5}\n', ("b", "d"), (2, 16)),
        ("model.seq_length: 4096\n", ("model.seq_length",), (1, 19)),
        ('{\n  "a": {"b": 1}\n}\n', ("a", "b"), (2, 14)),
    ],
)
def test_a_value_knows_its_line_and_column(text: str, path: tuple[str | int, ...], place: tuple[int, int]) -> None:
    node = node_at(text, *path)
    assert (node.line, node.column) == place


@pytest.mark.parametrize(
    ("text", "merged"),
    [
        ("x: &x {a: 1}\nm: {<<: *x, b: 2}\n", {"a": 1, "b": 2}),
        ("x: &x {a: 1}\nm:\n  <<: *x\n  a: 2\n", {"a": 2}),
        ("x: &x {a: 1}\nm:\n  a: 2\n  <<: *x\n", {"a": 2}),
        ("x: &x {a: 1}\ny: &y {a: 2, b: 3}\nm: {<<: [*x, *y]}\n", {"a": 1, "b": 3}),
        ("x: &x {a: 1}\ny: &y {a: 2}\nm: {<<: [*x, *y], a: 9}\n", {"a": 9}),
        ("x: &x {a: 1}\ny: &y {<<: *x, b: 2}\nm: {<<: *y}\n", {"a": 1, "b": 2}),
        ("x: 1\nm: {<<: {}}\n", {}),
    ],
)
def test_a_merge_adds_keys_and_a_key_of_its_own_wins(text: str, merged: dict[str, int]) -> None:
    assert read(text)["m"] == merged


def test_a_merged_key_may_be_overridden_once_only() -> None:
    assert refusal("x: &x {a: 1}\nm: {<<: *x, a: 2, a: 3}\n").startswith("c.yaml:2:")


def test_an_alias_gives_the_value_and_the_place_of_its_anchor() -> None:
    text = "a: &x\n  b: 1\nc: *x\n"
    assert read(text) == {"a": {"b": 1}, "c": {"b": 1}}
    assert (node_at(text, "c", "b").line, node_at(text, "c", "b").column) == (2, 6)


def test_the_latest_anchor_of_a_name_counts() -> None:
    assert read("a: &x 1\nb: *x\nc: &x 2\nd: *x\n") == {"a": 1, "b": 1, "c": 2, "d": 2}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\n---\nb: 2\n", "c.yaml:2:1: the file holds more than one YAML document"),
        ("a:\n\tb: 1\n", "c.yaml:2:1: not valid YAML: found character that cannot start any token"),
        ("a: 1\na: 2\n", "c.yaml:2:4: the key 'a' is given twice in one mapping"),
        ("m:\n  a: 1\n  a: 1\n", "c.yaml:3:6: the key 'a' is given twice in one mapping"),
        ('1: a\n"1": b\n', "c.yaml:2:6: the key '1' is given twice in one mapping"),
        ("a: &x\n  b: *x\n", "c.yaml:2:6: the anchor 'x' contains itself"),
        ("&r [*r]\n", "c.yaml:1:5: the anchor 'r' contains itself"),
        ("a: *nowhere\n", "c.yaml:1:4: the alias 'nowhere' has no anchor before it"),
        ("a: {<<: 3}\n", "c.yaml:1:9: '<<' can only merge mappings"),
        ("a: {<<: [{b: 1}, 3]}\n", "c.yaml:1:19: '<<' can only merge mappings"),
        ("[1, 2]: a\n", "c.yaml:1:6: a mapping key must be text, not a list or a mapping"),
        ("{a: 1}: b\n", "c.yaml:1:6: a mapping key must be text, not a list or a mapping"),
        ("a: b: c\n", "c.yaml:1:5: not valid YAML: mapping values are not allowed in this context"),
        ("a: [1, 2\n", "c.yaml:2:1: not valid YAML: did not find expected ',' or ']'"),
        ('a: "b\n', "c.yaml:2:1: not valid YAML: found unexpected end of stream"),
        ("%YAML 3.0\n---\na: 1\n", "c.yaml:1:1: not valid YAML: found incompatible YAML document"),
        (
            'a: !!python/object/apply:os.system ["ls"]\n',
            "c.yaml:1:4: the YAML tag 'tag:yaml.org,2002:python/object/apply:os.system' is not allowed in a config",
        ),
        (
            "a: !!python/name:os.system\n",
            "c.yaml:1:4: the YAML tag 'tag:yaml.org,2002:python/name:os.system' is not allowed in a config",
        ),
        ("a: !own {b: 1}\n", "c.yaml:1:4: the YAML tag '!own' is not allowed in a config"),
        ("a: !!int three\n", "c.yaml:1:4: 'three' is not a number that can be read"),
        ("a: !!float ''\n", "c.yaml:1:4: '' is not a number that can be read"),
        ("a: !!bool maybe\n", "c.yaml:1:4: 'maybe' is not true or false that can be read"),
        ("a: 0x_\n", "c.yaml:1:4: '0x_' is not a number that can be read"),
        (f"a: {'9' * 5000}\n", "c.yaml:1:4: a number of 5000 digits is out of range"),
        (f"a: 0x{'f' * 500}\n", "c.yaml:1:4: a number of 502 digits is out of range"),
        ("a: \x00\n", "c.yaml: not valid YAML: unacceptable character #x0000: control characters are not allowed"),
        ("a: \ud800\n", "c.yaml is not valid text: character 4 is half a surrogate pair"),
    ],
)
def test_bad_yaml_is_refused_with_place_and_reason(text: str, sentence: str) -> None:
    assert refusal(text) == sentence


def test_text_that_names_a_function_stays_text() -> None:
    assert read("a: {_target_: os.system, _args_: [ls]}\n") == {"a": {"_target_": "os.system", "_args_": ["ls"]}}


def nested(depth: int, form: str) -> str:
    """Return a document with `depth` mappings or lists around one value."""
    if form == "flow map":
        return "{a: " * depth + "1" + "}" * depth
    if form == "flow list":
        return "[" * depth + "1" + "]" * depth
    if form == "block list":
        return "- " * depth + "1\n"
    if form == "block map":
        return "".join(" " * level + "a:\n" for level in range(depth - 1)) + " " * (depth - 1) + "a: 1\n"
    chain = "".join(f"k{level}: &k{level} [*k{level - 1}]\n" for level in range(1, depth - 1))
    return "k0: &k0 [1]\n" + chain


FORMS = ["flow map", "flow list", "block list", "block map", "aliases"]


@pytest.mark.parametrize("form", FORMS)
def test_the_deepest_allowed_nesting_is_read(form: str) -> None:
    assert read(nested(MAX_DEPTH, form)) is not None


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 600, 10_000])
def test_deeper_nesting_is_refused(form: str, depth: int) -> None:
    if form == "block map":
        depth = min(depth, 1500)
    assert refusal(nested(depth, form)).endswith(
        (f"the YAML is nested deeper than {MAX_DEPTH} levels", "not valid YAML: exceeded maximum nesting depth")
    )


def bomb(kind: str) -> str:
    """Return ten levels of ten references each: ten thousand million values."""
    first = {"lists": "[x, x, x]", "mappings": "{p: 1, q: 2}", "merges": "{p: 1, q: 2}"}[kind]
    lines = [f"a0: &a0 {first}"]
    for level in range(1, 11):
        refs = [f"*a{level - 1}"] * 10
        if kind == "lists":
            body = f"[{', '.join(refs)}]"
        elif kind == "mappings":
            body = "{" + ", ".join(f"k{number}: {ref}" for number, ref in enumerate(refs)) + "}"
        else:
            body = "{" + ", ".join(f"k{number}: {{<<: {ref}, own{level}: 1}}" for number, ref in enumerate(refs)) + "}"
        lines.append(f"a{level}: &a{level} {body}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("kind", ["lists", "mappings", "merges"])
def test_aliases_cannot_blow_a_small_text_up(kind: str) -> None:
    assert refusal(bomb(kind)).endswith(f"the YAML expands to more than {MAX_NODES} values")


def test_the_number_of_values_is_limited_exactly() -> None:
    # A list counts as one more than its items, each time it is referred to; the outer list is the last one.
    thousand = "&k [" + ", ".join(["1"] * 999) + "]"
    copies = ["*k"] * (MAX_NODES // 1000 - 2)
    assert len(read("[" + ", ".join([thousand, *copies, *["1"] * 999]) + "]")) == MAX_NODES // 1000 - 1 + 999
    over = refusal("[" + ", ".join([thousand, *copies, *["1"] * 1000]) + "]")
    assert over.endswith(f"the YAML expands to more than {MAX_NODES} values")


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cn", "Co"]), max_size=12)
FUZZ = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXT
)
PLAIN = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=8
)


@FUZZ
@given(st.dictionaries(TEXT, PLAIN, max_size=5))
def test_data_written_as_json_is_read_back_unchanged(data: dict[str, Any]) -> None:
    assert read(json.dumps(data, ensure_ascii=False)) == data


@FUZZ
@given(st.text(max_size=80) | st.text("ab:-{}[]&*!|>#\"'% \n,?<=~", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(InputError):
        read(text)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"a": 1, "b": {"c": [1, {"d": None}]}}, {"a": 1, "b": {"c": [1, {"d": None}]}}),
        ({"a": (1, 2)}, {"a": [1, 2]}),
        ({"a": {3}}, {"a": [3]}),
        ({}, {}),
        ({"a.b": True}, {"a.b": True}),
        ({"a": 10**MAX_DIGITS - 1}, {"a": 10**MAX_DIGITS - 1}),
    ],
)
def test_plain_data_becomes_a_tree_and_comes_back(data: object, expected: object) -> None:
    assert to_plain(from_plain(data, "<mapping>")) == expected


def test_plain_data_has_no_places() -> None:
    node = from_plain(5, "<mapping>")
    assert isinstance(node, Leaf)
    assert (node.line, node.column) == (0, 0)


def cyclic() -> dict[str, Any]:
    data: dict[str, Any] = {}
    data["self"] = data
    return data


def shared() -> list[Any]:
    level: list[Any] = [1]
    for _ in range(30):
        level = [level, level]
    return level


def deep(depth: int) -> Any:
    data: Any = 1
    for _ in range(depth):
        data = {"a": data}
    return data


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"text", "a value of type bytes is not plain config data"),
        ({"a": object()}, "a value of type object is not plain config data"),
        ({"a": 1j}, "a value of type complex is not plain config data"),
        ({"a": len}, "a value of type builtin_function_or_method is not plain config data"),
        ({"a": {1: 2}}, "a key of type int is not text"),
        ({"a": {None: 2}}, "a key of type NoneType is not text"),
        ({"a": 10**5000}, f"a number of more than {MAX_DIGITS} digits is out of range"),
        ({"a": [-(10**MAX_DIGITS)]}, f"a number of more than {MAX_DIGITS} digits is out of range"),
        (cyclic(), f"the mapping is nested deeper than {MAX_DEPTH} levels"),
        (deep(10_000), f"the mapping is nested deeper than {MAX_DEPTH} levels"),
        (shared(), f"the mapping holds more than {MAX_NODES} values"),
    ],
    ids=[
        "bytes",
        "object",
        "complex",
        "function",
        "key int",
        "key null",
        "huge",
        "negative",
        "cyclic",
        "deep",
        "shared",
    ],
)
def test_data_that_is_not_plain_is_refused(data: object, reason: str) -> None:
    with pytest.raises(InputError) as caught:
        from_plain(data, "<mapping>")
    assert str(caught.value) == f"<mapping>: {reason}"
