"""Collectives over context-parallel ranks that gradients flow through, for gloo and for NCCL."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class AllGather(torch.autograd.Function):
    """[t, ...] of each rank -> [ranks * t, ...] on every rank, in the order of the ranks."""

    @staticmethod
    def forward(ctx: Any, x: Any, group: Any) -> Any:
        """Gather; every rank's x has one shape."""
        ctx.group = group
        size = dist.get_world_size(group)
        parts = [torch.empty_like(x) for _ in range(size)]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Sum the gradients of all ranks and keep the own part; gloo has no reduce-scatter."""
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient.chunk(dist.get_world_size(ctx.group))[dist.get_rank(ctx.group)], None


class RingShift(torch.autograd.Function):
    """Send to the next rank of the group and receive from the one before; gradients go the other way."""

    @staticmethod
    def forward(ctx: Any, x: Any, group: Any) -> Any:
        """Return what the rank before sent."""
        ctx.group = group
        return _shifted(x, group, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Return the gradient of what was sent."""
        return _shifted(gradient, ctx.group, -1), None


def _shifted(x: Any, group: Any, step: int) -> Any:
    ranks = dist.get_process_group_ranks(group)
    me = dist.get_rank(group)
    device, x = x.device, x.contiguous()
    if x.is_cuda and "nccl" not in dist.get_backend(group):
        # gloo sends host memory only: ranks that share a GPU.
        x = x.cpu()
    received = torch.empty_like(x)
    sending = dist.isend(x, ranks[(me + step) % len(ranks)], group=group)
    receiving = dist.irecv(received, ranks[(me - step) % len(ranks)], group=group)
    sending.wait()
    receiving.wait()
    return received.to(device)


class AllToAll(torch.autograd.Function):
    """[ranks, ...]: part i goes to rank i, and part i of the result came from rank i. It is its own inverse."""

    @staticmethod
    def forward(ctx: Any, x: Any, group: Any) -> Any:
        """Exchange; every part has one shape."""
        ctx.group = group
        return _exchanged(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Exchange the gradients back."""
        return _exchanged(gradient, ctx.group), None


def _exchanged(x: Any, group: Any) -> Any:
    x = x.contiguous()
    received = torch.empty_like(x)
    dist.all_to_all_single(received, x, group=group)
    return received


def heads_to_ranks(x_THD: Any, group: Any) -> Any:
    """Give each rank of the group its share of the heads, for the tokens of all: [t, h, d] -> [n * t, h / n, d]."""
    n = dist.get_world_size(group)
    return AllToAll.apply(torch.stack(x_THD.chunk(n, 1)), group).flatten(0, 1)


def heads_from_ranks(x_THD: Any, group: Any) -> Any:
    """Undo heads_to_ranks: [n * t, h / n, d] -> [t, h, d]."""
    n = dist.get_world_size(group)
    return AllToAll.apply(torch.stack(x_THD.chunk(n, 0)), group).transpose(0, 1).flatten(1, 2)
