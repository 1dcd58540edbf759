"""Fresh configs for the oracle: real dumps of 0.6.2 with a few fields changed, to plausible and to bad values."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from skill_run.verify.recorded import read_cases

DATA = Path(__file__).parents[1] / "cases" / "data" / "recorded_outcomes.json.gz"
RELEASE: Final = "0.6.2"

_SIZES = (1, 2, 4, 8)
_LENGTHS = (1024, 2048, 4096, 4100, 8192, 8190, 6)
_BOOL = (True, False)
_NAMED = "megatron.bridge.training."
# Field of a dump -> values it is changed to. A field that the dump's classes do not have is left alone.
VALUES: Final[dict[str, tuple[Any, ...]]] = {
    "model.tensor_model_parallel_size": (*_SIZES, 3),
    "model.pipeline_model_parallel_size": (*_SIZES, 3),
    "model.virtual_pipeline_model_parallel_size": (None, 1, 2, 3),
    "model.context_parallel_size": (*_SIZES, 3),
    "model.expert_model_parallel_size": _SIZES,
    "model.expert_tensor_parallel_size": (None, 1, 2),
    "model.sequence_parallel": _BOOL,
    "model.seq_length": _LENGTHS,
    "model.num_layers": (1, 2, 3, 4, 8, 12),
    "model.num_attention_heads": (2, 4, 6, 8, 16),
    "model.num_query_groups": (None, 1, 2, 3, 4, 8),
    "model.hidden_size": (64, 128, 256),
    "model.cp_comm_type": (None, "p2p", "a2a", "all_gather", "a2a+p2p", "banana", ["p2p"], ["p2p", "a2a"]),
    "model.hierarchical_context_parallel_sizes": (None, [1, 1], [2, 1], [2, 2], [4, 2], [2, 2, 2]),
    "model.calculate_per_token_loss": _BOOL,
    "model.recompute_granularity": (None, "full", "selective"),
    "model.recompute_method": (None, "uniform", "block"),
    "model.recompute_num_layers": (None, 1, 2),
    "model.recompute_modules": (None, ["core_attn"], ["moe"], ["mlp", "layernorm"], ["mla_up_proj"], ["no_such_part"]),
    "model.distribute_saved_activations": _BOOL,
    "model.cpu_offloading": _BOOL,
    "model.cpu_offloading_num_layers": (0, 1, 2, 50),
    "model.fine_grained_activation_offloading": _BOOL,
    "model.num_moe_experts": (2, 4, 8),
    "model.moe_router_topk": (2,),
    "model.moe_token_dispatcher_type": ("allgather", "alltoall", "flex"),
    "model.moe_flex_dispatcher_backend": ("deepep", "hybridep", "ncclep"),
    "model.moe_grouped_gemm": _BOOL,
    "model.moe_shared_expert_intermediate_size": (None, 128),
    "model.moe_shared_expert_overlap": _BOOL,
    "model.moe_router_padding_for_fp8": _BOOL,
    "model.moe_router_padding_for_quantization": _BOOL,
    "model.moe_permute_fusion": _BOOL,
    "model.overlap_moe_expert_parallel_comm": _BOOL,
    "model.mtp_num_layers": (None, 0, 1, 2),
    "model.variable_seq_lengths": _BOOL,
    "model.apply_rope_fusion": _BOOL,
    "model.attention_dropout": (0.0, 0.1),
    "model.cuda_graph_impl": ("none", "local", "transformer_engine", "full_iteration"),
    "model.cuda_graph_modules": ([], ["attn"], ["mlp"], ["full_iteration"], ["moe_router"]),
    "model.use_te_rng_tracker": _BOOL,
    "model.transformer_impl": ("transformer_engine", "local"),
    "model.bf16": _BOOL,
    "model.fp16": _BOOL,
    "model.fp8": (None, "hybrid", "e4m3"),
    "model.fp4": (None, "e2m1"),
    "model.deterministic_mode": _BOOL,
    "model.cross_entropy_loss_fusion": _BOOL,
    "model.gradient_accumulation_fusion": _BOOL,
    "optimizer.bf16": _BOOL,
    "optimizer.fp16": _BOOL,
    "optimizer.use_precision_aware_optimizer": _BOOL,
    "optimizer.use_distributed_optimizer": _BOOL,
    "optimizer.overlap_param_gather": _BOOL,
    "optimizer.optimizer_cpu_offload": _BOOL,
    "optimizer.optimizer": ("adam", "sgd", "muon"),
    "optimizer.clip_grad": (0.0, 1.0),
    "ddp.average_in_collective": _BOOL,
    "ddp.use_distributed_optimizer": _BOOL,
    "ddp.overlap_grad_reduce": _BOOL,
    "ddp.overlap_param_gather": _BOOL,
    "ddp.grad_reduce_in_fp32": _BOOL,
    "ddp.use_megatron_fsdp": _BOOL,
    "ddp.data_parallel_sharding_strategy": ("no_shard", "optim", "optim_grads_params"),
    "ddp.nccl_ub": _BOOL,
    "ddp.fsdp_manual_registration": _BOOL,
    "dist.use_megatron_fsdp": _BOOL,
    "dist.use_torch_fsdp2": _BOOL,
    "dist.use_tp_pp_dp_mapping": _BOOL,
    "dist.use_decentralized_pg": _BOOL,
    "dist.use_gloo_process_groups": _BOOL,
    "dist.eval_context_parallel_size": (None, 1, 2, 4),
    "checkpoint.save": (None, "/checkpoints/run"),
    "checkpoint.load": (None, "/checkpoints/run"),
    "checkpoint.pretrained_checkpoint": (None, "/checkpoints/base"),
    "checkpoint.ckpt_format": ("torch_dist", "torch", "fsdp_dtensor"),
    "checkpoint.async_save": _BOOL,
    "checkpoint.also_save_hf_checkpoint": _BOOL,
    "checkpoint.load_main_params_from_ckpt": _BOOL,
    "rerun_state_machine.check_for_nan_in_loss": _BOOL,
    "rng.te_rng_tracker": _BOOL,
    "train.micro_batch_size": (1, 2, 3, 4),
    "train.global_batch_size": (1, 6, 8, 16, 32, 128),
    "train.train_iters": (10, 1000),
    "train.train_samples": (None, 320, 1000),
    "train.num_epochs": (None, 1, 2),
    "train.rampup_batch_size": (None, [2, 2, 100]),
    "validation.eval_global_batch_size": (None, 8, 6, 16),
    "validation.eval_micro_batch_size": (None, 1, 2),
    "scheduler.lr_decay_iters": (None, 10, 100),
    "scheduler.lr_warmup_iters": (0, 2, 1000),
    "scheduler.lr_warmup_fraction": (None, 0.1),
    "scheduler.lr_decay_samples": (None, 320),
    "scheduler.lr_decay_style": ("cosine", "linear", "WSD"),
    "profiling.use_pytorch_profiler": _BOOL,
    "profiling.use_nsys_profiler": _BOOL,
    "dataset.seq_length": _LENGTHS,
    "dataset.enable_offline_packing": _BOOL,
    "dataset.enable_in_batch_packing": _BOOL,
    "dataset.defer_in_batch_packing_to_step": _BOOL,
    "dataset.in_batch_packing_pad_to_multiple_of": (0, 1, 8, 64),
    "dataset.pad_to_max_length": _BOOL,
    "dataset.pad_to_multiple_of": (0, 1, 16, 128),
    "dataset.dataloader_type": ("batch", "single", "cyclic", "external"),
    "dataset.dataset_kwargs": (None, {}, {"pad_to_max_length": True}, {"pad_to_max_length": False}),
    "dataset.hf_rewrite": _BOOL,
    "dataset.hf_validation_proportion": (None, 0.1, 1.5),
    "dataset.hf_output_root": (None, "/data/out"),
    "dataset.dataset_root": ("/data/sft",),
    "dataset.split": ("1,1,1", "9,1,0"),
    "dataset.offline_packing_specs.packed_sequence_size": (-1, 0, *_LENGTHS),
    "dataset.offline_packing_specs.pad_seq_to_mult": (None, 0, 1, 4, 8, 16),
    "dataset.offline_packing_specs.pad_cu_seqlens": _BOOL,
    "dataset.offline_packing_specs.max_single_sequence_length": (None, 0, 512, 100000),
    "dataset.offline_packing_specs.packed_train_data_path": (None, "/data/p.parquet", "/data/p.npy", "/data/p.bin"),
    "dataset.offline_packing_specs": (
        None,
        {
            "_target_": "megatron.bridge.data.packing.config.PackedSequenceSpecs",
            "packed_sequence_size": 4096,
            "pad_seq_to_mult": 8,
        },
    ),
    "comm_overlap": (
        None,
        {"_target_": f"{_NAMED}comm_overlap.CommOverlapConfig", "tp_comm_overlap": False},
        {"_target_": f"{_NAMED}comm_overlap.CommOverlapConfig", "tp_comm_overlap": True},
        {
            "_target_": f"{_NAMED}comm_overlap.CommOverlapConfig",
            "tp_comm_overlap": False,
            "overlap_moe_expert_parallel_comm": True,
        },
    ),
    "mixed_precision": (
        None,
        "bf16_mixed",
        "fp16_mixed",
        "bf16_with_fp8_delayed_scaling_mixed",
    ),
    "peft": (
        None,
        {"_target_": "megatron.bridge.peft.lora.LoRA", "dim": 8, "alpha": 16},
        {"_target_": "megatron.bridge.peft.dora.DoRA", "dim": 8, "alpha": 16},
    ),
}
_EXPERTS: Final = ("model.moe_", "model.num_moe_experts")
_WORLDS = (1, 2, 4, 6, 8, 12, 16, 32, 64)
_ENVIRONMENTS: tuple[dict[str, str], ...] = (
    {},
    {},
    {"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
    {"CUDA_DEVICE_MAX_CONNECTIONS": "8", "NCCL_ALGO": "Ring"},
    {"NVTE_CPU_OFFLOAD_V1": "1"},
)
GPU: Final = "h100"
TE: Final = "2.14.0"


@dataclass(frozen=True)
class Drawn:
    """One config, where it comes from and what was changed."""

    base: str
    config: dict[str, Any]
    world_size: int
    env: dict[str, str]
    changed: dict[str, Any] = field(default_factory=dict)

    def case(self) -> dict[str, Any]:
        """Return the case as the oracle takes it."""
        return {"config": self.config, "world_size": self.world_size, "env": self.env, "gpu": GPU, "te": TE}


def draw(count: int, seed: int) -> list[Drawn]:
    """Return `count` configs; three of four start from a dump that the real validate() accepted."""
    rng = random.Random(seed)
    recorded = [case for case in read_cases(DATA.read_bytes()) if case.version == RELEASE]
    accepted = [case for case in recorded if not case.raises]
    found = []
    for _ in range(count):
        base = rng.choice(accepted if rng.random() < 0.75 else recorded)
        config = copy.deepcopy(base.config)
        changed = _change(config, rng)
        world = base.world_size if rng.random() < 0.7 else rng.choice(_WORLDS)
        found.append(Drawn(base.id, config, world, rng.choice(_ENVIRONMENTS), changed))
    return found


def _change(config: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    wanted = rng.randint(2, 6)
    # A dense model keeps its expert fields: no provider of one sets them.
    names = [name for name in VALUES if config["model"]["num_moe_experts"] or not name.startswith(_EXPERTS)]
    while len(changed) < wanted:
        name = rng.choice(names)
        *parents, leaf = name.split(".")
        owner: Any = config
        for parent in parents:
            owner = owner.get(parent) if isinstance(owner, dict) else None
        if not isinstance(owner, dict) or leaf not in owner or name in changed:
            names.remove(name)
            if not names:
                break
            continue
        value = rng.choice(VALUES[name])
        owner[leaf] = copy.deepcopy(value)
        changed[name] = value
    return changed
