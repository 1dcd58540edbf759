from __future__ import annotations

from typing import Any

import pytest

from skill_run.rehearse.scale import Plan, Wishes, plan_changes, plan_for_cpu

LLAMA = {
    "model.num_layers": 32,
    "model.hidden_size": 4096,
    "model.ffn_hidden_size": 14336,
    "model.num_attention_heads": 32,
    "model.num_query_groups": 8,
    "model.kv_channels": 128,
    "model.vocab_size": 128256,
    "model.seq_length": 8192,
    "model.context_parallel_size": 8,
    "model.tensor_model_parallel_size": 4,
    "model.pipeline_model_parallel_size": 4,
    "model.virtual_pipeline_model_parallel_size": 2,
    "model.expert_model_parallel_size": 1,
    "model.sequence_parallel": True,
    "model.cp_comm_type": "a2a",
    "model.num_moe_experts": None,
    "model.calculate_per_token_loss": False,
    "model.params_dtype": "torch.bfloat16",
    "dataset.seq_length": 8192,
    "dataset.offline_packing_specs": "<PackedSequenceSpecs>",
    "dataset.offline_packing_specs.packed_sequence_size": 8192,
    "dataset.offline_packing_specs.pad_seq_to_mult": 16,
    "dataset.offline_packing_specs.max_single_sequence_length": None,
    "train.micro_batch_size": 1,
    "train.global_batch_size": 128,
    "train.train_iters": 1000,
    "mixed_precision": "bf16_mixed",
    "ddp.average_in_collective": True,
    "dist.distributed_backend": "nccl",
    "comm_overlap": None,
}


def planned(**changed: Any) -> tuple[Plan, dict[str, Any]]:
    """Return the plan for LLAMA with changes (`__` for dots) and what every field is after it."""
    values = {**LLAMA, **{name.replace("__", "."): value for name, value in changed.items()}}
    plan = plan_changes(values, Wishes(world_size=128))
    return plan, {**values, **{change.field: change.new for change in plan.changes}}


def test_lengths_are_scaled_by_one_factor_so_that_equal_ones_stay_equal() -> None:
    _, after = planned()
    assert after["model.seq_length"] == after["dataset.seq_length"] == 1024
    assert after["dataset.offline_packing_specs.packed_sequence_size"] == 1024


def test_lengths_that_disagree_go_on_to_disagree() -> None:
    _, after = planned(dataset__seq_length=4096)
    assert (after["model.seq_length"], after["dataset.seq_length"]) == (1024, 512)


def test_lengths_that_are_short_already_stay() -> None:
    plan, _ = planned(
        model__seq_length=512, dataset__seq_length=512, dataset__offline_packing_specs__packed_sequence_size=512
    )
    assert not [change for change in plan.changes if "seq_length" in change.field or "packed" in change.field]


def test_ratios_of_heads_and_widths_and_the_head_dimension_are_kept() -> None:
    _, after = planned()
    assert after["model.num_attention_heads"] / after["model.num_query_groups"] == 4
    assert after["model.ffn_hidden_size"] / after["model.hidden_size"] == 3.5
    assert after["model.kv_channels"] == 128


def test_a_head_dimension_that_follows_from_the_hidden_size_is_written_down_first() -> None:
    _, after = planned(model__kv_channels=None, model__hidden_size=2048)
    assert after["model.kv_channels"] == 64


def test_a2a_finds_a_key_value_head_for_every_rank_it_scatters_them_to() -> None:
    plan, after = planned()
    assert after["model.num_query_groups"] % (plan.layout.cp * plan.layout.tp) == 0


@pytest.mark.parametrize(
    ("multiple", "fits"), [(16, True), (32, True), (8, False), (4, False), (1, False), (24, False)]
)
def test_a_padding_multiple_fits_context_parallelism_after_exactly_when_it_did_before(
    multiple: int, fits: bool
) -> None:
    plan, after = planned(dataset__offline_packing_specs__pad_seq_to_mult=multiple)
    assert (after["dataset.offline_packing_specs.pad_seq_to_mult"] % (2 * plan.layout.cp) == 0) is fits


