"""Evaluation: what is decided, what is lacking in the user's own words, and what a finding says."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from skill_run.bundle.rule import Rule
from skill_run.config.config import Config
from skill_run.config.model import Location
from skill_run.errors import BundleError, InputError
from skill_run.report.finding import SEVERITIES, Finding, ValidationReport
from skill_run.rules.evaluate import RuleSet
from skill_run.rules.validate import build_config, read_sources, report_on

CP = "model.context_parallel_size"
PAD = "dataset.offline_packing_specs.pad_seq_to_mult"
OLD_PAD = "dataset.packed_sequence_specs.pad_seq_to_mult"

RuleMaker = Callable[..., Rule]
Judge = Callable[..., ValidationReport]


def only(report: ValidationReport) -> Finding:
    (finding,) = report.findings
    return finding


@pytest.mark.parametrize(("size", "broken"), [(1, False), (2, True)])
def test_a_rule_with_known_values_is_decided(rule: RuleMaker, judged: Judge, size: int, broken: bool) -> None:
    report = judged({CP: size}, rule())
    assert [finding.rule for finding in report.findings] == ["no-cp"] * broken
    assert (report.rules_checked, report.not_checked) == (1, ())


def test_a_rule_whose_when_is_false_is_checked_and_gives_no_finding(rule: RuleMaker, judged: Judge) -> None:
    report = judged({CP: 2}, rule(when="model.tensor_model_parallel_size > 1"))
    assert (report.findings, report.rules_checked) == ((), 1)


def test_a_rule_for_other_versions_is_not_counted(rule: RuleMaker, judged: Judge) -> None:
    report = judged({CP: 2}, rule(bridge="<0.6"), rule(id="newer", bridge=">=0.7"))
    assert (report.findings, report.not_checked, report.rules_checked) == ((), (), 0)


@pytest.mark.parametrize(("asked", "applies"), [("0.6.0", True), ("0.6.9", True), ("0.5.4", False), ("main", False)])
def test_the_version_asked_for_decides_which_rules_apply_also_when_it_is_not_recorded(
    rule: RuleMaker, judged: Judge, asked: str, applies: bool
) -> None:
    report = judged({CP: 2}, rule(bridge=">=0.6,<0.7.dev0"), bridge=asked)
    assert len(report.findings) == applies


def test_an_unknown_value_leaves_the_rule_undecided(rule: RuleMaker, judged: Judge) -> None:
    report = judged({CP: 2}, rule(require="world_size % 8 == 0"))
    assert (report.findings, report.rules_checked) == ((), 0)
    (entry,) = report.not_checked
    assert (entry.rule, entry.title, entry.severity) == ("no-cp", "context parallelism must be off", "error")


def test_an_unknown_value_does_not_matter_where_the_known_side_decides(rule: RuleMaker, judged: Judge) -> None:
    report = judged({CP: 1}, rule(when=f"{CP} > 1", require="world_size % 8 == 0"))
    assert (report.not_checked, report.rules_checked) == ((), 1)


def test_a_null_field_is_not_given_and_a_set_one_is(rule: RuleMaker, judged: Judge) -> None:
    needs_experts = rule(require="given.model.num_moe_experts")
    assert len(judged({"model.num_moe_experts": None}, needs_experts).findings) == 1
    assert judged({"model.num_moe_experts": 8}, needs_experts).findings == ()
    assert len(judged({CP: 1}, needs_experts).not_checked) == 1


@pytest.mark.parametrize("section", ["peft", "comm_overlap", "mixed_precision", "dataset.offline_packing_specs"])
def test_a_section_is_given_as_soon_as_something_below_it_is_set(rule: RuleMaker, judged: Judge, section: str) -> None:
    leaf = {"peft": "dim", "comm_overlap": "tp_comm_overlap", "mixed_precision": "fp8"}.get(section, "pad_seq_to_mult")
    value = {"dim": 8, "tp_comm_overlap": True, "fp8": "e4m3"}.get(leaf, 8)
    forbidden = rule(require=f"!given.{section}")
    assert len(judged({f"{section}.{leaf}": value}, forbidden).findings) == 1
    assert judged({section: None}, forbidden).findings == ()


def test_a_name_where_a_list_of_names_belongs_is_a_list_to_rules(rule: RuleMaker, judged: Judge) -> None:
    without = rule(require="!('a2a' in model.cp_comm_type)")
    assert len(judged({"model.cp_comm_type": "a2a"}, without).findings) == 1
    assert judged({"model.cp_comm_type": ["p2p"]}, without).findings == ()


def test_a_mixed_precision_recipe_by_name_is_text_and_its_fields_are_fields(rule: RuleMaker, judged: Judge) -> None:
    named = rule(require="!given.mixed_precision || mixed_precision.contains('bf16')")
    assert len(judged({"mixed_precision": "fp16_mixed"}, named).findings) == 1
    assert judged({"mixed_precision": "bf16_mixed"}, named).findings == ()


def test_a_dataset_class_is_known_by_its_own_name_and_by_what_only_it_has(rule: RuleMaker, judged: Judge) -> None:
    no_sft = rule(require="dataset.type != 'GPTSFTDatasetConfig'")
    target = "megatron.bridge.data.builders.GPTSFTDatasetConfig"
    assert len(judged({"dataset": {"_target_": target}}, no_sft).findings) == 1
    assert len(judged({"dataset.enable_offline_packing": True}, no_sft).findings) == 1
    assert judged({"dataset.type": "GPTDatasetConfig"}, no_sft).findings == ()
    assert judged({CP: 1}, no_sft).not_checked[0].needs == ("dataset.type",)


@pytest.mark.parametrize(
    ("require", "settings", "needs"),
    [
        ("world_size % 8 == 0", {}, ("world_size",)),
        ("te == '2.10'", {}, ("te",)),
        ("gpu == 'h100'", {}, ("gpu",)),
        ("env.NCCL_DEBUG == 'INFO'", {}, ("env.NCCL_DEBUG",)),
        ("given.env.NCCL_DEBUG", {}, ("env.NCCL_DEBUG",)),
        ("model.num_layers > 1", {}, ("model.num_layers",)),
        ("given.model.num_layers", {}, ("model.num_layers",)),
        ("derived.data_parallel_size > 1", {}, ("world_size",)),
        ("derived.family == 'gemma-2'", {}, ("model",)),
        ("hf.max_position_embeddings > 1", {}, ("model",)),
        ("packing.in_batch", {"dataset.enable_in_batch_packing": True}, ("dataset.type",)),
        (
            "train.train_iters > model.seq_length",
            {"train.train_iters": None},
            ("train.train_iters", "model.seq_length"),
        ),
        ("world_size > 1 && derived.data_parallel_size > 1", {}, ("world_size",)),
        (f"{CP} > 1", {CP: None}, (CP,)),
        ("derived.cp_chunks > 2", {CP: None}, (CP,)),
        ("derived.eval_global_batch_size > 1", {"train": None}, ("train.global_batch_size",)),
    ],
)
def test_a_rule_that_is_not_checked_names_the_inputs_it_lacks(
    rule: RuleMaker, judged: Judge, require: str, settings: dict[str, Any], needs: tuple[str, ...]
) -> None:
    report = judged({"rng.seed": 1, **settings}, rule(require=require))
    assert [set(entry.needs) for entry in report.not_checked] == [set(needs)]


def test_lacking_fields_have_the_names_of_the_users_release(rule: RuleMaker, judged: Judge) -> None:
    report = judged({OLD_PAD: None}, rule(require=f"{PAD} > 1 || packing.offline"), bridge="0.5.1")
    assert report.not_checked[0].needs == (OLD_PAD,)


def test_a_known_null_is_not_asked_for_when_something_else_is_unknown(rule: RuleMaker, judged: Judge) -> None:
    require = "given.model.mtp_num_layers && model.mtp_num_layers > 0 || world_size > 1"
    report = judged({"model.mtp_num_layers": None}, rule(require=require))
    assert report.not_checked[0].needs == ("world_size",)


@pytest.mark.parametrize(
    ("field", "value", "require"),
    [
        ("checkpoint.most_recent_k", [1], "checkpoint.most_recent_k > 1"),
        ("checkpoint.most_recent_k", True, "checkpoint.most_recent_k > 1"),
        ("checkpoint.finetune", [True], "checkpoint.finetune"),
        ("model.attention_dropout", [0.1], "model.attention_dropout > 0.5"),
        ("logger.runtime_time_unit", 3, "logger.runtime_time_unit == 'hour'"),
    ],
)
def test_a_value_of_a_type_that_no_rule_can_compare_leaves_the_rule_undecided(
    rule: RuleMaker, judged: Judge, field: str, value: Any, require: str
) -> None:
    (entry,) = judged({field: value}, rule(require=require)).not_checked
    assert entry.needs == (field,)


def test_a_whole_number_where_a_float_belongs_is_compared_as_one(rule: RuleMaker, judged: Judge) -> None:
    assert len(judged({"model.attention_dropout": 1}, rule(require="model.attention_dropout < 0.5")).findings) == 1


def test_division_by_zero_leaves_the_rule_undecided_and_says_why(rule: RuleMaker, judged: Judge) -> None:
    report = judged({"train.train_iters": 0}, rule(require="7 % train.train_iters == 0"))
    assert report.findings == ()
    assert report.not_checked[0].needs == ("modulus by zero",)


def test_a_variable_of_an_environment_that_is_given_is_decided_although_it_is_not_set(
    rule: RuleMaker, judged: Judge
) -> None:
    wants = rule(require="given.env.NCCL_DEBUG && env.NCCL_DEBUG == 'INFO'")
    assert len(judged({CP: 1}, wants, env={"OTHER": "1"}).findings) == 1
    assert judged({CP: 1}, wants, env={"NCCL_DEBUG": "INFO"}).findings == ()
    assert len(judged({CP: 1}, wants).not_checked) == 1


@pytest.mark.parametrize(
    ("message", "filled"),
    [
        ("The size is {model.context_parallel_size}.", "The size is 4."),
        ("{2 * model.context_parallel_size} chunks, {derived.cp_chunks} of them", "8 chunks, 8 of them"),
        ("off: {model.sequence_parallel}", "off: false"),
        ("on: {rerun_state_machine.check_for_nan_in_loss}", "on: true"),
        ("of {model.cp_comm_type}", "of [a2a, p2p]"),
        ("{model.recompute_method} or {model.num_layers} on {world_size}", "null or unset on unset"),
        ("rest {model.context_parallel_size % model.num_layers}", "rest unknown"),
        ("set {name:model.context_parallel_size}", "set model.context_parallel_size"),
        ("no braces } here { or {} there", "no braces } here { or {} there"),
    ],
)
def test_placeholders_of_a_message_are_filled(rule: RuleMaker, judged: Judge, message: str, filled: str) -> None:
    settings = {CP: 4, "model.cp_comm_type": ["a2a", "p2p"], "rerun_state_machine.check_for_nan_in_loss": True}
    report = judged(settings, rule(message=message))
    assert only(report).message == filled


def test_the_advice_follows_the_message_and_is_filled_too(rule: RuleMaker, judged: Judge) -> None:
    report = judged(
        {CP: 4},
        rule(message="Wrong.", advice="Lower {name:model.context_parallel_size} from {model.context_parallel_size}."),
    )
    assert only(report).message == "Wrong. Lower model.context_parallel_size from 4."


def test_a_long_value_in_a_message_is_cut(rule: RuleMaker, judged: Judge) -> None:
    path = "dataset.offline_packing_specs.packed_train_data_path"
    report = judged({path: "x" * 5000, CP: 2}, rule(message=f"{{{path}}}"))
    assert only(report).message == "x" * 197 + "..."


def test_a_value_that_looks_like_a_placeholder_is_printed_as_it_is(rule: RuleMaker, judged: Judge) -> None:
    path = "dataset.offline_packing_specs.packed_train_data_path"
    report = judged({path: "{world_size}", CP: 2}, rule(message=f"path {{{path}}}"))
    assert only(report).message == "path {world_size}"


def test_fields_fix_and_message_use_the_names_of_the_users_release(rule: RuleMaker, judged: Judge) -> None:
    covering = rule(require=f"{PAD} % {CP} == 0", fix={PAD: CP}, message=f"{{name:{PAD}}} is {{{PAD}}}")
    finding = only(judged({OLD_PAD: 3, CP: 2}, covering, bridge="0.5.1"))
    assert finding.fields == (OLD_PAD, CP)
    assert finding.fix == {OLD_PAD: 2}
    assert finding.message == f"{OLD_PAD} is 3"


def test_a_fix_is_a_literal_or_the_value_of_an_expression(rule: RuleMaker, judged: Judge) -> None:
    fix = {
        PAD: "lcm(derived.cp_chunks, 3)",
        "model.sequence_parallel": False,
        "train.micro_batch_size": 1,
        "model.cp_comm_type": "['a2a']",
        "model.recompute_method": None,
    }
    assert only(judged({CP: 2}, rule(fix=fix))).fix == {
        PAD: 12,
        "model.sequence_parallel": False,
        "train.micro_batch_size": 1,
        "model.cp_comm_type": ["a2a"],
        "model.recompute_method": None,
    }


def test_a_fix_that_needs_an_unknown_value_is_left_out_whole(rule: RuleMaker, judged: Judge) -> None:
    finding = only(judged({CP: 2}, rule(fix={CP: 1, PAD: "world_size"}, semantic_fix=True)))
    assert (finding.fix, finding.fix_is_semantic) == ({}, False)


def test_a_fix_of_a_field_that_the_release_lacks_is_left_out(rule: RuleMaker, judged: Judge) -> None:
    fix = {"dataset.enable_offline_packing": False, CP: 1}
    assert only(judged({CP: 2}, rule(fix=fix), bridge="0.5.1")).fix == {CP: 1}
    assert only(judged({CP: 2}, rule(fix=fix))).fix == fix


@pytest.mark.parametrize("semantic", [True, False])
def test_a_fix_that_changes_training_is_marked(rule: RuleMaker, judged: Judge, semantic: bool) -> None:
    assert only(judged({CP: 2}, rule(fix={CP: 1}, semantic_fix=semantic))).fix_is_semantic is semantic


@pytest.mark.parametrize(
    ("version", "severity", "fires"),
    [("0.3.1", "corruption", "never"), ("0.5.1", "error", "setup"), ("0.6.2", "error", "validate")],
)
def test_severity_and_phase_follow_the_version(
    rule: RuleMaker, judged: Judge, version: str, severity: str, fires: str
) -> None:
    by_version = rule(
        severity={"<0.4": "corruption", "*": "error"}, fires={">=0.6": "validate", ">=0.4": "setup", "*": "never"}
    )
    finding = only(judged({CP: 2}, by_version, bridge=version))
    assert (finding.severity, finding.fires) == (severity, fires)


def test_the_severity_of_an_undecided_rule_follows_the_version_too(rule: RuleMaker, judged: Judge) -> None:
    undecided = rule(require="world_size > 1", severity={"<0.4": "corruption", "*": "info"})
    assert judged({CP: 2}, undecided, bridge="0.3.1").not_checked[0].severity == "corruption"
    assert judged({CP: 2}, undecided).not_checked[0].severity == "info"


def test_evidence_for_the_users_version_is_preferred_and_any_evidence_is_better_than_none(
    rule: RuleMaker, judged: Judge
) -> None:
    evidence = [{"bridge": "0.5.1", "says": "old"}, {"bridge": "0.6.2", "says": "new"}]
    told = rule(evidence=evidence)
    assert only(judged({CP: 2}, told)).evidence == ({"bridge": "0.6.2", "says": "new"},)
    assert len(only(judged({CP: 2}, told, bridge="0.3.1")).evidence) == 2


def test_a_finding_points_at_the_line_of_the_first_field_that_the_input_sets(rule: RuleMaker) -> None:
    text = "train:\n  micro_batch_size: 1\nmodel:\n  context_parallel_size: 2\n"
    config = build_config(read_sources(text), bridge="0.6.2")
    rules = RuleSet([rule(require=f"model.tensor_model_parallel_size > {CP}")])
    assert only(report_on(config, rules, "x")).location == Location("<text>", 4, 26)


def test_a_finding_about_defaults_only_has_no_place(rule: RuleMaker, judged: Judge) -> None:
    report = judged({"rng.seed": 1}, rule(require=f"{CP} == 2"))
    assert only(report).location is None


def test_a_rule_can_name_the_fields_to_point_at(rule: RuleMaker, judged: Judge) -> None:
    assert only(judged({CP: 2}, rule(fields=[PAD]))).fields == (PAD,)


def test_a_rule_without_fields_in_its_requirement_points_at_those_of_its_condition(
    rule: RuleMaker, judged: Judge
) -> None:
    assert only(judged({CP: 2}, rule(when=f"{CP} > 1", require="false"))).fields == (CP,)


def test_findings_come_by_severity_then_by_place_then_by_rule(rule: RuleMaker) -> None:
    text = "model:\n  context_parallel_size: 2\n  tensor_model_parallel_size: 2\n"
    fields = {"late": "model.tensor_model_parallel_size", "early": CP, "nowhere": "rng.seed"}
    made = [
        rule(id=f"{severity}-{where}", severity=severity, require="false", fields=[field])
        for severity in SEVERITIES
        for where, field in fields.items()
    ]
    random.Random(0).shuffle(made)
    report = report_on(build_config(read_sources(text), bridge="0.6.2"), RuleSet(made), "x")
    assert [finding.rule for finding in report.findings] == [
        f"{severity}-{where}" for severity in SEVERITIES for where in ("early", "late", "nowhere")
    ]


def test_what_a_reader_noticed_becomes_a_finding_of_its_computed_rule(rule: RuleMaker, judged: Judge) -> None:
    computed = rule(id="unknown-field", computed="config", message="{detail}", severity="error", fires={"*": "never"})
    report = judged({"model.context_paralel_size": 2}, computed)
    finding = only(report)
    assert (finding.rule, finding.fix) == ("unknown-field", {CP: 2})
    assert finding.fields == ("model.context_paralel_size",)
    assert report.rules_checked == 0


def test_a_remark_without_its_rule_is_not_reported(rule: RuleMaker, judged: Judge) -> None:
    assert judged({"model.context_paralel_size": 2}, rule()).findings == ()


@pytest.mark.parametrize(
    ("severity", "fires", "verdict"),
    [
        ("error", "construct", "raises"),
        ("error", "validate", "raises"),
        ("error", "setup", "passes"),
        ("error", "never", "passes"),
        ("warning", "validate", "passes"),
    ],
)
def test_upstream_raises_exactly_for_errors_that_it_notices_before_setup(
    rule: RuleMaker, judged: Judge, severity: str, fires: str, verdict: str
) -> None:
    assert judged({CP: 2}, rule(severity=severity, fires={"*": fires})).upstream_validate == verdict


@pytest.mark.parametrize(
    ("severity", "fires", "verdict"),
    [("error", "validate", "unknown"), ("error", "setup", "passes"), ("info", "validate", "passes")],
)
def test_an_undecided_rule_makes_the_verdict_unknown_only_where_it_could_raise(
    rule: RuleMaker, judged: Judge, severity: str, fires: str, verdict: str
) -> None:
    undecided = rule(require="world_size > 1", severity=severity, fires={"*": fires})
    assert judged({CP: 1}, undecided).upstream_validate == verdict


def test_a_certain_error_decides_the_verdict_although_other_rules_are_undecided(rule: RuleMaker, judged: Judge) -> None:
    assert judged({CP: 2}, rule(), rule(id="other", require="world_size > 1")).upstream_validate == "raises"


def test_a_rule_that_lacks_only_the_environment_does_not_make_the_verdict_unknown(
    rule: RuleMaker, judged: Judge
) -> None:
    report = judged({CP: 1}, rule(require="env.NVTE_CPU_OFFLOAD_V1 == '1'"))
    assert len(report.not_checked) == 1
    assert report.upstream_validate == "passes"


def test_a_rule_that_lacks_the_environment_and_something_else_makes_the_verdict_unknown(
    rule: RuleMaker, judged: Judge
) -> None:
    report = judged({CP: 1}, rule(require="env.NVTE_CPU_OFFLOAD_V1 == '1' && world_size > 1"))
    assert report.upstream_validate == "unknown"


def test_the_verdict_on_a_recipe_outside_the_catalogue_is_unknown(rule: RuleMaker, judged: Judge) -> None:
    assert judged({CP: 1}, rule(), recipe="our_own_recipe").upstream_validate == "unknown"


def test_a_rule_set_with_an_expression_that_does_not_compile_is_refused(rule: RuleMaker) -> None:
    with pytest.raises(BundleError, match="undeclared reference"):
        RuleSet([rule(require="model.no_such_field > 1")])


def test_text_that_is_not_unicode_is_refused_in_one_sentence(rule: RuleMaker, judged: Judge) -> None:
    wants = rule(require="gpu == 'h100' && env.A == 'b' && 'a2a' in model.cp_comm_type")
    for options in ({"gpu": "h\udc80"}, {"env": {"A": "\ud800"}}):
        with pytest.raises(InputError, match="not valid Unicode"):
            judged({CP: 1}, wants, **options)
    with pytest.raises(InputError, match=r"model\.cp_comm_type holds .* not valid Unicode"):
        judged({"model.cp_comm_type": ["a2a", "\udcff"]}, wants)


def test_sizes_that_multiply_beyond_63_bits_are_refused_in_one_sentence(rule: RuleMaker, judged: Judge) -> None:
    with pytest.raises(InputError, match=r"out of range: derived\.cp_chunks comes to a number of 64 bits"):
        judged({CP: 2**62}, rule(require="derived.cp_chunks > 1"))
    huge = {"model.hierarchical_context_parallel_sizes": [2**60] * 40}
    with pytest.raises(InputError, match="out of range"):
        judged(huge, rule(require="derived.hierarchical_product > 1"))


def test_one_rule_set_judges_many_configs_independently(rule: RuleMaker, config: Callable[..., Config]) -> None:
    rules = RuleSet([rule(message="{model.context_parallel_size} on {world_size}")])
    first = report_on(config({CP: 2}, world_size=8), rules, "a")
    second = report_on(config({CP: 4}), rules, "b")
    third = report_on(config({CP: 1}), rules, "c")
    assert only(first).message == "2 on 8"
    assert only(second).message == "4 on unset"
    assert third.findings == ()


LOOPS = f"[{', '.join('1' * 100)}].all(a, [{', '.join('1' * 100)}].all(b, [1, 1, 1, 1].all(c, [1, 1].all(d, true))))"


@pytest.mark.parametrize(
    "changes",
    [
        {"require": f"{CP} == 1 && {LOOPS}"},
        {"message": f"It is {{{LOOPS}}}."},
        {"fix": {"model.sequence_parallel": LOOPS}},
    ],
)
def test_a_rule_that_takes_too_many_steps_is_told_with_its_file(
    rule: RuleMaker, judged: Judge, changes: dict[str, Any]
) -> None:
    with pytest.raises(BundleError) as caught:
        judged({CP: 2 if "require" not in changes else 1}, rule(**changes))
    told = "skills/example/rules/no-cp.yaml:1: the rule 'no-cp' cannot be evaluated: Iteration budget exceeded"
    assert str(caught.value) == told
