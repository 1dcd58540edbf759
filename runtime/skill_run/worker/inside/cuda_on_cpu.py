"""Let Megatron code that assumes CUDA run on CPU tensors; refuses where there is a GPU, or a release it does not know.

Every patch answers a failure that was seen without it. They change this process for good, so they belong into a worker.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, Final

from skill_run.worker.inside.errors import RefusedError
from skill_run.worker.inside.versions import Releases, require_known_releases

_FACTORIES: Final = (
    "arange", "as_tensor", "empty", "empty_like", "eye", "full", "full_like", "ones", "ones_like", "rand", "randint",
    "randn", "tensor", "zeros", "zeros_like",
)  # fmt: skip
_TENSOR_TYPES: Final = (
    "BFloat16Tensor", "ByteTensor", "DoubleTensor", "FloatTensor", "HalfTensor", "IntTensor", "LongTensor",
)  # fmt: skip
_INSTALLED: list[Releases] = []


def install() -> Releases:
    """Patch torch and Megatron-Core once and return the releases found; a second call changes nothing.

    Raises RefusedError ("missing") when a GPU is present or when the releases are not known.
    """
    if _INSTALLED:
        return _INSTALLED[0]
    releases = require_known_releases()
    refuse_gpu()
    for patch in (
        _answer_cpu_as_the_current_device,
        _read_cuda_devices_as_cpu,
        _track_random_states_of_the_cpu,
        _leave_out_streams_and_events,
        _name_tensor_types_as_cuda,
        _count_tokens_of_experts_on_the_cpu,
        name_what_transformer_engine_would,
    ):
        patch()
    _INSTALLED.append(releases)
    return releases


def is_installed() -> bool:
    """Whether this process's CUDA calls go to the CPU."""
    return bool(_INSTALLED)


def refuse_gpu() -> None:
    """Raise RefusedError ("missing") when torch sees a GPU: the patches would turn its work into CPU work."""
    import torch

    if torch.cuda.is_available():
        raise RefusedError(
            "a GPU is present, and the CPU layer would hide it; ask for the device cuda, or set CUDA_VISIBLE_DEVICES "
            "to nothing",
            "missing",
        )


def compute_cross_entropy_in_float64() -> None:
    """Keep the logits' type in Megatron's cross entropy, which otherwise turns float64 into float32.

    Mirrors tensor_parallel/cross_entropy.py: VocabParallelCrossEntropy.calculate_logits_max (0.16.1 to 0.19.2).
    """
    import torch
    from megatron.core.tensor_parallel.cross_entropy import VocabParallelCrossEntropy

    def calculate_logits_max(vocab_parallel_logits: Any) -> tuple[Any, Any]:
        logits = vocab_parallel_logits
        # The original's .float() copies, and what follows subtracts in place.
        logits = logits.clone() if logits.dtype == torch.float64 else logits.float()
        return logits, torch.max(logits, dim=-1)[0]

    VocabParallelCrossEntropy.calculate_logits_max = staticmethod(calculate_logits_max)


class NoStream:
    """A CUDA stream that does nothing: on the CPU every operation has ended when it returns."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> NoStream:
        return self

    def __exit__(self, *args: object) -> None:
        return None

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None

    def record_event(self, event: NoEvent | None = None) -> NoEvent:
        """Return an event that has happened; the all-to-all dispatcher of experts waits for it."""
        return event or NoEvent()


class NoEvent(NoStream):
    """A CUDA event that has happened."""

    def query(self) -> bool:
        """Say that it has happened."""
        return True

    def elapsed_time(self, other: NoEvent) -> float:
        """Return 0 milliseconds."""
        return 0.0


def _answer_cpu_as_the_current_device() -> None:
    """Without it: `Found no NVIDIA driver` (distributed/param_and_grad_buffer.py)."""
    import torch

    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.set_device = lambda device: None


def _read_cuda_devices_as_cpu() -> None:
    """Without it: literals such as `torch.tensor([1.0], device="cuda")` fail (optimizer/optimizer.py)."""
    import torch

    for name in _FACTORIES:
        setattr(torch, name, _with_cpu_device(getattr(torch, name)))
    torch.Tensor.cuda = lambda self, *args, **kwargs: self
    torch.nn.Module.cuda = lambda self, *args, **kwargs: self
    original = torch.Tensor.to

    @functools.wraps(original)
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], (str, torch.device)) and _is_cuda(args[0]):
            args = ("cpu", *args[1:])
        return original(self, *args, **_without_cuda(kwargs))

    torch.Tensor.to = to


def _with_cpu_device(factory: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(factory)
    def on_cpu(*args: Any, **kwargs: Any) -> Any:
        return factory(*args, **_without_cuda(kwargs))

    return on_cpu


def _without_cuda(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments for the CPU; memory is not pinned, as that needs a driver (rope_utils.py)."""
    kept = {name: value for name, value in kwargs.items() if name != "pin_memory"}
    return {**kept, "device": "cpu"} if _is_cuda(kept.get("device")) else kept


