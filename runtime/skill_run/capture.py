"""Dump the batches that a running training job reads, as plain tensors that `skill-run inspect` opens.

This file needs torch and nothing else, and works when it is copied alone beside a training script:

    from skill_run.capture import dumping
    finetune(config, dumping(forward_step, directory="batch_dump", batches=4))

It wraps the forward step of Megatron-Bridge (`state` first) or of Megatron-LM (`data_iterator` first). Each rank that
reads data writes its own files; a failure to write is printed once and training goes on.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

# Images and audio are no part of what is inspected; a row of 8 million tokens takes as much as this.
LARGEST_TENSOR_BYTES = 2**26
LONGEST_LIST = 2**16
LONGEST_TEXT = 2**12
DEEPEST = 6
_GROUPS = {
    "tp": "tensor_model_parallel",
    "pp": "pipeline_model_parallel",
    "cp": "context_parallel",
    "dp": "data_parallel",
}
_STATE_NAMES = ("state", "global_state")


def dumping(
    forward_step: Callable[..., Any],
    directory: str | os.PathLike[str] = "batch_dump",
    batches: int = 4,
    *,
    skip: int = 0,
    ranks: Collection[int] | None = None,
) -> Callable[..., Any]:
    """Return a forward step that does what `forward_step` does and dumps the micro-batches that it reads.

    directory: where `rank<R>_batch<N>.pt` files go, the same on all nodes or one on each; batches: micro-batches to
    dump on each rank; skip: micro-batches to let pass first; ranks: global ranks that dump, all by default.

    The files hold {"batch": ..., "info": ...} and load with torch.load(weights_only=True). Tensors are cloned to the
    CPU before the step sees them. Objects that are no data are replaced by their type's name.
    """
    recorder = _Recorder(os.fspath(directory), batches, skip, None if ranks is None else frozenset(ranks))

    if _takes_state(forward_step):
        # Bridge looks at the first parameter's name to decide whether it has to pass the state.
        @functools.wraps(forward_step)
        def step(state: Any, data_iterator: Any, model: Any, *rest: Any, **options: Any) -> Any:
            return forward_step(state, recorder.watch(data_iterator, model), model, *rest, **options)

        return step

    @functools.wraps(forward_step)
    def plain_step(data_iterator: Any, model: Any, *rest: Any, **options: Any) -> Any:
        return forward_step(recorder.watch(data_iterator, model), model, *rest, **options)

    return plain_step


def _takes_state(forward_step: Callable[..., Any]) -> bool:
    """Tell whether Bridge passes its state to this step: by name of the first parameter, or by annotation."""
    try:
        parameters = list(inspect.signature(forward_step).parameters.values())
    except (TypeError, ValueError):
        return False
    if not parameters:
        return False
    told = getattr(parameters[0].annotation, "__name__", str(parameters[0].annotation))
    return parameters[0].name in _STATE_NAMES or "GlobalState" in told


class _Recorder:
    """Counts micro-batches and writes those that are asked for; never raises into training."""

    def __init__(self, directory: str, batches: int, skip: int, ranks: frozenset[int] | None) -> None:
        self._directory = directory
        self._from = skip
        self._until = skip + batches
        self._ranks = ranks
        self._read = 0

    def watch(self, data_iterator: Any, model: Any) -> Any:
        """Return an iterator that records what it hands on; None and finished recordings pass through."""
        if data_iterator is None or self._read >= self._until:
            return data_iterator
        return _Watched(data_iterator, self, model)

    def record(self, batch: Any, model: Any) -> None:
        """Write one micro-batch, unless enough are written."""
        number = self._read
        self._read += 1
        if not self._from <= number < self._until:
            return
        try:
            info = _info(model)
            if self._ranks is None or info["rank"] in self._ranks:
                self._write(batch, {**info, "number": number})
        except Exception as error:
            self._read = self._until
            print(f"skill-run capture: no batch is dumped any more: {type(error).__name__}: {error}", file=sys.stderr)

    def _write(self, batch: Any, info: dict[str, Any]) -> None:
        torch = _torch()
        os.makedirs(self._directory, exist_ok=True)
        path = os.path.join(self._directory, f"rank{info['rank']}_batch{info['number']}.pt")
        # A file under its last name is complete, also when the job is killed.
        unfinished = f"{path}.{os.getpid()}.unfinished"
        try:
            torch.save({"batch": _plain(batch, torch, 0), "info": info}, unfinished)
            os.replace(unfinished, path)
        finally:
            if os.path.exists(unfinished):
                os.unlink(unfinished)


class _Watched:
    """An iterator that shows each micro-batch to the recorder; everything else is the iterator's own."""

    def __init__(self, data_iterator: Any, recorder: _Recorder, model: Any) -> None:
        self._data_iterator = data_iterator
        self._recorder = recorder
        self._model = model

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = next(self._data_iterator)
        self._recorder.record(batch, self._model)
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data_iterator, name)


