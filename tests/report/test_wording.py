"""Tests of skill_run.report.wording."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from skill_run.report.finding import Finding, NotChecked, ValidationReport
from skill_run.report.wording import details, fixes, not_checked_summary, totals, upstream_notice, upstream_verdict


def lacking(*needs: tuple[str, ...]) -> tuple[NotChecked, ...]:
    return tuple(NotChecked(f"rule-{index}", "a title", names) for index, names in enumerate(needs))


@pytest.mark.parametrize(
    ("severity", "fires", "sentence"),
    [
        ("error", "validate", "Megatron-Bridge itself: stops in validate()"),
        ("error", "construct", "Megatron-Bridge itself: stops while the config is built"),
        ("error", "setup", "Megatron-Bridge itself: stops only in setup (process groups, model build)"),
        ("error", "data", "Megatron-Bridge itself: stops only when the dataset is built"),
        ("error", "forward", "Megatron-Bridge itself: stops only at the first forward"),
        ("corruption", "never", "Megatron-Bridge itself: never notices"),
        ("info", "validate", "Megatron-Bridge itself: notices in validate()"),
    ],
)
def test_the_place_where_upstream_notices_is_named(
    severity: str, fires: str, sentence: str, finding: Callable[..., Finding]
) -> None:
    assert upstream_notice(finding(severity=severity, fires=fires)) == sentence


def test_a_fix_that_changes_training_is_marked(finding: Callable[..., Finding]) -> None:
    fix = {"train.global_batch_size": 32, "model.cp_comm_type": ["a2a"]}
    assert fixes(finding(fix=fix, fix_is_semantic=True)) == [
        "train.global_batch_size = 32 (changes training)",
        'model.cp_comm_type = ["a2a"] (changes training)',
    ]
    assert fixes(finding(fix={"a.b": None})) == ["a.b = null"]


def test_details_hold_message_fix_notice_and_explain_command(finding: Callable[..., Finding]) -> None:
    assert details(finding()) == [
        "micro_batch_size is 4, but one pack is already a whole micro-batch.",
        "fix: train.micro_batch_size = 1",
        "Megatron-Bridge itself: stops in validate()",
        "more: skill-run explain offline-mbs-1",
    ]


@pytest.mark.parametrize(
    ("verdict", "part"), [("raises", "would raise"), ("passes", "would pass"), ("unknown", "cannot be told")]
)
def test_the_verdict_of_the_real_validate_is_said(
    verdict: str, part: str, report: Callable[..., ValidationReport]
) -> None:
    assert part in upstream_verdict(report(upstream_validate=verdict))


def test_totals_name_only_the_severities_found(
    finding: Callable[..., Finding], report: Callable[..., ValidationReport]
) -> None:
    found = (finding(), finding(severity="corruption"), finding(severity="warning"), finding(severity="warning"))
    assert totals(report(findings=found)) == "1 error, 1 corruption, 2 warnings; 63 rules checked, 0 not checked"
    assert totals(report(rules_checked=1)) == "no findings; 1 rule checked, 0 not checked"


def test_rules_not_checked_are_folded_by_what_would_decide_them_most_first(
    report: Callable[..., ValidationReport],
) -> None:
    entries = lacking(
        ("world_size",),
        ("model.num_layers",),
        ("hf.max_position_embeddings",),
        ("world_size", "model.hidden_size"),
        ("te", "gpu"),
        ("env.CUDA_DEVICE_MAX_CONNECTIONS",),
    )
    assert not_checked_summary(report(not_checked=entries)) == (
        "6 rules not checked: pass --model DIR (2 rules), --env NAME=VALUE (1 rule), "
        "--gpu TYPE and --te VERSION (1 rule), --model DIR and --world-size N (1 rule), --world-size N (1 rule)"
    )


def test_missing_fields_are_named_most_used_first_and_the_rest_counted(
    report: Callable[..., ValidationReport],
) -> None:
    entries = lacking(("train.b",), ("train.a", "train.b"), ("train.c",), ("train.d",), ("train.e", "world_size"))
    assert not_checked_summary(report(not_checked=entries)) == (
        "5 rules not checked: pass values for train.b, train.a, train.c and 1 other field (4 rules), "
        "--world-size N and values for train.e (1 rule)"
    )


def test_a_rule_that_names_no_need_is_counted_too(report: Callable[..., ValidationReport]) -> None:
    assert not_checked_summary(report(not_checked=lacking(()))) == "1 rule not checked: pass other values (1 rule)"


def test_nothing_is_said_when_every_rule_was_checked(report: Callable[..., ValidationReport]) -> None:
    assert not_checked_summary(report()) == ""
