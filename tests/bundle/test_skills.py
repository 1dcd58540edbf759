"""List and show the skills of a bundle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from skill_run.bundle.skills import list_skills, read_frontmatter, show_skill
from skill_run.errors import BundleError, SkillRunError

SKILL = """\
---
name: first
description: >-
  Does the first
  thing.
metadata:
  version: "1.0"
---

# First
"""
CARD = """\
kind: skill
title: The first skill
validated_on:
  date: "2026-11-30"
  releases:
    - {bridge: "0.5.1", core: "0.18.0"}
    - {bridge: "0.6.2", core: "0.19.2"}
"""


@pytest.fixture
def root(bundle: Callable[..., Path], rule_text: Callable[..., str]) -> Path:
    """A bundle with a full skill `first`, and a skill `bare` that has rules only."""
    made = bundle(
        first__no_cp=rule_text(severity={"<0.6": "warning", "*": "error"}),
        bare__no_pp=rule_text(id="no-pp"),
    )
    folder = made / "skills" / "first"
    (folder / "SKILL.md").write_text(SKILL, "utf-8")
    (folder / "card.yaml").write_text(CARD, "utf-8")
    (folder / "references").mkdir()
    (folder / "references" / "more.md").write_text("# More\n", "utf-8")
    (made / "skills" / "notes").mkdir()
    return made


def test_a_skill_is_listed_with_its_description_and_card(root: Path) -> None:
    first = next(skill for skill in list_skills(root) if skill.name == "first")
    assert first.to_dict() == {
        "name": "first",
        "description": "Does the first thing.",
        "title": "The first skill",
        "validated_on": "2026-11-30, Megatron-Bridge 0.5.1, 0.6.2",
        "rule_count": 1,
        "path": str(root / "skills" / "first"),
    }


def test_a_skill_without_card_and_text_is_listed_and_other_folders_are_not(root: Path) -> None:
    assert [skill.name for skill in list_skills(root)] == ["bare", "first"]
    bare = list_skills(root)[0]
    assert (bare.description, bare.title, bare.validated_on, bare.rule_count) == ("", "", "", 1)


def test_a_bundle_without_skills_lists_nothing(tmp_path: Path) -> None:
    assert list_skills(tmp_path) == []


def test_a_skill_is_shown_with_its_text_card_rules_and_references(root: Path) -> None:
    shown = show_skill("first", root)
    assert shown.text == SKILL
    assert shown.card["title"] == "The first skill"
    assert [line.to_dict() for line in shown.rules] == [
        {"id": "no-cp", "title": "context parallelism must be off", "severity": "error"}
    ]
    assert shown.references == ("more.md",)
    text = shown.render_text()
    for part in ("# First", "more.md", "error no-cp: context parallelism must be off"):
        assert part in text


def test_a_bare_skill_is_shown_without_text(root: Path) -> None:
    shown = show_skill("bare", root)
    assert shown.card == {}
    assert "bare has no SKILL.md" in shown.render_text()


@pytest.mark.parametrize("name", ["frist", "First"])
def test_an_unknown_skill_is_refused_with_the_nearest_name(root: Path, name: str) -> None:
    with pytest.raises(SkillRunError, match="did you mean first"):
        show_skill(name, root)


@pytest.mark.parametrize("name", ["", "../first", "first/rules", "/etc", "notes", "\x1b[31m", "x" * 100_000])
def test_a_name_is_looked_up_and_never_used_as_a_path(root: Path, name: str) -> None:
    with pytest.raises(SkillRunError, match="there is no skill") as refused:
        show_skill(name, root)
    assert len(str(refused.value)) < 300
    assert str(refused.value).isprintable()


def test_frontmatter_is_read_whatever_the_line_ends_are() -> None:
    assert read_frontmatter(SKILL.replace("\n", "\r\n"), "SKILL.md")["name"] == "first"


@pytest.mark.parametrize("text", ["", "# No frontmatter\n", "---\n---\n", "--- \n\n---\nrest"])
def test_a_text_without_frontmatter_has_none(text: str) -> None:
    assert read_frontmatter(text, "SKILL.md") == {}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("---\nname: first\n", "SKILL.md:1: the frontmatter has no closing"),
        ("---\nname: [\n---\n", "SKILL.md:3:1: not valid YAML"),
        ("---\n- first\n---\n", "SKILL.md:2: the frontmatter must be a mapping"),
        ("---\nname: !!python/object/apply:os.system [ls]\n---\n", "SKILL.md:2:7: "),
    ],
)
def test_a_wrong_frontmatter_is_refused_with_its_place(text: str, told: str) -> None:
    with pytest.raises(BundleError) as refused:
        read_frontmatter(text, "SKILL.md")
    assert str(refused.value).startswith(told)


def test_a_card_that_is_no_mapping_is_refused(root: Path) -> None:
    (root / "skills" / "first" / "card.yaml").write_text("- a\n", "utf-8")
    with pytest.raises(BundleError, match="a card must be a mapping"):
        list_skills(root)
