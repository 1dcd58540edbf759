"""Norms in plain torch that sequence parallelism and zero-centred weights accept, and their place in a layer spec.

Megatron's own torch norm (transformer/torch_norm.py) refuses both, and the others need Transformer Engine or Apex.
"""

from __future__ import annotations

from typing import Any

import torch


class RMSNorm(torch.nn.Module):
    """RMSNorm over the last dimension."""

    def __init__(self, config: Any, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.eps, self.shape = eps, (hidden_size,)
        self.zero_centered = bool(config.layernorm_zero_centered_gamma)
        self.weight = _parameter(hidden_size, 0.0 if self.zero_centered else 1.0, config)

    def forward(self, x: Any) -> Any:
        """Return x [..., hidden] normalised and scaled."""
        weight = 1.0 + self.weight if self.zero_centered else self.weight
        return torch.nn.functional.rms_norm(x, self.shape, weight, self.eps)


class LayerNorm(torch.nn.Module):
    """LayerNorm over the last dimension."""

    def __init__(self, config: Any, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.eps, self.shape = eps, (hidden_size,)
        self.zero_centered = bool(config.layernorm_zero_centered_gamma)
        self.weight = _parameter(hidden_size, 0.0 if self.zero_centered else 1.0, config)
        self.bias = _parameter(hidden_size, 0.0, config)

    def forward(self, x: Any) -> Any:
        """Return x [..., hidden] normalised, scaled and shifted."""
        weight = 1.0 + self.weight if self.zero_centered else self.weight
        return torch.nn.functional.layer_norm(x, self.shape, weight, self.bias, self.eps)


def _parameter(size: int, value: float, config: Any) -> Any:
    parameter = torch.nn.Parameter(torch.full((size,), value, dtype=config.params_dtype))
    # The mark that makes finalize_model_grads sum its gradient over the tensor-parallel ranks.
    parameter.sequence_parallel = config.sequence_parallel
    return parameter


class TorchNorm:
    """What a layer spec holds: builds the norm that config.normalization names, as WrappedTorchNorm does."""

    def __new__(cls, config: Any, hidden_size: int, eps: float = 1e-5, **kwargs: Any) -> Any:
        """Return the module; kwargs that only fused norms know are left out."""
        kind = RMSNorm if config.normalization == "RMSNorm" else LayerNorm
        return kind(config, hidden_size, eps)


def put_into_spec(spec: Any, *, attention: type | None = None, norm: type | None = TorchNorm) -> Any:
    """Put a core attention and a norm into a local layer spec, in place, and return it.

    spec: ModuleSpec of a TransformerLayer, or TransformerBlockSubmodules with several. For a ModuleSpec the block's
    final norm is not in the spec: use_final_norm sets it.
    """
    layers = getattr(spec, "layer_specs", None)
    if layers is None:
        _put_into_layer(spec.submodules, attention, norm)
        return spec
    for layer in layers:
        _put_into_layer(layer.submodules, attention, norm)
    if norm is not None and spec.layer_norm is not None:
        spec.layer_norm = norm
    return spec


def put_into_mtp_spec(spec: Any, norm: type = TorchNorm) -> Any:
    """Put a norm into every layer of a multi-token-prediction block spec, in place, and return it."""
    for layer in spec.layer_specs:
        for name in ("enorm", "hnorm", "layer_norm"):
            setattr(layer.submodules, name, norm)
    return spec


def use_final_norm(norm: type = TorchNorm) -> None:
    """Let blocks that are made from a ModuleSpec end with this norm (transformer/transformer_block.py)."""
    from megatron.core.transformer import transformer_block

    transformer_block.LayerNormImpl = norm


def _put_into_layer(layer: Any, attention: type | None, norm: type | None) -> None:
    inner = layer.self_attention.submodules
    if attention is not None:
        inner.core_attention = attention
    if norm is None:
        return
    for owner, names in (
        (layer, ("input_layernorm", "pre_mlp_layernorm")),
        (inner, ("q_layernorm", "k_layernorm", "kv_layernorm")),
    ):
        for name in names:
            if _is_norm(getattr(owner, name, None)):
                setattr(owner, name, norm)


def _is_norm(module: Any) -> bool:
    """Whether a place in a spec holds a norm over the hidden size: no identity, and no L2 norm, which has no weight."""
    name = getattr(module, "__name__", "")
    return name.endswith("Norm") and name != "L2Norm"
