"""Hydra overrides: what each token means, what is refused, and that written tokens read back."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skill_run.config.model import Location, Plain, Unknown
from skill_run.config.overrides import MAX_OVERRIDES, flatten_value, read_overrides, render_override
from skill_run.errors import InputError

QUICK = settings(deadline=None, derandomize=True, max_examples=150)


def value_of(token: str) -> object:
    """Return the value of the only assignment a token gives."""
    (assignment,) = read_overrides([token]).assignments
    return assignment.value


def same(left: object, right: object) -> bool:
    """Compare plain data strictly: types count, NaN equals NaN."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    return left == right


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1", 1),
        ("-5", -5),
        ("+5", 5),
        ("1_000", 1000),
        ("01", "01"),
        ("1e-5", 1e-5),
        (".5", 0.5),
        ("1.", 1.0),
        ("inf", math.inf),
        ("-Inf", -math.inf),
        ("nan", math.nan),
        ("true", True),
        ("FALSE", False),
        ("null", None),
        ("None", "None"),
        ("", ""),
        ("5k", "5k"),
        ("0x10", "0x10"),
        ("/data/sft:v1", "/data/sft:v1"),
        ("a2a+p2p", "a2a+p2p"),
        ("hello world", "hello world"),
        ("1 2", "1 2"),
        (" x ", "x"),
        ("'2'", "2"),
        ('"true"', "true"),
        ("'it\\'s'", "it's"),
        ("'a\\\\'", "a\\"),
        ("'a\\b'", "a\\b"),
        ("'/p/a=b'", "/p/a=b"),
        ("a\\,b", "a,b"),
        ("x\\=y", "x=y"),
        ("$HOME", "$HOME"),
        ("\\${b}", "${b}"),
        ("[a,b]", ["a", "b"]),
        ("[[/data/a],null]", [["/data/a"], None]),
        ("[ 1 , 2 ]", [1, 2]),
        ("[]", []),
        ("[1,'1',1.0]", [1, "1", 1.0]),
        ("{}", {}),
    ],
)
def test_value_is_read_as_hydra_reads_it(written: str, value: Plain) -> None:
    assert same(value_of(f"a={written}"), value)


@pytest.mark.parametrize(
    ("token", "operation"),
    [("a.b=1", "override"), ("+a.b=1", "add"), ("++a.b=1", "force"), ("~a.b=1", "delete")],
)
def test_prefix_decides_the_operation(token: str, operation: str) -> None:
    (assignment,) = read_overrides([token]).assignments
    assert (assignment.path, assignment.value, assignment.operation) == ("a.b", 1, operation)


def test_deletion_without_a_value_has_the_value_null() -> None:
    (assignment,) = read_overrides(["~model.context_parallel_size"]).assignments
    assert (assignment.path, assignment.value, assignment.operation) == ("model.context_parallel_size", None, "delete")


def test_mapping_becomes_one_assignment_per_leaf() -> None:
    source = read_overrides(["++dataset.packed_sequence_specs={packed_sequence_size:4096,x:{pad:4,empty:{}}}"])
    assert [(a.path, a.value, a.operation) for a in source.assignments] == [
        ("dataset.packed_sequence_specs.packed_sequence_size", 4096, "force"),
        ("dataset.packed_sequence_specs.x.pad", 4, "force"),
        ("dataset.packed_sequence_specs.x.empty", {}, "force"),
    ]


def test_mapping_with_a_dotted_key_stays_one_value() -> None:
    assert value_of("a={b.c:1}") == {"b.c": 1}


@pytest.mark.parametrize(
    "written", ["${model.seq_length}", "/data/${name}", "'${oc.env:HOME}/x'", "[1,${a}]", "int('3')", "sort([2,1])"]
)
def test_interpolation_or_cast_makes_the_value_unknown(written: str) -> None:
    assert isinstance(value_of(f"a={written}"), Unknown)


def test_interpolation_inside_a_mapping_leaves_the_other_leaves_known() -> None:
    first, second = read_overrides(["a={b:${c},d:1}"]).assignments
    assert isinstance(first.value, Unknown)
    assert second.value == 1


@pytest.mark.parametrize("written", ["1,2", "a,b", "choice(1,2)", "range(1,9)", "glob(*)", "choice([1],[2])"])
def test_sweep_is_refused(written: str) -> None:
    with pytest.raises(InputError, match="sweep"):
        value_of(f"model.context_parallel_size={written}")


