"""One step of a Bridge release's own pretrain() on packed or unpacked samples, with its gradients taken out."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from megatron.core import parallel_state
from megatron.core.utils import unwrap_model

from skill_run.worker.inside.attention import CPUAttention
from skill_run.worker.inside.bridge_samples import PACK, PACKS, PAD_MULTIPLE, SAMPLES, VOCABULARY
from skill_run.worker.inside.case import Outcome
from skill_run.worker.inside.global_weights import draw_weights, gather_full, named_parameters
from skill_run.worker.inside.norm import put_into_spec
from skill_run.worker.inside.partition import install_partition, te_kernel_indices
from skill_run.worker.inside.ranks import start_gloo

_LAYERS: Final = 4
_SEED: Final = 1234


def train(layout: Any, folder: Path, path: Path, rank: int) -> dict[str, Any]:
    """Run one optimizer step as one rank; rank 0 leaves loss and gradients in `path`.

    layout: a BridgeLayout. Returns what this rank saw: {"sentinels", "wrong_indices", "without_boundaries"}.
    """
    from megatron.bridge.training.gpt_step import forward_step
    from megatron.bridge.training.pretrain import pretrain

    torch.set_num_threads(1)
    seen = {"sentinels": 0, "wrong_indices": 0, "without_boundaries": 0}
    install_partition(_watched_index(seen))
    _take_gradients(path)
    start_gloo(rank, layout.ranks)
    pretrain(_config(layout, folder, seen), forward_step)
    return seen


def read_outcome(path: Path) -> Outcome:
    """Return what rank 0 left."""
    held = torch.load(path, weights_only=True)
    return Outcome(losses=[held["loss"]], tokens=0, gradients=held["gradients"])


def _watched_index(seen: dict[str, int]) -> Callable[..., Any]:
    """Return Transformer Engine's index as its kernel computes it; what it reads beyond the pack is the last token."""

    def index(cu_seqlens: Any, total_tokens: int, cp_size: int, cp_rank: int) -> Any:
        seen["sentinels"] += int((cu_seqlens < 0).sum())
        found = te_kernel_indices(cu_seqlens, total_tokens, cp_size, cp_rank)
        seen["wrong_indices"] += int(((found < 0) | (found >= total_tokens)).sum())
        return found.clamp(0, total_tokens - 1)

    return index


def _attention(seen: dict[str, int]) -> type:
    class WatchedAttention(CPUAttention):
        """Counts the calls that get no boundaries."""

        def forward(self, *values: Any, **options: Any) -> Any:
            seen["without_boundaries"] += options.get("packed_seq_params") is None
            return super().forward(*values, **options)

    return WatchedAttention


def _take_gradients(path: Path) -> None:
    """Give the model weights that depend on names alone before the first step, and take its gradients out in it.

    pretrain() ends the process group, so both happen inside the step.
    """
    loop: Any = importlib.import_module("megatron.bridge.training.train")
    ordinary = loop.train_step

    def train_step(*values: Any, **options: Any) -> Any:
        given = [*values, *options.values()]
        chunks = next(v for v in given if isinstance(v, list) and v and isinstance(v[0], torch.nn.Module))
        optimizer = next(v for v in given if hasattr(v, "reload_model_params"))
        parameters = named_parameters(unwrap_model(chunk) for chunk in chunks)
        draw_weights(parameters, _SEED, gated=True)
        optimizer.reload_model_params()
        gradients: dict[str, Any] = {}
        step = optimizer.step

        def take_and_step(*args: Any, **kwargs: Any) -> Any:
            gradients.update({name: parameter.main_grad.clone() for name, parameter in parameters.items()})
            return step(*args, **kwargs)

        optimizer.step = take_and_step
        result = ordinary(*values, **options)
        _write(path, result[0], gather_full(parameters, gradients, gated=True))
        return result

    loop.train_step = train_step


def _write(path: Path, losses: Mapping[str, Any], gradients: dict[str, Any] | None) -> None:
    """Write loss and gradients on rank 0; the last pipeline stage knows the loss and sends it."""
    last = parallel_state.is_pipeline_last_stage()
    told = float(torch.as_tensor(losses["lm loss"]).flatten()[0]) if last and losses else None
    gathered: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(gathered, told)
    if gradients is None:
        return
    loss = next(value for value in gathered if value is not None)
    torch.save({"loss": loss, "gradients": gradients}, path)


