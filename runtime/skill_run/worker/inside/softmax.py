"""Attention of one sequence: in one go, or as partial results over parts of its keys that are merged later."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.nn import functional

# Where a query sees no key of a part, the largest score is this, and its partial result weighs nothing.
_NOTHING = -1e30


class Partial(NamedTuple):
    """Attention over some of the keys, not yet divided by its weight.

    largest: largest score [H, q, 1]; weight: sum of exp(score - largest) [H, q, 1]; output: [H, q, D].
    """

    largest: Any
    weight: Any
    output: Any


def attend(q_THD: Any, k_THD: Any, v_THD: Any, mask: Any, scale: float) -> Any:
    """Return the attention output [q, H, D]; mask bool [q, k], or None for a plain causal triangle."""
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q_THD, k_THD, v_THD))
    output = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale)
    return output.squeeze(0).transpose(0, 1)


def partial(q_THD: Any, k_THD: Any, v_THD: Any, mask: Any, scale: float) -> Partial:
    """Return the attention of the queries over these keys; a query that sees none of them gets weight 0."""
    scores = torch.einsum("qhd,khd->hqk", q_THD, k_THD) * scale
    if scores.dtype in (torch.bfloat16, torch.float16):
        scores = scores.float()
    if mask is None:
        mask = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).tril()
    scores = scores.masked_fill(~mask, float("-inf"))
    if scores.size(-1) == 0:
        largest = scores.new_full((*scores.shape[:2], 1), _NOTHING)
    else:
        largest = scores.detach().amax(-1, keepdim=True).clamp(min=_NOTHING)
    weights = (scores - largest).exp()
    output = torch.einsum("hqk,khd->hqd", weights.to(v_THD.dtype), v_THD).to(scores.dtype)
    return Partial(largest, weights.sum(-1, keepdim=True), output)


def merge(first: Partial, second: Partial) -> Partial:
    """Return the attention over the keys of both."""
    largest = torch.maximum(first.largest, second.largest)
    one, two = (first.largest - largest).exp(), (second.largest - largest).exp()
    return Partial(largest, first.weight * one + second.weight * two, first.output * one + second.output * two)


def finish(part: Partial, sink_H: Any, dtype: Any) -> Any:
    """Return the attention output [q, H, D]; sink: one more logit for each head, which has no value, or None."""
    if sink_H is not None:
        sink = sink_H.to(part.weight.dtype).view(-1, 1, 1)
        largest = torch.maximum(part.largest, sink.detach())
        shrink = (part.largest - largest).exp()
        part = Partial(largest, part.weight * shrink + (sink - largest).exp(), part.output * shrink)
    return (part.output / part.weight).transpose(0, 1).to(dtype)
