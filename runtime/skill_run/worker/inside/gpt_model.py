"""The GPT model of a parity run: TransformerConfig's own field names in, Megatron's GPTModel out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from skill_run.worker.inside.errors import RefusedError
from skill_run.worker.inside.parallel import Layout

ACTIVATIONS: Final = ("silu", "gelu", "relu", "squared_relu", "quick_gelu")
_POSITIONS: Final = ("rope", "none", "learned_absolute")
# Fields of a request that are arguments of GPTModel.
_MODEL: Final[tuple[str, ...]] = (
    "position_embedding_type",
    "rotary_base",
    "rotary_percent",
    "rope_scaling",
    "rope_scaling_factor",
    "share_embeddings_and_output_weights",
    "seq_len_interpolation_factor",
)
# Fields that TransformerConfig has and a parity run takes as they are.
_CONFIG: Final[tuple[str, ...]] = (
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "kv_channels",
    "ffn_hidden_size",
    "normalization",
    "gated_linear_unit",
    "rotary_interleaved",
    "qk_layernorm",
    "add_bias_linear",
    "add_qkv_bias",
    "window_size",
    "window_attn_skip_freq",
    "softmax_type",
    "layernorm_zero_centered_gamma",
    "layernorm_epsilon",
    "multi_latent_attention",
    "num_moe_experts",
    "moe_router_topk",
    "moe_ffn_hidden_size",
    "moe_router_load_balancing_type",
    "moe_aux_loss_coeff",
    "moe_token_dispatcher_type",
    "moe_layer_freq",
    "moe_shared_expert_intermediate_size",
    "moe_router_score_function",
    "moe_router_pre_softmax",
    "moe_router_topk_scaling_factor",
    "moe_router_num_groups",
    "moe_router_group_topk",
    "mtp_num_layers",
    "mtp_loss_scaling_factor",
    "attention_softmax_in_fp32",
    "apply_residual_connection_post_layernorm",
)
_LATENT: Final[tuple[str, ...]] = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
_READ: Final = {*_MODEL, *_CONFIG, *_LATENT, "vocab_size", "activation"}


@dataclass(frozen=True)
class ModelShape:
    """A model to build. config: arguments of TransformerConfig; model: those of GPTModel."""

    config: Mapping[str, Any]
    model: Mapping[str, Any]
    vocab_size: int
    activation: str
    notes: tuple[str, ...] = ()

    @property
    def gated(self) -> bool:
        """Whether linear_fc1 holds two matrices."""
        return bool(self.config.get("gated_linear_unit"))

    @property
    def latent(self) -> bool:
        """Whether it has multi-latent attention."""
        return bool(self.config.get("multi_latent_attention"))

    @property
    def experts(self) -> bool:
        """Whether it is a mixture of experts."""
        return bool(self.config.get("num_moe_experts"))

    @property
    def balanced(self) -> bool:
        """Whether an auxiliary loss balances its experts: it is computed per microbatch, packed or not."""
        kinds = self.config.get("moe_router_load_balancing_type", "none")
        kinds = [kinds] if isinstance(kinds, str) else list(kinds)
        coefficients = self.config.get("moe_aux_loss_coeff", 0.0)
        return self.experts and kinds != ["none"] and bool(coefficients)

    @property
    def gradients_meet(self) -> bool:
        """Whether a loss of its own ties sequences of a pack together, beside the one that is compared."""
        return self.balanced or self.predicts_more

    @property
    def predicts_more(self) -> bool:
        """Whether it has multi-token prediction."""
        return bool(self.config.get("mtp_num_layers"))

    @property
    def reach(self) -> int | None:
        """How many tokens further a token is seen at most, through all layers; None without a window everywhere."""
        window, layers = self.config.get("window_size"), int(self.config["num_layers"])
        if not window or window[0] < 0 or self.config.get("window_attn_skip_freq") is not None:
            return None
        return int(window[0]) * layers

    def compared_exactly(self) -> ModelShape:
        """Return the model without what differs between packed and unpacked training when nothing is wrong."""
        left_out = ("mtp_num_layers", "mtp_loss_scaling_factor", "moe_aux_loss_coeff", "moe_router_load_balancing_type")
        return replace(self, config={name: value for name, value in self.config.items() if name not in left_out})

    def without_positions(self) -> ModelShape:
        """Return the model without position embeddings: Megatron's unfused RoPE stops at uneven sequences."""
        return replace(self, model={**self.model, "position_embedding_type": "none"})

    def with_layers(self, layers: int) -> ModelShape:
        """Return the model with another number of layers."""
        return replace(self, config={**self.config, "num_layers": layers})


