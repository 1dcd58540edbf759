"""The ways in which a packed run can depart from the right one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from skill_run.worker.inside.partition import Partition, te_kernel_indices, thd_partition_indices


@dataclass(frozen=True, slots=True)
class Variation:
    """How a run departs from the right way; the default does not.

    split: "sequences" (zigzag in each), "contiguous" or "whole" (zigzag over the pack); boundaries: "physical",
    "logical" or "none"; kernel: the index as the CUDA kernel computes it; sentinels: -1 among the index's boundaries;
    loss: "per-token", "per-microbatch" or "local-mean"; shifted_mask: the loss mask is one token late;
    deaf_middle: middle pipeline stages get no boundaries.
    """

    split: str = "sequences"
    boundaries: str = "physical"
    kernel: bool = False
    sentinels: bool = False
    loss: str = "per-token"
    shifted_mask: bool = False
    deaf_middle: bool = False

    @property
    def partition(self) -> Partition:
        """The index function of this run."""
        return kernel_in_range if self.kernel or self.sentinels else thd_partition_indices


def kernel_in_range(cu_seqlens: Any, total_tokens: int, cp_size: int, cp_rank: int) -> Any:
    """Return the kernel's indices with those outside the pack moved to its ends, which a GPU would read beyond."""
    return te_kernel_indices(cu_seqlens, total_tokens, cp_size, cp_rank).clamp(0, total_tokens - 1)
