"""What Megatron-Bridge's training loop needs changed to run without a GPU, for releases 0.3.1 to 0.6.2.

Every patch is named for the reason that it exists and applies where the release has what it changes. Nothing here
touches how data is packed, batched, cut for context parallelism or scaled: that is what runs unchanged. The CUDA shim,
the core attention and the partition index are modules of their own.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from skill_run.worker.inside import bridge_stubs
from skill_run.worker.inside.cuda_on_cpu import refuse_gpu
from skill_run.worker.inside.errors import RefusedError
from skill_run.worker.inside.versions import require_known_releases

_applied: list[str] = []


def install() -> tuple[str, ...]:
    """Import Bridge's training loop with every patch below; return the names of those that this release needs.

    Raises RefusedError outside the releases that it knows and where a GPU is present, as the patches would break it.
    A second call changes nothing.
    """
    if not _applied:
        if require_known_releases().bridge is None:
            raise RefusedError("the worker's environment has no megatron-bridge", "missing")
        refuse_gpu()
        bridge_stubs.install()
        _applied.extend(patch.__name__ for patch in _PATCHES if patch())
    return tuple(_applied)


def allow_start_without_cuda() -> bool:
    """training/setup.py calls initialize_megatron without `allow_no_cuda`: "Megatron requires CUDA."."""
    setup = importlib.import_module("megatron.bridge.training.setup")
    return _replace(setup, "initialize_megatron", functools.partial(setup.initialize_megatron, allow_no_cuda=True))


def keep_shipped_helpers() -> bool:
    """The wheels hold the compiled dataset helpers but no Makefile, so that compile_helpers() ends the process."""
    modules = ("megatron.core.datasets.utils", "megatron.bridge.training.initialize")
    return _replace_in(modules, "compile_helpers", _nothing)


def seed_random_tracker() -> bool:
    """training/initialize.py seeds the random state of model parallelism only where CUDA devices are counted."""
    initialize = importlib.import_module("megatron.bridge.training.initialize")
    ordinary = initialize._set_random_seed
    parameters = inspect.signature(ordinary)

    @functools.wraps(ordinary)
    def seed_all(*values: Any, **options: Any) -> None:
        from megatron.core import tensor_parallel

        ordinary(*values, **options)
        given = parameters.bind(*values, **options).arguments
        groups = given.get("pg_collection")
        ranks = {}
        if groups is not None:
            ranks = {
                "tp_rank": groups.tp.rank(),
                "ep_rank": groups.ep.rank(),
                "etp_rank": groups.expt_tp.rank(),
            }
        tensor_parallel.model_parallel_cuda_manual_seed(given["seed_"], **ranks)

    return _replace(initialize, "_set_random_seed", seed_all)


def leave_distillation_out() -> bool:
    """Training and evaluation ask modelopt, which is a stand-in, for shapes that only distillation changes."""
    modules = ("megatron.bridge.training.train", "megatron.bridge.training.eval")
    return _replace_in(modules, "get_tensor_shapes_adjust_fn_for_distillation", _nothing)


def save_without_modelopt_state() -> bool:
    """Saving a checkpoint stores the state of modelopt, which is a stand-in, for every model."""
    return _replace_in(("megatron.bridge.training.checkpointing",), "save_sharded_modelopt_state", _nothing)


def tell_peft_that_te_is_absent() -> bool:
    """PEFT takes the placeholders of Megatron-Core for classes of Transformer Engine and asks isinstance of them."""
    importlib.import_module("megatron.bridge.peft.lora")
    modules = [module for name, module in sys.modules.items() if name.startswith("megatron.bridge.peft")]
    flags = [(module, flag) for module in modules for flag in vars(module) if flag.startswith("HAVE_TE")]
    for module, flag in flags:
        setattr(module, flag, False)
    return bool(flags)


def let_bridge_call_the_partition_index() -> bool:
    """training/gpt_step.py up to 0.5.1 asks for a version of Transformer Engine before it calls its index function."""
    module = importlib.import_module("megatron.bridge.training.gpt_step")
    return _replace(module, "is_te_min_version", _always_true)


_PATCHES: Final[tuple[Callable[[], bool], ...]] = (
    allow_start_without_cuda,
    keep_shipped_helpers,
    seed_random_tracker,
    leave_distillation_out,
    save_without_modelopt_state,
    tell_peft_that_te_is_absent,
    let_bridge_call_the_partition_index,
)


def _replace_in(modules: tuple[str, ...], name: str, value: Any) -> bool:
    done = [_replace(importlib.import_module(module), name, value) for module in modules]
    return any(done)


def _replace(module: ModuleType, name: str, value: Any) -> bool:
    """Replace a module's name where this release has it; tell whether it has."""
    if not hasattr(module, name):
        return False
    setattr(module, name, value)
    return True


def _nothing(*_values: Any, **_options: Any) -> None:
    return None


def _always_true(*_values: Any, **_options: Any) -> bool:
    return True
