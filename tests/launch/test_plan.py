"""Plans of runs on GPUs: golden texts, what is loaded and saved, and what refuses."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from skill_run.errors import InputError
from skill_run.jobs.model import Plan
from skill_run.launch.refuse import RefusedLaunch
from skill_run.launch.render import render_plan

from .conftest import CONFIG, JOB, PlanOf

GOLDEN = Path(__file__).parent / "golden"
CLUSTER = {"engine": "slurm", "nodes": 2, "time": "04:00:00", "folder": "/shared/runs", "account": "team"}
CASES: dict[str, dict[str, Any]] = {
    "one-node": {"folder": "/shared/runs", "python": "/opt/venv/bin/python"},
    "two-nodes-srun": {
        **CLUSTER,
        "requeue": True,
        "container_image": "/images/nemo.sqsh",
        "container_mounts": ("/data:/data", "/ckpt:/ckpt"),
    },
    "two-nodes-torchrun": {**CLUSTER, "launcher": "torchrun", "python": "/opt/venv/bin/python"},
}


@pytest.mark.parametrize("case", list(CASES))
def test_the_plan_of_a_gpu_run_is_the_golden_one(plan_of: PlanOf, case: str) -> None:
    plan = plan_of(**CASES[case])
    # Whether a folder is shared depends on the machine that plans.
    plan.extra["warnings"].clear()  # type: ignore[union-attr]
    assert render_plan(plan) + "\n" == (GOLDEN / f"{case}.txt").read_text("utf-8")


@pytest.mark.parametrize("case", ["two-nodes-srun", "two-nodes-torchrun"])
def test_a_batch_script_is_right_for_bash(plan_of: PlanOf, tmp_path: Path, case: str) -> None:
    script = tmp_path / "job.sbatch"
    script.write_text(plan_of(**CASES[case]).files["job.sbatch"], "utf-8")
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def run_of(plan: Plan) -> dict[str, Any]:
    found = json.loads(plan.files["run.json"])
    assert isinstance(found, dict)
    return found


def test_no_checkpoint_is_loaded_unless_resuming_is_asked_for(plan_of: PlanOf) -> None:
    plan = plan_of(CONFIG, "checkpoint.load=/old/checkpoints")
    assert run_of(plan)["resume"] is None
    assert any("/old/checkpoints" in note and "not used" in note for note in plan.extra["notes"])


def test_resuming_names_the_step_and_is_what_the_entry_script_loads(plan_of: PlanOf, tmp_path: Path) -> None:
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("120\n", "ascii")
    plan = plan_of(resume=str(tmp_path))
    assert plan.resumes_from == f"{tmp_path} (step 120)"
    assert run_of(plan)["resume"] == str(tmp_path)


def test_a_folder_without_a_checkpoint_cannot_be_resumed_from(plan_of: PlanOf, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no checkpoint to resume from"):
        plan_of(resume=str(tmp_path))


def test_a_save_folder_that_holds_a_checkpoint_is_refused(plan_of: PlanOf, tmp_path: Path) -> None:
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("7", "ascii")
    with pytest.raises(InputError, match="holds a checkpoint of step 7"):
        plan_of(CONFIG, f"checkpoint.save={tmp_path}")


def test_fine_tuning_without_a_checkpoint_is_refused_unless_it_is_meant(plan_of: PlanOf) -> None:
    bare = CONFIG.replace("checkpoint: {pretrained_checkpoint: /ckpt/llama32-1b}\n", "")
    with pytest.raises((InputError, RefusedLaunch), match="pretrained"):
        plan_of(bare)
    assert run_of(plan_of(from_scratch=True))["function"] == "pretrain"
    assert run_of(plan_of())["function"] == "finetune"


def test_a_corruption_refuses_and_can_be_accepted_by_name_with_who_and_when(plan_of: PlanOf) -> None:
    broken = CONFIG.replace("pad_seq_to_mult: 4", "pad_seq_to_mult: 1")
    with pytest.raises(RefusedLaunch, match="offline-pad-multiple-covers-cp") as refused:
        plan_of(broken)
    rules = tuple({finding.rule for finding in refused.value.report.at_least("corruption")})
    plan = plan_of(broken, allow=rules)
    assert [each.rule for each in plan.allowed] == sorted(rules)
    assert all(each.by and each.at for each in plan.allowed)


def test_a_rule_that_found_nothing_cannot_be_accepted(plan_of: PlanOf) -> None:
    with pytest.raises(InputError, match="does not stand against the launch"):
        plan_of(allow=("offline-pad-multiple-covers-cp",))


def test_fixes_become_settings_of_the_plan_with_their_rule(plan_of: PlanOf) -> None:
    plan = plan_of(CONFIG.replace("pad_seq_to_mult: 4", "pad_seq_to_mult: 1"), fix=True)
    setting = next(each for each in plan.extra["settings"] if each["field"].endswith("pad_seq_to_mult"))
    assert (setting["value"], setting["old"]) == (4, 1)
    assert "offline-pad-multiple-covers-cp" in setting["why"]
    assert setting in run_of(plan)["settings"]


def test_ranks_that_do_not_hold_a_model_copy_are_refused(plan_of: PlanOf) -> None:
    with pytest.raises((InputError, RefusedLaunch), match=r"multiple of 4|6 ranks"):
        plan_of(ranks_per_node=6)


def test_a_value_that_only_code_knows_is_asked_for_as_an_override(plan_of: PlanOf, tmp_path: Path) -> None:
    code = (
        "import argparse\n"
        "from megatron.bridge.recipes.llama.h100.llama3 import llama32_1b_sft_1gpu_h100_bf16_config\n"
        "args = argparse.ArgumentParser().parse_args()\n"
        "cfg = llama32_1b_sft_1gpu_h100_bf16_config()\n"
        "cfg.train.train_iters = args.iters\n"
        "cfg.checkpoint.pretrained_checkpoint = '/ckpt/a'\n"
    )
    with pytest.raises(InputError, match=r"train\.train_iters .* read, never run; .*train\.train_iters=\.\.\."):
        plan_of(code, recipe=None)
    assert plan_of(code, "train.train_iters=5", recipe=None).files["overrides.json"] == '[\n "train.train_iters=5"\n]\n'


def test_data_that_are_packed_already_are_not_packed_again(plan_of: PlanOf) -> None:
    ready = CONFIG.replace("pad_seq_to_mult: 4}", "pad_seq_to_mult: 4, packed_train_data_path: /data/a.parquet}")
    plan = plan_of(ready)
    assert [step[1] for step in plan.extra["steps"]] == ["-m"]
    assert json.loads(plan.files["commands.json"]) == plan.extra["steps"]
    assert len(plan_of().extra["steps"]) == 2


def test_every_variable_has_a_reason_and_the_users_own_comes_first(plan_of: PlanOf) -> None:
    plan = plan_of(env={"NCCL_NVLS_ENABLE": "1", "NCCL_DEBUG": "INFO"})
    assert all(each.reason for each in plan.environment.values())
    assert plan.environment["NCCL_NVLS_ENABLE"].value == "1"
    assert plan.environment["NCCL_DEBUG"].reason == "given by the user"


def test_the_same_inputs_give_the_same_digest_and_others_another(plan_of: PlanOf) -> None:
    assert plan_of().digest() == plan_of().digest()
    assert plan_of().digest() != plan_of(CONFIG, "train.train_iters=5").digest()
    assert plan_of().id == JOB


@pytest.mark.parametrize("case", list(CASES))
def test_the_guide_explains_the_plan_that_the_tool_prints(case: str) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "training" / "launch.md").read_text("utf-8")
    assert f"```text\n{(GOLDEN / f'{case}.txt').read_text('utf-8')}```\n" in guide