def _is_cuda(device: Any) -> bool:
    if device is None:
        return False
    if isinstance(device, int):
        return True
    return str(device).startswith("cuda")


def _track_random_states_of_the_cpu() -> None:
    """Without it: `cuda rng state model-parallel-rng is not added` (tensor_parallel/random.py)."""
    import torch
    from megatron.core.tensor_parallel import random as tracker

    def get_state(*args: Any, **kwargs: Any) -> Any:
        return torch.get_rng_state()

    def set_state(state: Any, *args: Any, **kwargs: Any) -> None:
        torch.set_rng_state(state)

    tracker._get_cuda_rng_state, tracker._set_cuda_rng_state = get_state, set_state
    for module in (torch.cuda, torch.cuda.random):
        module.get_rng_state, module.set_rng_state = get_state, set_state
        module.manual_seed = torch.manual_seed


def _leave_out_streams_and_events() -> None:
    """Without it: `torch.cuda.current_stream()` finds no driver (distributed/param_and_grad_buffer.py)."""
    import torch

    for name in ("current_stream", "default_stream", "Stream"):
        setattr(torch.cuda, name, NoStream)
    torch.cuda.Event = NoEvent
    torch.cuda.stream = lambda stream: contextlib.nullcontext()
    torch.cuda.synchronize = lambda *args, **kwargs: None
    torch.cuda.empty_cache = lambda: None


def _name_tensor_types_as_cuda() -> None:
    """Without it: `Wrapped parameters must be one of torch.cuda.FloatTensor` (optimizer/distrib_optimizer.py)."""
    import torch

    original = torch.Tensor.type

    @functools.wraps(original)
    def type_name(self: Any, *args: Any, **kwargs: Any) -> Any:
        answer = original(self, *args, **kwargs)
        return answer.replace("torch.", "torch.cuda.") if isinstance(answer, str) else answer

    torch.Tensor.type = type_name
    for name in _TENSOR_TYPES:
        setattr(torch.cuda, name, getattr(torch, name))


def _count_tokens_of_experts_on_the_cpu() -> None:
    """Without it: `all_to_all_single` is called with tensors as splits (transformer/moe/token_dispatcher.py)."""
    import torch
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    def maybe_move_tensor_to_cpu(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor

    for module in (moe_utils, token_dispatcher):
        module.maybe_move_tensor_to_cpu = maybe_move_tensor_to_cpu


def name_what_transformer_engine_would() -> None:
    """Define what 0.16.1 reads without Transformer Engine: a missing name for routers, no class for latent attention.

    Without it: `name 'te_general_gemm' is not defined` (transformer/moe/moe_utils.py) and `isinstance() arg 2 must be a
    type` (transformer/multi_latent_attention.py).
    """
    from megatron.core.transformer import multi_latent_attention
    from megatron.core.transformer.moe import moe_utils

    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None
    for name in ("TELinear", "TEColumnParallelLinear"):
        if not isinstance(getattr(multi_latent_attention, name, None), type):
            setattr(multi_latent_attention, name, type(name, (), {}))
