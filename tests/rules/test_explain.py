"""Explain rules and fields."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from skill_run.bridge.release import known_releases, load_release
from skill_run.bundle.load import load_rules
from skill_run.bundle.rule import Rule
from skill_run.errors import InputError, SkillRunError
from skill_run.rules.derived import DERIVED
from skill_run.rules.environment import INPUTS
from skill_run.rules.explain import explain

RULE = "offline-pad-multiple-covers-cp"
OLD_NAME = "dataset.packed_sequence_specs.pad_seq_to_mult"
NEW_NAME = "dataset.offline_packing_specs.pad_seq_to_mult"


def test_a_rule_is_explained_with_everything_it_says() -> None:
    found = explain(RULE)
    assert (found.name, found.kind, found.field) == (RULE, "rule", None)
    rule = found.rule
    assert rule is not None
    assert [entry.release for entry in rule.releases] == list(known_releases())
    assert {entry.severity for entry in rule.releases} == {"corruption"}
    assert "model.context_parallel_size > 1" in rule.when
    assert rule.require
    assert rule.fix == {NEW_NAME: "derived.pad_multiple"}
    assert {"packing.offline", "derived.pad_multiple", "derived.cp_chunks"} <= set(rule.terms)
    assert all(rule.terms.values())
    assert rule.fails
    assert rule.passes
    assert rule.evidence


def test_a_rule_is_explained_in_the_names_of_the_release_asked_for(rule: Callable[..., Rule]) -> None:
    own = rule(
        id="house-rule",
        message="{name:dataset.offline_packing_specs.pad_seq_to_mult} is {model.context_parallel_size}",
        severity={"<0.6": "info", "*": "error"},
        fires={"<0.6": "never", "*": "setup"},
        fix={NEW_NAME: 2},
        evidence=[{"bridge": "0.5.1", "says": "old"}, {"bridge": "0.6.2", "says": "new"}],
        fails=[{"model.context_parallel_size": 2}, {"bridge": "0.5.1", "model.context_parallel_size": 3}],
    )
    found = explain("house-rule", bridge="0.5.1", house=[own]).rule
    assert found is not None
    assert [entry.to_dict() for entry in found.releases] == [{"release": "0.5.1", "severity": "info", "fires": "never"}]
    assert found.message == OLD_NAME + " is {model.context_parallel_size}"
    assert found.fix == {OLD_NAME: 2}
    assert [item["says"] for item in found.evidence] == ["old"]
    assert found.fails == {"bridge": "0.5.1", "model.context_parallel_size": 3}
    newest = explain("house-rule", house=[own]).rule
    assert newest is not None
    assert newest.fix == {NEW_NAME: 2}
    assert newest.fails == {"model.context_parallel_size": 2}
    assert len(newest.evidence) == 2


def test_a_rule_that_does_not_apply_to_the_release_says_so(rule: Callable[..., Rule]) -> None:
    found = explain("no-cp", bridge="0.5.1", house=[rule(bridge=">=0.6")])
    assert found.rule is not None
    assert found.rule.releases == ()
    assert "does not apply to this version" in found.render_text()


def test_a_computed_rule_has_no_condition_and_no_examples() -> None:
    found = explain("wrong-import").rule
    assert found is not None
    assert (found.when, found.require, found.fails, found.passes) == ("", "", None, None)


@pytest.mark.parametrize("name", [NEW_NAME, OLD_NAME, "pad_seq_to_mult", "packed_sequence_specs.pad_seq_to_mult"])
def test_a_field_is_found_by_any_of_its_names(name: str) -> None:
    found = explain(name)
    assert (found.name, found.kind, found.rule) == (NEW_NAME, "field", None)
    assert found.field is not None
    assert {entry.release: entry.name for entry in found.field.releases} == {
        version: OLD_NAME if load_release(version).field(OLD_NAME) else NEW_NAME for version in known_releases()
    }
    assert RULE in [reference.id for reference in found.field.rules]


def test_a_field_is_explained_for_one_release_with_type_and_default() -> None:
    field = explain("model.context_parallel_size", bridge="0.4.2").field
    assert field is not None
    (entry,) = field.releases
    assert (entry.release, entry.name, entry.type) == ("0.4.2", "model.context_parallel_size", "int")
    assert (entry.has_default, entry.default) == (True, 1)


def test_a_release_reads_a_name_in_its_own_way() -> None:
    assert explain("train.eval_iters", bridge="0.3.1").name == "validation.eval_iters"
    assert explain("train.eval_iters", bridge="0.6.2").name == "train.eval_iters"


def test_a_release_that_lacks_the_field_is_absent() -> None:
    field = explain("dataset.enable_offline_packing").field
    assert field is not None
    assert [entry.name for entry in field.releases if entry.release == "0.3.1"] == [None]
    assert "0.3.1: absent" in explain("dataset.enable_offline_packing").render_text()


def test_a_field_of_several_dataset_classes_names_them() -> None:
    field = explain("dataset.seq_length", bridge="0.5.1").field
    assert field is not None
    by_name = {entry.name: entry.classes for entry in field.releases}
    assert "FinetuningDatasetConfig" in by_name["dataset.seq_length"]
    assert "GPTDatasetConfig" in by_name["dataset.sequence_length"]


@pytest.mark.parametrize(
    "name", [*INPUTS, *DERIVED, "dataset.type", "hf.max_position_embeddings", "env.CUDA_DEVICE_MAX_CONNECTIONS"]
)
def test_a_value_that_rules_compute_has_a_meaning_and_no_releases(name: str) -> None:
    field = explain(name).field
    assert field is not None
    assert field.meaning
    assert field.releases == ()


def test_an_ambiguous_last_part_is_refused_with_the_full_names() -> None:
    with pytest.raises(SkillRunError, match=r"dataset\.seq_length, model\.seq_length"):
        explain("seq_length")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        (RULE + "s", RULE),
        ("model.contxt_parallel_size", "model.context_parallel_size"),
        ("pad_seq_to_multiple", NEW_NAME),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(SkillRunError, match="did you mean") as refused:
        explain(name)
    assert near in str(refused.value)


@pytest.mark.parametrize("name", ["", " ", ".", "..", "model.", "\x00", "\x1b[2J", "x" * 1_000_000, "a\nb"])
def test_a_hostile_name_is_refused_in_one_short_line(name: str) -> None:
    with pytest.raises(SkillRunError) as refused:
        explain(name)
    assert len(str(refused.value)) < 600
    assert str(refused.value).isprintable()


def test_a_version_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="is not a Megatron-Bridge version"):
        explain(RULE, bridge="latest")


def test_every_rule_and_every_field_it_mentions_can_be_explained() -> None:
    for rule in load_rules():
        found = explain(rule.id)
        json.dumps(found.to_dict(), allow_nan=False)
        text = found.render_text()
        assert rule.title in " ".join(text.split())
        assert found.rule is not None
        for name in found.rule.fields:
            assert explain(name, bridge="0.6.2").kind == "field"


def test_the_text_keeps_to_the_width() -> None:
    for name in (RULE, NEW_NAME):
        lines = explain(name).render_text(width=60).splitlines()
        assert max(len(line) for line in lines if " " in line.strip().removeprefix("- ")) <= 60
