"""Weights that depend on a parameter's global name alone, so that every layout holds the same model."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state

_LAYER = re.compile(r"^decoder\.layers\.(\d+)\.")
_EXPERT = re.compile(r"\blocal_experts\.(\d+)\.")


def named_parameters(models: Iterable[Any]) -> dict[str, Any]:
    """Return this rank's parameters by global name: layers and experts are numbered over all stages and ranks."""
    return {_global_name(model, name): parameter for model in models for name, parameter in model.named_parameters()}


def _global_name(model: Any, name: str) -> str:
    if name == "output_layer.weight" and model.share_embeddings_and_output_weights:
        return "embedding.word_embeddings.weight"
    layer = _LAYER.match(name)
    if layer:
        number = model.decoder.layers[int(layer[1])].layer_number - 1
        name = f"decoder.layers.{number}.{name[layer.end() :]}"
    expert = _EXPERT.search(name)
    if expert:
        on_each = model.config.num_moe_experts // parallel_state.get_expert_model_parallel_world_size()
        number = int(expert[1]) + on_each * parallel_state.get_expert_model_parallel_rank()
        name = f"{name[: expert.start()]}local_experts.{number}.{name[expert.end() :]}"
    return name


def draw_weights(parameters: Mapping[str, Any], seed: int, *, gated: bool) -> None:
    """Set each parameter to this rank's part of the weights that its name and the seed give.

    Matrices have a scale of 1/sqrt(inputs), so that attention matters. gated: linear_fc1 holds two matrices.
    """
    with torch.no_grad():
        for name, parameter in parameters.items():
            split = _split_dimension(name, parameter)
            shape = list(parameter.shape)
            if split is not None:
                shape[split] *= parallel_state.get_tensor_model_parallel_world_size()
            full = _full_weight(name, shape, seed)
            parameter.copy_(full if split is None else _own_part(name, full, split, gated))


def _full_weight(name: str, shape: list[int], seed: int) -> Any:
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}:{name}".encode()))
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
    if len(shape) == 1:
        return 1.0 + 0.1 * drawn if "norm" in name and name.endswith("weight") else 0.5 * drawn
    return drawn if "embedding" in name else drawn / shape[-1] ** 0.5


def _split_dimension(name: str, parameter: Any) -> int | None:
    """Return the dimension that tensor parallelism splits, None for one that every rank holds whole."""
    if parallel_state.get_tensor_model_parallel_world_size() == 1 or "local_experts" in name:
        return None
    if name.endswith("softmax_offset"):
        return 0
    return int(parameter.partition_dim) if getattr(parameter, "tensor_model_parallel", False) else None


def _own_part(name: str, full: Any, dimension: int, gated: bool) -> Any:
    size = parallel_state.get_tensor_model_parallel_world_size()
    rank = parallel_state.get_tensor_model_parallel_rank()
    halves = full.chunk(2, dimension) if gated and "linear_fc1" in name else [full]
    return torch.cat([half.chunk(size, dimension)[rank] for half in halves], dimension)


def gather_full(parameters: Mapping[str, Any], values: Mapping[str, Any], *, gated: bool) -> dict[str, Any] | None:
    """Return the whole model's values (gradients or weights) by global name on rank 0, None elsewhere.

    values: this rank's parts, by the names of `parameters`.
    """
    mine = {}
    for name, parameter in parameters.items():
        value, split = values[name].detach(), _split_dimension(name, parameter)
        mine[name] = (value if split is None else _joined(name, value, split, gated)).cpu().clone()
    gathered: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(mine, gathered)
    if gathered is None:
        return None
    whole: dict[str, Any] = {}
    for part in gathered:
        for name, value in part.items():
            whole.setdefault(name, value)
    return whole


def _joined(name: str, part: Any, dimension: int, gated: bool) -> Any:
    group = parallel_state.get_tensor_model_parallel_group()
    parts = [torch.empty_like(part) for _ in range(group.size())]
    dist.all_gather(parts, part.contiguous(), group=group)
    if gated and "linear_fc1" in name:
        halves = zip(*(each.chunk(2, dimension) for each in parts), strict=True)
        parts = [each for half in halves for each in half]
    return torch.cat(parts, dimension)
