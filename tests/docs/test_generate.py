"""docs/generate.py: the reference is fresh, the same everywhere, and its links lead somewhere."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import skill_run
from skill_run.bundle.load import load_rules

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "generate.py"
FENCED = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
DEFINED = re.compile(r"^\[([^\]]+)\]: (\S+)$", re.MULTILINE)
SHORT = re.compile(r"(?<![\]\\\w])\[([a-z0-9.-]+)\](?![(:\[])")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
HAND_WRITTEN = (
    "docs/*.md",
    "docs/training/*.md",
    "runtime/skill_run/**/README.md",
    "tests/README.md",
    "bench/README.md",
)


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = _load()


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    found: dict[str, str] = generate.build()
    return found


@pytest.fixture
def folder(pages: dict[str, str], tmp_path: Path) -> Path:
    generate.write(tmp_path, pages, pages)
    return tmp_path


def _anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub names them."""
    titles = [re.sub(r"[^\w\- ]", "", title.lower()) for title in HEADING.findall(FENCED.sub("", text))]
    return {title.replace(" ", "-") for title in titles}


def _broken_links(path: Path) -> list[str]:
    text = re.sub(r"`[^`\n]*`", "", FENCED.sub("", path.read_text("utf-8")))
    defined = dict(DEFINED.findall(text))
    found = [f"{path.name}: [{name}]" for name in SHORT.findall(text) if name not in defined]
    for target in [*LINK.findall(text), *defined.values()]:
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        if not there.exists() or (anchor and anchor not in _anchors(there.read_text("utf-8"))):
            found.append(f"{path.name}: {target}")
    return found


def test_the_reference_in_the_repository_is_what_the_code_and_data_say(pages: dict[str, str]) -> None:
    assert generate.stale_pages(ROOT / "docs" / "reference", pages) == {}, "run `python docs/generate.py`"


def test_the_reference_does_not_depend_on_terminal_folder_or_hash_order(pages: dict[str, str], tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "7",
        "COLUMNS": "40",
        "LC_ALL": "C",
        "PYTHONPATH": str(Path(skill_run.__file__).parents[1]),
    }
    command = [sys.executable, str(SCRIPT), "--output", str(tmp_path / "reference")]
    subprocess.run(command, env=environment, cwd=tmp_path, check=True, capture_output=True)
    assert generate.stale_pages(tmp_path / "reference", pages) == {}


def test_check_of_a_fresh_folder_succeeds_silently(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--check", "--output", str(folder)]) == 0
    assert capsys.readouterr().out == ""


def test_check_names_changed_missing_and_left_over_pages_and_changes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "cli.md").write_text("changed", "utf-8")
    (folder / "report.md").unlink()
    (folder / "rules" / "gone.md").write_text("old", "utf-8")
    assert generate.main(["--check", "--output", str(folder)]) == 1
    told = capsys.readouterr().out
    assert "cli.md is stale" in told
    assert "report.md is missing" in told
    assert "rules/gone.md is left over" in told
    assert len(told.splitlines()) == 3
    assert (folder / "cli.md").read_text("utf-8") == "changed"
    assert (folder / "rules" / "gone.md").exists()


def test_writing_repairs_what_check_named(folder: Path, pages: dict[str, str]) -> None:
    (folder / "cli.md").write_text("changed", "utf-8")
    (folder / "rules" / "gone.md").write_text("old", "utf-8")
    assert generate.main(["--output", str(folder)]) == 0
    assert generate.stale_pages(folder, pages) == {}


def test_every_rule_has_a_page_and_a_line_in_the_index(pages: dict[str, str]) -> None:
    for rule in load_rules():
        assert f"# {rule.id}\n" in pages[f"rules/{rule.id}.md"]
        assert f"(rules/{rule.id}.md)" in pages["rules.md"]


def test_pages_are_plain_ascii(pages: dict[str, str]) -> None:
    assert [name for name, text in pages.items() if not text.isascii()] == []


def test_links_of_the_reference_resolve() -> None:
    broken = [link for path in sorted((ROOT / "docs" / "reference").rglob("*.md")) for link in _broken_links(path)]
    assert broken == []


def test_links_of_hand_written_pages_resolve() -> None:
    paths = sorted(path for pattern in HAND_WRITTEN for path in ROOT.glob(pattern))
    assert len(paths) >= 5
    assert [link for path in paths for link in _broken_links(path)] == []


def test_formulas_of_pages_are_not_read_as_emphasis(pages: dict[str, str]) -> None:
    texts = {path.name: path.read_text("utf-8") for pattern in HAND_WRITTEN for path in ROOT.glob(pattern)}
    plain = {name: re.sub(r"`[^`\n]*`", "", FENCED.sub("", text)) for name, text in {**texts, **pages}.items()}
    assert {name: found for name, text in plain.items() if (found := re.findall(r"\w\*\w+", text))} == {}


def test_the_link_check_sees_a_missing_file_heading_and_definition(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# Two words\n\n```text\n# not a heading\n```\n", "utf-8")
    links = "[1](b.md#two-words) [2](b.md#not-a-heading) [3](c.md) [4](https://x.org) [a-rule] [b-rule] [c-rule]"
    (tmp_path / "a.md").write_text(f"{links}\n\n[a-rule]: b.md\n[b-rule]: d.md\n", "utf-8")
    assert _broken_links(tmp_path / "a.md") == [
        "a.md: [c-rule]",
        "a.md: b.md#not-a-heading",
        "a.md: c.md",
        "a.md: d.md",
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("TP*PP*CP and 2*CP", "TP\\*PP\\*CP and 2\\*CP"),
        ("pad_seq_to_mult is {a.b_c}", "`pad_seq_to_mult` is `{a.b_c}`"),
        ("TransformerConfig.__post_init__ raises", "`TransformerConfig.__post_init__` raises"),
        ("already `in_code` here", "already `in_code` here"),
        ("a <tag> [1, 2]", "a &lt;tag> \\[1, 2\\]"),
        ("impl_x=local, call_it(now)", "`impl_x=local`, `call_it(now)`"),
    ],
)
def test_plain_text_is_not_read_as_markdown(text: str, shown: str) -> None:
    assert generate.prose(text) == shown


def test_a_pipe_does_not_split_a_table_cell() -> None:
    assert generate.table(("a",), [("`x|y`",)]).splitlines()[-1] == "| `x\\|y` |"


def test_a_schema_is_listed_by_path_through_references_lists_and_mappings() -> None:
    form: dict[str, Any] = {
        "required": ["items"],
        "properties": {
            "items": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/item"}},
            "by_name": {"type": "object", "additionalProperties": {"$ref": "#/$defs/item"}},
        },
        "$defs": {
            "item": {
                "type": "object",
                "properties": {"size": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}], "default": 3}},
            }
        },
    }
    assert generate.schema_table(form).splitlines()[2:] == [
        "| `items` | list of object | yes |  (not empty) |",
        "| `items[].size` | integer or null | no |  (default `3`) |",
        "| `by_name` | mapping of object | no |  |",
        "| `by_name.*.size` | integer or null | no |  (default `3`) |",
    ]


def test_a_schema_that_contains_itself_is_listed_once() -> None:
    form = {"$defs": {"node": {"properties": {"child": {"$ref": "#/$defs/node"}}}}, "$ref": "#/$defs/node"}
    assert generate.schema_table(form).count("child") == 1
