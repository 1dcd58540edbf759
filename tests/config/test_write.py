"""Changes written back into every form of config: only what was asked for changes, comments and order stay."""

from __future__ import annotations

import copy
import json
import math
import re
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skill_run.config.model import Form, Plain, Source
from skill_run.config.overrides import read_overrides
from skill_run.config.read import read_config_text, read_source
from skill_run.config.tree import parse_tree, to_plain
from skill_run.config.write import edit_json, edit_mapping, edit_overrides, edit_yaml, flow, write_back
from skill_run.errors import InputError

CP = "model.context_parallel_size"
MBS = "train.micro_batch_size"


def written(text: str, form: Form, sets: dict[str, Plain], removes: tuple[str, ...] = ()) -> str:
    result = write_back(read_config_text(text, name="conf", form=form, bridge="0.6.2"), sets, removes)
    assert isinstance(result, str)
    return result


def values(text: str, form: Form) -> dict[str, Any]:
    source = read_config_text(text, name="conf", form=form, bridge="0.6.2")
    return {found.path: found.value for found in source.assignments}


BLOCK = """# my run
model:
  # two halves
  context_parallel_size: 2  # was 1
  tensor_model_parallel_size: 1
train:
  micro_batch_size: 4
# the end
"""


@pytest.mark.parametrize(
    ("before", "sets", "removes", "after"),
    [
        (
            BLOCK,
            {CP: 4, "model.sequence_parallel": True, "train.global_batch_size": 8, "ddp.average_in_collective": False},
            (),
            """# my run
model:
  # two halves
  context_parallel_size: 4  # was 1
  tensor_model_parallel_size: 1
  sequence_parallel: true
train:
  micro_batch_size: 4
  global_batch_size: 8
ddp:
  average_in_collective: false
# the end
""",
        ),
        (
            "model: {context_parallel_size: 2, tensor_model_parallel_size: 1} # note\ntrain: {}\n",
            {CP: 4, "model.sequence_parallel": True, MBS: 1},
            (),
            "model: {context_parallel_size: 4, tensor_model_parallel_size: 1, sequence_parallel: true} # note\n"
            "train: {micro_batch_size: 1}\n",
        ),
        (
            "{model: {a: 1}, train: {b: 2}}\n",
            {"model.a": 3, "ddp.c.d": 4},
            ("train.b",),
            "{model: {a: 3}, ddp: {c: {d: 4}}}\n",
        ),
        (
            "m: {\n  a: 1, # first\n  b: 2 # second\n}\n",
            {"m.c": 3},
            ("m.a",),
            "m: {\n  b: 2, c: 3 # second\n}\n",
        ),
        ("m: {a: 1, b: 2}\n", {}, ("m.b",), "m: {a: 1}\n"),
        ("m: {a: 1, b: 2} # note\n", {}, ("m.a",), "m: {b: 2} # note\n"),
        (
            "# note\nmodel.context_parallel_size: 2 # was 1\ntrain.micro_batch_size: 4\n",
            {CP: 4, "ddp.average_in_collective": True},
            (MBS,),
            "# note\nmodel.context_parallel_size: 4 # was 1\nddp.average_in_collective: true\n",
        ),
        ("{a.b: 1, a.c: 2}\n", {"a.d": 3}, (), "{a.b: 1, a.c: 2, a.d: 3}\n"),
        (
            "comm_overlap:   # why\npeft: null # none\n",
            {"comm_overlap.tp_comm_overlap": True, "peft.dim": 8},
            (),
            "comm_overlap: {tp_comm_overlap: true}   # why\npeft: {dim: 8} # none\n",
        ),
        ("peft: # none\n  # yet\ntrain: 1\n", {"peft.a.b": 8}, (), "peft: {a: {b: 8}} # none\n  # yet\ntrain: 1\n"),
        (
            "a: &x\n  b: 1 # keep\nc: *x\nd: 1 # keep too\n",
            {"d": 2},
            (),
            "a: &x\n  b: 1 # keep\nc: *x\nd: 2 # keep too\n",
        ),
        (
            "base: &x\n  b: 1 # keep\nc:\n  <<: *x\n  d: 1 # keep too\n",
            {"c.d": 2, "c.b": 3},
            (),
            "base: &x\n  b: 1 # keep\nc:\n  <<: *x\n  d: 2 # keep too\n  b: 3\n",
        ),
        ("k: &k 1\nm:\n  a: *k # shared\nz: 1\n", {"m.b": 2}, (), "k: &k 1\nm:\n  a: *k # shared\n  b: 2\nz: 1\n"),
        ("k: &k 1\nm:\n  a: *k # shared\n  b: 2\n", {}, ("m.a",), "k: &k 1\nm:\n  b: 2\n"),
        ("a: 1", {"a": 2, "b": 3}, (), "a: 2\nb: 3"),
        (
            "a: 1\r\nm:\r\n  b: 2 # note\r\n  c: 3\r\n",
            {"a": 2, "m.d": 4},
            ("m.c",),
            "a: 2\r\nm:\r\n  b: 2 # note\r\n  d: 4\r\n",
        ),
        ("---\n# note\na: 1\n...\n", {"a": 2, "b": 3}, (), "---\n# note\na: 2\nb: 3\n...\n"),
        ("  a: 1\n  b: 2\n", {"c": 3, "d.e": 4}, (), "  a: 1\n  b: 2\n  c: 3\n  d:\n    e: 4\n"),
        ("\"a\": 1\n'b': 2\n", {"a": 5, "b": 6}, (), "\"a\": 5\n'b': 6\n"),
        ("a:\t1\t# tab\nb:  2\n", {"a": 3}, (), "a:\t3\t# tab\nb:  2\n"),
        (
            'a: "\u00e9\u4e2d\U0001f600" # \U0001f600\nb: 1\n',
            {"b": 2},
            (),
            'a: "\u00e9\u4e2d\U0001f600" # \U0001f600\nb: 2\n',
        ),
        ("a:\n  - 1\n  - 2 # two\nb: 1\n", {"a": [3, 4]}, (), "a: [3, 4] # two\nb: 1\n"),
        ("a:\n- 1\nb: 1\n", {"a": []}, (), "a: []\nb: 1\n"),
        ("m:\n  a: 1 # note\n  b: 2\nz: 1\n", {"m": None}, (), "m: null\nz: 1\n"),
        ("a: >-\n  long\n  text\nb: |\n  x\n", {"a": "new", "b": "x: y"}, (), 'a: new\nb: "x: y"\n'),
        (
            "m:\n  l:\n    - x: 1\n      y: 2 # deep\n  # tail\n\n# head\nz: 1\n",
            {"m.e": 3},
            (),
            "m:\n  l:\n    - x: 1\n      y: 2 # deep\n  e: 3\n  # tail\n\n# head\nz: 1\n",
        ),
        (
            "m:\n  a: 1\n  # tail of m\n\n# head of n\nn:\n  b: 2 # gone\n# head of o\no: 3\n",
            {},
            ("n.b",),
            "m:\n  a: 1\n  # tail of m\n\n# head of n\n# head of o\no: 3\n",
        ),
        (
            "dataset:\n  pack_sequences_in_batch: true # gone\n  seed: 1 # stays\n",
            {"dataset.enable_in_batch_packing": True},
            ("dataset.pack_sequences_in_batch",),
            "dataset:\n  seed: 1 # stays\n  enable_in_batch_packing: true\n",
        ),
        (
            "dataset:\n  _target_: x.Y # class\n  packed_sequence_specs: {_target_: x.Z, packed_sequence_size: 1}\n",
            {"dataset.offline_packing_specs.packed_sequence_size": 1},
            ("dataset.packed_sequence_specs.packed_sequence_size",),
            "dataset:\n  _target_: x.Y # class\n  offline_packing_specs:\n    packed_sequence_size: 1\n",
        ),
        ("a: 1 # note\n", {"a": None}, (), "a: null # note\n"),
        ("a: 1 # note\n", {"a": 2}, ("m.x", "y"), "a: 2 # note\n"),
        ('{"a": {"b": 1}, "c": 2}\n', {"a.b": 3}, (), '{"a": {"b": 3}, "c": 2}\n'),
    ],
)
def test_yaml_is_changed_in_place(before: str, sets: dict[str, Plain], removes: tuple[str, ...], after: str) -> None:
    assert edit_yaml(before, sets, removes) == after


