"""Where a parity run computes: the CPU with the shim, or a GPU without it. Each has its own core attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from skill_run.worker.inside.errors import RefusedError
from skill_run.worker.inside.ranks import run_ranks, start_gloo

DEVICES: Final = ("cpu", "cuda")


@dataclass(frozen=True)
class Backend:
    """A device that is ready, and how ranks run on it.

    core_attention: in words, for the report; load_attention: returns its class, on a rank; start: makes the default
    process group from rank and size; own_index: no Transformer Engine has an index function of its own.
    """

    device: str
    core_attention: str
    load_attention: Callable[[], type]
    start: Callable[[int, int], None]
    own_index: bool = True
    notes: tuple[str, ...] = ()

    def run(self, case: Any, *, reference: str | None = None, leak: bool = False, save: str | None = None) -> Any:
        """Run a case on forked ranks and return what rank 0 found.

        reference: file to compare with; save: file to keep the outcome in, as a later reference. Raises RankFailure.
        """
        return run_ranks(case.layout.size, lambda rank, tell: self._on_rank(rank, case, reference, leak, save))[0]

    def _on_rank(self, rank: int, case: Any, reference: str | None, leak: bool, save: str | None) -> Any:
        import torch

        self.start(rank, case.layout.size)
        from skill_run.worker.inside.compare import compare, gradient_norm
        from skill_run.worker.inside.leak import test_leak
        from skill_run.worker.inside.training import Run

        run = Run(case, self._attention(case.variation), own_index=self.own_index)
        outcome = run.train()
        # Only now: the scale of auxiliary losses must have been set by a schedule.
        leaked = test_leak(run) if leak else None
        if outcome.gradients is None:
            return None
        if save is not None:
            torch.save(outcome, save)
        figures = {"loss": outcome.losses[0], "tokens": outcome.tokens, "gradient_norm": gradient_norm(outcome)}
        if reference is not None:
            figures |= compare(outcome, torch.load(reference, weights_only=False))
        return {**figures, "leak": leaked}

    def _attention(self, variation: Any) -> type:
        """Return the core attention; ours is told when the kernel's index changes what ranks hold."""
        attention = self.load_attention()
        if not variation.kernel or not hasattr(attention, "partition"):
            return attention
        return type(attention.__name__, (attention,), {"partition": staticmethod(variation.partition)})

    def environment(self) -> dict[str, Any]:
        """Return {"versions", "device", "core_attention"} for the report."""
        return {"versions": _versions(), "device": self.device, "core_attention": self.core_attention}


def open_backend(device: str, dtype: str, ranks: int) -> Backend:
    """Prepare this process for a device; a process serves one device only.

    ranks: the largest number of ranks that will run. Raises RefusedError for a device that is not there.
    """
    if device == "cpu":
        return _open_cpu(dtype)
    if device == "cuda":
        from skill_run.worker.inside.gpu import open_gpu

        return open_gpu(dtype, ranks)
    raise RefusedError(f"device {device!r} is none of {', '.join(DEVICES)}")


def _open_cpu(dtype: str) -> Backend:
    """Patch this process and import what ranks need, so that their forks have it."""
    from skill_run.worker.inside import cuda_on_cpu

    cuda_on_cpu.install()
    if dtype == "float64":
        cuda_on_cpu.compute_cross_entropy_in_float64()
    from skill_run.worker.inside import training
    from skill_run.worker.inside.attention import CPUAttention

    assert training
    words = "our own on the CPU, sequence by sequence; the reference has Megatron's DotProductAttention"
    return Backend("cpu", words, lambda: CPUAttention, start_gloo)


def _versions() -> dict[str, str]:
    import torch

    from skill_run.worker.inside.versions import found_releases

    releases = found_releases()
    bridge = {"megatron-bridge": releases.bridge} if releases.bridge else {}
    return {"torch": str(torch.__version__), "megatron-core": releases.core, **bridge}
