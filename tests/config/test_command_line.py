"""Launch lines and batch scripts: flags by release, overrides, ranks, environment, and Slurm tasks against torchrun."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skill_run.bridge.release import known_releases
from skill_run.config.command_line import load_flags, read_command, read_sbatch
from skill_run.config.model import Location, Source, Unknown
from skill_run.config.read import form_of_text, read_config_text
from skill_run.errors import InputError

DATA = Path(__file__).parent / "data"
FLAGS = load_flags()
UNKNOWN = object()
RECIPE = "llama32_1b_sft_config"


def command(text: str, version: str | None = None) -> Source:
    return read_command(text, flags_by_version=FLAGS, version=version)


def script(text: str, version: str | None = None) -> Source:
    return read_sbatch(text, name="job.sbatch", flags_by_version=FLAGS, version=version)


def values(source: Source) -> dict[str, object]:
    """Return the last value by path, with UNKNOWN for those that cannot be told."""
    return {a.path: UNKNOWN if isinstance(a.value, Unknown) else a.value for a in source.assignments}


def rules(source: Source) -> list[str]:
    return [remark.rule for remark in source.remarks]


def test_tables_cover_every_recorded_release() -> None:
    assert tuple(FLAGS) == known_releases()
    assert all("--recipe" in table for table in FLAGS.values())


def test_torchrun_line_gives_recipe_flags_overrides_and_world_size() -> None:
    source = command(
        f"torchrun --nproc_per_node 8 --nnodes=2 scripts/training/run_recipe.py --recipe {RECIPE} -cp 2 --lr 1e-5 "
        "dataset.seq_length=8192 'dataset.blend=[[/data/a],null]' +model.x=1"
    )
    assert source.form == "command"
    assert source.recipe == RECIPE
    assert source.script == "scripts/training/run_recipe.py"
    assert source.world_size == 16
    assert (source.base_unknown, source.env, source.remarks) == (None, None, [])
    assert [(a.path, a.value, a.operation) for a in source.assignments] == [
        ("model.context_parallel_size", 2, "set"),
        ("optimizer.lr", 1e-5, "set"),
        ("dataset.seq_length", 8192, "override"),
        ("dataset.blend", [["/data/a"], None], "override"),
        ("model.x", 1, "add"),
    ]
    assert source.assignments[0].location == Location(column=8)
    assert source.override_tokens == ["dataset.seq_length=8192", "dataset.blend=[[/data/a],null]", "+model.x=1"]
    assert (">=0.6", "flag -cp is known from 0.6 on") in source.bridge_hints


@pytest.mark.parametrize(
    ("line", "ranks"),
    [
        ("torchrun --standalone --nproc-per-node=4 run_recipe.py --recipe r", 4),
        ("torchrun run_recipe.py --recipe r", 1),
        ("python -m torch.distributed.run --nproc_per_node 8 run_recipe.py --recipe r", 8),
        ("uv run --no-sync python -u -m torch.distributed.run --nproc_per_node=2 run_recipe.py --recipe r", 2),
        ("torchrun --nnodes=2:2 --nproc_per_node=8 run_recipe.py --recipe r", 16),
        ("srun -N 2 --ntasks-per-node=8 python run_recipe.py --recipe r", 16),
        ("srun -n16 python3.12 run_recipe.py --recipe r", 16),
        ("srun --nodes=1 bash -c 'torchrun --nproc_per_node=8 run_recipe.py --recipe r'", 8),
        ("WORLD_SIZE=4 RANK=0 python run_recipe.py --recipe r", 4),
        ("env WORLD_SIZE=4 python run_recipe.py --recipe r", 4),
        ("python run_recipe.py --recipe r", None),
        ("torchrun --nproc_per_node=gpu run_recipe.py --recipe r", UNKNOWN),
        ("torchrun --nproc_per_node=$N run_recipe.py --recipe r", UNKNOWN),
        ("torchrun --nnodes=1:4 --nproc_per_node=8 run_recipe.py --recipe r", UNKNOWN),
        ("srun python run_recipe.py --recipe r", UNKNOWN),
    ],
)
def test_world_size_follows_the_launcher(line: str, ranks: object) -> None:
    found = command(line).world_size
    assert (UNKNOWN if isinstance(found, Unknown) else found) == ranks


def test_environment_before_the_command_is_kept() -> None:
    source = command("A=1 B='x y' C=$HOME torchrun run_recipe.py --recipe r")
    assert source.env == {"A": "1", "B": "x y"}


def test_model_selector_names_the_recipe_of_its_mode() -> None:
    assert command("torchrun run_recipe.py --model gpt_oss_20b --mode sft").recipe == "gpt_oss_20b_sft_config"
    assert command("torchrun run_recipe.py --model gpt_oss_20b --mode dora").recipe == "gpt_oss_20b_peft_config"
    assert command("torchrun run_recipe.py --model gpt_oss_20b").recipe is None


def test_newest_published_release_that_knows_all_flags_is_used() -> None:
    assert command(f"torchrun run_recipe.py --recipe {RECIPE} --step-func llm_step --dry-run").remarks == []
    old = command(f"torchrun run_recipe.py --recipe {RECIPE} --mode finetune")
    assert old.remarks == []
    assert ("<0.4", "flag --mode finetune is known only before 0.4") in old.bridge_hints
    middle = command(f"torchrun run_recipe.py --recipe {RECIPE} --dataset llm-finetune --packed_sequence")
    assert [hint for hint, _ in middle.bridge_hints] == [">=0.4,<0.6", "<0.6"]


def test_flag_that_the_release_does_not_know_is_remarked() -> None:
    source = command(f"torchrun run_recipe.py --recipe {RECIPE} -cp 2 model.seq_length=1", "0.5.1")
    assert rules(source) == ["unknown-flag"]
    assert "releases that do: 0.6.2" in source.remarks[0].message
    assert source.remarks[0].location == Location(column=5)
    assert values(source) == {"model.seq_length": 1}


def test_old_launchers_take_the_beginning_of_a_flag_and_new_ones_do_not() -> None:
    line = f"torchrun run_recipe.py --recipe {RECIPE} --step gpt"
    assert rules(command(line, "0.5.1")) == []
    assert rules(command(line, "0.6.2")) == ["unknown-flag"]


@pytest.mark.parametrize(
    ("version", "flags"),
    [("0.3.1", ""), ("0.4.2", ""), ("0.5.1", "--dataset llm-finetune-preloaded"), ("0.5.1", "")],
)
def test_packing_flag_that_reaches_nothing_is_remarked(version: str, flags: str) -> None:
    source = command(f"torchrun run_recipe.py --recipe {RECIPE} --packed_sequence {flags}", version)
    (remark,) = [r for r in source.remarks if r.rule == "packing-flag-had-no-effect"]
    assert remark.fields == ("dataset.packed_sequence_specs",)


def test_packing_flag_given_to_a_recipe_that_takes_it_makes_the_base_unknown() -> None:
    source = command("torchrun run_recipe.py --recipe qwen3_vl_8b_finetune_config --packed_sequence", "0.3.1")
    assert source.remarks == []
    assert source.recipe is None
    assert source.base_unknown is not None


def test_finetune_preset_without_the_packing_flag_drops_the_recipes_packing() -> None:
    source = command(f"torchrun run_recipe.py --recipe {RECIPE} --dataset llm-finetune", "0.5.1")
    assert rules(source) == ["dataset-flag-drops-packing"]
    assert values(source) == {
        "dataset": {"_target_": "HFDatasetConfig"},
        # The preset takes the recipe's model.seq_length.
        "dataset.seq_length": 4096,
        "dataset.dataloader_type": "batch",
        "dataset.packed_sequence_specs": None,
        "dataset.dataset_name": "squad",
    }


def test_finetune_preset_with_the_packing_flag_packs_with_multiple_one() -> None:
    source = command(
        f"torchrun run_recipe.py --recipe {RECIPE} --dataset llm-finetune --packed_sequence --seq_length 2048 "
        "dataset.dataset_name=gsm8k model.context_parallel_size=2",
        "0.4.2",
    )
    assert source.remarks == []
    assert values(source) == {
        "dataset": {"_target_": "HFDatasetConfig"},
        "dataset.seq_length": 2048,
        "dataset.dataloader_type": "batch",
        "dataset.packed_sequence_specs._target_": "PackedSequenceSpecs",
        "dataset.packed_sequence_specs.packed_sequence_size": 2048,
        "dataset.packed_sequence_specs.pad_seq_to_mult": 1,
        "dataset.dataset_kwargs.pad_to_max_length": True,
        "dataset.dataset_name": "gsm8k",
        "model.seq_length": 2048,
        "model.context_parallel_size": 2,
    }


def test_new_preset_drops_packing_unless_the_switch_is_given() -> None:
    recipe = "llama32_1b_sft_1gpu_h100_bf16_config"
    line = f"torchrun run_recipe.py --recipe {recipe} --mode sft --dataset squad"
    dropped = command(line, "0.6.2")
    assert rules(dropped) == ["dataset-flag-drops-packing"]
    assert dropped.remarks[0].fix == {"dataset.enable_offline_packing": True}
    kept = command(f"{line} dataset.enable_offline_packing=true", "0.6.2")
    assert kept.remarks == []
    assert values(kept)["dataset.enable_offline_packing"] is True


def test_sequence_length_flag_that_reaches_nothing_is_remarked() -> None:
    source = command(f"torchrun run_recipe.py --recipe {RECIPE} --seq_length 8192", "0.4.2")
    assert rules(source) == ["ignored-flag"]
    assert source.assignments == []


def test_own_script_is_named_and_its_overrides_are_kept() -> None:
    source = command("torchrun --nproc_per_node=2 sft.py --data /d lr=3 train.train_iters=5 http://x?a=b")
    assert source.script == "sft.py"
    assert source.base_unknown == "sft.py builds the config; validate that file too"
    assert values(source) == {"train.train_iters": 5}


def test_override_with_an_unknown_variable_is_unknown() -> None:
    source = command(f"torchrun run_recipe.py --recipe {RECIPE} dataset.dataset_root=$DATA/sft -gb $GBS")
    assert values(source) == {"dataset.dataset_root": UNKNOWN, "train.global_batch_size": UNKNOWN}
    assert source.recipe == RECIPE


@pytest.mark.parametrize("words", ["$EXTRA", '"$@"', "${ARGS[@]}"])
def test_words_that_may_hold_anything_make_the_base_unknown(words: str) -> None:
    source = command(f"torchrun run_recipe.py --recipe {RECIPE} {words} model.seq_length=1")
    assert source.recipe is None
    assert source.base_unknown is not None
    assert "may hold any flag or override" in source.base_unknown
    assert values(source) == {"model.seq_length": 1}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("echo hello", "no command that starts a training"),
        ("", "no command that starts a training"),
        ("torchrun --nproc_per_node 8", "no command that starts a training"),
        ("python -c 'print(1)'", "no command that starts a training"),
        ("torchrun 'run_recipe.py", "not closed"),
        ("torchrun run_recipe.py --recipe", "--recipe needs a value"),
        ("torchrun run_recipe.py --recipe r -cp two", "-cp needs a whole number, not 'two'"),
        ("torchrun run_recipe.py --recipe r --lr fast", "--lr needs a number"),
        ("torchrun run_recipe.py --recipe r foo", "word 5: override 'foo' has no '='"),
        ("torchrun run_recipe.py --recipe r a.b=1,2", "sweep"),
        ("torchrun run_recipe.py --recipe r --dataset nothing", "nothing is not a dataset"),
        ("torchrun run_recipe.py --recipe r a=\0", "NUL"),
        ("torchrun " + "${A:-" * 5_000, "not closed"),
        ("torchrun x.py " + "${A:-" * 40 + "}" * 40, "nested deeper"),
    ],
)
def test_line_that_cannot_be_read_is_an_input_error(line: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        command(line)
    assert "\n" not in str(error.value)


# Batch scripts


def test_srun_native_script_counts_slurm_tasks() -> None:
    source = script((DATA / "srun_native.sbatch").read_text("utf-8"))
    assert source.form == "sbatch"
    assert source.world_size == 16
    assert source.remarks == []
    assert source.script == "$SHARED/packed_sft_cp2_v06.py"
    assert source.env == {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",
        "NCCL_NVLS_ENABLE": "0",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    }


def test_torchrun_inside_srun_with_one_task_a_node_is_fine() -> None:
    source = script((DATA / "torchrun_in_srun.sbatch").read_text("utf-8"))
    assert source.world_size == 16
    assert source.remarks == []
    assert source.base_unknown == "packed_sft_cp2_v06.py builds the config; validate that file too"


def test_tasks_that_each_start_torchrun_are_remarked() -> None:
    source = script((DATA / "tasks_start_torchrun.sh").read_text("utf-8"))
    assert source.recipe == RECIPE
    assert source.world_size == 16
    assert values(source) == {"train.train_iters": 1000, "optimizer.lr": 0.0002}
    assert source.env == {
        "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",
        "NCCL_NVLS_ENABLE": "0",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    }
    (remark,) = source.remarks
    assert remark.rule == "slurm-tasks-start-torchrun"
    assert "8 tasks on each node" in remark.message
    assert remark.location == Location("job.sbatch", 41, 17)


def test_torchrun_on_several_nodes_without_nnodes_is_remarked() -> None:
    source = script("#SBATCH -N 2\nsrun torchrun --nproc_per_node=8 run_recipe.py --recipe r\n")
    assert rules(source) == ["torchrun-without-nnodes"]
    assert source.world_size == 8


@pytest.mark.parametrize(
    ("directives", "ranks"),
    [
        ("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4", 8),
        ("#SBATCH -N 3", 3),
        ("#SBATCH --ntasks=6", 6),
        ("#SBATCH -n 6 -N 2", 6),
        ("", 1),
    ],
)
def test_tasks_of_a_job_come_from_its_directives(directives: str, ranks: int) -> None:
    assert script(f"#!/bin/bash\n{directives}\nsrun python run_recipe.py --recipe r\n").world_size == ranks


def test_gpu_request_tells_torchrun_how_many_processes_gpu_means() -> None:
    text = "#SBATCH --gres=gpu:h100:4\nsrun torchrun --nnodes=1 --nproc_per_node=gpu run_recipe.py --recipe r\n"
    assert script(text).world_size == 4


def test_location_is_the_line_of_the_script() -> None:
    source = script(
        f"#!/bin/bash\ntorchrun \\\n  run_recipe.py --recipe {RECIPE} \\\n  -cp 2 \\\n  model.seq_length=1\n"
    )
    assert [str(a.location) for a in source.assignments] == ["job.sbatch:4:3", "job.sbatch:5:3"]


@pytest.mark.parametrize(
    ("lines", "value"),
    [
        ("CP=2", 2),
        ("CP=2; CP=4", 4),
        ("CP=${CP:-8}", 8),
        ("export CP=2", 2),
        ("if [ -z '' ]; then CP=2; else CP=4; fi", 2),
        ("if [ 3 -gt 2 ]; then CP=2; fi", 2),
        ("CP=2\n[ x = y ] && CP=4", 2),
        ("CP=2\nif true; then\nCP=2\nfi", 2),
        ("CP=2\nif nvidia-smi; then CP=4; fi", UNKNOWN),
        ("CP=2\nfor i in 1 2; do CP=$i; done", UNKNOWN),
        ("CP=$(nproc)", UNKNOWN),
        ("CP=`nproc`", UNKNOWN),
        ("CP=$1", UNKNOWN),
        ("case $X in a) CP=2;; esac", UNKNOWN),
        ("f() {\nCP=2\n}", UNKNOWN),
        ("read CP", UNKNOWN),
    ],
)
def test_shell_variable_is_substituted_when_its_value_is_sure(lines: str, value: object) -> None:
    source = script(f"{lines}\ntorchrun run_recipe.py --recipe r model.context_parallel_size=$CP\n")
    assert values(source) == {"model.context_parallel_size": value}


def test_arrays_and_split_variables_become_words() -> None:
    source = script(
        f"""