def test_what_the_user_got_wrong_is_not_repaired() -> None:
    _, after = planned()
    assert after["model.calculate_per_token_loss"] is False
    assert after["ddp.average_in_collective"] is True
    assert planned(train__micro_batch_size=2)[1]["train.micro_batch_size"] == 2


def test_context_parallelism_comes_first_and_four_ranks_are_the_most() -> None:
    plan, after = planned()
    assert plan.layout.to_dict() == {"ranks": 4, "tp": 2, "pp": 1, "cp": 2, "dp": 1, "ep": 1}
    assert after["model.virtual_pipeline_model_parallel_size"] is None
    assert after["model.sequence_parallel"] is True


def test_pipeline_stages_are_kept_where_they_fit() -> None:
    plan, _ = planned(model__tensor_model_parallel_size=1)
    assert (plan.layout.cp, plan.layout.pp, plan.layout.ranks) == (2, 2, 4)


def test_without_tensor_parallelism_there_is_no_sequence_parallelism() -> None:
    _, after = planned(model__tensor_model_parallel_size=1)
    assert after["model.sequence_parallel"] is False


def test_a_run_of_data_parallel_ranks_only_keeps_two() -> None:
    plan, _ = planned(
        model__context_parallel_size=1, model__tensor_model_parallel_size=1, model__pipeline_model_parallel_size=1
    )
    assert (plan.layout.dp, plan.layout.ranks) == (2, 2)


def test_latent_attention_is_not_cut_by_tensor_parallelism() -> None:
    plan, _ = planned(model__multi_latent_attention=True)
    assert plan.layout.tp == 1


def test_hierarchical_context_parallelism_keeps_both_levels() -> None:
    plan, after = planned(model__cp_comm_type="a2a+p2p", model__hierarchical_context_parallel_sizes=[2, 4])
    assert plan.layout.cp == 4
    assert after["model.hierarchical_context_parallel_sizes"] == [2, 2]


def test_experts_become_fewer_and_as_many_serve_each_token_as_before() -> None:
    _, after = planned(
        model__num_moe_experts=128,
        model__moe_router_topk=8,
        model__expert_model_parallel_size=8,
        model__moe_token_dispatcher_type="flex",
        model__moe_permute_fusion=True,
    )
    assert after["model.num_moe_experts"] == 16
    assert after["model.moe_router_topk"] == 8
    assert after["model.expert_model_parallel_size"] == 2
    assert after["model.moe_token_dispatcher_type"] == "alltoall"
    assert after["model.moe_permute_fusion"] is False


def test_lists_with_an_entry_for_each_layer_keep_the_first_and_the_last() -> None:
    _, after = planned(model__moe_layer_freq=[0] + [1] * 31, model__cp_comm_type=["p2p"] * 31 + ["a2a"])
    assert after["model.moe_layer_freq"] == [0, 1]
    assert after["model.cp_comm_type"] == ["p2p", "a2a"]


def test_fields_that_the_config_does_not_have_are_not_changed() -> None:
    plan, _ = planned()
    assert {change.field for change in plan.changes} <= set(LLAMA)


def test_every_change_says_what_it_was_and_why() -> None:
    plan, _ = planned()
    assert all(change.why and change.old == LLAMA[change.field] for change in plan.changes)


def test_for_validation_only_what_needs_a_gpu_is_changed() -> None:
    changes = plan_for_cpu({**LLAMA, "model.fp8": "hybrid", "mixed_precision": "bf16_with_fp8_hybrid"})
    assert {change.kind for change in changes} == {"cpu"}
    assert {change.field: change.new for change in changes}["mixed_precision"] == "bf16_mixed"


def test_the_vocabulary_can_be_cut_by_tensor_parallelism() -> None:
    values = plan_changes(LLAMA, Wishes(vocab_size=345))
    assert {change.field: change.new for change in values.changes}["model.vocab_size"] == 384
