"""The layers of a rehearsal: Megatron-Core's own ones without Transformer Engine, with the CPU's core attention."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from skill_run.worker.inside.rehearse_stages import StageFailure

_UNSUPPORTED: Final = (
    ("is_hybrid_model", "layers of state-space models"),
    ("experimental_attention_variant", "an experimental attention"),
    ("heterogeneous_block_specs", "blocks that differ"),
)


def refuse_unsupported(config: Any) -> None:
    """Raise StageFailure("setup") for a model or dataset that a CPU has no layers or no files for."""
    from megatron.bridge.models.gpt_provider import GPTModelProvider

    model = config.model
    name = type(model).__name__
    if not isinstance(model, GPTModelProvider):
        raise StageFailure("setup", f"{name} cannot be rehearsed: only models of attention and MLP layers run on a CPU")
    for field, what in _UNSUPPORTED:
        if getattr(model, field, None):
            raise StageFailure("setup", f"{name} cannot be rehearsed: it has {what}, which need CUDA kernels")
    dataset = type(config.dataset).__name__
    if dataset in ("MockVLMSFTDatasetConfig", "EnergonDatasetConfig"):
        raise StageFailure(
            "setup", f"{dataset} cannot be rehearsed: it needs the files of a Hugging Face processor or an Energon set"
        )


def use_cpu_layers(model: Any) -> bool:
    """Let the model be built of local layers; return whether its own layer spec was more than the library's default."""
    from megatron.bridge.models import gpt_provider

    own = model.transformer_layer_spec
    default = own in (gpt_provider.default_layer_spec, gpt_provider.local_layer_spec)
    model.transformer_layer_spec = layer_spec
    if any(field.name == "transformer_impl" for field in dataclasses.fields(model)):
        model.transformer_impl = "local"
    return not default


def layer_spec(config: Any, vp_stage: int | None = None) -> Any:
    """Return the block spec of Megatron-Core's local layers for a model config, for this pipeline stage."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec

    from skill_run.worker.inside.attention import CPUAttention
    from skill_run.worker.inside.norm import put_into_spec

    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, vp_stage=vp_stage)
    return put_into_spec(spec, attention=CPUAttention)
