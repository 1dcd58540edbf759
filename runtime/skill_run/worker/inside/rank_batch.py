"""How a packed batch reaches a context-parallel rank: through Megatron's own functions, or by a fault put in."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

import megatron.core.utils as core_utils
import torch
from megatron.core.packed_seq_params import PackedSeqParams

from skill_run.worker.inside.samples import Pack
from skill_run.worker.inside.variation import Variation

# Boundaries that are no boundaries: padding of cu_seqlens in releases before 0.5.1.
SENTINELS: Final = (-1, -1, -1)


def on_this_rank(fields: Mapping[str, Any], pack: Pack, variation: Variation, group: Any) -> tuple[dict[str, Any], Any]:
    """Return what a rank of the context-parallel group holds of the fields [1, T], and its PackedSeqParams."""
    logical, physical = _boundaries(pack, variation)
    fields = dict(fields)
    if variation.shifted_mask:
        fields["loss_mask"] = torch.roll(fields["loss_mask"], 1, 1)
    size, rank = group.size(), group.rank()
    if size > 1 and variation.split == "contiguous":
        fields = {name: value.chunk(size, 1)[rank] for name, value in fields.items()}
    elif size > 1 and variation.split == "whole":
        fields = _whole_zigzag(fields, group)
    elif size > 1:
        index_boundaries = (*physical, *SENTINELS) if variation.sentinels else physical
        fields = _sequence_zigzag(fields, index_boundaries, pack.longest, group)
    return fields, _packed_seq_params(logical, physical, pack, fields["tokens"].device)


def _boundaries(pack: Pack, variation: Variation) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the logical and the physical boundaries that the run is told."""
    if variation.boundaries == "none":
        return (0, pack.tokens), (0, pack.tokens)
    if variation.boundaries == "logical":
        # The last one covers the rest, as when a batch is padded to its full length.
        told = (*pack.logical[:-1], pack.tokens)
        return told, told
    return pack.logical, pack.physical


def _packed_seq_params(logical: tuple[int, ...], physical: tuple[int, ...], pack: Pack, device: Any) -> Any:
    q, padded = (torch.tensor(at, dtype=torch.int32, device=device) for at in (logical, physical))
    longest = max(end - start for start, end in pairwise(physical))
    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=q,
        cu_seqlens_kv=q,
        cu_seqlens_q_padded=padded,
        cu_seqlens_kv_padded=padded,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
    )


def _sequence_zigzag(
    fields: Mapping[str, Any], boundaries: tuple[int, ...], longest: int, group: Any
) -> dict[str, Any]:
    """Cut every sequence with Megatron's own function, which has one name in 0.16.1 and another in 0.19.2."""
    cu_seqlens = torch.tensor(boundaries, dtype=torch.int32, device=fields["tokens"].device)
    if hasattr(core_utils, "get_thd_batch_on_this_cp_rank"):
        cut, _ = core_utils.get_thd_batch_on_this_cp_rank(
            dict(fields), cu_seqlens, cu_seqlens, torch.tensor([longest]), group.size(), group.rank()
        )
        return dict(cut)
    batch = {**fields, "cu_seqlens": cu_seqlens[None], "cu_seqlens_padded": cu_seqlens[None]}
    cut = core_utils.get_batch_on_this_cp_rank(batch, is_hybrid_cp=False, cp_group=group)
    return {name: cut[name] for name in fields}


def _whole_zigzag(fields: Mapping[str, Any], group: Any) -> dict[str, Any]:
    """Cut the pack as if it were one sequence, with Megatron's own function for dense batches."""
    function = core_utils.get_batch_on_this_cp_rank
    hybrid = {"is_hybrid_cp": False} if "is_hybrid_cp" in inspect.signature(function).parameters else {}
    cut = function({**fields, "cu_seqlens": None}, cp_group=group, **hybrid)
    return {name: cut[name] for name in fields}