def _config(layout: Any, folder: Path, seen: dict[str, int]) -> Any:
    """Return a ConfigContainer in the release's own names; a field that it does not have is left out."""
    bridge = importlib.import_module("megatron.bridge.training.config")
    from megatron.core.distributed import DistributedDataParallelConfig

    rows = PACKS[layout.data] if layout.packed else SAMPLES
    evaluation = {"eval_interval": 100, "eval_iters": 0}
    has_validation = hasattr(bridge, "ValidationConfig")
    return bridge.ConfigContainer(
        model=_model(layout, seen),
        train=_made(
            bridge.TrainingConfig,
            train_iters=1,
            global_batch_size=rows,
            micro_batch_size=1,
            **({} if has_validation else evaluation),
        ),
        **({"validation": bridge.ValidationConfig(**evaluation)} if has_validation else {}),
        optimizer=_made(
            bridge.OptimizerConfig,
            optimizer="adam",
            lr=1e-3,
            min_lr=1e-4,
            clip_grad=0.0,
            bf16=False,
            use_distributed_optimizer=False,
            use_precision_aware_optimizer=False,
        ),
        scheduler=bridge.SchedulerConfig(
            lr_decay_style="cosine",
            lr_warmup_iters=1,
            lr_decay_iters=2,
            start_weight_decay=0.0,
            end_weight_decay=0.0,
            weight_decay_incr_style="constant",
        ),
        ddp=DistributedDataParallelConfig(
            use_distributed_optimizer=False, grad_reduce_in_fp32=True, average_in_collective=False
        ),
        dataset=_dataset(layout, folder, bridge),
        logger=bridge.LoggerConfig(log_interval=1, tensorboard_dir=None),
        tokenizer=bridge.TokenizerConfig(
            tokenizer_type="HuggingFaceTokenizer", tokenizer_model=str(folder / "tokenizer")
        ),
        checkpoint=bridge.CheckpointConfig(save=None, load=None, save_interval=1, ckpt_format="torch_dist"),
        rng=bridge.RNGConfig(seed=_SEED),
        dist=bridge.DistributedInitConfig(distributed_backend="gloo"),
        comm_overlap=None,
        mixed_precision=None,
    )


def _model(layout: Any, seen: dict[str, int]) -> Any:
    from megatron.bridge.models.gpt_provider import GPTModelProvider, local_layer_spec

    def spec(config: Any) -> Any:
        found = local_layer_spec(config)
        # The reference attends by Megatron's own attention, packs by ours.
        return put_into_spec(found, attention=_attention(seen), norm=None) if layout.packed else found

    return _made(
        GPTModelProvider,
        num_layers=_LAYERS,
        hidden_size=128,
        num_attention_heads=4,
        num_query_groups=2,
        ffn_hidden_size=256,
        seq_length=PACK,
        vocab_size=VOCABULARY,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        position_embedding_type="rope",
        share_embeddings_and_output_weights=False,
        transformer_layer_spec=spec,
        context_parallel_size=layout.cp,
        pipeline_model_parallel_size=layout.pp,
        params_dtype=torch.float32,
        pipeline_dtype=torch.float32,
        bf16=False,
        use_cpu_initialization=True,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
        calculate_per_token_loss=True,
    )


def _dataset(layout: Any, folder: Path, bridge: Any) -> Any:
    """Return the text SFT dataset: GPTSFTDatasetConfig from 0.6 on, FinetuningDatasetConfig before."""
    builders = importlib.import_module("megatron.bridge.data.builders")
    kind = getattr(builders, "GPTSFTDatasetConfig", None) or bridge.FinetuningDatasetConfig
    options: dict[str, Any] = {}
    if layout.packed and "enable_offline_packing" in kind.__dataclass_fields__:
        options = {"enable_offline_packing": True, "offline_packing_specs": _packing("megatron.bridge.data.packing")}
    elif layout.packed:
        options = {"packed_sequence_specs": _packing("megatron.bridge.data.datasets.packed_sequence")}
    if layout.pp > 1:
        # Stages exchange tensors of one size.
        options["dataset_kwargs"] = {"pad_to_max_length": True}
    data = str(folder / layout.data)
    return kind(dataset_root=data, seq_length=PACK, num_workers=0, do_validation=False, do_test=False, **options)


def _packing(module: str) -> Any:
    specs = importlib.import_module(module).PackedSequenceSpecs
    return specs(packed_sequence_size=PACK, pad_seq_to_mult=PAD_MULTIPLE)


def _made(kind: Any, **values: Any) -> Any:
    known = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in values.items() if name in known})