@pytest.mark.parametrize(
    ("before", "sets", "removes", "after"),
    [
        ("a: &x\n  b: 1\nc: *x\n", {"c.b": 2}, (), {"a": {"b": 1}, "c": {"b": 2}}),
        ("a: &x\n  b: 1\nc: *x\n", {"a.b": 2}, (), {"a": {"b": 2}, "c": {"b": 1}}),
        ("a: &k 1\nb: *k\n", {"a": 2}, (), {"a": 2, "b": 1}),
        ("a: &k 1\nb: *k\n", {"b": 2}, (), {"a": 1, "b": 2}),
        ("m:\n  l: |+\n    x\n\nb: 1\n", {"m.e": 3}, (), {"m": {"l": "x\n\n", "e": 3}, "b": 1}),
        ("a:\n  b: 1\n", {}, ("a.b",), {}),
        ("a: [1, &k 2]\nb: *k\nc: {d: *k, e: 1}\n", {"c.e": 2}, ("c.d",), {"a": [1, 2], "b": 2, "c": {"e": 2}}),
        ("? a\n: 1\n? b\n: 2\n", {}, ("a",), {"b": 2}),
        ("{}\n", {"a.b": 1}, (), {"a": {"b": 1}}),
        ("? a\n: 1\n? b\n: 2\n", {"c": 3}, (), {"a": 1, "b": 2, "c": 3}),
    ],
)
def test_yaml_that_cannot_be_changed_in_place_is_written_anew_with_the_right_values(
    before: str, sets: dict[str, Plain], removes: tuple[str, ...], after: dict[str, Any]
) -> None:
    assert to_plain(parse_tree(edit_yaml(before, sets, removes), "conf")) == after


