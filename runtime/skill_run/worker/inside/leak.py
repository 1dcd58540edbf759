"""The leak test: change one token of one sequence; nothing else may move, and every later token of it must.

Nothing leaking is not enough: tokens that a partition lost leak nothing either.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func

from skill_run.worker.inside.samples import pack_samples
from skill_run.worker.inside.training import Run

# Sequences of a pack that are tried: one run each.
_MOST_SEQUENCES: Final = 12


def test_leak(run: Run) -> dict[str, Any]:
    """Return how far tokens moved that may not, how many did not that must, and what the ranks hold.

    outside: largest change of a loss outside the perturbed sequence; gradient_outside: largest gradient norm of a
    sequence's loss by an embedding outside of it, None under pipeline parallelism; before: largest change before the
    perturbed token in its own sequence; unmoved: later tokens of it that did not change.
    """
    samples = run.case.samples[0]
    pack = pack_samples(samples, run.case.pack_size, run.case.multiple)
    probe = _Probe(run, samples)
    tokens = pack.fields["tokens"][0]
    base = probe.losses(tokens)
    found: dict[str, Any] = {"outside": 0.0, "before": 0.0, "unmoved": 0, "sequences": 0}
    spans = _spread(list(pairwise(pack.physical))[: len(samples)])
    for (start, end), length in ((span, samples[number].length) for number, span in spans):
        found["sequences"] += 1
        for place in dict.fromkeys((0, length // 2, length - 1)):
            changed = tokens.clone()
            changed[start + place] = (
                changed[start + place] + 1 + run.case.shape.vocab_size // 2
            ) % run.case.shape.vocab_size
            moved = (probe.losses(changed) - base).abs()
            inside = moved[start:end].clone()
            moved[start:end] = 0
            found["outside"] = max(found["outside"], float(moved.max()))
            found["before"] = max(found["before"], float(inside[:place].max()) if place else 0.0)
            reach = run.case.shape.reach
            last = length if reach is None else min(length, place + reach + 1)
            found["unmoved"] += int((inside[place:last] == 0).sum())
    found["gradient_outside"] = probe.gradient_outside(tokens, [span for _, span in spans])
    return {**found, "index": _index(run)}


def _other_token(token: Any, vocabulary: int) -> Any:
    return (token + 1 + vocabulary // 2) % vocabulary


def _spread(spans: list[tuple[int, int]]) -> list[tuple[int, tuple[int, int]]]:
    """Return at most _MOST_SEQUENCES numbered spans, from all over the pack."""
    step = -(-len(spans) // _MOST_SEQUENCES)
    return list(enumerate(spans))[::step]


class _Probe:
    """Losses of every token of one pack, gathered from the ranks that hold them."""

    def __init__(self, run: Run, samples: Any) -> None:
        self.run, self.samples = run, samples
        numbers = torch.arange(run.case.pack_size)
        fields, _ = run.packed_batch(samples, numbers)
        # The place in the pack of each token that this rank holds, as the ranks' own way to it has it.
        self.held = fields["tokens"][0].cpu()

    def losses(self, tokens_T: Any) -> Any:
        """Return the loss of every token of the pack [T] in float64, 0 where no rank holds it; on every rank."""
        batch = self.run.packed_batch(self.samples, tokens_T)
        with torch.no_grad():
            losses = self._staged(batch) if self.run.case.layout.pp > 1 else self._forward(batch)
        whole = torch.zeros(self.run.case.pack_size, dtype=torch.float64)
        if losses is not None and self._speaks():
            whole[self.held] = losses.reshape(-1).double().cpu()
        return _summed(whole)

    def _forward(self, batch: tuple[dict[str, Any], Any]) -> Any:
        return self.run.forward(self.run.models[0], *batch)

    def _staged(self, batch: tuple[dict[str, Any], Any]) -> Any:
        """Run the pipeline's stages; the last one gets the losses, the others None."""
        case = self.run.case
        count = case.layout.pp if case.layout.vpp else 1

        def step(batches: Any, model: Any) -> tuple[Any, Any]:
            fields, packed_seq_params = next(batches)
            output = self.run.forward(model, fields, packed_seq_params)
            return output, lambda losses: (losses.sum(), {"losses": losses.detach().clone()})

        told = get_forward_backward_func()(
            forward_step_func=step,
            data_iterator=[iter([batch] * count) for _ in self.run.models] if case.layout.vpp else iter([batch]),
            model=self.run.models if case.layout.vpp else self.run.models[0],
            num_microbatches=count,
            seq_length=case.pack_size,
            micro_batch_size=1,
            forward_only=True,
        )
        return told[0]["losses"] if told else None

    def _speaks(self) -> bool:
        """Whether this rank tells for those that hold the same tokens."""
        return bool(
            parallel_state.get_tensor_model_parallel_rank() == 0 and parallel_state.get_data_parallel_rank() == 0
        )

    def gradient_outside(self, tokens_T: Any, spans: list[tuple[int, int]]) -> float | None:
        """Return the largest gradient norm of a sequence's loss by an embedding outside of it."""
        if self.run.case.layout.pp > 1:
            return None
        embedded: list[Any] = []
        model = self.run.models[0]
        hook = model.embedding.register_forward_hook(lambda module, given, output: embedded.append(output))
        largest = 0.0
        for start, end in spans:
            # A graph cannot be kept for the next sequence: the cross entropy's backward works in place.
            losses = self._forward(self.run.packed_batch(self.samples, tokens_T)).reshape(-1)
            mine = ((self.held >= start) & (self.held < end)).to(losses.device)
            (gradient,) = torch.autograd.grad((losses * mine).sum(), embedded.pop())
            whole = self._embedding_norms(gradient)
            whole[start:end] = 0
            largest = max(largest, float(whole.max()))
        hook.remove()
        return largest

    def _embedding_norms(self, gradient: Any) -> Any:
        """Return the norm of the gradient by each token's embedding [T]; sequence parallelism splits them over TP."""
        norms = gradient.flatten(1).norm(dim=-1).double()
        if self.run.case.layout.sp:
            group = parallel_state.get_tensor_model_parallel_group()
            parts = [torch.empty_like(norms) for _ in range(group.size())]
            dist.all_gather(parts, norms, group=group)
            norms = torch.cat(parts)
        whole = torch.zeros(self.run.case.pack_size, dtype=torch.float64)
        if self._speaks():
            whole[self.held] = norms.cpu()
        return _summed(whole)