@pytest.mark.parametrize("written", ["/p/a=b", "[a=b]", "{a=b}"])
def test_unquoted_equals_sign_says_to_quote_it(written: str) -> None:
    with pytest.raises(InputError, match="quote it"):
        value_of(f"dataset.blend={written}")


@pytest.mark.parametrize(
    "token",
    [
        "a",
        "+a",
        "=1",
        "1=2",
        "a..b=1",
        "a.b.=1",
        "a b=1",
        "a[0]=1",
        "a@b=1",
        "a/b=1",
        "a=[1,",
        "a=[1,]",
        "a={b}",
        "a={'b':1}",
        "a='x",
        "a=x'y'",
        "a='x' ",
        "a=x;y",
        "a=#x",
        "a=f(1)",
        "a=(",
        "a=" + "9" * 500,
        "a=" + "[" * 80 + "]" * 80,
    ],
)
def test_token_that_hydra_refuses_is_an_input_error_that_names_it(token: str) -> None:
    with pytest.raises(InputError) as error:
        read_overrides([token])
    assert f"override '{token[:20]}" in str(error.value)


RUN = "\\" * 200_000


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (f"'{RUN}'", RUN[:100_000]),
        (f"'{RUN}x'", f"{RUN}x"),
        (f"'{RUN}x${{{RUN}'", Unknown),
        (f"'\\{RUN}${{a}}'", f"{RUN[:100_000]}${{a}}"),
    ],
)
def test_long_run_of_backslashes_is_read_in_one_pass(written: str, value: object) -> None:
    found = value_of(f"a={written}")
    assert isinstance(found, Unknown) if value is Unknown else found == value


@pytest.mark.parametrize("text", [RUN, f"{RUN}x", f"{RUN}'", f"{RUN}${{a}}", f"x{RUN}${RUN}'x{RUN}x"])
def test_long_run_of_backslashes_is_rendered_in_one_pass(text: str) -> None:
    assert value_of(render_override("a", text)) == text


def test_more_overrides_than_the_limit_are_refused_in_one_sentence() -> None:
    assert len(read_overrides(["model.seq_length=1"] * MAX_OVERRIDES).assignments) == MAX_OVERRIDES
    with pytest.raises(InputError, match=r"^10001 overrides are given, but at most 10000 are read; "):
        read_overrides(["model.seq_length=1"] * (MAX_OVERRIDES + 1))


def test_long_key_above_many_leaves_is_refused() -> None:
    leaves = ",".join(f"k{index}:1" for index in range(50_000))
    with pytest.raises(InputError, match="key longer than 1000 characters"):
        read_overrides([f"a={{{'k' * 500_000}:{{{leaves}}}}}"])


def test_location_column_is_the_position_of_the_token() -> None:
    source = read_overrides(["a=1", "b={c:1,d:2}"])
    assert [a.location for a in source.assignments] == [Location(column=1), Location(column=2), Location(column=2)]
    assert source.override_tokens == ["a=1", "b={c:1,d:2}"]
    assert source.form == "overrides"


KEYS = st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.text(alphabet="'\"\\${}[]:,= ab1")
    | st.sampled_from(["null", "true", "1e5", "nan", "-inf", "${a}", "\\${a}", "\\\\${", "a\\", "\\'"])
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))


@given(VALUES, st.sampled_from(["override", "add", "force"]))
@QUICK
def test_rendered_token_reads_back_as_the_same_value(value: Plain, operation: str) -> None:
    token = render_override("section.field", value, operation)  # type: ignore[arg-type]
    found = [(a.path, a.value) for a in read_overrides([token]).assignments]
    wanted = list(flatten_value("section.field", value))
    assert [path for path, _ in found] == [path for path, _ in wanted]
    assert all(same(got, want) for (_, got), (_, want) in zip(found, wanted, strict=True))


def test_rendered_deletion_reads_back() -> None:
    assert render_override("a.b", None, "delete") == "~a.b"
    assert render_override("a.b", 1, "delete") == "~a.b=1"


@pytest.mark.parametrize(("path", "value"), [("a b", 1), ("", 1), ("a..b", 1), ("a", {"x;y": 1}), ("a", {"": 1})])
def test_path_or_key_outside_the_grammar_cannot_be_rendered(path: str, value: Plain) -> None:
    with pytest.raises(InputError):
        render_override(path, value)


@given(st.text() | st.text(alphabet="a.=+~'\"\\${}[](),: 1\t"))
@QUICK
def test_arbitrary_text_gives_assignments_or_an_input_error(token: str) -> None:
    try:
        source = read_overrides([token])
    except InputError:
        return
    assert source.assignments