def test_yaml_that_cannot_hold_the_change_is_refused() -> None:
    # In place an alias is in the way, and written anew the key is longer than YAML takes.
    with pytest.raises(InputError, match=r"^conf cannot be written as YAML with these changes$"):
        edit_yaml(f"k: &k 1\nb: *k\n? {'x' * 1500}\n: 1\n", {"b": 2}, (), "conf")


@pytest.mark.parametrize(
    "value",
    [
        *(
            "plain",
            "a.b/c",
            "a2a+p2p",
            "",
            " ",
            "true",
            "No",
            "null",
            "~",
            "1",
            "1.5",
            "1e5",
            ".5",
            ".inf",
            ".nan",
            "nan",
        ),
        *(
            "x: y",
            "# no",
            "a #b",
            "- a",
            "[a]",
            "{a}",
            "'q'",
            '"q"',
            "back\\slash",
            "a\nb",
            "tab\t",
            "\u4e2d\U0001f600",
        ),
        *(
            "0x1F",
            "2020-01-01",
            "=",
            "<<",
            "!tag",
            "&a",
            "*a",
            "%x",
            "@x",
            "`x`",
            "?",
            "-",
            ":",
            "y",
            "\x7f",
            "\x00",
            "\x85",
        ),
        *(0, -1, 2**63 - 1, 1.5, 1e-5, 1e20, math.inf, -math.inf, True, False, None),
        *([], [1, "a", None, [True]], {}, {"a": 1, "b c": [2, {"d": "x: y"}]}),
    ],
)
def test_any_value_is_read_back_from_yaml_as_it_was_written(value: Plain) -> None:
    for text in ("a: 1\nb: 2\n", "{a: 1, b: 2}\n", "b: 2\n"):
        edited = to_plain(parse_tree(edit_yaml(text, {"a": value}, ()), "conf"))
        assert edited == {"a": value, "b": 2}
        assert type(edited["a"]) is type(value)  # type: ignore[index, call-overload]


