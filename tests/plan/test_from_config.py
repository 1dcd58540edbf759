"""Layout and run from a config's fields, and back."""

from __future__ import annotations

import pytest

from skill_run.bridge.recipes import catalogue
from skill_run.plan.config_fields import layout_fields, recompute_fields
from skill_run.plan.from_config import layout_from, run_from
from skill_run.plan.layout import Layout, Run


def test_a_recipe_tells_its_layout_and_run() -> None:
    values = catalogue("0.6.2")["nemotron_3_super_sft_16gpu_h100_bf16_32k_config"].values
    layout, run = layout_from(values), run_from(values, bridge="0.6.2")
    assert (layout.pp, layout.cp, layout.ep, layout.cp_comm_type, layout.sp) == (8, 2, 2, "a2a", False)
    assert (run.micro_batch_size, run.global_batch_size, run.mtp_layers, run.packed) == (1, 2, 2, True)


@pytest.mark.parametrize("name", ["0.3.1", "0.4.2", "0.5.1", "0.6.2", "0.7.0.dev0"])
def test_every_recorded_recipe_can_be_read(name: str) -> None:
    for recipe in catalogue(name).values():
        assert layout_from(recipe.values).ranks >= 1
        assert run_from(recipe.values).micro_batch_size >= 1


def test_a_layout_comes_back_from_its_fields() -> None:
    for layout in (
        Layout(tp=4, pp=2, vpp=5, cp=2, sp=True, cp_comm_type="a2a"),
        Layout(cp=16, cp_comm_type="a2a+p2p", hierarchical_sizes=(8, 2)),
        Layout(ep=8, pp=2, last_stage_layers=3),
    ):
        assert layout_from(layout_fields(layout)) == layout


def test_recompute_comes_back_from_its_fields() -> None:
    full = Run(0, recompute="full", recompute_method="uniform", recompute_num_layers=2, packed=False)
    assert run_from(recompute_fields(full)) == full
    selective = Run(0, recompute="selective", recompute_modules=("mlp",), packed=False)
    assert run_from(recompute_fields(selective)) == selective


def test_bytes_of_the_optimizer_follow_its_precision() -> None:
    aware = {
        "optimizer.use_precision_aware_optimizer": True,
        "optimizer.main_params_dtype": "torch.float16",
        "optimizer.exp_avg_dtype": "bfloat16",
        "ddp.grad_reduce_in_fp32": False,
        "optimizer.optimizer_cpu_offload": True,
        "optimizer.optimizer_offload_fraction": 0.75,
        "mixed_precision": "bf16_with_mxfp8_mixed",
    }
    run = run_from(aware)
    assert (run.main_bytes, run.moment_bytes, run.grad_bytes, run.optimizer_offload) == (2, 2, 2, 0.75)
    assert run.precision == "fp8"
    plain = run_from(
        {**aware, "optimizer.use_precision_aware_optimizer": False, "optimizer.optimizer_cpu_offload": False}
    )
    assert (plain.main_bytes, plain.moment_bytes, plain.optimizer_offload) == (4, 4, 0.0)


def test_an_unset_expert_tensor_size_is_one_with_expert_parallelism_and_tp_without() -> None:
    assert layout_from({"model.tensor_model_parallel_size": 4, "model.expert_model_parallel_size": 8}).etp == 1
    assert layout_from({"model.tensor_model_parallel_size": 4}).etp == 4
