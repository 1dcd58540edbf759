"""Core attention through torch.nn.attention.varlen, over keys and values that are gathered from the CP ranks."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch.nn.attention import varlen

from skill_run.worker.inside.attention import CPUAttention
from skill_run.worker.inside.errors import RefusedError
from skill_run.worker.inside.holdings import Cut, holding


class Segments(NamedTuple):
    """Runs of neighbouring queries, each with the keys from its sequence's start to its last query.

    keys: places of the keys in the complete pack, run after run; cu_seqlens_q, cu_seqlens_k: boundaries of the runs
    [N + 1]; longest_q, longest_k: the largest run.
    """

    keys: Any
    cu_seqlens_q: Any
    cu_seqlens_k: Any
    longest_q: int
    longest_k: int


@lru_cache(maxsize=64)
def segments(cut: Cut, ranks: tuple[int, ...], device: str) -> Segments:
    """Return the runs of queries that the ranks hold, in the order of their holding."""
    starts, q_lengths, k_lengths = [], [], []
    for start, positions in zip(cut.boundaries, holding(cut, ranks).positions, strict=False):
        for first, length in _runs(positions.tolist()):
            starts.append(start)
            q_lengths.append(length)
            k_lengths.append(first + length)
    keys = [torch.arange(start, start + length) for start, length in zip(starts, k_lengths, strict=True)]
    return Segments(
        torch.cat(keys).to(device),
        _boundaries(q_lengths).to(device),
        _boundaries(k_lengths).to(device),
        max(q_lengths),
        max(k_lengths),
    )


def _runs(positions: Sequence[int]) -> list[tuple[int, int]]:
    """Return (first, length) of each run of neighbouring positions."""
    runs: list[tuple[int, int]] = []
    for position in positions:
        if runs and position == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((position, 1))
    return runs


def _boundaries(lengths: Sequence[int]) -> Any:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


class VarlenAttention(CPUAttention):
    """Core attention of a layer spec on a GPU without Transformer Engine: causal, GQA, sliding window, no sinks.

    Keys and values are gathered whatever cp_comm_type says, unless heads travel (a2a).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.softmax_offset is not None:
            raise RefusedError("torch's varlen attention has no attention sinks (softmax_type)", "missing")
        if self.cp_comm_type != "a2a":
            self.cp_comm_type = "all_gather"

    def _local(
        self, q: Any, k: Any, v: Any, cut: Cut, mine: tuple[int, ...], theirs: tuple[int, ...], causal: bool, sink: Any
    ) -> Any:
        if not causal:
            return super()._local(q, k, v, cut, mine, theirs, causal, sink)
        queries, runs = holding(cut, mine), segments(cut, mine, str(q.device))
        k, v = (torch.cat(holding(cut, theirs).arrange(x)).index_select(0, runs.keys) for x in (k, v))
        width = v.size(-1)
        # The kernel takes heads of one size.
        v = torch.nn.functional.pad(v, (0, q.size(-1) - width))
        times = q.size(1) // k.size(1)
        output = varlen.varlen_attn(
            torch.cat(queries.arrange(q)),
            k.repeat_interleave(times, 1),
            v.repeat_interleave(times, 1),
            runs.cu_seqlens_q,
            runs.cu_seqlens_k,
            runs.longest_q,
            runs.longest_k,
            **self._kernel_options(),
        )
        return queries.restore(list(output[..., :width].split(queries.sizes)))

    def _kernel_options(self) -> dict[str, Any]:
        """Return the scale, and the mask in the words of this torch: is_causal before 2.11, window_size since."""
        known = inspect.signature(varlen.varlen_attn).parameters
        options: dict[str, Any] = {"scale": self.softmax_scale} if "scale" in known else {}
        if "window_size" in known:
            return {**options, "window_size": (-1, 0) if self.window is None else (self.window[0], 0)}
        if self.window is not None or not options:
            raise RefusedError("this torch's varlen attention has no sliding window and no scale", "missing")
        return {**options, "is_causal": True}