def test_not_a_number_is_read_back_from_yaml() -> None:
    edited = to_plain(parse_tree(edit_yaml("a: 1\n", {"a": math.nan}, ()), "conf"))
    assert isinstance(edited, dict)
    assert isinstance(edited["a"], float)
    assert math.isnan(edited["a"])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("bf16_mixed", "bf16_mixed"),
        ("true", '"true"'),
        (True, "true"),
        (None, "null"),
        (1e-5, "1e-05"),
        (math.inf, ".inf"),
        (["a", 1], "[a, 1]"),
        ({"a": {"b": "x y"}}, '{a: {b: "x y"}}'),
        ("\u4e2d", '"\u4e2d"'),
    ],
)
def test_a_value_is_shown_as_one_line_of_yaml(value: Plain, text: str) -> None:
    assert flow(value) == text


KEYS = st.sampled_from(["a", "b", "c", "seq_length", "pad_to", "x1"])
FUZZ = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cn", "Co"]), max_size=8)
    | st.sampled_from(["true", "null", "1", "1e5", "a: b", "# c", "- d", "", "yes", ".inf"])
)
SECTIONS = st.dictionaries(
    KEYS,
    SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(KEYS, SCALARS, max_size=3),
    min_size=1,
    max_size=4,
)
DOCUMENTS = st.dictionaries(st.sampled_from(["model", "train", "dataset", "ddp"]), SECTIONS, min_size=1, max_size=4)
PATHS = st.builds("{}.{}".format, st.sampled_from(["model", "train", "dataset", "ddp", "peft"]), KEYS) | st.builds(
    "{}.{}.{}".format, st.sampled_from(["model", "dataset", "peft"]), KEYS, KEYS
)


class Dumper(yaml.SafeDumper):
    """Quotes text that upstream's reader takes for a number, although YAML 1.1 does not."""


Dumper.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+.0-9][-+.0-9_eE]*$"), list("-+.0123456789"))


def is_below_a_value(data: dict[str, Any], path: str) -> bool:
    held: Any = data
    for part in path.split("."):
        if held is None:
            return False
        if not isinstance(held, dict):
            return True
        held = held.get(part)
    return False


