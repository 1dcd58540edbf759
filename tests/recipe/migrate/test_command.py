"""Launch lines and batch scripts: flags, recipes and overrides of one release as those of another, word by word."""

from __future__ import annotations

import pytest

from skill_run.recipe.migrate import Migration, migrate_config

OLD = "torchrun --nproc_per_node 8 run_recipe.py --recipe llama32_1b_sft_config"
NEW = "torchrun --nproc_per_node 8 run_recipe.py --recipe llama32_1b_sft_1gpu_h100_bf16_config"
JOB = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
# dataset.packed_sequence_specs.pad_seq_to_mult=2 was too small
srun python scripts/training/run_recipe.py \\
    --recipe llama32_1b_sft_config \\
    --dataset llm-finetune --packed_sequence \\
    --step gpt_step \\
    'dataset.packed_sequence_specs.pad_seq_to_mult=4' \\
    model.context_parallel_size=2
echo done
"""


def migrated(text: str, to: str = "0.6.2", bridge: str = "0.5.1") -> Migration:
    form = "sbatch" if text.startswith("#!") else "command"
    migration = migrate_config(text, to=to, bridge=bridge, form=form)  # type: ignore[arg-type]
    assert isinstance(migration.text, str)
    return migration


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            f"{OLD} dataset.packed_sequence_specs.pad_seq_to_mult=4",
            f"{OLD} dataset.offline_packing_specs.pad_seq_to_mult=4 ++dataset.enable_offline_packing=true",
        ),
        (f"{OLD} --dataset llm-pretrain-mock", f"{OLD} --dataset mock"),
        (
            f"{OLD} --dataset llm-finetune --packed_sequence",
            f"{OLD} --dataset squad ++dataset.enable_offline_packing=true",
        ),
        (f"{OLD} --dataset llm-finetune dataset.dataset_name=gsm8k", f"{OLD} --dataset gsm8k"),
        (f"{OLD} --packed_sequence", OLD),
        (f"{OLD} --seq_length 8192", OLD),
        (f"{OLD} 'train.eval_iters=3'", f"{OLD} 'validation.eval_iters=3'"),
        (f"{OLD} model.seq_length=4096", f"{OLD} model.seq_length=4096"),
    ],
)
def test_flags_and_overrides_of_0_5_become_those_of_0_6(before: str, after: str) -> None:
    result = migrated(before)
    assert str(result.text).rstrip("\n") == after
    assert not result.manual
    assert migrated(str(result.text), bridge="0.6.2").text == result.text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"{NEW} -tp 2 --lr 1e-5", f"{OLD} ++model.tensor_model_parallel_size=2 ++optimizer.lr=1e-05"),
        (
            f"{NEW} -sl 8192 dataset.enable_offline_packing=true",
            f"{OLD} ++dataset.seq_length=8192 ++model.seq_length=8192",
        ),
        (f"{NEW} --step-func gpt_step", f"{OLD} --step_func gpt_step"),
    ],
)
def test_flags_that_only_0_6_has_become_overrides_going_back(before: str, after: str) -> None:
    result = migrated(before, to="0.5.1", bridge="0.6.2")
    assert str(result.text).startswith(after)


def test_going_back_what_the_launcher_of_0_6_repairs_is_written_down() -> None:
    result = migrated(f"{NEW} -cp 2 dataset.enable_offline_packing=true", to="0.5.1", bridge="0.6.2")
    assert "++dataset.packed_sequence_specs.pad_seq_to_mult=4" in str(result.text)
    assert "++model.calculate_per_token_loss=true" in str(result.text)
    assert result.report is not None
    assert not result.report.at_least("corruption")
    assert [difference for difference in result.differences if not difference.why] == []


def test_a_batch_script_changes_in_its_launch_line_alone() -> None:
    result = migrated(JOB)
    before, after = JOB.splitlines(), str(result.text).splitlines()
    assert after[:6] == before[:6]
    assert after[6:] == [
        "    --dataset squad \\",
        "    --step_func gpt_step \\",
        "    '++dataset.offline_packing_specs.pad_seq_to_mult=4' \\",
        "    model.context_parallel_size=2 ++dataset.enable_offline_packing=true",
        "echo done",
    ]
    assert {change.line for change in result.changes if change.line} == {7, 8, 9}


def test_flags_without_a_successor_are_listed_with_what_to_do() -> None:
    result = migrated(f"{OLD} --peft_scheme lora --hf_path /models/llama")
    assert [item.what for item in result.manual] == ["--peft_scheme", "--hf_path"]
    assert "--mode lora" in result.manual[0].do
    assert "--peft_scheme lora --hf_path /models/llama" in str(result.text)


def test_a_recipe_that_is_gone_is_listed() -> None:
    result = migrated("torchrun --nproc_per_node 8 run_recipe.py --recipe qwen2_audio_7b_finetune_config")
    assert "no recipe qwen2_audio_7b_finetune_config" in result.manual[0].reason


def test_expert_tensor_parallelism_is_pinned_behind_the_line() -> None:
    line = f"{OLD} model.tensor_model_parallel_size=4 model.expert_model_parallel_size=2"
    result = migrated(line)
    assert str(result.text).rstrip("\n") == f"{line} ++model.expert_tensor_parallel_size=4"
    unset = migrated(f"{line} model.expert_tensor_parallel_size=null")
    assert str(unset.text).rstrip("\n") == f"{line} model.expert_tensor_parallel_size=4"
