"""The GPU side of a parity run: which core attention, which transport, and how ranks share the devices.

Nothing of the CPU shim is used here. Every rank imports Megatron itself: a process that has touched CUDA cannot fork.
"""

from __future__ import annotations

import importlib.util
import os
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple

from skill_run.worker.inside.backend import Backend
from skill_run.worker.inside.errors import RefusedError
from skill_run.worker.inside.ranks import SILENCE_SECONDS

# Flash kernels, of Transformer Engine and of torch alike, know no longer types.
_KERNEL_TYPES: Final = ("bfloat16",)


class Choice(NamedTuple):
    """A core attention: module and class name, words for the report, and whether Transformer Engine cuts the packs."""

    module: str
    name: str
    words: str
    own_index: bool


_OURS: Final = "skill_run.worker.inside"


def choose_attention(dtype: str, *, transformer_engine: bool, varlen: bool) -> Choice:
    """Return the core attention that packed runs on a GPU have.

    Transformer Engine's where it is installed, else torch's varlen attention; types that neither has kernels for run
    through our own, which then tests all but the kernels.
    """
    if dtype not in _KERNEL_TYPES:
        words = f"our own on the GPU, sequence by sequence: flash kernels do not compute in {dtype}"
        return Choice(f"{_OURS}.attention", "CPUAttention", words, not transformer_engine)
    if transformer_engine:
        module = "megatron.core.extensions.transformer_engine"
        return Choice(module, "TEDotProductAttention", "Transformer Engine's TEDotProductAttention", False)
    if varlen:
        words = "torch.nn.attention.varlen over gathered keys and values (Transformer Engine is not installed)"
        return Choice(f"{_OURS}.varlen", "VarlenAttention", words, True)
    words = "our own on the GPU, sequence by sequence: neither Transformer Engine nor torch's varlen attention is here"
    return Choice(f"{_OURS}.attention", "CPUAttention", words, True)


def open_gpu(dtype: str, ranks: int) -> Backend:
    """Return the backend of this machine's GPUs.

    Raises RefusedError ("missing") where torch sees none, and when this process already hides them.
    """
    # Asked through the driver's library, so that no context is made in the process that forks.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    import torch

    from skill_run.worker.inside import cuda_on_cpu

    if cuda_on_cpu.is_installed():
        raise RefusedError("this process runs CUDA code on the CPU already; a GPU needs a process of its own", "failed")
    devices = torch.cuda.device_count()
    if not devices:
        raise RefusedError("torch sees no GPU in this worker; the device cpu needs none", "missing")
    choice = choose_attention(
        dtype, transformer_engine=_has("transformer_engine"), varlen=_has("torch.nn.attention.varlen")
    )
    shared = ranks > devices
    notes = (f"{ranks} ranks share {devices} GPU over gloo: NCCL is not part of what was tested",) if shared else ()
    return Backend(
        "cuda",
        choice.words,
        partial(_load, choice.module, choice.name),
        partial(start_on_gpu, dtype, devices, shared),
        choice.own_index,
        notes,
    )


def _has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _load(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def start_on_gpu(dtype: str, devices: int, shared: bool, rank: int, size: int) -> None:
    """Take this rank's GPU and make the default process group: NCCL, or gloo where ranks share a GPU."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank % devices)
    # TF32 would be compared with itself, at an error that hides faults.
    torch.backends.cuda.matmul.allow_tf32 = False
    transport = "gloo" if shared else "nccl"
    path = os.path.join(os.environ["SKILL_RUN_SCRATCH"], f"gpu-{os.getppid()}-{os.environ['MASTER_PORT']}")
    dist.init_process_group(
        f"cpu:gloo,cuda:{transport}",
        store=dist.FileStore(path, size),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=SILENCE_SECONDS),
    )
    from skill_run.worker.inside import cuda_on_cpu

    cuda_on_cpu.name_what_transformer_engine_would()
    if dtype == "float64":
        cuda_on_cpu.compute_cross_entropy_in_float64()
