"""Every derived value: what it computes for which release, and what it asks for when it cannot be told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from skill_run.bridge.release import known_releases
from skill_run.config.config import Config
from skill_run.rules.derived import DERIVED, Facts, NeedsValue

TP = "model.tensor_model_parallel_size"
PP = "model.pipeline_model_parallel_size"
CP = "model.context_parallel_size"
EP = "model.expert_model_parallel_size"
ETP = "model.expert_tensor_parallel_size"
SP = "model.sequence_parallel"
LENGTH = "model.seq_length"
DATASET = "dataset.type"
OFFLINE = "dataset.enable_offline_packing"
IN_BATCH = "dataset.enable_in_batch_packing"
OLD_IN_BATCH = "dataset.pack_sequences_in_batch"
SPECS = "dataset.offline_packing_specs"
OLD_SPECS = "dataset.packed_sequence_specs"
GRAPHS = "model.cuda_graph_impl"
MODULES = "model.cuda_graph_modules"
OLD_MODULES = "model.cuda_graph_scope"
EVAL_CP = "dist.eval_context_parallel_size"
HIERARCHY = "model.hierarchical_context_parallel_sizes"
MBS = "train.micro_batch_size"
GBS = "train.global_batch_size"
VOCAB = "model.vocab_size"
OLD, NEW, NEXT = "0.5.1", "0.6.2", "0.7.0.dev0"

Settings = dict[str, Any]
# (settings, the value, the release or a mapping of options with it)
Case = tuple[Settings, Any, str | Settings]

VALUES: dict[str, list[Case]] = {
    "derived.weight_decay_without_ends": [
        ({"scheduler.start_weight_decay": 0.1, "scheduler.end_weight_decay": 0.1}, False, NEW),
        ({"scheduler.start_weight_decay": None, "scheduler.end_weight_decay": 0.1}, True, NEW),
        ({"scheduler.start_weight_decay": 0.1, "scheduler.end_weight_decay": None}, True, "0.3.1"),
        ({LENGTH: 4096}, False, NEW),
    ],
    "derived.sft_dataset": [
        ({DATASET: "GPTSFTDatasetConfig"}, True, NEW),
        ({DATASET: "DirectHFSFTDatasetConfig"}, True, NEW),
        ({DATASET: "EnergonDatasetConfig"}, True, NEXT),
        ({DATASET: "MockVLMSFTDatasetConfig"}, True, NEW),
        ({DATASET: "GPTDatasetConfig"}, False, NEW),
        ({DATASET: "TeamDataset"}, False, NEW),
        ({DATASET: "FinetuningDatasetConfig"}, True, OLD),
        ({DATASET: "HFDatasetConfig"}, True, "0.3.1"),
        ({DATASET: "EnergonProvider"}, False, OLD),
        ({DATASET: "MockVLMConversationProvider"}, False, "0.4.2"),
    ],
    "derived.text_sft_dataset": [
        ({DATASET: "GPTSFTDatasetConfig"}, True, NEW),
        ({DATASET: "DirectHFSFTDatasetConfig"}, False, NEW),
        ({DATASET: "FinetuningDatasetConfig"}, True, "0.3.1"),
        ({DATASET: "HFDatasetConfig"}, True, OLD),
        ({DATASET: "GPTDatasetConfig"}, False, OLD),
        ({OFFLINE: True}, True, NEW),
        ({f"{OLD_SPECS}.packed_sequence_size": 4096}, True, OLD),
    ],
    "derived.gpt_dataset": [
        ({DATASET: "GPTDatasetConfig"}, True, NEW),
        ({DATASET: "MockGPTDatasetConfig"}, True, "0.3.1"),
        ({DATASET: "GPTSFTDatasetConfig"}, False, NEW),
        ({"dataset.blend": None}, True, OLD),
    ],
    "derived.declarative_sft_dataset": [
        ({DATASET: "DirectHFSFTDatasetConfig"}, True, NEW),
        ({DATASET: "EnergonDatasetConfig"}, True, NEW),
        ({DATASET: "GPTSFTDatasetConfig"}, False, NEW),
        ({LENGTH: 4096}, False, OLD),
    ],
    "derived.provider_dataset": [
        ({DATASET: "EnergonProvider"}, True, OLD),
        ({DATASET: "HFDatasetConversationProvider"}, True, "0.3.1"),
        ({DATASET: "FinetuningDatasetConfig"}, False, OLD),
        ({LENGTH: 4096}, False, NEW),
    ],
    "derived.seq_length_checked": [
        ({DATASET: "GPTDatasetConfig"}, True, "0.3.1"),
        ({DATASET: "EnergonProvider"}, False, OLD),
        ({DATASET: "EnergonDatasetConfig"}, True, NEW),
        ({DATASET: "TeamDataset"}, False, NEW),
        ({LENGTH: 4096}, True, NEW),
    ],
    "packing.offline": [
        ({OFFLINE: True}, True, NEW),
        ({OFFLINE: False, f"{SPECS}.packed_sequence_size": 4096}, False, NEW),
        ({f"{SPECS}.packed_sequence_size": 4096}, False, NEXT),
        ({OFFLINE: None}, False, NEW),
        ({f"{OLD_SPECS}.packed_sequence_size": 4096}, True, OLD),
        ({f"{OLD_SPECS}.packed_sequence_size": 0}, False, OLD),
        ({f"{OLD_SPECS}.pad_seq_to_mult": 8}, False, "0.4.2"),
        ({OLD_SPECS: None}, False, "0.3.1"),
    ],
    "packing.in_batch_requested": [
        ({IN_BATCH: True, DATASET: "GPTDatasetConfig"}, True, NEW),
        ({IN_BATCH: False}, False, NEW),
        ({OLD_IN_BATCH: True, DATASET: "FinetuningDatasetConfig"}, True, OLD),
        ({LENGTH: 4096}, False, "0.3.1"),
    ],
    "packing.in_batch": [
        ({IN_BATCH: True, DATASET: "DirectHFSFTDatasetConfig"}, True, NEW),
        ({IN_BATCH: True, DATASET: "GPTSFTDatasetConfig"}, False, NEW),
        ({IN_BATCH: False}, False, NEW),
        ({OLD_IN_BATCH: True, DATASET: "MockVLMConversationProvider"}, True, "0.3.1"),
        ({OLD_IN_BATCH: True, DATASET: "FinetuningDatasetConfig"}, False, OLD),
    ],
    "packing.native": [
        ({"dataset.packing_buffer_size": 64}, True, NEW),
        ({"dataset.packing_buffer_size": None}, False, NEW),
        ({DATASET: "EnergonDatasetConfig"}, False, NEXT),
    ],
    "packing.any": [
        ({OFFLINE: True}, True, NEW),
        ({IN_BATCH: True, DATASET: "DirectHFSFTDatasetConfig"}, True, NEW),
        ({"dataset.packing_buffer_size": 64}, True, NEXT),
        ({DATASET: "GPTSFTDatasetConfig"}, False, NEW),
        ({f"{OLD_SPECS}.packed_sequence_size": 2048}, True, "0.4.2"),
    ],
    "derived.cp_comm_type_is_list": [
        ({"model.cp_comm_type": "p2p"}, False, NEW),
        ({"model.cp_comm_type": ["p2p"]}, True, NEW),
        ({"model.cp_comm_type": None}, False, NEW),
        ({"model.cp_comm_type": ["p2p", "a2a"]}, True, OLD),
    ],
    "derived.sequence_parallel": [
        ({SP: True, TP: 2}, True, NEW),
        ({SP: True, TP: 1}, False, NEW),
        ({SP: False, TP: 8}, False, OLD),
        ({SP: None, TP: 8}, False, OLD),
    ],
    "derived.model_parallel_size": [({TP: 2, PP: 3, CP: 4}, 24, NEW), ({}, 1, "0.3.1")],
    "derived.data_parallel_size": [
        ({TP: 2, PP: 2, CP: 2}, 4, {"world_size": 32}),
        ({TP: 2}, 3, {"world_size": 6}),
    ],
    "derived.cp_chunks": [({CP: 4}, 8, NEW), ({}, 2, OLD)],
    "derived.cp_multiple": [({CP: 4}, 8, NEW), ({CP: 1}, 1, NEW), ({CP: 3}, 6, "0.3.1")],
    "derived.sp_multiple": [
        ({CP: 2, TP: 4, SP: True}, 8, NEW),
        ({CP: 2, TP: 4, SP: False}, 1, NEW),
        ({CP: 4, TP: 1, SP: True}, 1, NEW),
    ],
    "derived.pad_multiple": [
        ({CP: 2, TP: 3, SP: True}, 12, NEW),
        ({CP: 1, TP: 8, SP: True}, 8, NEW),
        ({CP: 8, TP: 2}, 16, OLD),
        ({}, 1, OLD),
    ],
    "derived.pack_multiple": [
        ({CP: 2, f"{SPECS}.pad_seq_to_mult": 6}, 12, NEW),
        ({CP: 2, f"{SPECS}.pad_seq_to_mult": 0}, 4, NEW),
        ({CP: 2, f"{SPECS}.pad_seq_to_mult": None}, 4, NEW),
        ({CP: 2}, 4, NEW),
        ({CP: 2, f"{OLD_SPECS}.pad_seq_to_mult": 64}, 64, "0.3.1"),
    ],
    "derived.aligned_seq_length": [
        ({LENGTH: 4097, CP: 2}, 4100, NEW),
        ({LENGTH: 4096, CP: 2}, 4096, NEW),
        ({LENGTH: 10, CP: 2, TP: 3, SP: True}, 12, OLD),
    ],
    "derived.aligned_pack_size": [
        ({f"{SPECS}.packed_sequence_size": 4097, f"{SPECS}.pad_seq_to_mult": 6, CP: 2}, 4104, NEW),
        ({f"{SPECS}.packed_sequence_size": 4096, CP: 4}, 4096, NEW),
        ({f"{OLD_SPECS}.packed_sequence_size": 4090, CP: 4}, 4096, OLD),
    ],
    "derived.expert_tensor_parallel_size": [
        ({TP: 4, EP: 2}, 1, NEW),
        ({TP: 4, EP: 1}, 4, NEW),
        ({TP: 4, EP: 2}, 4, OLD),
        ({TP: 4, EP: 2, ETP: 2}, 2, NEW),
        ({TP: 4, EP: 2, ETP: 2}, 2, "0.3.1"),
    ],
    "derived.expert_block": [
        ({TP: 2, EP: 4, PP: 3}, 12, NEW),
        ({TP: 2, EP: 4, PP: 3}, 24, OLD),
        ({EP: 4, PP: 3, ETP: 5}, 60, NEXT),
    ],
    "derived.min_gpus": [
        ({TP: 2, PP: 1, CP: 3, EP: 4}, 12, NEW),
        ({TP: 2, PP: 1, CP: 3, EP: 4}, 24, OLD),
        ({TP: 2, PP: 2, CP: 2}, 8, NEW),
    ],
    "derived.eval_context_parallel_size": [
        ({CP: 4, EVAL_CP: 2}, 2, NEW),
        ({CP: 4}, 4, NEW),
        ({CP: 4}, 4, OLD),
    ],
    "derived.eval_data_parallel_size": [
        ({TP: 2, CP: 4, EVAL_CP: 2}, 8, {"world_size": 32}),
        ({TP: 2, CP: 4}, 4, {"world_size": 32}),
        ({TP: 2, CP: 4}, 1, {"world_size": 2}),
    ],
    "derived.eval_global_batch_size": [
        ({GBS: 16, "validation.eval_global_batch_size": 8}, 8, NEW),
        ({GBS: 16}, 16, NEW),
        ({GBS: 16}, 16, "0.3.1"),
    ],
    "derived.eval_micro_batch_size": [
        ({MBS: 4, "validation.eval_micro_batch_size": 2}, 2, NEW),
        ({MBS: 4}, 4, OLD),
    ],
    "derived.collate_multiple": [
        ({TP: 2}, 1, NEW),
        ({CP: 2, EVAL_CP: 3}, 12, NEW),
        ({CP: 4, EVAL_CP: 1}, 8, NEW),
        ({CP: 2, EVAL_CP: 4, TP: 3, SP: True}, 24, NEW),
        ({CP: 2}, 4, OLD),
    ],
    "derived.micro_batches": [
        ({MBS: 2, GBS: 32, CP: 2}, 4, {"world_size": 8}),
        ({MBS: 1, GBS: 7}, 1, {"world_size": 4}),
    ],
    "derived.next_global_batch_size": [
        ({MBS: 2, GBS: 9, CP: 2}, 16, {"world_size": 8}),
        ({MBS: 2, GBS: 16, CP: 2}, 16, {"world_size": 8}),
        ({MBS: 1, GBS: 1}, 4, {"world_size": 4}),
    ],
    "derived.heads_per_tp": [({"model.num_attention_heads": 32, TP: 4}, 8, NEW)],
    "derived.groups_per_tp": [
        ({"model.num_query_groups": 8, TP: 2}, 4, NEW),
        ({"model.num_query_groups": 2, TP: 8}, 1, NEW),
        ({"model.num_query_groups": None, "model.num_attention_heads": 32, TP: 4}, 8, OLD),
    ],
    "derived.hierarchical_product": [({HIERARCHY: [2, 4]}, 8, NEW), ({HIERARCHY: []}, 1, OLD)],
    "derived.fp8": [
        ({"model.fp8": "hybrid"}, True, NEW),
        ({"mixed_precision": "bf16_with_fp8_hybrid"}, True, NEW),
        ({"mixed_precision": "BF16_With_MXFP8_Mixed"}, True, NEW),
        ({"mixed_precision.fp8": "e4m3"}, True, OLD),
        ({"mixed_precision": "bf16_mixed"}, False, NEW),
        ({"model.fp8": None}, False, "0.3.1"),
    ],
    "derived.mxfp8": [
        ({"mixed_precision": "bf16_with_mxfp8_mixed"}, True, NEW),
        ({"model.fp8": "e4m3", "model.fp8_recipe": "mxfp8"}, True, NEW),
        ({"mixed_precision.fp8": "e4m3", "mixed_precision.fp8_recipe": "mxfp8"}, True, OLD),
        ({"model.fp8_recipe": "mxfp8"}, False, NEW),
        ({"model.fp8": "e4m3", "model.fp8_recipe": "tensorwise"}, False, NEW),
    ],
    "derived.fp8_multiple": [
        ({"model.fp8": "hybrid", CP: 2, TP: 4, SP: True}, 128, NEW),
        ({"model.fp8": "hybrid", CP: 2, TP: 4}, 32, NEW),
        ({"mixed_precision": "bf16_with_mxfp8_mixed", CP: 2}, 64, OLD),
    ],
    "derived.pad_to_max_length": [
        ({"dataset.dataset_kwargs.pad_to_max_length": True}, True, NEW),
        ({"dataset.pad_to_max_length": True, DATASET: "DirectHFSFTDatasetConfig"}, True, NEW),
        ({"dataset.dataset_kwargs.pad_to_max_length": False}, False, OLD),
        ({DATASET: "FinetuningDatasetConfig"}, False, "0.3.1"),
    ],
    "derived.parquet_packs": [
        ({}, True, NEW),
        ({}, True, "0.4.2"),
        ({}, False, "0.3.1"),
        ({f"{SPECS}.packed_train_data_path": "/data/train.npy"}, False, NEW),
        ({f"{SPECS}.packed_train_data_path": "/data/packs"}, True, NEW),
        ({f"{OLD_SPECS}.packed_train_data_path": "/data/train.parquet"}, False, "0.3.1"),
    ],
    "derived.moe": [({"model.num_moe_experts": 8}, True, NEW), ({"model.num_moe_experts": None}, False, OLD)],
    "derived.fsdp": [
        ({"dist.use_megatron_fsdp": True}, True, NEW),
        ({"ddp.use_megatron_fsdp": True}, True, OLD),
        ({}, False, "0.3.1"),
    ],
    "derived.ep_overlap": [
        ({"model.overlap_moe_expert_parallel_comm": True}, True, NEW),
        ({"comm_overlap.overlap_moe_expert_parallel_comm": True}, True, OLD),
        ({"comm_overlap.overlap_moe_expert_parallel_comm": False}, False, NEW),
    ],
    "derived.tp_overlap": [
        ({"comm_overlap.tp_comm_overlap": True}, True, NEW),
        ({"model.tp_comm_overlap": True}, True, NEW),
        ({"comm_overlap.tp_comm_overlap": False}, False, "0.3.1"),
        ({"comm_overlap": None}, False, NEW),
    ],
    "derived.cuda_graphs": [
        ({GRAPHS: "transformer_engine"}, True, NEW),
        ({GRAPHS: "none"}, False, NEW),
        ({GRAPHS: None}, False, OLD),
        ({}, False, OLD),
    ],
    "derived.full_iteration_graphs": [
        ({GRAPHS: "full_iteration"}, True, NEW),
        ({GRAPHS: "local", OLD_MODULES: "full_iteration"}, True, "0.4.2"),
        ({GRAPHS: "local", MODULES: ["attn"]}, False, NEW),
        ({GRAPHS: "transformer_engine", MODULES: ["full_iteration"]}, False, NEW),
        ({GRAPHS: "none"}, False, OLD),
    ],
    "derived.attention_graphs": [
        ({GRAPHS: "full_iteration"}, True, NEW),
        ({GRAPHS: "transformer_engine", MODULES: ["attn", "mlp"]}, True, NEW),
        ({GRAPHS: "transformer_engine", MODULES: ["mlp"]}, False, NEW),
        ({GRAPHS: "transformer_engine", MODULES: []}, True, NEW),
        ({GRAPHS: "transformer_engine", OLD_MODULES: "full"}, True, "0.4.2"),
        ({GRAPHS: "local", MODULES: ["attn"]}, False, NEW),
        ({}, False, OLD),
    ],
    "derived.mtp": [
        ({"model.mtp_num_layers": 1}, True, NEW),
        ({"model.mtp_num_layers": 0}, False, NEW),
        ({"model.mtp_num_layers": None}, False, OLD),
    ],
    "derived.hybrid_model": [
        ({"model.type": "NemotronHModelProvider"}, True, NEW),
        ({"model.type": "MambaModelProvider"}, True, "0.3.1"),
        ({"model.type": "HybridModelProvider"}, True, NEXT),
        ({"model.type": "NemotronNano9BProviderV2"}, True, OLD),
        ({"model.type": "Nemotron3SuperProvider"}, True, NEW),
        ({"model.is_hybrid_model": True}, True, NEW),
        ({"model.is_hybrid_model": False}, False, NEW),
    ],
    "derived.tokens_per_rank": [
        ({OFFLINE: True, f"{SPECS}.packed_sequence_size": 8192, CP: 4, LENGTH: 1024, MBS: 1}, 2048, NEW),
        ({OFFLINE: False, LENGTH: 4096, MBS: 3, CP: 2}, 6144, NEW),
        ({f"{OLD_SPECS}.packed_sequence_size": 8192, CP: 2}, 4096, OLD),
        ({"tokens_per_rank": 500, LENGTH: 4096, MBS: 3}, 500, NEW),
    ],
    # 2**20 tokens * 2**10 hidden * 4 layers = 4 * 2**30 units: 136 GiB at 34 bytes, 8 GiB at 2.
    "derived.activation_gib": [
        ({"model.num_layers": 4, "model.hidden_size": 1024, "tokens_per_rank": 2**20}, 136, NEW),
        ({"model.num_layers": 7, "model.hidden_size": 1024, "tokens_per_rank": 2**20, PP: 2}, 136, OLD),
        (
            {
                "model.num_layers": 4,
                "model.hidden_size": 1024,
                "tokens_per_rank": 2**20,
                "model.recompute_granularity": "full",
            },
            8,
            NEW,
        ),
        ({"model.num_layers": 4, "model.hidden_size": 1024, "tokens_per_rank": 2**20, TP: 4, SP: True}, 34, NEW),
        ({"model.num_layers": 4, "model.hidden_size": 1024, "tokens_per_rank": 2**20, TP: 4}, 136, NEW),
    ],
    # 2**18 tokens * 2**15 words * 4 bytes = 32 GiB.
    "derived.logits_gib": [
        ({LENGTH: 2**18, MBS: 2, CP: 2, VOCAB: 2**15}, 32, NEW),
        ({LENGTH: 2**18, MBS: 1, TP: 4, VOCAB: 2**15}, 8, OLD),
        ({"tokens_per_rank": 2**18, VOCAB: 2**15, MBS: 5}, 32, NEW),
    ],
    "derived.min_logits_gib": [
        ({LENGTH: 2**18, MBS: 2, CP: 2, VOCAB: 2**15}, 16, NEW),
        ({LENGTH: 2**18, VOCAB: 2**15}, 32, "0.3.1"),
    ],
    "derived.gpu_memory_gib": [
        ({}, 141, {"gpu": "h200"}),
        ({}, 141, {"gpu": "H200"}),
        ({"gpu_memory_gib": 100}, 100, {"gpu": "h200"}),
        ({}, 80, {"gpu": "rtx-9999"}),
        ({}, 80, OLD),
    ],
    "derived.ranks_per_sequence_needed": [
        ({LENGTH: 100_000, "max_tokens_per_rank": 32_768}, 4, NEW),
        ({LENGTH: 65_536, "max_tokens_per_rank": 32_768}, 2, NEW),
        ({LENGTH: 7, "max_tokens_per_rank": 1}, 7, NEW),
        ({LENGTH: 7, "model.max_seqlen_per_dp_cp_rank": 0}, 7, NEW),
        ({LENGTH: 65_536, "model.max_seqlen_per_dp_cp_rank": 16_384}, 4, NEW),
    ],
    "derived.family": [
        ({"model.type": "Gemma2ModelProvider"}, "gemma-2", NEW),
        ({"model.type": "LlamaModelProvider"}, "", NEW),
        ({}, "qwen3-next", {"model": "Qwen/Qwen3-Next-80B-A3B-Instruct"}),
        ({}, "", {"model": "meta-llama/Llama-3.1-8B"}),
        ({}, "gemma-2", {"recipe": "gemma2_2b_sft_config"}),
    ],
}

NEEDS: dict[str, list[tuple[Settings, tuple[str, ...], str | Settings]]] = {
    "derived.sft_dataset": [({}, ("dataset.type",), NEW), ({}, ("dataset.type",), OLD)],
    "derived.text_sft_dataset": [({}, ("dataset.type",), NEW)],
    "derived.gpt_dataset": [({}, ("dataset.type",), "0.3.1")],
    "derived.declarative_sft_dataset": [({}, ("dataset.type",), NEW)],
    "derived.provider_dataset": [({}, ("dataset.type",), OLD)],
    "derived.seq_length_checked": [({}, ("dataset.type",), OLD)],
    "packing.in_batch": [({IN_BATCH: True}, ("dataset.type",), NEW)],
    "packing.any": [({IN_BATCH: True}, ("dataset.type",), NEW)],
    "derived.data_parallel_size": [({TP: 2}, ("world_size",), NEW)],
    "derived.eval_data_parallel_size": [({TP: 2}, ("world_size",), NEW)],
    "derived.aligned_seq_length": [({CP: 2}, (LENGTH,), NEW)],
    "derived.aligned_pack_size": [({CP: 2}, (f"{SPECS}.packed_sequence_size",), NEW)],
    "derived.eval_global_batch_size": [({}, (GBS,), NEW)],
    "derived.eval_micro_batch_size": [({}, (MBS,), OLD)],
    "derived.micro_batches": [
        ({GBS: 8, MBS: 1}, ("world_size",), NEW),
        ({GBS: 8}, (MBS,), {"world_size": 8}),
        ({MBS: 1}, (GBS,), {"world_size": 8}),
    ],
    "derived.next_global_batch_size": [({GBS: 8, MBS: 1}, ("world_size",), NEW), ({MBS: 1}, (GBS,), {"world_size": 8})],
    "derived.heads_per_tp": [({TP: 2}, ("model.num_attention_heads",), NEW)],
    "derived.groups_per_tp": [
        ({TP: 2}, ("model.num_query_groups",), NEW),
        ({"model.num_query_groups": None}, ("model.num_attention_heads",), OLD),
    ],
    "derived.hierarchical_product": [({}, (HIERARCHY,), NEW)],
    "derived.moe": [({}, ("model.num_moe_experts",), NEW)],
    "derived.hybrid_model": [({}, ("model.is_hybrid_model",), NEW)],
    "derived.tokens_per_rank": [
        ({OFFLINE: False, LENGTH: 4096}, (MBS,), NEW),
        ({OFFLINE: False, MBS: 1}, (LENGTH,), NEW),
        ({OFFLINE: True}, (f"{SPECS}.packed_sequence_size",), NEW),
    ],
    "derived.activation_gib": [
        ({"model.num_layers": 4, "tokens_per_rank": 8}, ("model.hidden_size",), NEW),
        ({"model.hidden_size": 4, "tokens_per_rank": 8}, ("model.num_layers",), NEW),
        ({"model.num_layers": 4, "model.hidden_size": 8, OFFLINE: False, LENGTH: 8}, (MBS,), NEW),
    ],
    "derived.logits_gib": [({LENGTH: 8, VOCAB: 8}, (MBS,), NEW), ({LENGTH: 8, MBS: 1}, (VOCAB,), NEW)],
    "derived.min_logits_gib": [({VOCAB: 8}, (LENGTH,), NEW)],
    "derived.ranks_per_sequence_needed": [({"max_tokens_per_rank": 8}, (LENGTH,), NEW)],
    "derived.family": [({}, ("model",), NEW)],
}

# With a launch that a recipe outside the catalogue builds, nothing that is not given is known.
NOTHING_KNOWN = {"recipe": "our_own_recipe"}

ConfigMaker = Callable[..., Config]


def facts_of(config: ConfigMaker, settings: Settings, how: str | Settings) -> Facts:
    if isinstance(how, str):
        return Facts(config(settings, how))
    return Facts(config(settings, **how))


def flat(table: dict[str, list[Any]]) -> list[Any]:
    return [(name, *case) for name, cases in table.items() for case in cases]


def test_every_derived_value_is_tested_here() -> None:
    assert set(VALUES) == set(DERIVED)


@pytest.mark.parametrize(("name", "settings", "expected", "how"), flat(VALUES))
def test_a_derived_value_is_what_is_computed_by_hand(
    config: ConfigMaker, name: str, settings: Settings, expected: object, how: str | Settings
) -> None:
    found = facts_of(config, settings, how).derived(name)
    assert found == expected
    assert type(found).__name__ == DERIVED[name][0]


@pytest.mark.parametrize(("name", "settings", "needs", "how"), flat(NEEDS))
def test_a_derived_value_names_the_input_it_lacks(
    config: ConfigMaker, name: str, settings: Settings, needs: tuple[str, ...], how: str | Settings
) -> None:
    with pytest.raises(NeedsValue) as lacking:
        facts_of(config, settings, how).derived(name)
    assert lacking.value.needs == needs


# Values that hold for every class a release has, for a path it never reads, or without any config.
DECIDED_ANYWAY = {
    *(
        (name, release)
        for name in ("derived.provider_dataset", "derived.seq_length_checked")
        for release in (NEW, NEXT)
    ),
    *(("derived.declarative_sft_dataset", release) for release in ("0.3.1", "0.4.2", OLD)),
    ("derived.parquet_packs", "0.3.1"),
    *(("derived.gpu_memory_gib", release) for release in known_releases()),
}


@pytest.mark.parametrize(
    ("name", "release"),
    [(name, release) for name in DERIVED for release in known_releases() if (name, release) not in DECIDED_ANYWAY],
)
def test_a_derived_value_of_an_unknown_recipe_is_unknown_and_never_a_guess(
    config: ConfigMaker, name: str, release: str
) -> None:
    facts = Facts(config({"profiling.use_pytorch_profiler": False}, release, **NOTHING_KNOWN))
    with pytest.raises(NeedsValue) as lacking:
        facts.derived(name)
    assert lacking.value.needs
    assert not set(lacking.value.needs) & set(DERIVED)


def test_one_true_part_decides_an_or_although_other_parts_are_unknown(config: ConfigMaker) -> None:
    facts = Facts(config({"comm_overlap.tp_comm_overlap": True}, NEW, **NOTHING_KNOWN))
    assert facts.derived("derived.tp_overlap") is True


def test_one_false_part_decides_an_and_although_other_parts_are_unknown(config: ConfigMaker) -> None:
    facts = Facts(config({TP: 1}, NEW, **NOTHING_KNOWN))
    assert facts.derived("derived.sequence_parallel") is False


def test_an_undecided_or_names_every_unknown_part_once(config: ConfigMaker) -> None:
    facts = Facts(config({"comm_overlap.tp_comm_overlap": False}, NEW, **NOTHING_KNOWN))
    with pytest.raises(NeedsValue) as lacking:
        facts.derived("derived.fsdp")
    assert lacking.value.needs == ("dist.use_megatron_fsdp", "ddp.use_megatron_fsdp")


def test_an_unknown_derived_value_stays_unknown_when_it_is_asked_for_again(config: ConfigMaker) -> None:
    facts = Facts(config({TP: 2}, NEW))
    for _ in range(2):
        with pytest.raises(NeedsValue, match="world_size"):
            facts.derived("derived.data_parallel_size")


def test_a_size_that_is_null_is_lacking(config: ConfigMaker) -> None:
    with pytest.raises(NeedsValue, match=CP):
        Facts(config({CP: None}, NEW)).derived("derived.cp_chunks")


@pytest.mark.parametrize("ranks", [4, 7, 12])
def test_ranks_that_the_parallel_sizes_do_not_divide_have_no_data_parallel_size(
    config: ConfigMaker, ranks: int
) -> None:
    with pytest.raises(NeedsValue, match="world_size"):
        facts_of(config, {TP: 8}, {"world_size": ranks}).derived("derived.data_parallel_size")
