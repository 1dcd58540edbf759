"""Cards: read as data, held against their schema, and their constraints against the rule files beside them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from skill_run.bundle.card import card_faults, check_cards, load_card
from skill_run.bundle.locate import bundle_root
from skill_run.errors import BundleError

CARDS = [bundle_root() / "card.yaml", *sorted(bundle_root().glob("skills/*/card.yaml"))]

Edit = Callable[[str], str]


@pytest.fixture
def skill(tmp_path: Path) -> Path:
    """Return a copy of a small skill of the bundle, card and rule names only."""
    source = bundle_root() / "skills" / "megatron-fsdp"
    folder = tmp_path / "skills" / "megatron-fsdp"
    (folder / "rules").mkdir(parents=True)
    (folder / "card.yaml").write_text((source / "card.yaml").read_text("utf-8"), "utf-8")
    for path in (source / "rules").glob("*.yaml"):
        (folder / "rules" / path.name).write_text("", "utf-8")
    return folder


def faults_of(folder: Path) -> list[str]:
    return card_faults(folder / "card.yaml", "card.yaml")


def edit(folder: Path, change: Edit) -> None:
    path = folder / "card.yaml"
    path.write_text(change(path.read_text("utf-8")), "utf-8")


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.parent.name)
def test_a_card_of_the_bundle_has_no_fault(path: Path) -> None:
    assert card_faults(path, path.name) == []


def test_every_skill_of_the_bundle_has_a_card() -> None:
    faults, count = check_cards(bundle_root())
    assert faults == []
    assert count == len(CARDS)


def test_the_copy_of_a_skill_has_no_fault(skill: Path) -> None:
    assert faults_of(skill) == []


def test_a_rule_file_that_the_card_does_not_name_is_told(skill: Path) -> None:
    (skill / "rules" / "forgotten.yaml").write_text("", "utf-8")
    assert faults_of(skill) == ["card.yaml:1: the rule file 'forgotten' is not among constraints"]


def test_a_rule_that_the_card_names_and_that_has_no_file_is_told(skill: Path) -> None:
    (skill / "rules" / "fsdp-v2-data-parallel-only.yaml").unlink()
    assert faults_of(skill) == ["card.yaml:1: the rule 'fsdp-v2-data-parallel-only' of constraints has no file"]


@pytest.mark.parametrize(("there", "faults"), [(True, 0), (False, 1)])
def test_a_rule_of_another_skill_must_be_there_too(skill: Path, there: bool, faults: int) -> None:
    other = skill.parent / "other" / "rules"
    other.mkdir(parents=True)
    if there:
        (other / "some-rule.yaml").write_text("", "utf-8")
    data = yaml.safe_load((skill / "card.yaml").read_text("utf-8"))
    data["constraints"][0]["rules"].append("other/some-rule")
    (skill / "card.yaml").write_text(yaml.safe_dump(data, sort_keys=False), "utf-8")
    found = faults_of(skill)
    assert found == ["card.yaml:1: the rule 'other/some-rule' of constraints has no file"] * faults


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("kind: skill", "kind: skull", "card.yaml:1: kind: 'skull' is not one of"),
        ("title: Megatron-FSDP", "title: 3", "card.yaml:3: title: 3 is not of type 'string'"),
        ("\nworkflows:", "\nworkflow:", "Additional properties are not allowed ('workflow' was unexpected)"),
        ("name: megatron-fsdp", "name: [", "not valid YAML"),
    ],
)
def test_a_card_against_its_schema_is_told_with_the_line(skill: Path, old: str, new: str, told: str) -> None:
    edit(skill, lambda text: text.replace(old, new, 1))
    faults = faults_of(skill)
    assert [fault for fault in faults if told in fault], faults
    assert all(fault.startswith("card.yaml:") for fault in faults)


def test_a_card_that_is_empty_or_not_there_is_told(skill: Path) -> None:
    edit(skill, lambda _: "")
    assert faults_of(skill)
    (skill / "card.yaml").unlink()
    assert "cannot be read" in faults_of(skill)[0]


def test_a_skill_without_a_card_is_told(skill: Path) -> None:
    root = skill.parents[1]
    (root / "card.yaml").write_text((bundle_root() / "card.yaml").read_text("utf-8"), "utf-8")
    (root / "skills" / "bare").mkdir()
    (root / "skills" / "notes.txt").write_text("", "utf-8")
    faults, count = check_cards(root)
    assert "skills/bare/card.yaml:1: the skill has no card" in faults
    assert count == 2


def test_a_card_is_returned_as_plain_data(skill: Path) -> None:
    card = load_card(skill / "card.yaml")
    assert (card["kind"], card["name"]) == ("skill", "megatron-fsdp")


@pytest.mark.parametrize(
    ("text", "told"), [("- a\n", "card.yaml:1: a card must be a mapping"), ("a: [\n", "card.yaml:2:1: not valid YAML")]
)
def test_a_card_of_another_shape_is_refused(skill: Path, text: str, told: str) -> None:
    edit(skill, lambda _: text)
    with pytest.raises(BundleError) as caught:
        load_card(skill / "card.yaml")
    assert told in str(caught.value)
