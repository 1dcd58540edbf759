"""Fixes: applied until nothing more can be fixed, marked when they change training, written in the input's own form."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from skill_run.bundle.check import example_version
from skill_run.bundle.rule import Rule
from skill_run.rules.evaluate import RuleSet
from skill_run.rules.fix import Change, FixResult, fix_config
from skill_run.rules.validate import bundle_rules, judge, read_sources, validate_config

CP = "model.context_parallel_size"
TP = "model.tensor_model_parallel_size"
MBS = "train.micro_batch_size"
GBS = "train.global_batch_size"

RuleMaker = Callable[..., Rule]

PACKED = """\
# our run
model:
  context_parallel_size: 2   # long context
  seq_length: 4096
train:
  micro_batch_size: 4
  global_batch_size: 10
dataset:
  enable_offline_packing: true
  seq_length: 4096
  offline_packing_specs:
    packed_sequence_size: 4096
    pad_seq_to_mult: 1
"""


def fixed(
    source: Any,
    *rules: Rule,
    overrides: tuple[str, ...] = (),
    recipe: str | None = None,
    bridge: str = "0.6.2",
    **options: Any,
) -> FixResult:
    """Fix by the given rules, or by those of the bundle when none is given."""
    sources = read_sources(source, bridge=bridge, overrides=overrides, recipe=recipe)
    return fix_config(sources, RuleSet(rules) if rules else bundle_rules(), bridge=bridge, recipe=recipe, **options)


def text_of(result: FixResult) -> str:
    assert isinstance(result.text, str)
    return result.text


def test_a_config_without_faults_comes_back_as_it_is() -> None:
    text = "model:\n  context_parallel_size: 1  # off\n"
    result = fixed(text)
    assert (result.text, result.changes, result.removed, result.left, result.note) == (text, (), (), (), "")
    assert result.before == result.after


def test_the_corrected_text_validates_clean_and_keeps_comments_and_order() -> None:
    result = fixed(PACKED, world_size=8, semantic=True)
    text = text_of(result)
    assert text.startswith("# our run\nmodel:\n")
    assert "  context_parallel_size: 2   # long context\n" in text
    again = validate_config(text, bridge="0.6.2", world_size=8)
    assert again.at_least("warning") == []
    assert len(result.before.at_least("corruption")) >= 3


def test_the_report_after_the_fixes_is_that_of_the_corrected_text() -> None:
    result = fixed(PACKED, world_size=8)
    again = validate_config(text_of(result), bridge="0.6.2", world_size=8)
    assert [finding.rule for finding in again.findings] == [finding.rule for finding in result.after.findings]
    assert again.upstream_validate == result.after.upstream_validate


def test_changes_are_listed_with_old_and_new_values() -> None:
    changes = {change.field: change for change in fixed(PACKED, world_size=8).changes}
    assert changes[MBS] == Change(MBS, 4, 1, "offline-packing-needs-micro-batch-1", False)
    loss = "model.calculate_per_token_loss"
    assert changes[loss].to_dict() == {
        "field": loss,
        "old": None,
        "new": True,
        "rule": "cp-sft-needs-per-token-loss",
        "semantic": False,
    }
    assert changes["dataset.offline_packing_specs.pad_seq_to_mult"].new == 4


def test_a_fix_that_changes_training_is_held_back_and_listed_as_left() -> None:
    result = fixed(PACKED, world_size=8)
    assert GBS not in {change.field for change in result.changes}
    assert "global_batch_size: 10" in text_of(result)
    assert [finding.rule for finding in result.left] == ["global-batch-divisible"]


def test_a_fix_that_changes_training_is_applied_when_asked_for() -> None:
    result = fixed(PACKED, world_size=8, semantic=True)
    change = next(change for change in result.changes if change.field == GBS)
    assert (change.old, change.new, change.semantic) == (10, 12, True)
    assert "global_batch_size: 12" in text_of(result)
    assert result.left == ()


def test_a_fix_that_breaks_another_rule_is_followed_by_the_other_fix(rule: RuleMaker) -> None:
    chain = [rule(id="to-two", require=f"{CP} != 1", fix={CP: 2})]
    chain += [rule(id=f"to-{n + 1}", require=f"{CP} != {n}", fix={CP: n + 1}) for n in (2, 3, 4)]
    result = fixed({CP: 1}, *chain, original={CP: 1})
    assert result.text == {CP: 5}
    assert result.changes == (Change(CP, 1, 5, "to-5", False),)
    assert result.after.findings == ()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_fixes_that_contradict_each_other_end_and_leave_a_finding(rule: RuleMaker, order: tuple[int, int]) -> None:
    both = [rule(id="up", require=f"{CP} > 1", fix={CP: 2}), rule(id="down", require=f"{CP} < 2", fix={CP: 1})]
    result = fixed({CP: 1}, *(both[index] for index in order), original={CP: 1})
    assert isinstance(result.text, dict)
    assert result.text[CP] in (1, 2)
    assert [finding.rule for finding in result.left] == [finding.rule for finding in result.after.findings]
    assert len(result.left) == 1


def test_two_findings_that_fix_one_field_differently_are_fixed_one_after_the_other(rule: RuleMaker) -> None:
    first = rule(id="a", severity="error", require=f"{CP} % 2 == 0", fix={CP: f"{CP} * 2"})
    second = rule(id="b", severity="warning", require=f"{CP} % 3 == 0", fix={CP: f"{CP} * 3"})
    result = fixed({CP: 1}, second, first, original={CP: 1})
    assert result.text == {CP: 6}


def test_a_fix_that_does_not_help_is_applied_once_and_stays_left(rule: RuleMaker) -> None:
    result = fixed({CP: 1}, rule(require="false", fix={CP: 2}), original={CP: 1})
    assert result.text == {CP: 2}
    assert [finding.rule for finding in result.left] == ["no-cp"]


def test_a_fix_of_a_value_that_is_there_already_changes_nothing(rule: RuleMaker) -> None:
    result = fixed({CP: 2}, rule(require="false", fix={CP: 2}), original={CP: 2})
    assert (result.text, result.changes) == ({CP: 2}, ())


def test_a_fix_of_an_info_finding_is_not_applied(rule: RuleMaker) -> None:
    result = fixed({CP: 2}, rule(severity="info", fix={CP: 1}), original={CP: 2})
    assert (result.text, result.changes, result.left) == ({CP: 2}, (), ())


def test_a_misspelt_field_is_replaced_by_the_near_one() -> None:
    result = fixed("model:\n  context_paralel_size: 2\n")
    assert result.removed == ("model.context_paralel_size",)
    assert yaml.safe_load(text_of(result)) == {"model": {"context_parallel_size": 2}}
    assert "unknown-field" not in {finding.rule for finding in result.after.findings}


def test_renamed_fields_are_removed_and_written_under_their_new_names() -> None:
    text = "# ours\ndataset:\n  packed_sequence_specs:  # old\n    packed_sequence_size: 4096\n    pad_seq_to_mult: 1\n"
    result = fixed(text)
    assert set(result.removed) == {
        "dataset.packed_sequence_specs.packed_sequence_size",
        "dataset.packed_sequence_specs.pad_seq_to_mult",
    }
    assert text_of(result).startswith("# ours\n")
    assert yaml.safe_load(text_of(result)) == {
        "dataset": {
            "offline_packing_specs": {"packed_sequence_size": 4096, "pad_seq_to_mult": 1},
            "enable_offline_packing": True,
        }
    }
    assert result.after.at_least("error") == []


def test_the_release_that_the_input_implied_stays_although_its_telling_names_are_fixed() -> None:
    text = "dataset:\n  packed_sequence_specs:\n    packed_sequence_size: 4096\n    pad_seq_to_mult: 1\n"
    sources = read_sources(f"model:\n  context_parallel_size: 2\n{text}")
    result = fix_config(sources, bundle_rules())
    assert result.after.bridge.release == result.before.bridge.release == "0.5.1"
    assert "packed_sequence_specs" in text_of(result)


def test_the_version_that_was_asked_for_stays_also_when_it_is_not_recorded() -> None:
    result = fixed(PACKED, bridge="0.6.0", world_size=8)
    assert result.changes
    assert result.after.bridge == result.before.bridge
    assert result.after.bridge.version == "0.6.0"


def test_a_json_text_comes_back_as_json() -> None:
    data = {"model": {"context_parallel_size": 2}, "dataset": {"enable_offline_packing": True}}
    result = fixed(json.dumps(data) + "\n")
    assert json.loads(text_of(result))["model"] == {"context_parallel_size": 2, "calculate_per_token_loss": True}


@pytest.mark.parametrize(
    "original",
    [
        {CP: 2, "dataset.enable_offline_packing": True},
        {"model": {"context_parallel_size": 2}, "dataset": {"enable_offline_packing": True}},
    ],
)
def test_a_mapping_comes_back_as_a_mapping_of_the_same_shape(original: Mapping[str, Any]) -> None:
    before = json.dumps(original)
    result = fixed(original, original=original)
    assert isinstance(result.text, dict)
    assert json.dumps(original) == before
    loss = result.text.get("model.calculate_per_token_loss") or result.text["model"]["calculate_per_token_loss"]
    assert loss is True


def test_with_overrides_the_fixes_go_into_the_overrides_and_the_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "conf.yaml"
    path.write_text(PACKED, "utf-8")
    result = fixed(path, overrides=(f"{MBS}=8", f"{GBS}=8"), world_size=8)
    assert text_of(result).splitlines()[:2] == [f"{MBS}=1", f"{GBS}=8"]
    assert "++model.calculate_per_token_loss=true" in text_of(result).splitlines()
    assert path.read_text("utf-8") == PACKED
    assert "duplicate-assignment" not in {finding.rule for finding in result.after.findings}


def test_a_recipe_comes_back_as_the_overrides_that_it_needs() -> None:
    name = "llama32_1b_sft_config"
    result = fixed(None, recipe=name, overrides=(f"{CP}=2",))
    lines = text_of(result).split()
    assert lines[0] == f"{CP}=2"
    again = validate_config(None, recipe=name, overrides=lines, bridge="0.6.2")
    assert again.at_least("corruption") == []


def test_a_launch_command_is_changed_word_by_word_and_validates_clean() -> None:
    script = "torchrun --nproc_per_node 8 scripts/training/run_recipe.py --recipe llama32_1b_sft_config"
    result = fixed(f"{script} {MBS}=4 dataset.packed_sequence_specs.pad_seq_to_mult=8 rng.seed=1 | tee log")
    assert (
        text_of(result) == f"{script} {MBS}=1 rng.seed=1 ++dataset.offline_packing_specs.pad_seq_to_mult=8 | tee log\n"
    )
    again = validate_config(text_of(result), bridge="0.6.2")
    assert again.at_least("warning") == []
    assert [finding.rule for finding in again.findings] == [finding.rule for finding in result.after.findings]


def test_fixes_that_cannot_be_placed_are_listed_with_the_reason() -> None:
    command = "torchrun scripts/training/run_recipe.py --recipe llama32_1b_sft_config --micro_batch_size 4 | tee log"
    result = fixed(command)
    assert result.text is None
    assert "by hand" in result.note
    assert [(change.field, change.new) for change in result.changes] == [(MBS, 1)]


CODE = """\
from megatron.bridge.data.builders import GPTSFTDatasetConfig
from megatron.bridge.data.packing import PackedSequenceSpecs
from megatron.bridge.recipes.llama.h100.llama3 import llama32_1b_sft_1gpu_h100_bf16_config as base


