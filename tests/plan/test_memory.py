"""Memory per GPU: published runs fit, what upstream had to change does not, and every part follows its cause."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from skill_run.bridge.release import index
from skill_run.errors import InputError
from skill_run.plan.layout import Layout, Run
from skill_run.plan.memory import GIB, MemoryEstimate, estimate_memory, gpu_memory
from skill_run.plan.shape import shape_of

PUBLISHED: dict[str, list[dict[str, Any]]] = yaml.safe_load(
    (Path(__file__).parent / "data" / "published_long_context.yaml").read_text("utf-8")
)
LLAMA = shape_of("meta-llama/Meta-Llama-3-8B")


def estimate(layout: Layout | None = None, model: str = LLAMA.name, world: int = 8, **run: Any) -> MemoryEstimate:
    fields = {"tokens_per_row": 8192, **run}
    return estimate_memory(shape_of(model), layout or Layout(), Run(**fields), world_size=world, gpu="h100")


def rows(group: str) -> list[Any]:
    return [pytest.param(row, id=row["id"]) for row in PUBLISHED[group]]


def estimate_of(row: dict[str, Any], **changes: Any) -> MemoryEstimate:
    fields = {key: tuple(value) if isinstance(value, list) else value for key, value in row["run"].items()}
    run = Run(**{**fields, **changes})
    return estimate_memory(shape_of(row["model"]), Layout(**row["layout"]), run, world_size=row["gpus"], gpu=row["gpu"])


@pytest.mark.parametrize("row", rows("ran"))
def test_a_run_that_upstream_finished_fits_its_gpus(row: dict[str, Any]) -> None:
    found = estimate_of(row)
    assert found.fits, found.to_dict()


@pytest.mark.parametrize("row", rows("shipped"))
def test_a_shipped_long_recipe_fits_its_gpus(row: dict[str, Any]) -> None:
    assert estimate_of(row).fits


@pytest.mark.parametrize("row", rows("changed"))
def test_a_layout_that_upstream_had_to_change_for_longer_rows_does_not_fit(row: dict[str, Any]) -> None:
    assert not estimate_of(row).fits


@pytest.mark.parametrize("row", rows("shipped_too_large"))
def test_a_shipped_recipe_without_a_published_run_needs_several_times_what_its_gpus_have(row: dict[str, Any]) -> None:
    found = estimate_of(row)
    assert found.total > 5 * found.budget


@pytest.mark.parametrize("row", rows("changed_for_speed"))
def test_a_change_that_memory_did_not_force_was_made_where_activations_had_grown_fourfold(row: dict[str, Any]) -> None:
    short, found = estimate_of(row, tokens_per_row=row["run"]["tokens_per_row"] // 4), estimate_of(row)
    assert found.fits
    assert found.activations + found.working + found.logits > 3.9 * (short.activations + short.working + short.logits)


def test_model_states_are_eighteen_bytes_without_sharding_and_six_and_a_share_with_it() -> None:
    alone = estimate(distributed_optimizer=False)
    parameters = LLAMA.parameters.total
    assert alone.weights + alone.gradients + alone.optimizer == pytest.approx(18 * parameters)
    shared = estimate(world=64)
    assert shared.weights + shared.gradients + shared.optimizer == pytest.approx((6 + 12 / 64) * parameters)


def test_context_parallel_ranks_share_the_optimizer_state() -> None:
    assert estimate(Layout(cp=8)).optimizer == estimate().optimizer


def test_experts_are_shared_by_the_ranks_that_hold_the_same_ones() -> None:
    one = estimate(Layout(ep=8), model="Qwen/Qwen3-30B-A3B", world=8)
    two = estimate(Layout(ep=8), model="Qwen/Qwen3-30B-A3B", world=16)
    experts = shape_of("Qwen/Qwen3-30B-A3B").parameters.experts
    dense = shape_of("Qwen/Qwen3-30B-A3B").parameters.total - experts
    assert one.optimizer == pytest.approx(12 * (experts / 8 + dense / 8), rel=1e-3)
    assert two.optimizer == pytest.approx(12 * (experts / 16 + dense / 16), rel=1e-3)


def test_adapters_leave_two_bytes_for_each_frozen_weight() -> None:
    found = estimate(peft="lora")
    assert found.weights == pytest.approx(2 * LLAMA.parameters.total, rel=0.02)
    assert found.gradients + found.optimizer < 0.03 * found.weights * 8


def test_dora_holds_a_little_more_than_lora() -> None:
    lora, dora = estimate(peft="lora"), estimate(peft="dora")
    assert lora.weights < dora.weights < 1.01 * lora.weights


def test_a_frozen_language_model_has_weights_only() -> None:
    found = estimate(frozen=True)
    assert (found.gradients, found.optimizer) == (0, 0)


@pytest.mark.parametrize(
    ("field", "value", "part", "ratio"),
    [
        ("grad_bytes", 2, "gradients", 0.5),
        ("moment_bytes", 2, "optimizer", 8 / 12),
        ("main_bytes", 2, "optimizer", 10 / 12),
        ("optimizer", "muon", "optimizer", 8 / 12),
        ("optimizer_offload", 0.75, "optimizer", 0.25),
        ("fp8_params", True, "weights", 0.5),
    ],
)
def test_smaller_states_shrink_their_part_alone(field: str, value: Any, part: str, ratio: float) -> None:
    before, after = estimate(), estimate(**{field: value})
    assert after.parts[part] == pytest.approx(ratio * before.parts[part])
    others = [name for name in before.parts if name not in (part, "reserve")]
    assert [after.parts[name] for name in others] == [before.parts[name] for name in others]


def test_activations_grow_with_the_row_and_shrink_with_every_kind_of_parallelism() -> None:
    one = estimate().activations
    assert estimate(tokens_per_row=16384).activations == pytest.approx(2 * one)
    assert estimate(micro_batch_size=2).activations == pytest.approx(2 * one)
    assert estimate(Layout(cp=2)).activations == pytest.approx(one / 2)
    assert estimate(Layout(tp=2, sp=True)).activations == pytest.approx(one / 2)
    assert one / 2 < estimate(Layout(tp=2)).activations < one


def test_a_pack_counts_as_one_row_whatever_is_in_it() -> None:
    assert estimate(packed=True).total == estimate(packed=False).total


@pytest.mark.parametrize("model", ["Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B", "moonshotai/Moonlight-16B-A3B"])
def test_more_recompute_keeps_less(model: str) -> None:
    modules = ("layernorm", "mlp", "moe", "moe_act", "mla_up_proj")
    none = estimate(model=model)
    selective = estimate(model=model, recompute="selective", recompute_modules=modules)
    full = estimate(model=model, recompute="full", recompute_method="uniform")
    assert full.activations < selective.activations < none.activations


def test_recomputing_flash_attention_saves_nothing() -> None:
    assert estimate(recompute="selective", recompute_modules=("core_attn",)).total == estimate().total


def test_full_recompute_keeps_two_bytes_for_each_token_hidden_unit_and_group_of_layers() -> None:
    each = 2 * LLAMA.hidden * 8192
    assert estimate(recompute="full", recompute_method="uniform").activations == 32 * each
    assert estimate(recompute="full", recompute_method="uniform", recompute_num_layers=4).activations == 8 * each


def test_block_recompute_keeps_the_other_layers_whole() -> None:
    none, full = estimate(), estimate(recompute="full", recompute_method="uniform")
    half = estimate(recompute="full", recompute_method="block", recompute_num_layers=16)
    assert half.activations == pytest.approx((none.activations + full.activations) / 2)


def test_larger_groups_of_recomputed_layers_need_more_while_they_run() -> None:
    pipeline = Layout(pp=2)
    one = estimate(pipeline, recompute="full", recompute_method="uniform", recompute_num_layers=1)
    eight = estimate(pipeline, recompute="full", recompute_method="uniform", recompute_num_layers=8)
    assert eight.working > 4 * one.working
    assert eight.activations < one.activations


def test_offloaded_layers_keep_nothing_on_the_gpu() -> None:
    assert estimate(offload_layers=8).activations == pytest.approx(estimate().activations * 24 / 32)


def test_the_first_stage_waits_for_as_many_micro_batches_as_there_are_stages() -> None:
    found = estimate(Layout(pp=4), tokens_per_row=32768)
    assert (found.stage, found.in_flight) == (0, 4)
    assert found.activations == pytest.approx(estimate(tokens_per_row=32768).activations)


def test_a_short_batch_has_fewer_micro_batches_in_flight() -> None:
    assert estimate(Layout(pp=4), world=4, global_batch_size=2, tokens_per_row=32768).in_flight == 2


def test_interleaving_holds_more_as_upstream_counts_it() -> None:
    plain, interleaved = estimate(Layout(pp=4)), estimate(Layout(pp=4, vpp=2))
    assert interleaved.activations / plain.activations == pytest.approx(1 + 3 / (4 * 2))


def test_logits_of_a_long_row_are_split_over_tp_and_cp_only() -> None:
    one = estimate(tokens_per_row=32768)
    assert one.logits == pytest.approx(6 * 128256 * 32768)
    assert estimate(Layout(tp=2, cp=2, sp=True), tokens_per_row=32768).logits == pytest.approx(one.logits / 4)
    assert estimate(Layout(pp=2), tokens_per_row=32768, world=2).logits == 0


def test_every_prediction_layer_has_logits_of_its_own() -> None:
    model, layout = "deepseek-ai/DeepSeek-V3", Layout(pp=2, ep=64)
    with_one = estimate(layout, model=model, world=128, tokens_per_row=65536, recompute="full")
    without = estimate(layout, model=model, world=128, tokens_per_row=65536, recompute="full", mtp_layers=0)
    assert with_one.stage == 1
    assert with_one.logits == pytest.approx(10 * 129280 * 65536)
    assert without.total < with_one.total


def test_a_repeated_prediction_layer_has_its_weights_once() -> None:
    model = "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16"
    once, twice = (estimate(Layout(ep=8), model=model, mtp_layers=count) for count in (1, 2))
    assert once.weights == twice.weights
    assert once.logits < twice.logits


def test_buffers_of_context_parallelism_follow_its_type() -> None:
    ring = estimate(Layout(cp=8), tokens_per_row=131072).cp_buffers
    gathered = estimate(Layout(cp=8, cp_comm_type="all_gather"), tokens_per_row=131072).cp_buffers
    exchanged = estimate(Layout(cp=8, cp_comm_type="a2a"), tokens_per_row=131072).cp_buffers
    keys = 2 * 8 * 2 * 128 * 131072
    assert (ring, gathered) == (4 * keys / 8, 2 * keys)
    assert exchanged == 2 * (5 * keys) / 8
    both = Layout(cp=8, cp_comm_type="a2a+p2p", hierarchical_sizes=(4, 2))
    assert estimate(both, tokens_per_row=131072).cp_buffers == ring + exchanged
    assert estimate().cp_buffers == 0


def test_sparse_attention_gathers_latents_and_scores_every_key_of_the_row() -> None:
    layout, run = Layout(pp=6, cp=32, ep=32, cp_comm_type="allgather"), Run(131072, recompute="full")
    shape = shape_of("zai-org/GLM-5.2")
    found = estimate_memory(shape, layout, run, world_size=192, gpu="gb200")
    assert found.cp_buffers == 4 * (512 + 64 + 128) * 131072
    longer = estimate_memory(shape, layout, replace(run, tokens_per_row=262144), world_size=192, gpu="gb200")
    assert longer.working > 2 * found.working


def test_an_encoder_beside_the_text_model_counts_with_its_weights() -> None:
    text, both = estimate(model="Qwen/Qwen3-8B"), estimate(model="Qwen/Qwen3-VL-8B-Instruct")
    assert both.weights - text.weights == pytest.approx(2 * shape_of("Qwen/Qwen3-VL-8B-Instruct").vision)


def test_low_precision_keeps_inputs_of_linear_layers_in_one_byte() -> None:
    assert 0.8 < estimate(precision="fp8").activations / estimate().activations < 0.95


def test_every_kind_of_gpu_has_a_budget_and_others_are_refused() -> None:
    for gpu, size in index()["gpu_memory_gib"].items():
        assert gpu_memory(gpu.upper()) == size * GIB
    with pytest.raises(InputError, match=r"'tpu' is not a known kind of GPU; known are a100, h100"):
        estimate_memory(LLAMA, Layout(), Run(4096), world_size=1, gpu="tpu")


def test_the_parts_add_up_and_the_formula_names_each() -> None:
    found = estimate()
    assert sum(found.parts.values()) == found.total
    data = json.loads(json.dumps(found.to_dict()))
    assert list(data["parts"]) == list(data["formula"])
    assert data["total"] == pytest.approx(sum(data["parts"].values()), abs=0.05)
    assert data["limits"]


def test_the_reserve_is_the_same_rule_for_every_model() -> None:
    found = estimate()
    assert found.reserve == pytest.approx(2.5 * GIB + 0.04 * (found.total - found.reserve))
