"""Which tokens of a pack each context-parallel rank holds: Transformer Engine's index for packed (THD) batches.

Two forms. The closed form is what the index is meant to be; the kernel form is what the CUDA kernel computes when its
own assertion is compiled out, for lengths and boundaries that it should have refused as well.
"""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

from skill_run.worker.inside.errors import RefusedError

# (cu_seqlens, total_tokens, cp_size, cp_rank) -> indices, like transformer_engine_torch.thd_get_partitioned_indices.
Partition = Callable[[Any, int, int, int], Any]


def thd_partition_indices(cu_seqlens: Any, total_tokens: int, cp_size: int, cp_rank: int) -> Any:
    """Return the tokens of one rank, sequence by sequence: its chunks r and 2*CP-1-r of 2*CP equal chunks.

    cu_seqlens: physical boundaries, int tensor [S + 1]. Returns an int32 tensor [total_tokens / CP] on its device.
    Raises RefusedError for a length that 2*CP does not divide, and for boundaries that do not cover total_tokens.
    Mirrors transformer_engine_torch.thd_get_partitioned_indices.
    """
    import torch

    boundaries = [int(boundary) for boundary in cu_seqlens.tolist()]
    refuse_uneven(boundaries, cp_size)
    if boundaries[-1] != total_tokens:
        raise RefusedError(f"the sequence boundaries end at {boundaries[-1]}, and the pack has {total_tokens} tokens")
    parts = [
        torch.arange(start + chunk * size, start + (chunk + 1) * size, dtype=torch.int32)
        for start, size in chunk_sizes(boundaries, cp_size)
        for chunk in (cp_rank, 2 * cp_size - 1 - cp_rank)
    ]
    empty = torch.empty(0, dtype=torch.int32)
    return torch.cat([empty, *parts]).to(cu_seqlens.device)


def chunk_sizes(boundaries: Sequence[int], cp_size: int) -> list[tuple[int, int]]:
    """Return (start, tokens of one of its 2*CP chunks) for each sequence."""
    return [(start, (end - start) // (2 * cp_size)) for start, end in itertools.pairwise(boundaries)]


def refuse_uneven(boundaries: Sequence[int], cp_size: int) -> None:
    """Raise RefusedError when a sequence cannot be cut into 2*CP equal chunks."""
    for number, (start, end) in enumerate(itertools.pairwise(boundaries)):
        if end < start:
            raise RefusedError(f"the boundaries of sequence {number} go back, from {start} to {end}")
        if (end - start) % (2 * cp_size):
            raise RefusedError(
                f"sequence {number} has a physical length of {end - start}, which is no multiple of "
                f"2*CP = {2 * cp_size}; pad_seq_to_mult must be one"
            )


def te_kernel_indices(cu_seqlens: Any, total_tokens: int, cp_size: int, cp_rank: int) -> Any:
    """Return what Transformer Engine's CUDA kernel computes with its assertion compiled out: no input is refused.

    Same arguments and result as thd_partition_indices; with -1 among the boundaries, or with lengths that 2*CP does
    not divide, the indices are wrong or out of range. Mirrors thd_partition_indices_kernel in
    transformer_engine/common/fused_attn/context_parallel.cu.
    """
    import torch

    starts = [int(boundary / cp_size) for boundary in cu_seqlens.tolist()]
    indices = []
    for token in range(total_tokens // cp_size):
        sequence = _sequence_of(token, starts)
        start = starts[sequence]
        half = int((starts[sequence + 1] - start) / 2)
        place = token - start
        chunk = cp_rank if place < half else (cp_size - 1) * 2 - cp_rank
        indices.append(place + start * cp_size + half * chunk)
    return torch.tensor(indices, dtype=torch.int32, device=cu_seqlens.device)


def _sequence_of(token: int, starts: Sequence[int]) -> int:
    """Return the sequence of a rank's token by the kernel's own binary search, which expects rising boundaries."""
    left, right = 1, len(starts) - 1
    while left < right:
        middle = (left + right) // 2
        if starts[middle] <= token:
            left = middle + 1
        else:
            right = middle
    return left - 1


def install_partition(partition: Partition = thd_partition_indices) -> None:
    """Put an index function where Megatron-Core and Megatron-Bridge look for Transformer Engine's.

    Megatron-Core reads it from megatron.core.utils.tex; Bridge up to 0.5.1 imports transformer_engine_torch itself.
    """
    import megatron.core.utils as core_utils

    module = types.ModuleType("transformer_engine_torch")
    module.thd_get_partitioned_indices = partition  # type: ignore[attr-defined]
    sys.modules["transformer_engine_torch"] = module
    core_utils.tex = module
    core_utils.is_te_min_version = lambda *args, **kwargs: True
