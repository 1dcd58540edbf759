"""Remedies: each lowers the memory alone, all together lower it most, and each says which fields to set."""

from __future__ import annotations

from skill_run.bridge.release import load_release, newest_release
from skill_run.plan.layout import Layout, Run
from skill_run.plan.memory import estimate_memory
from skill_run.plan.remedies import remedies
from skill_run.plan.shape import shape_of

SUPER = shape_of("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16")
LAYOUT = Layout(pp=8, cp=2, ep=2, cp_comm_type="a2a")


def test_every_remedy_lowers_the_memory_and_all_together_lower_it_most() -> None:
    run = Run(32768, global_batch_size=2)
    before = estimate_memory(SUPER, LAYOUT, run, world_size=16, gpu="h100").total
    totals = [item.estimate.total for item in remedies(SUPER, LAYOUT, run, world_size=16, gpu="h100")]
    assert len(totals) == 5
    assert max(totals) < before
    assert totals[-1] == min(totals)


def test_remedies_name_fields_that_the_release_has() -> None:
    names = set(load_release(newest_release()).written_names())
    for item in remedies(SUPER, LAYOUT, Run(32768), world_size=16, gpu="h100"):
        assert set(item.to_dict()["fields"]) <= names


def test_adapters_and_what_is_done_already_leave_nothing_but_recompute() -> None:
    lora = remedies(SUPER, LAYOUT, Run(32768, peft="lora"), world_size=16, gpu="h100")
    assert [list(item.fields) for item in lora] == [
        ["model.recompute_granularity", "model.recompute_method", "model.recompute_num_layers"]
    ]
    done = Run(32768, recompute="full", grad_bytes=2, moment_bytes=2, optimizer_offload=1.0)
    assert remedies(SUPER, LAYOUT, done, world_size=16, gpu="h100") == ()
