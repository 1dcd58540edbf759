"""Core attention on the CPU: packed (THD) and dense (SBHD), with context parallelism, as Transformer Engine has it.

Plain autograd in whatever type runs, so gradients are exact up to rounding. T tokens of a rank, H heads, D head size,
S sequence, B batch. A rank holds of every sequence the chunks r and 2*CP-1-r of 2*CP, as with Transformer Engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.utils import is_layer_window_attention, make_sharded_tensors_for_checkpoint

from skill_run.worker.inside.collectives import AllGather, RingShift, heads_from_ranks, heads_to_ranks
from skill_run.worker.inside.errors import RefusedError
from skill_run.worker.inside.holdings import Cut, holding, masks
from skill_run.worker.inside.partition import Partition, thd_partition_indices
from skill_run.worker.inside.softmax import Partial, attend, finish, merge, partial

_CAUSAL = {"causal", "padding_causal", "causal_bottom_right"}
_FULL = {"padding", "no_mask"}


class CPUAttention(MegatronModule):
    """Core attention of a layer spec: GQA, MLA, causal or full, sliding window, sinks, every cp_comm_type.

    partition: the index function by which ranks hold the tokens of a pack; only controls change it.
    Raises RefusedError for dropout, for an arbitrary mask, and for heads that a2a cannot divide.
    """

    partition: Partition = staticmethod(thd_partition_indices)

    def __init__(
        self,
        config: Any,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: Any = None,
        k_channels: int | None = None,
        v_channels: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(config=config)
        if config.attention_dropout if attention_dropout is None else attention_dropout:
            raise RefusedError("attention_dropout must be 0 on the CPU: dropped weights cannot be compared")
        self.layer_number = layer_number
        self.attn_mask_type = attn_mask_type
        self.pg_collection = pg_collection or ProcessGroupCollection.use_mpu_process_groups(["tp", "cp"])
        self.cp_comm_type = cp_comm_type or "p2p"
        self.softmax_scale = softmax_scale or 1.0 / math.sqrt(k_channels or config.kv_channels)
        in_window = is_layer_window_attention(config.window_size, config.window_attn_skip_freq, layer_number)
        self.window = tuple(config.window_size) if in_window else None
        self._make_sinks(config)

    def _make_sinks(self, config: Any) -> None:
        heads = config.num_attention_heads // self.pg_collection.tp.size()
        if config.softmax_type == "vanilla":
            self.softmax_offset = None
        elif config.softmax_type == "off-by-one":
            self.softmax_offset = torch.zeros(heads, device=torch.cuda.current_device())
        else:
            offset = torch.nn.Parameter(torch.empty(heads, dtype=config.params_dtype))
            self.register_parameter("softmax_offset", offset)
            if config.perform_initialization:
                config.init_method(offset)

    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any = None,
        attn_mask_type: Any = None,
        attention_bias: Any = None,
        packed_seq_params: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Return [T, H*D] for packed q, k, v [T, H, D], and [S, B, H*D] for dense ones [S, B, H, D].

        The mask is not read: it follows from the boundaries and attn_mask_type.
        """
        causal = self._is_causal(attn_mask_type or self.attn_mask_type)
        if packed_seq_params is not None and packed_seq_params.qkv_format == "thd":
            boundaries = _physical_boundaries(packed_seq_params)
            group = packed_seq_params.cp_group or self.pg_collection.cp
            return self._attend(query, key, value, boundaries, group, causal).flatten(1)
        length, batch = query.shape[:2]
        boundaries = [row * length * self.pg_collection.cp.size() for row in range(batch + 1)]
        q, k, v = (x.transpose(0, 1).flatten(0, 1) for x in (query, key, value))
        output = self._attend(q, k, v, boundaries, self.pg_collection.cp, causal)
        return output.reshape(batch, length, -1).transpose(0, 1).contiguous()

    def _is_causal(self, attn_mask_type: AttnMaskType) -> bool:
        if attn_mask_type.name not in _CAUSAL | _FULL:
            raise RefusedError(f"the CPU attention has no mask of type {attn_mask_type.name}")
        return attn_mask_type.name in _CAUSAL

    def _attend(self, q: Any, k: Any, v: Any, boundaries: Sequence[int], group: Any, causal: bool) -> Any:
        """Return [T, H, D] for the tokens of this rank."""
        cp_size, cp_rank = group.size(), group.rank()
        cut = Cut.of(boundaries, q.size(0) * cp_size, cp_size, str(q.device), self.partition)
        everyone, me = tuple(range(cp_size)), (cp_rank,)
        if cp_size == 1:
            return self._local(q, k, v, cut, me, me, causal, self.softmax_offset)
        if self.cp_comm_type == "all_gather":
            keys, values = AllGather.apply(torch.cat([k, v], -1), group).split([k.size(-1), v.size(-1)], -1)
            return self._local(q, keys, values, cut, me, everyone, causal, self.softmax_offset)
        if self.cp_comm_type == "p2p":
            owners = [((cp_rank - step) % cp_size,) for step in range(cp_size)]
            return self._ring(q, k, v, cut, me, owners, group, causal, self.softmax_offset)
        if self.cp_comm_type == "a2a":
            q, k, v, sink = self._scattered(q, k, v, group)
            return heads_from_ranks(self._local(q, k, v, cut, everyone, everyone, causal, sink), group)
        if self.cp_comm_type == "a2a+p2p":
            return self._hierarchical(q, k, v, cut, group, causal)
        raise RefusedError(f"there is no cp_comm_type {self.cp_comm_type!r}")

    def _local(
        self, q: Any, k: Any, v: Any, cut: Cut, mine: tuple[int, ...], theirs: tuple[int, ...], causal: bool, sink: Any
    ) -> Any:
        """Attend over keys that are all here: those of `theirs`, for the queries of `mine`."""
        queries, keys = holding(cut, mine), holding(cut, theirs)
        k, v = _for_each_head(q.size(1), k, v)
        outputs = []
        for each in zip(
            queries.arrange(q),
            keys.arrange(k),
            keys.arrange(v),
            masks(cut, mine, theirs, causal, self.window),
            strict=True,
        ):
            if each[0].size(0) == 0:
                outputs.append(each[0].new_empty(0, q.size(1), v.size(-1)))
            elif sink is None:
                outputs.append(attend(*each, self.softmax_scale))
            else:
                outputs.append(finish(partial(*each, self.softmax_scale), sink, q.dtype))
        return queries.restore(outputs)

    def _ring(
        self,
        q: Any,
        k: Any,
        v: Any,
        cut: Cut,
        mine: tuple[int, ...],
        owners: Sequence[tuple[int, ...]],
        group: Any,
        causal: bool,
        sink: Any,
    ) -> Any:
        """Attend over keys that go round the group: at each step those of the next of `owners` are here."""
        queries = holding(cut, mine)
        q_parts = queries.arrange(q)
        kv, sizes = torch.cat([k, v], -1), [k.size(-1), v.size(-1)]
        merged: list[Partial | None] = [None] * len(q_parts)
        for step, theirs in enumerate(owners):
            if step:
                kv = RingShift.apply(kv, group)
            keys = holding(cut, theirs)
            k, v = _for_each_head(q.size(1), *kv.split(sizes, -1))
            seen = masks(cut, mine, theirs, causal, self.window)
            for number, each in enumerate(zip(q_parts, keys.arrange(k), keys.arrange(v), seen, strict=True)):
                part, before = partial(*each, self.softmax_scale), merged[number]
                merged[number] = part if before is None else merge(before, part)
        return queries.restore([finish(part, sink, q.dtype) for part in merged if part is not None])

    def _scattered(self, q: Any, k: Any, v: Any, group: Any) -> tuple[Any, Any, Any, Any]:
        """Return q, k, v and the sinks of this rank's share of the heads, for the tokens of the whole group."""
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        for what, heads in (("attention heads", q.size(1)), ("key-value heads", k.size(1))):
            if heads % size:
                raise RefusedError(
                    f"{self.cp_comm_type} cannot spread the {heads} {what} of a rank over {size} CP ranks"
                )
        sink = None if self.softmax_offset is None else self.softmax_offset.chunk(size)[rank]
        return heads_to_ranks(q, group), heads_to_ranks(k, group), heads_to_ranks(v, group), sink

    def _hierarchical(self, q: Any, k: Any, v: Any, cut: Cut, group: Any, causal: bool) -> Any:
        """Scatter the heads within the inner group, and let the keys go round the outer one."""
        inner, outer = parallel_state.get_hierarchical_context_parallel_groups()
        ranks = dist.get_process_group_ranks(group)
        inside = [ranks.index(rank) for rank in dist.get_process_group_ranks(inner)]
        outside = [ranks.index(rank) for rank in dist.get_process_group_ranks(outer)]
        me, place = group.rank(), dist.get_rank(outer)
        owners = [
            tuple(outside[(place - step) % len(outside)] - me + rank for rank in inside) for step in range(len(outside))
        ]
        q, k, v, sink = self._scattered(q, k, v, inner)
        return heads_from_ranks(self._ring(q, k, v, cut, owners[0], owners, outer, causal, sink), inner)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> Any:
        """Return the learnable sinks for a distributed checkpoint, cut by tensor parallelism."""
        held = self.state_dict(prefix="", keep_vars=True) if self.config.softmax_type == "learnable" else {}
        return make_sharded_tensors_for_checkpoint(held, prefix, {"softmax_offset": 0}, sharded_offsets)


def _physical_boundaries(packed_seq_params: Any) -> list[int]:
    padded = packed_seq_params.cu_seqlens_q_padded
    return [int(at) for at in (packed_seq_params.cu_seqlens_q if padded is None else padded).tolist()]


def _for_each_head(heads: int, k: Any, v: Any) -> tuple[Any, Any]:
    """Repeat keys and values for the query heads that share them."""
    times = heads // k.size(1)
    return (k, v) if times == 1 else (k.repeat_interleave(times, 1), v.repeat_interleave(times, 1))
