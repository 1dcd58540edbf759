"""One run of Megatron-Bridge's pretrain() or finetune() on forked ranks, with its steps told as they happen."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from skill_run.worker.inside.errors import RankFailure, RefusedError
from skill_run.worker.inside.ranks import Tell, run_ranks, start_gloo
from skill_run.worker.inside.rehearse_stages import StageFailure, stage_of

# Largest relative difference of a resumed loss that still counts as the same.
_SAME_LOSS: Final = 1e-4


@dataclass(slots=True)
class Outcome:
    """What a run told: its steps in order, iterations that were saved, and what its micro-batches held (rank 0).

    steps: {"step", "loss", "grad_norm", "seconds"}; batches: {"micro_batches", "tokens", "trained", "packed",
    "padding"}, the last two for packs only: their tokens, and those of them that pad.
    """

    steps: list[dict[str, Any]] = field(default_factory=list)
    saved: list[int] = field(default_factory=list)
    batches: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


def run_training(
    config: Any,
    ranks: int,
    *,
    finetune: bool = False,
    capture: Path | None = None,
    on_step: Callable[[dict[str, Any]], None] | None = None,
) -> Outcome:
    """Train by the config and return the outcome; the config itself is not changed, as only forks use it.

    finetune: call finetune() instead of pretrain(); capture: folder for one captured micro-batch of each rank.
    Raises StageFailure with the stage in which a rank failed first.
    """
    outcome, failures = Outcome(), dict[int, StageFailure]()
    began = time.monotonic()

    def heard(rank: int, told: Mapping[str, Any]) -> None:
        if "failure" in told:
            failures[rank] = StageFailure(**told["failure"])
        elif "step" in told:
            outcome.steps.append(dict(told))
            if on_step is not None:
                on_step(dict(told))
        elif "saved" in told:
            outcome.saved.append(told["saved"])
        elif "batches" in told:
            outcome.batches = dict(told["batches"])

    try:
        run_ranks(ranks, lambda rank, tell: _train(config, (rank, ranks), tell, finetune, capture), on_tell=heard)
    except RankFailure as error:
        # The first failure counts; when a rank dies, the errors of the others are the consequence.
        if error.rank in failures:
            raise failures[error.rank] from error
        raise StageFailure("train", str(error), "", error.detail) from error
    outcome.seconds = time.monotonic() - began
    return outcome


def _train(config: Any, place: tuple[int, int], tell: Tell, finetune: bool, capture: Path | None) -> None:
    """Train as one rank: place is its number and how many there are."""
    from megatron.bridge.training.finetune import finetune as run_finetune
    from megatron.bridge.training.gpt_step import forward_step
    from megatron.bridge.training.pretrain import pretrain

    from skill_run.capture import dumping

    counter = _Counter()
    step = counter.counting(forward_step)
    if capture is not None:
        step = dumping(step, directory=capture, batches=1)
    rank = place[0]
    reporter = _reporter(rank, tell)
    try:
        # Over a file, since a port can be taken by somebody else; Bridge goes on with the groups that it finds.
        start_gloo(*place)
        write_checkpoints_here()
        (run_finetune if finetune else pretrain)(config, step, callbacks=[reporter])
    except (Exception, SystemExit) as error:
        stage = stage_of(error, "train" if reporter.started else "setup")
        failure = StageFailure.from_error(stage, error)
        tell({"failure": {"stage": failure.stage, "sentence": str(failure), "place": failure.place,
                          "detail": failure.detail}})  # fmt: skip
        raise RefusedError(str(failure), "failed") from error
    if rank == 0:
        tell({"batches": counter.found})


def write_checkpoints_here() -> None:
    """Take results of checkpoint writers in this process, which is the one that writes.

    Megatron-Core starts another interpreter for it on every rank (dist_checkpointing/strategies/filesystem_async.py),
    as asynchronous saving needs; that would cost more than the training.
    """
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    filesystem_async._results_queue = queue.Queue()


def _reporter(rank: int, tell: Tell) -> Any:
    from megatron.bridge.training.callbacks import Callback

    class Reporter(Callback):
        """Tells each step on the rank that knows its loss, and what is saved on rank 0."""

        started = False
        began = 0.0

        def on_train_step_start(self, context: Any) -> None:
            self.started, self.began = True, time.monotonic()

        def on_train_step_end(self, context: Any) -> None:
            seconds = round(time.monotonic() - self.began, 4)
            losses = {name: _number(value) for name, value in (context.loss_dict or {}).items()}
            if losses and _tells(context):
                norm = None if context.grad_norm is None else _number(context.grad_norm)
                # The counter goes up after this event.
                number = int(context.state.train_state.step) + 1
                tell({"step": number, "loss": next(iter(losses.values())), "losses": losses, "grad_norm": norm,
                      "seconds": seconds})  # fmt: skip

        def on_checkpoint_save(self, context: Any) -> None:
            if rank == 0:
                tell({"saved": int(context.state.train_state.step)})

    return Reporter()


def _tells(context: Any) -> bool:
    """Tell whether this rank is the first of its tensor, context and data parallel ranks."""
    from megatron.core import parallel_state

    return (
        parallel_state.get_tensor_model_parallel_rank() == 0
        and parallel_state.get_data_parallel_rank(with_context_parallel=True) == 0
    )


def _number(value: Any) -> float:
    return float(value.item() if hasattr(value, "item") else value)


class _Counter:
    """Counts what micro-batches hold, before context parallelism cuts them."""

    def __init__(self) -> None:
        self.found = {"micro_batches": 0, "tokens": 0, "packed": 0, "padding": 0, "trained": 0}

    def counting(self, forward_step: Callable[..., Any]) -> Callable[..., Any]:
        """Return the forward step with its data iterator watched."""

        def step(state: Any, data_iterator: Any, model: Any, return_schedule_plan: bool = False) -> Any:
            watched = None if data_iterator is None else _Watched(data_iterator, self)
            return forward_step(state, watched, model, return_schedule_plan)

        return step

    def count(self, batch: Mapping[str, Any]) -> None:
        """Add one micro-batch."""
        tokens = batch.get("tokens")
        if tokens is None:
            tokens = batch.get("input_ids")
        if tokens is None:
            return
        self.found["micro_batches"] += 1
        self.found["tokens"] += tokens.numel()
        mask = batch.get("loss_mask")
        if mask is not None:
            self.found["trained"] += int((mask > 0).sum())
        real = _real_tokens(batch)
        if real is not None:
            self.found["packed"] += tokens.numel()
            self.found["padding"] += tokens.numel() - real


def _real_tokens(batch: Mapping[str, Any]) -> int | None:
    """Return the tokens of all sequences without padding, where the batch tells them."""
    boundaries = batch.get("cu_seqlens_q")
    if boundaries is None:
        return None
    flat = boundaries.flatten()
    real = int(flat[flat >= 0].max())
    # Without padded boundaries the filler at the end of a row counts as a sequence there.
    counted = batch.get("token_count")
    return real if counted is None else min(real, int(sum(counted)))


class _Watched:
    def __init__(self, iterator: Any, counter: _Counter) -> None:
        self._iterator = iterator
        self._counter = counter

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        batch = next(self._iterator)
        if isinstance(batch, Mapping):
            self._counter.count(batch)
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)


def trained(outcome: Outcome, iters: int, data_parallel: int) -> dict[str, Any]:
    """Return the figures of a run's first `iters` steps; raises StageFailure when there is none, or a loss is NaN."""
    steps = outcome.steps[:iters]
    if not steps:
        raise StageFailure("train", "no step was made")
    if any(step["loss"] - step["loss"] != 0 for step in steps):
        raise StageFailure("train", "the loss is not finite")
    counted = outcome.batches
    made = max(1, len(outcome.steps))
    tokens = counted.get("tokens", 0) * data_parallel / made
    later = [step["seconds"] for step in steps[1:]] or [steps[0]["seconds"]]
    return {
        "steps": steps,
        "tokens_a_step": round(tokens),
        "tokens_per_second": round(tokens / (sum(later) / len(later))),
        "padding_share": round(counted["padding"] / counted["packed"], 4) if counted.get("packed") else None,
        "trained_share": round(counted["trained"] / counted["tokens"], 4) if counted.get("tokens") else None,
    }


def compared(expected: list[dict[str, Any]], found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the steps of a resumed run and how far their losses are off; raises StageFailure when they differ."""
    if [step["step"] for step in found] != [step["step"] for step in expected]:
        raise StageFailure(
            "resume",
            f"the resumed run made steps {[step['step'] for step in found]}, expected "
            f"{[step['step'] for step in expected]}",
        )
    pairs = [(one["loss"], other["loss"]) for one, other in zip(expected, found, strict=True)]
    error = max(abs(one - other) / max(abs(one), 1e-12) for one, other in pairs)
    if not error <= _SAME_LOSS:
        raise StageFailure(
            "resume", f"losses after the resume differ from those of the run that went on by {error:.1e}"
        )
    return {"steps": found, "loss_error": error}
