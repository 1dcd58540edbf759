"""Where a parity run computes: the CPU with the shim, or a GPU without it. Each has its own core attention."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from skill_run.worker.inside.errors import RefusedError
from skill_run.worker.inside.ranks import run_ranks, start_gloo

DEVICES: Final = ("cpu", "cuda")


@dataclass
class Backend:
    """A device that is ready, and how ranks run on it.

    attention: the core attention of packed runs; core_attention: what it is, in words.
    """

    device: str
    attention: Any
    core_attention: str
    notes: tuple[str, ...] = ()
    shared_gpu: bool = False

    def run(self, case: Any, *, reference: str | None = None, leak: bool = False, save: str | None = None) -> Any:
        """Run a case on forked ranks and return what rank 0 found.

        reference: file to compare with; save: file to keep the outcome in, as a later reference. Raises RankFailure.
        """
        return run_ranks(case.layout.size, lambda rank, tell: self._on_rank(rank, case, reference, leak, save))[0]

    def _on_rank(self, rank: int, case: Any, reference: str | None, leak: bool, save: str | None) -> Any:
        import torch

        from skill_run.worker.inside.compare import compare, gradient_norm
        from skill_run.worker.inside.leak import test_leak
        from skill_run.worker.inside.training import Run

        self._start(rank, case.layout.size)
        run = Run(case)
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

    def _start(self, rank: int, size: int) -> None:
        if self.device == "cpu":
            start_gloo(rank, size)
            return
        from skill_run.worker.inside.gpu import start_on_gpu

        start_on_gpu(rank, size, shared=self.shared_gpu)

    def attention_for(self, variation: Any) -> Any:
        """Return the core attention for a variation: only the kernel's index changes what ranks hold."""
        if self.device != "cpu" or not variation.kernel:
            return self.attention
        return type(self.attention.__name__, (self.attention,), {"partition": staticmethod(variation.partition)})

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

        return replace(open_gpu(dtype, ranks))
    raise RefusedError(f"device {device!r} is none of {', '.join(DEVICES)}")


def _open_cpu(dtype: str) -> Backend:
    from skill_run.worker.inside import cuda_on_cpu

    cuda_on_cpu.install()
    if dtype == "float64":
        cuda_on_cpu.compute_cross_entropy_in_float64()
    from skill_run.worker.inside.attention import CPUAttention

    return Backend("cpu", CPUAttention, "own (CPU), per sequence; reference: Megatron's DotProductAttention")


def _versions() -> dict[str, str]:
    import torch

    from skill_run.worker.inside.versions import found_releases

    releases = found_releases()
    bridge = {"megatron-bridge": releases.bridge} if releases.bridge else {}
    return {"torch": str(torch.__version__), "megatron-core": releases.core, **bridge}