def leaves(data: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(data, dict) or (path and not data):
        return {path: data}
    found: dict[str, Any] = {}
    for key, value in data.items():
        found |= leaves(value, f"{path}.{key}" if path else key)
    return found


def with_comments(text: str) -> str:
    return "# head\n" + "".join(f"{line} # {number}\n" for number, line in enumerate(text.splitlines())) + "# tail\n"


@FUZZ
@given(
    data=DOCUMENTS,
    sets=st.dictionaries(PATHS, SCALARS | st.lists(SCALARS, max_size=3), max_size=3),
    picks=st.lists(st.integers(0, 30), max_size=2),
    style=st.sampled_from(["block", "flow", "mixed", "json"]),
)
def test_a_change_gives_the_wanted_document_and_leaves_every_other_value(
    data: dict[str, Any], sets: dict[str, Plain], picks: list[int], style: str
) -> None:
    sets = {path: value for path, value in sets.items() if not is_below_a_value(data, path)}
    sets = {path: value for path, value in sets.items() if not any(other.startswith(path + ".") for other in sets)}
    there = list(leaves(data))
    removes = [there[pick % len(there)] for pick in picks]
    styles = {"block": False, "flow": True, "mixed": None}
    if style == "json":
        text = json.dumps(data, ensure_ascii=False, indent=2)
    else:
        text = yaml.dump(data, Dumper=Dumper, default_flow_style=styles[style], allow_unicode=True, width=1000)
    edit = edit_json if style == "json" else edit_yaml
    before = copy.deepcopy(data)
    edited = to_plain(parse_tree(edit(text, sets, removes), "conf"))
    assert edited == edit_mapping(data, sets, removes)
    assert data == before
    after = leaves(edited)
    for path, value in sets.items():
        assert leaves(value, path).items() <= after.items()
    touched = [*sets, *removes]
    for path, value in leaves(before).items():
        if not any(path == name or path.startswith(name + ".") or name.startswith(path + ".") for name in touched):
            assert path in after
            assert after[path] == value
    for path in removes:
        if not any(name == path or name.startswith(path + ".") for name in sets):
            assert path not in after


@FUZZ
@given(data=DOCUMENTS, value=SCALARS, pick=st.integers(0, 30))
def test_a_changed_value_in_block_yaml_keeps_every_comment(data: dict[str, Any], value: Plain, pick: int) -> None:
    data = {
        section: {"a": 1, **{k: v for k, v in held.items() if isinstance(v, int)}} for section, held in data.items()
    }
    text = with_comments(yaml.safe_dump(data, sort_keys=False))
    names = list(leaves(data))
    path = names[pick % len(names)]
    edited = edit_yaml(text, {path: value}, ())
    old, new = text.splitlines(), edited.splitlines()
    assert [line.rpartition(" # ")[2] for line in new if " # " in line] == [
        line.rpartition(" # ")[2] for line in old if " # " in line
    ]
    assert sum(one != other for one, other in zip(old, new, strict=True)) <= 1


@pytest.mark.parametrize(
    ("before", "sets", "removes", "after"),
    [
        ({"a": 1}, {"a": 2}, [], {"a": 2}),
        ({"m": {"a": 1}}, {"m.a": 2, "m.b": 3, "n.c": 4}, [], {"m": {"a": 2, "b": 3}, "n": {"c": 4}}),
        ({"m.a": 1}, {"m.a": 2, "m.b": 3}, [], {"m.a": 2, "m.b": 3}),
        ({"m": {"a.b": 1}}, {"m.a.b": 2, "m.c.d": 3}, [], {"m": {"a.b": 2, "c.d": 3}}),
        ({"m": None}, {"m.a.b": 1}, [], {"m": {"a": {"b": 1}}}),
        ({"m": {"s": None}}, {"m.s.a": 1}, [], {"m": {"s": {"a": 1}}}),
        ({"m": {"a": 1, "b": 2}}, {}, ["m.a"], {"m": {"b": 2}}),
        ({"m": {"a": 1}, "n": 1}, {}, ["m.a"], {"n": 1}),
        ({"m": {"s": {"a": 1}}, "n": 1}, {}, ["m.s.a"], {"n": 1}),
        ({"m": {"_target_": "x.Y", "a": 1}}, {}, ["m.a"], {"m": {"_target_": "x.Y"}}),
        ({"m": {"s": {"_target_": "x.Z", "a": 1}, "b": 2}}, {}, ["m.s.a"], {"m": {"b": 2}}),
        ({"m": {"_target_": "x.Y", "a": 1}}, {"m.b": 1}, ["m.a"], {"m": {"_target_": "x.Y", "b": 1}}),
        ({"m": {"a": 1}}, {"m.b": 1}, ["m.a"], {"m": {"b": 1}}),
        ({"m.a": 1, "m.b": 2}, {}, ["m.a"], {"m.b": 2}),
        ({"m": {"a": 1}}, {"m.a": 2}, ["m.a"], {"m": {"a": 2}}),
        ({"m": {"a": 1}}, {}, ["m.x", "y.z"], {"m": {"a": 1}}),
        ({}, {"m.a": 1}, [], {"m": {"a": 1}}),
    ],
)
def test_a_mapping_is_changed_in_its_own_style(
    before: dict[str, Any], sets: dict[str, Plain], removes: list[str], after: dict[str, Any]
) -> None:
    original = copy.deepcopy(before)
    assert edit_mapping(before, sets, removes) == after
    assert before == original


@pytest.mark.parametrize("head", [{}, {"_target_": "megatron.bridge.training.config.ConfigContainer"}])
def test_a_mapping_comes_back_as_a_mapping(head: dict[str, Any]) -> None:
    mapping = {**head, "model": {"context_parallel_size": 2}, "train": {"micro_batch_size": 1}}
    result = write_back(read_source(mapping), {CP: 4}, [], mapping)
    assert result == {**head, "model": {"context_parallel_size": 4}, "train": {"micro_batch_size": 1}}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"m": {"a": 1}, "z": "\\u00e9"}', '{\n  "m": {\n    "a": 2,\n    "b": "x"\n  },\n  "z": "\u00e9"\n}\n'),
        (
            '{\n    "z": 1,\n    "m": {\n        "a": 1\n    }\n}\n',
            '{\n    "z": 1,\n    "m": {\n        "a": 2,\n        "b": "x"\n    }\n}\n',
        ),
        ('{\n\t"m": {\n\t\t"a": 1\n\t}\n}\n', '{\n\t"m": {\n\t\t"a": 2,\n\t\t"b": "x"\n\t}\n}\n'),
    ],
)
def test_json_keeps_its_order_and_indentation(before: str, after: str) -> None:
    assert written(before, "json", {"m.a": 2, "m.b": "x"}) == after


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, [math.inf]])
def test_a_number_that_json_cannot_hold_is_refused(value: Plain) -> None:
    with pytest.raises(InputError, match=r"^JSON cannot hold an infinite number or NaN"):
        edit_json('{"a": 1}', {"a": value}, ())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{model: {a: 1}} # note\n", "{model: {a: x}} # note\n"),
        ("model: {a: 1} # note\n", "model: {a: x} # note\n"),
    ],
)
def test_a_yaml_file_in_one_line_stays_yaml(before: str, after: str) -> None:
    assert written(before, "yaml", {"model.a": "x"}) == after


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_a_dump_in_json_stays_json(form: Form) -> None:
    text = '{"_target_": "x.ConfigContainer", "model": {"context_parallel_size": 2}}\n'
    edited = written(text, form, {"model.cp_comm_type": "a2a"})
    assert json.loads(edited)["model"] == {"context_parallel_size": 2, "cp_comm_type": "a2a"}