ARGS=(
  --recipe {RECIPE}   # the model
  -tp 2
  "dataset.name=two words"
)
ARGS+=(-cp 4)
MORE="train.train_iters=5 train.micro_batch_size=1"
torchrun run_recipe.py "${{ARGS[@]}}" $MORE 'model.x=$Y'
"""
    )
    assert source.recipe == RECIPE
    assert values(source) == {
        "model.tensor_model_parallel_size": 2,
        "model.context_parallel_size": 4,
        "dataset.name": "two words",
        "train.train_iters": 5,
        "train.micro_batch_size": 1,
        "model.x": "$Y",
    }


def test_training_is_found_after_data_preparation() -> None:
    source = script(
        f"""
cd /repo && python prepare.py --out /data
echo "python run_recipe.py --recipe wrong"
cat <<EOF > note.txt
torchrun run_recipe.py --recipe wrong
EOF
torchrun --nproc_per_node=8 run_recipe.py --recipe {RECIPE} > log.txt 2>&1 || exit 1
python report.py
"""
    )
    assert source.recipe == RECIPE
    assert source.world_size == 8


WORDS = st.sampled_from(
    [
        *(
            "torchrun ",
            "run_recipe.py ",
            "--recipe ",
            "r ",
            "-cp ",
            "2 ",
            "a.b=1 ",
            "$X ",
            "${X:-1}",
            "'",
            '"',
            "`",
            "$(",
        ),
        *(
            ")",
            "{ ",
            "} ",
            "if ",
            "then ",
            "fi ",
            "for ",
            "do ",
            "done ",
            "case ",
            "esac ",
            "; ",
            "&& ",
            "|| ",
            "| ",
            "\n",
        ),
        *(
            "A=1 ",
            "A+=(",
            "export ",
            "#",
            "\\",
            "srun ",
            "-n ",
            "bash -c ",
            "<<E ",
            "> ",
            "[ ",
            "] ",
            "!",
            "#SBATCH -N 2\n",
        ),
    ]
)


@given(st.text(max_size=200) | st.lists(WORDS, max_size=25).map("".join))
@settings(deadline=None, derandomize=True, max_examples=150)
def test_arbitrary_text_gives_a_source_or_an_input_error(text: str) -> None:
    for read in (command, script):
        with contextlib.suppress(InputError):
            assert read(text).script
        with contextlib.suppress(InputError):
            assert read(text + "\ntorchrun run_recipe.py --recipe r").script


SUBMITTED = (
    "scripts/training/train.sh --wait --nodes 2 --gpus-per-node 4 --account a --additional-slurm-params 'qos=x;y=z' "
    "--recipe qwen3_8b_sft_config --mode sft --context_parallel_size 2 train.micro_batch_size=1"
)


@pytest.mark.parametrize(
    "line", [SUBMITTED, f"./{SUBMITTED}", f"bash {SUBMITTED}", SUBMITTED.replace("train.sh", "setup_experiment.py")]
)
def test_a_line_through_train_sh_is_a_launch_of_run_recipe(line: str) -> None:
    source = read_config_text(line, name="<text>", form=form_of_text(line))
    assert source.form == "command"
    assert (source.recipe, source.world_size) == ("qwen3_8b_sft_config", 8)
    assert values(source) == {"model.context_parallel_size": 2, "train.micro_batch_size": 1}
    assert source.remarks == []
    assert (">=0.6.dev0", "train.sh is there from 0.6 on") in source.bridge_hints


def test_words_of_a_line_through_train_sh_keep_their_places() -> None:
    source = command("train.sh --nodes 1 --gpus-per-node 8 --recipe x_config --typo --wait model.seq_length=8", "0.6.2")
    assert [remark.location for remark in source.remarks] == [Location(column=8)]
    assert [assignment.location for assignment in source.assignments] == [Location(column=10)]


def test_train_sh_without_gpus_does_not_tell_the_world_size() -> None:
    assert command("train.sh --nodes 2 --recipe x_config").world_size is None