def build():
    cfg = base()
    cfg.model.context_parallel_size = 2
    cfg.model.seq_length = 4096
    cfg.dataset = GPTSFTDatasetConfig(
        dataset_root="/d",
        seq_length=4096,
        enable_offline_packing=True,
        offline_packing_specs=PackedSequenceSpecs(packed_sequence_size=4096, pad_cu_seqlens=True, pad_seq_to_mult=4),
        dataset_kwargs=KWARGS,
    )
    return cfg
"""


def test_fixes_that_have_a_place_in_code_are_written_though_another_has_none() -> None:
    result = fixed(CODE.replace("KWARGS", '{"chat": True}'), bridge="0.6.2")
    assert "cfg.model.calculate_per_token_loss = True\n" in text_of(result)
    assert "left to be changed by hand: dataset.dataset_kwargs.pad_to_max_length" in result.note
    assert [change.field for change in result.changes] == ["model.calculate_per_token_loss"]
    assert "pad-cu-seqlens-needs-pad-to-max" in {finding.rule for finding in result.after.findings}


def test_a_value_in_a_mapping_in_code_is_replaced_where_it_stands() -> None:
    result = fixed(CODE.replace("KWARGS", '{"pad_to_max_length": False}'), bridge="0.6.2")
    assert 'dataset_kwargs={"pad_to_max_length": True},' in text_of(result)
    assert result.note == ""


def test_a_batch_script_gives_the_overrides_to_add_to_its_launch_line() -> None:
    script = "scripts/training/run_recipe.py --recipe llama32_1b_sft_config"
    result = fixed(f"#!/bin/bash\n#SBATCH --nodes=1\nsrun python {script} {MBS}=4\n")
    assert text_of(result).split() == [f"{MBS}=1"]
    assert "launch line" in result.note


def test_a_launch_file_of_an_own_script_gets_overrides_and_never_the_text_of_the_script(tmp_path: Path) -> None:
    script = "from megatron.bridge.recipes.llama import llama32_1b_sft_config\n\ncfg = llama32_1b_sft_config()\n"
    (tmp_path / "train.py").write_text(f"{script}cfg.train.micro_batch_size = 4\n", "utf-8")
    launch = tmp_path / "launch.sh"
    launch.write_text("torchrun --nproc_per_node 8 train.py\n", "utf-8")
    result = fixed(launch)
    assert "offline-packing-needs-micro-batch-1" in {finding.rule for finding in result.before.findings}
    assert text_of(result).split() == [f"++{MBS}=1"]
    assert "launch line" in result.note


def test_settings_of_the_run_hold_for_the_report_after_the_fixes(rule: RuleMaker) -> None:
    wants = rule(require=f"{CP} == world_size && gpu == 'h100' && env.A == 'b' && te == '2.10'", fix={CP: "world_size"})
    result = fixed({CP: 1}, wants, original={CP: 1}, world_size=4, gpu="H100", env={"A": "b"}, te="2.10")
    assert (result.after.findings, result.after.not_checked) == ((), ())


def test_a_section_is_removed_by_the_value_null_also_when_only_fields_below_it_are_set(rule: RuleMaker) -> None:
    specs = "dataset.offline_packing_specs"
    text = "dataset:\n  offline_packing_specs:\n    pad_seq_to_mult: 8  # no\n  seq_length: 4096\n"
    result = fixed(text, rule(require=f"!given.{specs}", fix={specs: None}))
    assert yaml.safe_load(text_of(result)) == {"dataset": {"offline_packing_specs": None, "seq_length": 4096}}
    assert result.after.findings == ()


def example_of(rule: Rule, example: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of an example of a rule, and the options of the run it describes."""
    settings = {key: value for key, value in example.items() if not key.startswith("env.")}
    options = {key: settings.pop(key, None) for key in ("bridge", "world_size", "te", "gpu", "recipe")}
    env = {key.removeprefix("env."): str(value) for key, value in example.items() if key.startswith("env.")}
    te = None if options["te"] is None else str(options["te"])
    return settings, {**options, "te": te, "bridge": options["bridge"] or example_version(rule), "env": env or None}