def read_shape(values: Mapping[str, Any]) -> ModelShape:
    """Return the model of a request; what is left out or replaced is told in its notes.

    Raises RefusedError for an activation or a softmax type that does not exist.
    """
    given = {name: value for name, value in values.items() if value is not None}
    unread = sorted(set(given) - _READ)
    notes = [f"model fields that this comparison does not know are left out: {', '.join(unread)}"] if unread else []
    model = {name: given[name] for name in _MODEL if name in given}
    position = model.setdefault("position_embedding_type", "rope")
    if position not in _POSITIONS:
        notes.append(f"position_embedding_type {position} is compared as rope")
        model["position_embedding_type"] = "rope"
    if not isinstance(model.get("rope_scaling", False), bool):
        notes.append("rope_scaling is compared as True with Megatron's own factors")
        model["rope_scaling"] = True
    activation = str(given.get("activation", "gelu"))
    if activation not in ACTIVATIONS:
        raise RefusedError(f"activation {activation!r} is none of {', '.join(ACTIVATIONS)}")
    config = {name: given[name] for name in _CONFIG if name in given}
    if config.get("multi_latent_attention"):
        config |= {name: given[name] for name in _LATENT if name in given}
        # Latent attention has no groups, and its own rotary embedding.
        config.pop("num_query_groups", None)
        config["rope_type"] = "rope"
    if "window_size" in config:
        config["window_size"] = tuple(config["window_size"])
    if int(config.get("mtp_num_layers", 0)) > 1:
        notes.append(f"mtp_num_layers {config['mtp_num_layers']} -> 1")
        config["mtp_num_layers"] = 1
    return ModelShape(config, model, int(given.get("vocab_size", 64)), activation, tuple(notes))