def _torch() -> Any:
    """Return torch, which a job that trains has loaded long before."""
    return sys.modules["torch"]


def _plain(value: Any, torch: Any, depth: int) -> Any:
    """Return data as weights_only loading accepts it, with tensors cloned on the CPU."""
    if isinstance(value, torch.Tensor) or type(value).__module__ == "numpy":
        return _tensor(value, torch)
    # Enumerations and other kinds of numbers and text become plain ones, which load without their classes.
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value) if kind is not str else str(value)[:LONGEST_TEXT]
    if value is None or depth >= DEEPEST:
        return value if value is None else _named(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item, torch, depth + 1) for item in value[:LONGEST_LIST]]
    if isinstance(value, Mapping):
        items = list(value.items())[:LONGEST_LIST]
        return {str(key): _plain(item, torch, depth + 1) for key, item in items}
    return _named(value)


def _tensor(value: Any, torch: Any) -> Any:
    """Return a tensor or a numpy array as a plain tensor of its own; its description when that cannot be."""
    try:
        tensor = torch.as_tensor(value).detach()
        if tensor.numel() * tensor.element_size() > LARGEST_TENSOR_BYTES:
            return f"<{tensor.dtype} {list(tensor.shape)}, too large to dump>"
        # A clone: cu_seqlens_q and cu_seqlens_kv, or tokens and input_ids, are one tensor, and steps change batches in
        # place.
        return tensor.to("cpu").clone().as_subclass(torch.Tensor)
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return _named(value)


def _named(value: Any) -> str:
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


def _info(model: Any) -> dict[str, Any]:
    """Return this rank, its place in the parallel groups where Megatron-Core knows it, and the release."""
    torch = _torch()
    there = torch.distributed.is_available() and torch.distributed.is_initialized()
    info: dict[str, Any] = {
        "form": "micro_batch",
        "rank": int(torch.distributed.get_rank()) if there else 0,
        "world_size": int(torch.distributed.get_world_size()) if there else 1,
        "training": bool(getattr(model, "training", True)),
    }
    state = sys.modules.get("megatron.core.parallel_state")
    groups = _own_groups(model)
    for short, name in _GROUPS.items():
        try:
            if short in groups:
                rank, size = groups[short].rank(), groups[short].size()
            else:
                rank = getattr(state, f"get_{name}_rank")()
                size = getattr(state, f"get_{name}_world_size")()
            info[f"{short}_rank"], info[f"{short}_size"] = int(rank), int(size)
        except Exception:
            # Groups that are not set up raise errors of many kinds; the rest of the place is still worth telling.
            continue
    release = _installed("megatron-bridge")
    return {**info, "bridge": release} if release is not None else info


def _own_groups(model: Any) -> dict[str, Any]:
    """Return the groups that a model carries itself, under its wrappers."""
    for _ in range(DEEPEST):
        collection = getattr(model, "pg_collection", None)
        if collection is not None:
            found = {short: getattr(collection, short, None) for short in _GROUPS}
            return {short: group for short, group in found.items() if group is not None}
        model = getattr(model, "module", None)
    return {}


def _installed(distribution: str) -> str | None:
    from importlib import metadata

    try:
        return str(metadata.version(distribution))
    except metadata.PackageNotFoundError:
        return None
