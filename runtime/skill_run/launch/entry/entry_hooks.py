"""What a job adds to training: figures of every step, batches to inspect, and a checkpoint before it is made to end.

Needs torch and Megatron-Bridge (0.3 to 0.6) and nothing else. Files of the job's folder: metrics.jsonl (one JSON object
a step), capture/ (micro-batches), evidence.json and resolved.yaml (what was trained), logs/rank<N>.log (all ranks but
0, whose output is the job's own log). A file `save-and-exit` there asks for a checkpoint and the end, as do SIGTERM and
SIGUSR1; `ended-early` says afterwards that it was so.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ENDED_EARLY = "ended-early"
SAVE_AND_EXIT = "save-and-exit"
_BOUNDARIES = ("cu_seqlens_unpadded", "cu_seqlens_q", "cu_seqlens")


def take_place() -> int:
    """Set the variables of torchrun from those of Slurm where only these are there; return this process's rank."""
    names = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_NTASKS", "LOCAL_RANK": "SLURM_LOCALID"}
    if "RANK" not in os.environ and all(name in os.environ for name in names.values()):
        for name, slurm in names.items():
            os.environ[name] = os.environ[slurm]
    return int(os.environ.get("RANK", "0"))


def split_logs(folder: Path, rank: int) -> int:
    """Send the output of every rank but 0 into a file of its own; return a descriptor of the job's own log."""
    kept = os.dup(2)
    os.set_inheritable(kept, False)
    if rank > 0:
        (folder / "logs").mkdir(exist_ok=True)
        log = os.open(folder / "logs" / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
    return kept


def tell_failure(rank: int, log: int, error: BaseException) -> None:
    """Write the traceback into this rank's log, and one line that names the rank into the job's."""
    traceback.print_exception(type(error), error, error.__traceback__)
    sys.stderr.flush()
    if rank > 0:
        words = " ".join(str(error).split())[:1000]
        os.write(log, f"[rank{rank}]: {type(error).__name__}: {words} (logs/rank{rank}.log)\n".encode())


class Counter:
    """Counts what the micro-batches of this rank hold before context parallelism cuts them."""

    def __init__(self) -> None:
        self.real = self.padded = self.trained = self.micro_batches = 0
        self.knows_real = True

    def counting(self, forward_step: Callable[..., Any]) -> Callable[..., Any]:
        """Return the forward step (state first, as Bridge's) with its data watched."""

        @functools.wraps(forward_step)
        def step(state: Any, data_iterator: Any, model: Any, *rest: Any, **options: Any) -> Any:
            watched = None if data_iterator is None else _Watched(data_iterator, self)
            return forward_step(state, watched, model, *rest, **options)

        return step

    def count(self, batch: Mapping[str, Any]) -> None:
        """Add one micro-batch."""
        tokens = batch.get("tokens", batch.get("input_ids"))
        if tokens is None:
            return
        self.micro_batches += 1
        self.padded += tokens.numel()
        mask = batch.get("loss_mask")
        self.trained += int((mask > 0).sum()) if mask is not None else 0
        real = _real_tokens(batch)
        if real is None:
            self.knows_real = False
        else:
            self.real += real

    def take(self) -> list[int]:
        """Return real, padded, trained tokens and micro-batches since the last call."""
        found = [self.real, self.padded, self.trained, self.micro_batches]
        self.real = self.padded = self.trained = self.micro_batches = 0
        return found


def _real_tokens(batch: Mapping[str, Any]) -> int | None:
    """Return the tokens of all sequences without padding, where the batch tells them."""
    counted = batch.get("token_count")
    physical = None if counted is None else sum(int(each) for each in counted)
    for name in _BOUNDARIES:
        if batch.get(name) is not None:
            flat = batch[name].flatten()
            real = int(flat[flat >= 0].max())
            # Without padded boundaries the filler at the end of a row counts as a sequence there.
            return real if physical is None else min(real, physical)
    return physical


class _Watched:
    def __init__(self, iterator: Any, counter: Counter) -> None:
        self._iterator = iterator
        self._counter = counter

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = next(self._iterator)
        if isinstance(batch, Mapping):
            self._counter.count(batch)
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)


class Ending:
    """Takes the signals that ask for the end, and hands them to Bridge, which saves on all ranks and stops."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / SAVE_AND_EXIT
        self.asked = False

    def listen(self) -> None:
        """Take SIGTERM and SIGUSR1 from now on."""
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._take)

    def _take(self, number: int, _frame: Any) -> None:
        self.asked = True

    def pass_on(self, state: Any, rank: int) -> None:
        """Let Bridge's own handler see what was asked for; it asks all ranks after each step."""
        if rank == 0 and self._file.exists():
            self.asked = True
        if self.asked:
            # Up to 0.5 Bridge makes this handler without installing it (training/state.py), so the flag is set here.
            state.signal_handler._signal_received = True