@pytest.mark.parametrize(
    ("tokens", "sets", "removes", "after"),
    [
        ([f"{CP}=2", "+a.b=1", "~c"], {CP: 4}, [], [f"{CP}=4", "+a.b=1", "~c"]),
        (["+a.b=1", "++a.c=2"], {"a.b": 3, "a.c": 4}, [], ["+a.b=3", "++a.c=4"]),
        ([f"{CP}=2"], {MBS: 1}, [], [f"{CP}=2", f"++{MBS}=1"]),
        ([f"{CP}=2", f"{CP}=4"], {CP: 8}, [], [f"{CP}=2", f"{CP}=8"]),
        (["a.b=1", "c.d=2"], {}, ["a.b"], ["c.d=2"]),
        (["++a={b: 1,c: 2,d: {e: x}}"], {}, ["a.b"], ["++a={c:2,d:{e:x}}"]),
        (["a={b: 1,c: 2}"], {}, ["a.b", "a.c"], []),
        ([], {"a.b": "x y", "a.c": [1, "d"], "a.d": None}, [], ["++a.b='x y'", "++a.c=[1,d]", "++a.d=null"]),
    ],
)
def test_overrides_are_changed_where_they_stand_and_new_ones_follow(
    tokens: list[str], sets: dict[str, Plain], removes: list[str], after: list[str]
) -> None:
    assert edit_overrides(tokens, sets, removes) == after
    assert write_back(read_overrides(tokens), sets, removes) == "\n".join(after) + "\n"


def test_a_batch_script_gives_the_overrides_for_its_launch_line() -> None:
    text = f"#!/bin/bash\n#SBATCH -N 2\nsrun python run_recipe.py --recipe gemma2_2b_sft_config {CP}=2\n"
    assert written(text, "sbatch", {CP: 4, MBS: 1}) == f"{CP}=4\n++{MBS}=1\n"


@pytest.mark.parametrize(
    ("before", "sets", "removes", "after"),
    [
        (f"python run_recipe.py {CP}=2 {MBS}=1\n", {}, (CP,), f"python run_recipe.py {MBS}=1\n"),
        (f"echo ''; python run_recipe.py {CP}=2\n", {CP: 4}, (), f"echo ''; python run_recipe.py {CP}=4\n"),
        (f"python run_recipe.py '{CP}=2'  {MBS}=1\n", {CP: 4}, (), f"python run_recipe.py {CP}=4  {MBS}=1\n"),
        (
            f"python run_recipe.py {CP}=2 | tee log\n",
            {MBS: 1},
            (),
            f"python run_recipe.py {CP}=2 ++{MBS}=1 | tee log\n",
        ),
        ("python run_recipe.py\n", {MBS: 1}, (), f"python run_recipe.py ++{MBS}=1\n"),
    ],
)
def test_a_command_line_keeps_its_other_words(
    before: str, sets: dict[str, Plain], removes: tuple[str, ...], after: str
) -> None:
    assert written(before, "command", sets, removes) == after