def build_config(shape: ModelShape, layout: Layout, dtype: Any, *, per_token_loss: bool = True) -> Any:
    """Return Megatron's TransformerConfig for a rank of the layout; fields that this release lacks are left out."""
    from megatron.core.distributed.finalize_model_grads import finalize_model_grads
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.transformer_config import MLATransformerConfig

    kind = MLATransformerConfig if shape.latent else TransformerConfig
    values: dict[str, Any] = {
        "add_bias_linear": False,
        **shape.config,
        "activation_func": _activation(shape.activation),
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": dtype == torch.bfloat16,
        "use_cpu_initialization": True,
        "tensor_model_parallel_size": layout.tp,
        "context_parallel_size": layout.cp,
        "pipeline_model_parallel_size": layout.pp,
        "virtual_pipeline_model_parallel_size": layout.vpp,
        "expert_model_parallel_size": layout.ep,
        "expert_tensor_parallel_size": 1,
        "sequence_parallel": layout.sp,
        "cp_comm_type": layout.cp_comm_type,
        "calculate_per_token_loss": per_token_loss,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        **dict.fromkeys(_FUSIONS, False),
    }
    if layout.cp_comm_type == "a2a+p2p" and layout.cp > 1:
        values["hierarchical_context_parallel_sizes"] = [2, layout.cp // 2]
    if layout.vpp:
        # With two stages the next and the previous one are one peer, and batched messages are mixed up.
        values |= {"overlap_p2p_comm": True, "batch_p2p_comm": False}
    if shape.experts:
        # A router in the model's own precision sends tokens elsewhere for a rounding error.
        values |= {"moe_grouped_gemm": False, "moe_router_dtype": "fp64" if dtype == torch.float64 else "fp32"}
        values.setdefault("moe_token_dispatcher_type", "alltoall")
        values.setdefault("moe_router_load_balancing_type", "none")
    known = kind.__dataclass_fields__
    config = kind(**{name: value for name, value in values.items() if name in known})
    config.finalize_model_grads_func = finalize_model_grads
    return config


_FUSIONS: Final = (
    "bias_activation_fusion",
    "bias_dropout_fusion",
    "masked_softmax_fusion",
    "gradient_accumulation_fusion",
    "apply_rope_fusion",
    "persist_layer_norm",
    "moe_permute_fusion",
)


def _activation(name: str) -> Any:
    from megatron.core.activations import quick_gelu, squared_relu

    functional = torch.nn.functional
    return {
        "silu": functional.silu,
        "gelu": functional.gelu,
        "relu": functional.relu,
        "squared_relu": squared_relu,
        "quick_gelu": quick_gelu,
    }[name]


def build_models(
    shape: ModelShape, config: Any, layout: Layout, length: int, dtype: Any, attention: type | None
) -> list[Any]:
    """Return this rank's chunks of the model, one without virtual pipelining.

    length: largest position; attention: the core attention of packed runs, None for Megatron's own (unpacked, CP 1).
    """
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel

    spec = _layer_spec(shape, config, attention)
    first = parallel_state.is_pipeline_first_stage(ignore_virtual=True)
    last = parallel_state.is_pipeline_last_stage(ignore_virtual=True)
    chunks = layout.vpp or 1
    models = []
    for chunk in range(chunks):
        ends = last and chunk == chunks - 1
        more = {"vp_stage": chunk} if layout.vpp else {}
        if shape.predicts_more and ends:
            more["mtp_block_spec"] = _mtp_spec(config, spec)
        model = GPTModel(
            config,
            spec,
            shape.vocab_size,
            length,
            pre_process=first and chunk == 0,
            post_process=ends,
            **shape.model,
            **more,
        )
        models.append(model.to(dtype))
    return models


def _layer_spec(shape: ModelShape, config: Any, attention: type | None) -> Any:
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec

    from skill_run.worker.inside.norm import TorchNorm, put_into_spec, use_final_norm

    plain_norm = not (config.sequence_parallel or config.layernorm_zero_centered_gamma)
    norm = None if plain_norm else TorchNorm
    if attention is None:
        attention = _stock_attention() if shape.latent else None
    if shape.experts and config.moe_layer_freq != 1:
        # Dense layers among those with experts: one spec for each.
        block = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization=config.normalization)
        return put_into_spec(block, attention=attention, norm=norm)
    if norm is not None:
        use_final_norm(norm)
    spec = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts,
        moe_grouped_gemm=False,
        qk_layernorm=config.qk_layernorm,
        multi_latent_attention=shape.latent,
        normalization=config.normalization,
    )
    return put_into_spec(spec, attention=attention, norm=norm)


def _stock_attention() -> type:
    """Return Megatron's own attention for latent heads: it knows no k_channels, which the scale makes superfluous."""
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    class LatentDotProductAttention(DotProductAttention):
        def __init__(self, *args: Any, k_channels: int = 0, v_channels: int = 0, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if v_channels:
                self.hidden_size_per_partition = v_channels * self.num_attention_heads_per_partition

    return LatentDotProductAttention


def _mtp_spec(config: Any, spec: Any) -> Any:
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_mtp_block_spec

    from skill_run.worker.inside.norm import put_into_mtp_spec

    block = get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False)
    return put_into_mtp_spec(block) if config.sequence_parallel or config.layernorm_zero_centered_gamma else block


def count_mtp_tokens_alike() -> None:
    """Leave out the factor of MTP's loss that is taken per microbatch, so that packed and unpacked have one loss.

    Mirrors transformer/multi_token_prediction.py, where roll_tensor's count divides the microbatch's own count.
    """
    from megatron.core.models.gpt import gpt_model
    from megatron.core.transformer import multi_token_prediction

    original = multi_token_prediction.roll_tensor

    def roll_tensor(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        rolled, _ = original(tensor, *args, **kwargs)
        return rolled, None if tensor is None else tensor.sum()

    for module in (multi_token_prediction, gpt_model):
        if hasattr(module, "roll_tensor"):
            module.roll_tensor = roll_tensor