def make_callback(folder: Path, rank: int, counter: Counter, ending: Ending) -> Any:
    """Return the callback that writes figures and watches for the end."""
    from megatron.bridge.training.callbacks import Callback

    class JobCallback(Callback):  # type: ignore[misc]
        began = 0.0

        def on_train_start(self, context: Any) -> None:
            ending.listen()
            if rank == 0:
                _write_evidence(context.state.cfg, folder)

        def on_train_step_start(self, context: Any) -> None:
            self.began = time.monotonic()

        def on_train_step_end(self, context: Any) -> None:
            losses = context.loss_dict or {}
            if _has_losses():
                figures = _figures(context, losses, counter, time.monotonic() - self.began)
                if figures is not None:
                    with open(folder / "metrics.jsonl", "a", encoding="ascii") as stream:
                        stream.write(json.dumps(figures) + "\n")
            ending.pass_on(context.state, rank)

    return JobCallback()


def _has_losses() -> bool:
    """Tell whether this rank is in the one data parallel group whose ranks know losses and count every token once."""
    from megatron.core import parallel_state as groups

    return bool(
        groups.is_pipeline_last_stage(ignore_virtual=True)
        and groups.get_tensor_model_parallel_rank() == 0
        and groups.get_context_parallel_rank() == 0
    )


def _figures(context: Any, losses: Mapping[str, Any], counter: Counter, seconds: float) -> dict[str, Any] | None:
    """Return the figures of a step on the first rank of the group; all of its ranks must call this."""
    import torch
    from megatron.core import parallel_state as groups

    on_gpu = torch.distributed.get_backend() == "nccl"
    device = torch.cuda.current_device() if on_gpu else "cpu"
    counted = torch.tensor([*counter.take(), 0 if counter.knows_real else 1], dtype=torch.int64, device=device)
    torch.distributed.all_reduce(counted, group=groups.get_data_parallel_group())
    if groups.get_data_parallel_rank() != 0:
        return None
    real, padded, trained, micro_batches, unknown = (int(each) for each in counted.tolist())
    # The counter of steps goes up after this event.
    told: dict[str, Any] = {"step": int(context.state.train_state.step) + 1, "time": round(time.time(), 3)}
    if losses:
        told["loss"] = _number(next(iter(losses.values())))
    if context.grad_norm is not None:
        told["grad_norm"] = _number(context.grad_norm)
    if not unknown:
        told["tokens"] = real
    told.update(padded_tokens=padded, trained_tokens=trained, micro_batches=micro_batches, seconds=round(seconds, 4))
    told["tokens_per_second"] = round(padded / max(seconds, 1e-9), 1)
    told["memory_bytes"] = torch.cuda.max_memory_allocated() if on_gpu else _resident_bytes()
    return told


def _resident_bytes() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _number(value: Any) -> float:
    return float(value.item() if hasattr(value, "item") else value)


def _write_evidence(config: Any, folder: Path) -> None:
    """Write down what is trained, and say in the log whether the padding multiple covers context parallelism."""
    from importlib import metadata

    model, dataset, train = config.model, config.dataset, config.train
    specs = getattr(dataset, "offline_packing_specs", None) or getattr(dataset, "packed_sequence_specs", None)
    chunks = 2 * model.context_parallel_size if model.context_parallel_size > 1 else 1
    told = {
        "bridge": metadata.version("megatron-bridge"),
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
        "tp": model.tensor_model_parallel_size,
        "pp": model.pipeline_model_parallel_size,
        "cp": model.context_parallel_size,
        "sp": bool(model.sequence_parallel),
        "data_parallel": config.data_parallel_size if hasattr(config, "data_parallel_size") else None,
        "micro_batch_size": train.micro_batch_size,
        "global_batch_size": train.global_batch_size,
        "train_iters": train.train_iters,
        "seq_length": getattr(dataset, "seq_length", None),
        "pack_size": None if specs is None else specs.packed_sequence_size,
        "pad_seq_to_mult": None if specs is None else (specs.pad_seq_to_mult or 1),
        "cp_chunks": chunks,
        "in_batch_packing": bool(
            getattr(dataset, "enable_in_batch_packing", False) or getattr(dataset, "pack_sequences_in_batch", False)
        ),
    }
    (folder / "evidence.json").write_text(json.dumps(told, indent=1) + "\n", encoding="ascii")
    if specs is not None:
        covers = "covers" if told["pad_seq_to_mult"] % chunks == 0 else "does NOT cover"
        print(f"skill-run: pad_seq_to_mult {told['pad_seq_to_mult']} {covers} the {chunks} chunks of CP {told['cp']}")
    try:
        config.to_yaml(str(folder / "resolved.yaml"))
    except Exception as error:
        # A config that has no YAML form trains all the same.
        print(f"skill-run: resolved.yaml is not written: {type(error).__name__}: {error}")
    sys.stdout.flush()
