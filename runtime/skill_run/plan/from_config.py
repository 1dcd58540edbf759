"""Layout and Run of a config, from its fields by canonical name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from skill_run.plan.layout import Layout, Run

_BYTES: Final[Mapping[str, int]] = {
    "float32": 4,
    "fp32": 4,
    "bfloat16": 2,
    "bf16": 2,
    "float16": 2,
    "fp16": 2,
    "uint8": 1,
}
_SPECS: Final = "dataset.offline_packing_specs.packed_sequence_size"


def layout_from(values: Mapping[str, Any]) -> Layout:
    """Return the layout that a config's values tell; what is missing has Megatron's default.

    values: canonical field name (`model.tensor_model_parallel_size`) to value, unknown fields left out.
    """
    tp = _whole(values, "model.tensor_model_parallel_size", 1)
    ep = _whole(values, "model.expert_model_parallel_size", 1)
    cp = _whole(values, "model.context_parallel_size", 1)
    comm = values.get("model.cp_comm_type")
    kinds = comm if isinstance(comm, (list, tuple)) else [comm]
    sizes = values.get("model.hierarchical_context_parallel_sizes")
    return Layout(
        tp=tp,
        pp=_whole(values, "model.pipeline_model_parallel_size", 1),
        vpp=_whole(values, "model.virtual_pipeline_model_parallel_size", 0) or None,
        cp=cp,
        ep=ep,
        etp=_whole(values, "model.expert_tensor_parallel_size", 1 if ep > 1 else tp),
        sp=values.get("model.sequence_parallel") is True and tp > 1,
        cp_comm_type=str(kinds[0]) if cp > 1 and kinds and kinds[0] is not None else None,
        hierarchical_sizes=tuple(int(size) for size in sizes) if isinstance(sizes, (list, tuple)) and sizes else None,
        last_stage_layers=_whole(values, "model.num_layers_in_last_pipeline_stage", 0) or None,
    )


def run_from(values: Mapping[str, Any], *, bridge: str | None = None, peft: str | None = None) -> Run:
    """Return what a config trains, with what: row length, batch, recompute, precision, bytes of the optimizer's state.

    values: as for `layout_from`. peft: the adapter, which is no plain field.
    """
    packed = values.get("dataset.enable_offline_packing") is True or _whole(values, _SPECS, 0) > 0
    tokens = (
        _whole(values, _SPECS, 0) or _whole(values, "dataset.seq_length", 0) or _whole(values, "model.seq_length", 0)
    )
    recompute = values.get("model.recompute_granularity")
    modules = values.get("model.recompute_modules")
    precision = str(values.get("mixed_precision", "bf16")).lower()
    aware = values.get("optimizer.use_precision_aware_optimizer") is True
    fp32 = values.get("ddp.grad_reduce_in_fp32", values.get("mixed_precision.grad_reduce_in_fp32", True))
    offload = values.get("optimizer.optimizer_offload_fraction", 1.0)
    return Run(
        tokens_per_row=tokens,
        micro_batch_size=_whole(values, "train.micro_batch_size", 1),
        global_batch_size=_whole(values, "train.global_batch_size", 0) or None,
        packed=packed or values.get("dataset.enable_in_batch_packing") is True,
        peft=peft,
        recompute=recompute if recompute in ("selective", "full") else None,
        recompute_method=values.get("model.recompute_method"),
        recompute_num_layers=_whole(values, "model.recompute_num_layers", 1),
        recompute_modules=tuple(modules) if isinstance(modules, (list, tuple)) else ("core_attn",),
        offload_layers=_whole(values, "model.cpu_offloading_num_layers", 0)
        if values.get("model.cpu_offloading")
        else 0,
        mtp_layers=_whole(values, "model.mtp_num_layers", 0) if "model.mtp_num_layers" in values else None,
        optimizer=str(values.get("optimizer.optimizer") or "adam"),
        distributed_optimizer=values.get("ddp.use_distributed_optimizer") is not False,
        optimizer_offload=float(offload) if values.get("optimizer.optimizer_cpu_offload") is True else 0.0,
        grad_bytes=2 if fp32 is False else 4,
        main_bytes=_bytes(values, "optimizer.main_params_dtype") if aware else 4,
        moment_bytes=_bytes(values, "optimizer.exp_avg_dtype") if aware else 4,
        precision="fp8" if "fp8" in precision else "fp4" if "fp4" in precision else "bf16",
        bridge=bridge,
    )


def _whole(values: Mapping[str, Any], name: str, otherwise: int) -> int:
    value = values.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else otherwise


def _bytes(values: Mapping[str, Any], name: str) -> int:
    return _BYTES.get(str(values.get(name, "float32")).removeprefix("torch."), 4)
