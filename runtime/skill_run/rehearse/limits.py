"""What a rehearsal on a CPU cannot show, told from what it changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def limits_of(changes: Sequence[Mapping[str, Any]], *, own_layer_spec: bool = False) -> list[str]:
    """Return one sentence for each thing that only a run on GPUs shows, the ones that matter most first."""
    by_field = {change["field"]: change for change in changes}
    found = [
        "Kernels: attention, norms and linear layers of Transformer Engine and cuDNN are replaced by plain torch ones.",
        "Memory: whether the model and its packs fit into the GPUs.",
        "Speed: tokens per second here say nothing about GPUs.",
    ]
    if own_layer_spec:
        found.append("Layers: the model has a layer spec of its own, which Megatron-Core's local layers stand for.")
    length = by_field.get("model.seq_length")
    if length is not None:
        found.append(
            f"Length: positions beyond {length['new']} of {length['old']}, and their rotary embedding, are not reached."
        )
    found += [
        f"{what}: {change['old']} is rehearsed as {change['new']}."
        for field, what in _SIZES.items()
        if (change := by_field.get(field)) is not None
    ]
    if "mixed_precision" in by_field:
        found.append(f"Precision: {_name(by_field['mixed_precision']['old'])} is rehearsed in float32.")
    found += [sentence for fields, sentence in _LOST.items() if any(field in by_field for field in fields)]
    return found


def _name(value: Any) -> str:
    """Return the name of a precision; an object stands for its class only."""
    return "mixed precision" if str(value).startswith("<") else str(value)


_SIZES = {
    "model.context_parallel_size": "Context parallel size",
    "model.tensor_model_parallel_size": "Tensor parallel size",
    "model.pipeline_model_parallel_size": "Pipeline parallel size",
    "model.virtual_pipeline_model_parallel_size": "Virtual pipeline size",
    "model.expert_model_parallel_size": "Expert parallel size",
    "model.num_moe_experts": "Experts",
}
_LOST = {
    ("comm_overlap", "model.tp_comm_overlap"): "Overlap of communication with computation is left out.",
    ("model.fp8", "model.fp4"): "FP8 and FP4 are left out.",
    ("model.cuda_graph_impl", "model.enable_cuda_graph"): "CUDA graphs are left out.",
    ("model.recompute_granularity",): "Activation recomputation is left out.",
    ("model.moe_token_dispatcher_type", "model.moe_enable_deepep"): (
        "The token dispatcher of the experts is the all-to-all one, not DeepEP or HybridEP."
    ),
    ("model.mtp_num_layers",): "Multi-token prediction is left out.",
    ("model.attention_dropout",): "Attention dropout is left out.",
    ("model.hidden_dropout", "peft.dropout"): "Dropout is left out.",
    ("validation.eval_iters", "train.eval_iters"): "Evaluation is left out.",
    ("dist.use_megatron_fsdp", "ddp.use_megatron_fsdp", "dist.use_torch_fsdp2"): "FSDP is left out.",
    ("checkpoint.pretrained_checkpoint",): "The pretrained checkpoint is not read: weights are random.",
    ("checkpoint.async_save",): "Checkpoints are saved synchronously.",
}