def test_overrides_for_a_pipeline_without_any_are_left_to_the_user() -> None:
    with pytest.raises(InputError, match="add these overrides to the launch command by hand"):
        written("python run_recipe.py | tee log\n", "command", {MBS: 1})


def test_an_override_that_is_removed_in_part_and_unknown_in_another_is_left_to_the_user() -> None:
    with pytest.raises(InputError, match=r"^the value of a must be changed by hand: a\.c is not known$"):
        edit_overrides(["a={b: 1,c: int(x)}"], {}, ["a.b"])


def test_a_recipe_alone_gives_the_overrides_it_needs() -> None:
    source = Source(form="recipe", name="gemma2_2b_sft_config")
    assert write_back(source, {CP: 4}, []) == f"++{CP}=4\n"


def test_a_command_line_is_changed_in_place_and_new_overrides_follow() -> None:
    line = f"torchrun --nproc_per_node=8 run_recipe.py --recipe gemma2_2b_sft_config {CP}=2\n"
    edited = written(line, "command", {CP: 4, "model.cp_comm_type": "a2a+p2p"})
    assert edited == (
        f"torchrun --nproc_per_node=8 run_recipe.py --recipe gemma2_2b_sft_config {CP}=4 "
        "'++model.cp_comm_type='\"'\"'a2a+p2p'\"'\"''\n"
    )
    assert values(edited, "command")["model.cp_comm_type"] == "a2a+p2p"


PYTHON = """# a note: \u00e9\u4e2d
from megatron.bridge.recipes.gemma import gemma2_2b_sft_config

cfg = gemma2_2b_sft_config()
cfg.model.context_parallel_size = 2  # was 1
cfg.train.micro_batch_size = (
    4
)
cfg.dataset.packed_sequence_specs = PackedSequenceSpecs(packed_sequence_size=4096, pad_seq_to_mult=1)
finetune(cfg)
"""


def test_python_is_changed_where_it_assigns_and_new_lines_follow_the_last_assignment() -> None:
    sets: dict[str, Plain] = {
        CP: 4,
        MBS: 1,
        "dataset.packed_sequence_specs.pad_seq_to_mult": 8,
        "ddp.average_in_collective": False,
    }
    edited = written(PYTHON, "python", sets)
    assert edited == (
        PYTHON.replace("= 2 ", "= 4 ")
        .replace("    4\n", "    1\n")
        .replace("pad_seq_to_mult=1)\n", "pad_seq_to_mult=8)\ncfg.ddp.average_in_collective = False\n")
    )
    assert values(edited, "python").items() >= sets.items()


HEAD = "from megatron.bridge.recipes.gemma import gemma2_2b_sft_config\ncfg = gemma2_2b_sft_config()\n"


