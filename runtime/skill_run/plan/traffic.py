"""Context parallelism's transfer against the attention that it can hide behind, for one layer's forward pass.

Transfer is that of the whole pack, attention only that of its sequences: `sum l^2`, which is the pack's tokens times
the token-weighted mean length. So packed short samples make a ring wait that one long sample hides.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, Final, Literal

from skill_run.plan.gpus import GpuRates
from skill_run.plan.layout import Layout, heads_exchanged
from skill_run.plan.links import nvlink_domain
from skill_run.plan.shape import ModelShape

ELEMENT_BYTES: Final = 2
# A wait below this share of the attention is not worth a word.
_NEGLIGIBLE: Final = 0.01

Verdict = Literal["hidden", "exposed", "impossible"]
Link = Literal["nvlink", "network", "none"]


@dataclass(frozen=True, slots=True)
class Traffic:
    """One attention layer's forward pass on one GPU, in microseconds and bytes.

    attention, products: the attention itself, and the matrix products of the layer beside it. exposed: transfer that
    nothing hides. step_attention, step_transfer: one step of the ring, 0 without one. link: the slowest that is taken.
    why: what makes the layout impossible, or what it needs beside this release.
    """

    layout: Layout
    verdict: Verdict
    attention: float = 0.0
    products: float = 0.0
    transfer: float = 0.0
    exposed: float = 0.0
    step_attention: float = 0.0
    step_transfer: float = 0.0
    size: float = 0.0
    link: Link = "none"
    why: str | None = None

    @property
    def wait(self) -> float:
        """Return the share of the layer's time that the exposed transfer takes."""
        whole = self.attention + self.products + self.exposed
        return self.exposed / whole if whole else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON-ready data."""
        found: dict[str, Any] = {
            "cp": self.layout.cp,
            "cp_comm_type": self.layout.comm,
            "hierarchical_sizes": list(self.layout.hierarchical_sizes) if self.layout.hierarchical_sizes else None,
            "verdict": self.verdict,
            "why": self.why,
        }
        possible = self.verdict != "impossible"
        for name in ("attention", "products", "transfer", "exposed", "step_attention", "step_transfer"):
            found[f"{name}_us"] = round(getattr(self, name), 1) if possible else None
        found["transfer_mib"] = round(self.size / 2**20, 1) if possible else None
        found["wait"] = round(self.wait, 4) if possible else None
        found["link"] = self.link
        return found


@dataclass(frozen=True, slots=True)
class Heads:
    """Sizes of one attention layer: query heads, key-value groups, elements of a query and key, and of a value."""

    queries: int
    groups: int
    width: int

    @property
    def query_bytes(self) -> int:
        """Return bytes per token of the queries and the attention's output."""
        return self.queries * self.width * ELEMENT_BYTES

    def key_bytes(self, tp: int) -> int:
        """Return bytes per token of keys and values on one tensor-parallel rank, which has one group at least."""
        return ceil(self.groups / tp) * self.width * ELEMENT_BYTES


def heads_of(shape: ModelShape) -> Heads:
    """Return the attention sizes of a model; width adds that of a key and that of a value.

    Multi-latent attention exchanges its keys and values as attention sees them, expanded for every head.
    """
    if shape.mla:
        return Heads(shape.heads, shape.heads, shape.qk_nope + shape.qk_rope + shape.v_head)
    return Heads(shape.heads, shape.groups, 2 * shape.head_dim)


def attention_us(shape: ModelShape, attention: float, layout: Layout, rates: GpuRates) -> float:
    """Return the time of one GPU's share of a layer's causal attention; attention: the pack's sum of squared lengths.

    Two products (queries by keys, weights by values) over half of each sequence's square.
    """
    heads = heads_of(shape)
    return 1e6 * heads.queries * heads.width * attention / (layout.tp * layout.cp) / rates.attention


def products_us(shape: ModelShape, pack_size: int, layout: Layout, rates: GpuRates) -> float:
    """Return the time of the matrix products that come with one attention layer: all blocks' but the vocabulary's."""
    held = shape.parameters
    experts = held.experts * shape.topk / shape.experts if shape.experts else 0.0
    active = held.attention + held.mamba + held.linear_attention + held.dense_ffn + held.shared_experts + held.router
    each = (active + experts) / max(1, shape.count("*"))
    return 1e6 * 2 * each * pack_size / (layout.tp * layout.cp) / rates.matmul


def traffic_of(
    shape: ModelShape, layout: Layout, rates: GpuRates, *, pack_size: int, attention: float, why: str | None = None
) -> Traffic:
    """Return transfer and attention of a layout that divides the heads; attention: the pack's sum of squared lengths.

    p2p passes key-values round a ring, each step behind the attention to the block before; all_gather and a2a come
    before and after attention; a2a+p2p has both. Volumes as in Transformer Engine's
    attention/dot_product_attention/context_parallel.py; the backward pass has twice the transfer and 2.5 times the
    attention.
    """
    heads = heads_of(shape)
    work = attention_us(shape, attention, layout, rates)
    products = products_us(shape, pack_size, layout, rates)
    if layout.cp == 1:
        return Traffic(layout, "hidden", work, products, why=why)
    local = pack_size / layout.cp
    keys = local * heads.key_bytes(layout.tp)
    near = _within_nvlink(layout, rates.name)
    inner = layout.cp if layout.comm in ("a2a", "all_gather") else heads_exchanged(layout)
    outer = layout.cp // inner
    if layout.comm == "all_gather":
        swap = (layout.cp - 1) * keys
    else:
        swap = (inner - 1) / inner * (local * heads.query_bytes / layout.tp + keys)
    swap_us = _exchange_us(swap, inner, min(near, inner), rates)
    step = 1e6 * keys / (rates.nvlink if near >= layout.cp else rates.network) if outer > 1 else 0.0
    behind = work / outer if outer > 1 else 0.0
    exposed = swap_us + (outer - 1) * max(0.0, step - behind)
    return Traffic(
        layout,
        "hidden" if exposed <= _NEGLIGIBLE * work else "exposed",
        work,
        products,
        swap_us + (outer - 1) * step,
        exposed,
        behind,
        step,
        swap + (outer - 1) * keys,
        "nvlink" if near >= layout.cp else "network",
        why,
    )


def _within_nvlink(layout: Layout, gpu: str) -> int:
    """Return how many of the CP ranks share a NVLink domain: tensor parallel ranks lie next to each other."""
    return min(layout.cp, max(1, nvlink_domain(gpu) // layout.tp))


def _exchange_us(size: float, ranks: int, near: int, rates: GpuRates) -> float:
    """Return the time of an exchange with every other rank alike; both links work at once."""
    if ranks == 1:
        return 0.0
    outside = size * (ranks - near) / (ranks - 1)
    return 1e6 * max((size - outside) / rates.nvlink, outside / rates.network)