def _index(run: Run) -> dict[str, Any]:
    """Return what the ranks of one context-parallel group hold: tokens lost, held twice, and in which pattern."""
    found = {"lost": 0, "twice": 0}
    patterns = set()
    for samples in run.case.samples:
        fields, _ = run.packed_batch(samples, torch.arange(run.case.pack_size))
        parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, (parallel_state.get_context_parallel_rank(), fields["tokens"][0].tolist()))
        held = dict(parts)
        tokens = torch.tensor([token for each in held.values() for token in each])
        counts = torch.bincount(tokens, minlength=run.case.pack_size)
        found["lost"] += int((counts == 0).sum())
        found["twice"] += int((counts > 1).sum())
        patterns.add(_pattern(held, run.case.pack_size))
    return {**found, "pattern": patterns.pop() if len(patterns) == 1 else "sequences"}


def _pattern(held: Mapping[int, list[int]], total: int) -> str:
    """Return how the ranks hold a pack: each one run of it, or two mirrored chunks of all of it, or else."""
    size = len(held)
    chunk = total // (2 * size)
    if size > 1 and all(held[rank] == list(range(rank * 2 * chunk, (rank + 1) * 2 * chunk)) for rank in held):
        return "contiguous"
    if size > 1 and all(held[rank] == _zigzag(rank, size, chunk) for rank in held):
        return "whole"
    return "sequences"


def _zigzag(rank: int, size: int, chunk: int) -> list[int]:
    last = 2 * size - 1 - rank
    return [*range(rank * chunk, (rank + 1) * chunk), *range(last * chunk, (last + 1) * chunk)]


def _summed(whole_T: Any) -> Any:
    """Return the sum over all ranks."""
    dist.all_reduce(whole_T)
    return whole_T