@pytest.mark.parametrize(
    ("before", "sets", "after"),
    [
        (
            'cfg.model.cp_comm_type = "\u00e9"; cfg.model.context_parallel_size = 2\n',
            {CP: 4},
            'cfg.model.cp_comm_type = "\u00e9"; cfg.model.context_parallel_size = 4\n',
        ),
        (
            "# a\u2028b\n\x0c\ncfg.model.context_parallel_size = 2\n",
            {CP: 4},
            "# a\u2028b\n\x0c\ncfg.model.context_parallel_size = 4\n",
        ),
        ("cfg.model.context_parallel_size = \\\n    2\n", {CP: 4}, "cfg.model.context_parallel_size = \\\n    4\n"),
        (
            "cfg.model.context_parallel_size = 2",
            {CP: 4, MBS: 1},
            "cfg.model.context_parallel_size = 4\ncfg.train.micro_batch_size = 1\n",
        ),
        (
            "if True:\n    cfg.model.context_parallel_size = 2\n",
            {MBS: 1},
            "if True:\n    cfg.model.context_parallel_size = 2\n    cfg.train.micro_batch_size = 1\n",
        ),
        (
            "x = 1; cfg.model.context_parallel_size = 2; y = 3\n",
            {MBS: 1},
            "x = 1; cfg.model.context_parallel_size = 2; y = 3\ncfg.train.micro_batch_size = 1\n",
        ),
        (
            "cp = 2\ncfg.model.context_parallel_size = cp * 1\n",
            {CP: 4},
            "cp = 2\ncfg.model.context_parallel_size = 4\n",
        ),
        (
            "cfg.model.context_parallel_size = 2\ncfg.model.context_parallel_size = 3\n",
            {CP: 4},
            "cfg.model.context_parallel_size = 2\ncfg.model.context_parallel_size = 4\n",
        ),
        (
            "cfg.model.seq_length = cfg.dataset.seq_length = 1\n",
            {"model.seq_length": 2, "dataset.seq_length": 2},
            "cfg.model.seq_length = cfg.dataset.seq_length = 2\n",
        ),
        (
            "cfg.model.cp_comm_type = 'a2a'\n",
            {"model.cp_comm_type": ["a2a", "p2p"]},
            "cfg.model.cp_comm_type = ['a2a', 'p2p']\n",
        ),
        ("cfg.optimizer.lr = 1.0\n", {"optimizer.lr": math.inf}, "cfg.optimizer.lr = float('inf')\n"),
        (
            'cfg.dataset.dataset_kwargs = {"chat": True, "pad_to_max_length": False}\n',
            {"dataset.dataset_kwargs.pad_to_max_length": True},
            'cfg.dataset.dataset_kwargs = {"chat": True, "pad_to_max_length": True}\n',
        ),
        (
            "cfg.dataset.dataset_kwargs = None\n",
            {"dataset.dataset_kwargs": {"chat": True, "sizes": [1]}},
            "cfg.dataset.dataset_kwargs = {'chat': True, 'sizes': [1]}\n",
        ),
    ],
)
def test_python_keeps_its_layout(before: str, sets: dict[str, Plain], after: str) -> None:
    assert written(HEAD + before, "python", sets) == HEAD + after


def test_python_keeps_its_line_breaks() -> None:
    text = (HEAD + "cfg.model.context_parallel_size = 2\nx = 1\n").replace("\n", "\r\n")
    assert written(text, "python", {CP: 4}) == text.replace("= 2\r\n", "= 4\r\n")


def test_the_right_one_of_two_keywords_on_a_line_is_changed() -> None:
    text = (
        "from megatron.bridge.training.config import ConfigContainer\n"
        "cfg = ConfigContainer(model=GPTModelProvider(seq_length=1), dataset=GPTDatasetConfig(seq_length=2))\n"
    )
    edited = written(text, "python", {"dataset.seq_length": 3})
    assert edited == text.replace("seq_length=2", "seq_length=3")


@pytest.mark.parametrize(
    ("code", "sets", "removes", "reason"),
    [
        ("", {MBS: 1}, (), "the Python file has no place for new settings"),
        ("cfg.model.context_parallel_size = 2\n", {}, (CP,), f"conf:3:1 sets {CP}, which must be changed by hand"),
        (
            "cfg.model.seq_length = cfg.dataset.seq_length = 1\n",
            {"model.seq_length": 2, "dataset.seq_length": 3},
            (),
            "conf:3:24 sets dataset.seq_length together with another field, so it must be changed by hand",
        ),
        (
            "cfg.train.micro_batch_size = 1\nif args.long:\n    cfg.model.context_parallel_size = args.cp\n",
            {CP: 4},
            (),
            f"{CP} is computed in the Python file, so it must be changed by hand",
        ),
    ],
    ids=["no place", "removal", "two fields at once", "computed"],
)
def test_a_change_that_python_has_no_safe_place_for_is_refused(
    code: str, sets: dict[str, Plain], removes: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(InputError) as caught:
        written(HEAD + code, "python", sets, removes)
    assert str(caught.value) == reason
