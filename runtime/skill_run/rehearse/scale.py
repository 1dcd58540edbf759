"""Which fields a rehearsal changes, to what, and why: from the values of a real config to a list of changes.

Ratios that a fault depends on are kept: a padding multiple that does not fit the user's context parallel size does
not fit the rehearsal's either, and lengths that disagree go on to disagree. Nothing is repaired.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final

from skill_run.rehearse.change import Change, Draft, Kind
from skill_run.rehearse.layout import Layout, choose_layout, put_layout

DEFAULT_PACK: Final = 1024
_LAYERS: Final = 2
_HIDDEN: Final = 128
_SPECS: Final = "dataset.offline_packing_specs"
_MULTIPLE: Final = f"{_SPECS}.pad_seq_to_mult"
_LENGTHS: Final = (
    "model.seq_length",
    "dataset.seq_length",
    f"{_SPECS}.packed_sequence_size",
    f"{_SPECS}.max_single_sequence_length",
)
# Enough for losses to move in a few steps of a model with random weights.
_LEARNING_RATE: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the caller fixes: steps, longest pack in tokens, size of the tokenizer, ranks of the user's run."""

    iters: int = 5
    more_iters: int = 2
    pack: int = DEFAULT_PACK
    vocab_size: int = DEFAULT_PACK
    world_size: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes, in order, and the layout they lead to."""

    layout: Layout
    changes: tuple[Change, ...] = field(default_factory=tuple)


def plan_for_cpu(values: dict[str, Any]) -> tuple[Change, ...]:
    """Return only the changes without which a CPU cannot even validate the config."""
    draft = Draft(values)
    _put_cpu(draft)
    precision = str(draft.original("mixed_precision", "")).lower()
    if "fp8" in precision or "fp4" in precision:
        draft.put("mixed_precision", "bf16_mixed", "cpu", _TE)
    return tuple(draft.changes)


def plan_changes(values: dict[str, Any], wishes: Wishes) -> Plan:
    """Return every change of a rehearsal to a config with these values (written name -> value)."""
    draft = Draft(values)
    layout = choose_layout(draft, wishes.world_size)
    _put_lengths(draft, layout, wishes)
    _put_model_size(draft, layout, wishes)
    put_layout(draft, layout)
    _put_multiple(draft, layout)
    _put_cpu(draft)
    _put_precision(draft)
    _put_run(draft, layout, wishes)
    return Plan(layout, tuple(draft.changes))


def _put_lengths(draft: Draft, layout: Layout, wishes: Wishes) -> None:
    """Scale every length by one factor, so that lengths that are equal stay equal and others stay different."""
    given = [draft.original(name, 0) for name in _LENGTHS]
    longest = max([value for value in given if isinstance(value, int)], default=0)
    if longest <= wishes.pack:
        return
    step = 2 * layout.cp * layout.tp
    for name, value in zip(_LENGTHS, given, strict=True):
        if isinstance(value, int) and value > 0:
            scaled = max(step, value * wishes.pack // longest // step * step)
            draft.put(name, scaled, "size", f"packs of at most {wishes.pack} tokens")


def _put_multiple(draft: Draft, layout: Layout) -> None:
    """Scale the padding multiple with the context parallel size: it fits after exactly when it fitted before."""
    given = draft.original(_MULTIPLE, 1)
    user = draft.original("model.context_parallel_size", 1)
    if layout.cp == user:
        return
    scaled = given * layout.cp // user if given * layout.cp % user == 0 else 1
    draft.put(_MULTIPLE, scaled, "layout", "in the same relation to the context parallel size as before")


def _put_model_size(draft: Draft, layout: Layout, wishes: Wishes) -> None:
    why = "few seconds on a CPU"
    layers = draft.original("model.num_layers", _LAYERS)
    draft.put("model.num_layers", min(layers, _LAYERS), "size", why)
    _put_lists_of_layers(draft, layers, min(layers, _LAYERS))
    _put_heads(draft, layout)
    hidden = draft.original("model.hidden_size", _HIDDEN)
    small = min(hidden, _HIDDEN)
    draft.put("model.hidden_size", small, "size", why)
    for name in _WIDTHS:
        width = draft.original(name)
        if isinstance(width, int) and not isinstance(width, bool):
            draft.put(name, max(32, round(width * small / hidden / 32) * 32), "size", "same ratio to the hidden size")
    _put_experts(draft)
    # A multiple that every tensor parallel size divides.
    vocabulary = -(-wishes.vocab_size // 128) * 128
    draft.put("model.vocab_size", vocabulary, "size", "tokens of the tokenizer used here, rounded up")


_WIDTHS: Final = (
    "model.ffn_hidden_size",
    "model.moe_ffn_hidden_size",
    "model.moe_shared_expert_intermediate_size",
)


def _put_lists_of_layers(draft: Draft, old: int, new: int) -> None:
    for name in (
        "model.cp_comm_type",
        "model.moe_layer_freq",
        "model.window_attn_skip_freq",
        "model.no_rope_freq",
        "model.linear_attention_freq",
    ):
        value = draft.original(name)
        if isinstance(value, list) and len(value) == old:
            # First and last: a model whose first layers differ keeps one of each kind.
            kept = [value[0], value[-1]][:new] if new > 1 else value[:1]
            draft.put(name, kept, "size", f"one entry for each of {new} layers")


def _put_heads(draft: Draft, layout: Layout) -> None:
    heads = draft.original("model.num_attention_heads")
    if not isinstance(heads, int):
        return
    groups = draft.original("model.num_query_groups", heads)
    ratio = max(1, heads // max(1, groups))
    comm = draft.original("model.cp_comm_type")
    scattered = any("a2a" in str(item) for item in (comm if isinstance(comm, list) else [comm]))
    fewest = layout.tp * (layout.cp if scattered else 1)
    small = min(groups, max(2, fewest))
    # The head dimension stays, also where it follows from sizes that change.
    if draft.has("model.kv_channels") and draft.get("model.kv_channels") is None:
        hidden = draft.original("model.hidden_size")
        if isinstance(hidden, int):
            draft.put("model.kv_channels", hidden // heads, "size", "the head dimension stays as it is")
    draft.put(
        "model.num_attention_heads", small * ratio, "size", f"{ratio} query heads for each key-value head as before"
    )
    if draft.original("model.num_query_groups") is not None:
        draft.put("model.num_query_groups", small, "size", f"{ratio} query heads for each key-value head as before")


def _put_experts(draft: Draft) -> None:
    experts = draft.original("model.num_moe_experts")
    if not isinstance(experts, int):
        return
    chosen = draft.original("model.moe_router_topk", 2)
    groups = draft.original("model.moe_router_num_groups", 1)
    small = min(experts, math.lcm(max(4, 2 * chosen), groups))
    draft.put("model.num_moe_experts", small, "size", f"{chosen} of them for each token as before")


def _put_cpu(draft: Draft) -> None:
    for name, (value, why) in _ON_CPU.items():
        draft.put(name, value, "cpu", why)
    if draft.original("model.num_moe_experts"):
        for name, (value, why) in _EXPERTS_ON_CPU.items():
            draft.put(name, value, "cpu", why)
    if draft.original("model.cuda_graph_impl", "none") != "none":
        for name in ("model.cuda_graph_impl", "model.cuda_graph_modules", "model.cuda_graph_scope"):
            draft.put(name, "none" if name.endswith("impl") else None, "cpu", "CUDA graphs")
    if draft.original("model.moe_token_dispatcher_type") == "flex":
        draft.put("model.moe_token_dispatcher_type", "alltoall", "cpu", "DeepEP and HybridEP are CUDA kernels")


_KERNEL: Final = "a CUDA kernel"
_TE: Final = "a kernel of Transformer Engine"
_MEMORY: Final = "saves GPU memory"
_ON_CPU: Final[dict[str, tuple[Any, str]]] = {
    "dist.distributed_backend": ("gloo", "NCCL needs GPUs"),
    "dist.use_torch_fsdp2": (False, "needs GPUs"),
    "dist.use_megatron_fsdp": (False, "needs GPUs"),
    "dist.nccl_communicator_config_path": (None, "NCCL needs GPUs"),
    "dist.use_sharp": (False, "NCCL needs GPUs"),
    "ddp.use_megatron_fsdp": (False, "needs GPUs"),
    "ddp.nccl_ub": (False, "NCCL needs GPUs"),
    "ddp.fp8_param_gather": (False, _TE),
    "ddp.overlap_param_gather_with_optimizer_step": (False, "CUDA streams"),
    "model.use_cpu_initialization": (True, "weights are made on the CPU"),
    "model.gradient_accumulation_fusion": (False, _KERNEL),
    "model.apply_rope_fusion": (False, _TE),
    "model.cross_entropy_fusion_impl": ("native", _TE),
    "model.attention_dropout": (0.0, "the core attention used here has none"),
    "model.mtp_num_layers": (None, "its layers are Transformer Engine's"),
    "model.tp_comm_overlap": (False, _TE),
    "model.use_te_rng_tracker": (False, _TE),
    "rng.te_rng_tracker": (False, _TE),
    "model.delay_wgrad_compute": (False, _TE),
    "model.fp8": (None, _TE),
    "model.fp4": (None, _TE),
    "model.enable_cuda_graph": (False, "CUDA graphs"),
    "model.external_cuda_graph": (False, "CUDA graphs"),
    "model.recompute_granularity": (None, _MEMORY),
    "model.recompute_method": (None, _MEMORY),
    "model.recompute_num_layers": (None, _MEMORY),
    "model.fine_grained_activation_offloading": (False, _MEMORY),
    "model.cpu_offloading": (False, _MEMORY),
    "optimizer.optimizer_cpu_offload": (False, _MEMORY),
    "optimizer.use_precision_aware_optimizer": (False, _TE),
    "comm_overlap": (None, "overlaps communication of GPUs"),
    "dataset.pin_memory": (False, "GPUs read pinned memory"),
    "profiling.use_nsys_profiler": (False, "profiles GPUs"),
    "profiling.use_pytorch_profiler": (False, "profiles GPUs"),
    "ft": (None, "watches a cluster"),
    "straggler": (None, "watches a cluster"),
    "nvrx_straggler": (None, "watches a cluster"),
    "inprocess_restart": (None, "watches a cluster"),
    "tensor_inspect": (None, "inspects Transformer Engine's tensors"),
}

_EXPERTS_ON_CPU: Final[dict[str, tuple[Any, str]]] = {
    "model.moe_permute_fusion": (False, _TE),
    "model.moe_router_fusion": (False, _TE),
    "model.moe_grouped_gemm": (False, _KERNEL),
    "model.moe_shared_expert_overlap": (False, "CUDA streams"),
    "model.moe_flex_dispatcher_backend": (None, "DeepEP and HybridEP are CUDA kernels"),
    "model.moe_enable_deepep": (False, "DeepEP is a CUDA kernel"),
}


def _put_precision(draft: Draft) -> None:
    why = "float32, which a CPU computes fast and exactly enough to compare"
    for name, value in _PRECISION.items():
        draft.put(name, value, "precision", why)


_FLOAT32: Final = "torch.float32"
_PRECISION: Final[dict[str, Any]] = {
    "mixed_precision": None,
    "model.bf16": False,
    "model.fp16": False,
    "model.params_dtype": _FLOAT32,
    "model.pipeline_dtype": _FLOAT32,
    "model.autocast_dtype": _FLOAT32,
    "model.enable_autocast": False,
    "optimizer.bf16": False,
    "optimizer.fp16": False,
    "optimizer.params_dtype": _FLOAT32,
    "optimizer.main_grads_dtype": _FLOAT32,
    "optimizer.main_params_dtype": _FLOAT32,
    "optimizer.exp_avg_dtype": _FLOAT32,
    "optimizer.exp_avg_sq_dtype": _FLOAT32,
}


def _put_run(draft: Draft, layout: Layout, wishes: Wishes) -> None:
    micro = draft.original("train.micro_batch_size", 1)
    small = min(micro, 4) if isinstance(micro, int) else micro
    short = f"{wishes.iters} steps"
    runs: dict[str, tuple[Any, str, Kind]] = {
        "train.train_iters": (wishes.iters, short, "run"),
        "train.train_samples": (None, short, "run"),
        "train.num_epochs": (None, short, "run"),
        "train.micro_batch_size": (small, "small batches", "run"),
        # Two micro-batches for each data parallel rank, so that accumulation takes place.
        "train.global_batch_size": (small * layout.dp * max(2, layout.pp), "two micro-batches a step", "run"),
        "train.rampup_batch_size": (None, "small batches", "run"),
        "train.exit_duration_in_mins": (None, short, "run"),
        "train.exit_interval": (None, short, "run"),
        "train.decrease_batch_size_if_needed": (False, "small batches", "run"),
        "scheduler.lr_warmup_iters": (0, short, "run"),
        "scheduler.lr_warmup_samples": (0, short, "run"),
        "scheduler.lr_warmup_fraction": (None, short, "run"),
        "scheduler.lr_decay_iters": (wishes.iters + wishes.more_iters, short, "run"),
        "scheduler.lr_decay_samples": (None, short, "run"),
        "scheduler.lr_wsd_decay_iters": (None, short, "run"),
        "scheduler.max_steps": (None, short, "run"),
        "model.hidden_dropout": (0.0, "steps after a resume can be compared", "run"),
        "peft.dropout": (0.0, "steps after a resume can be compared", "run"),
        "optimizer.lr": (_LEARNING_RATE, "a loss from random weights moves visibly", "run"),
        "optimizer.min_lr": (_LEARNING_RATE / 10, "a loss from random weights moves visibly", "run"),
    }
    for name, (value, why, kind) in runs.items():
        draft.put(name, value, kind, why)
    if draft.original("scheduler.lr_decay_style") == "WSD":
        draft.put("scheduler.lr_decay_style", "constant", "run", short)
    for name, value in _NO_EVALUATION.items():
        draft.put(name, value, "run", "no evaluation")
    for name, value in _NO_OUTPUT.items():
        draft.put(name, value, "run", "no outputs beside the rehearsal's own")


_NO_EVALUATION: Final[dict[str, Any]] = {
    "validation.eval_iters": 0,
    "validation.eval_global_batch_size": None,
    "validation.eval_micro_batch_size": None,
    "train.eval_iters": None,
    "train.eval_interval": None,
    "dataset.do_validation": False,
    "dataset.do_test": False,
    "dataset.num_workers": 0,
    "dataset.persistent_workers": False,
}
_NO_OUTPUT: Final[dict[str, Any]] = {
    "logger.log_interval": 1,
    "logger.tensorboard_dir": None,
    "logger.wandb_project": None,
    "logger.wandb_exp_name": None,
    "logger.mlflow_experiment": None,
    "logger.mlflow_run_name": None,
    "logger.comet_project": None,
    "logger.comet_experiment_name": None,
    "logger.save_config_filepath": None,
    "checkpoint.save": None,
    "checkpoint.load": None,
    "checkpoint.save_interval": None,
    "checkpoint.async_save": False,
    "checkpoint.ckpt_format": "torch_dist",
    "checkpoint.non_persistent_save_interval": None,
    "checkpoint.non_persistent_ckpt_type": None,
    "checkpoint.also_save_hf_checkpoint": False,
    "checkpoint.save_retain_interval": None,
    "checkpoint.finetune": False,
}