CONFIG_RULES = [rule for rule in bundle_rules().rules if not rule.computed]


def test_every_failing_example_with_a_fix_is_cured_by_that_fix() -> None:
    """The own examples of the bundle's rules are the best witnesses: what a rule says to do must satisfy it."""
    uncured = []
    count = 0
    for rule in CONFIG_RULES:
        for example in rule.fails:
            settings, options = example_of(rule, example)
            (finding,) = judge(settings, rules=RuleSet([rule]), **options).findings
            count += bool(finding.fix)
            if finding.fix and judge({**settings, **finding.fix}, rules=RuleSet([rule]), **options).findings:
                uncured.append((rule.id, example, finding.fix))
    assert uncured == []
    assert count > 100


@pytest.mark.parametrize("rule", [rule for rule in CONFIG_RULES if rule.fix], ids=lambda rule: rule.id)
def test_the_bundles_rules_do_not_fight_over_a_failing_example(rule: Rule) -> None:
    settings, options = example_of(rule, rule.fails[0])
    sources = read_sources(yaml.safe_dump(settings), bridge=options["bridge"])
    result = fix_config(sources, bundle_rules(), semantic=True, **options)
    assert [finding.rule for finding in result.left] == []
    again = judge(text_of(result), rules=bundle_rules(), **options)
    assert sorted(f.rule for f in again.findings) == sorted(f.rule for f in result.after.findings)
