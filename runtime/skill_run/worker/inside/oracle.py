"""Task `oracle`: what the real ConfigContainer.validate() of this environment's Bridge does with given configs."""

from __future__ import annotations

import importlib
import logging
import os
import re
import resource
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from skill_run.worker.inside import bridge_stubs
from skill_run.worker.inside.container import Builder
from skill_run.worker.inside.cuda_on_cpu import refuse_gpu
from skill_run.worker.inside.errors import RankFailure, RefusedError
from skill_run.worker.inside.ranks import Tell, run_ranks
from skill_run.worker.inside.rehearse_fields import read_values
from skill_run.worker.inside.serve import Channel
from skill_run.worker.inside.versions import require_known_releases

# What a config is judged for when the case does not say: validate() asks for the GPU and for Transformer Engine.
GPU: Final = "h100"
TE: Final = "2.14.0"
# Compute capability and name as CUDA tells them.
GPUS: Final = {
    "v100": (7, 0, "Tesla V100-SXM2-32GB"),
    "t4": (7, 5, "Tesla T4"),
    "a100": (8, 0, "NVIDIA A100-SXM4-80GB"),
    "l40": (8, 9, "NVIDIA L40"),
    "h100": (9, 0, "NVIDIA H100 80GB HBM3"),
    "h200": (9, 0, "NVIDIA H200"),
    "b200": (10, 0, "NVIDIA B200"),
    "gb200": (10, 0, "NVIDIA GB200"),
    "b300": (10, 3, "NVIDIA B300"),
    "gb300": (10, 3, "NVIDIA GB300"),
}
# A config can ask for any amount of work; one case gets this much of the machine.
_CASE_SECONDS: Final = 30.0
_EXTRA_BYTES: Final = 6 * 2**30
_LONGEST: Final = 1500
_RUN_VARIABLES: Final = re.compile(
    r"^(NCCL|NVTE|CUDA|TORCH|NVSHMEM|UB)_|^(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE)$"
)


def run(request: Mapping[str, Any], channel: Channel) -> dict[str, Any]:
    """Return {"bridge", "core", "cases": [...]}: one answer for each of request["cases"], in order.

    A case: {"config": mapping as in a YAML dump, "world_size": int, "env": variables of the run, "gpu": a key of GPUS,
    "te": version, "infer": whether data without `_target_` is given its class, default when the config has none}.
    An answer: {"outcome": "passes" | "raises" | "cannot-build", "phase": "construct" | "validate", "error": type,
    "message", "where": file:line in Megatron, "changed": {field: [before, after]}, "warnings", "dropped": fields that
    the classes do not have}.
    """
    releases = require_known_releases()
    if releases.bridge is None:
        raise RefusedError("the worker's environment has no megatron-bridge", "missing")
    refuse_gpu()
    channel.progress("importing Megatron-Bridge", 0, 1)
    bridge_stubs.install()
    importlib.import_module("megatron.bridge.training.config")
    cases = list(request["cases"])
    answers: list[dict[str, Any]] = []
    while len(answers) < len(cases):
        channel.progress("asking validate()", len(answers), len(cases))
        answers += _ask(cases[len(answers) :])
    return {"core": releases.core, "bridge": releases.bridge, "cases": answers}


def _ask(cases: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Answer the cases in one forked process, up to and including one that ends it."""
    answers: list[dict[str, Any]] = []

    def answer_all(_rank: int, tell: Tell) -> None:
        _limit_memory()
        for case in cases:
            tell(answer(case))

    try:
        run_ranks(1, answer_all, silence=_CASE_SECONDS, on_tell=lambda _rank, told: answers.append(told))
    except RankFailure as failure:
        answers.append({"outcome": "cannot-build", "error": "RankFailure", "message": str(failure)[:_LONGEST]})
    return answers


def _limit_memory() -> None:
    with open("/proc/self/statm", encoding="ascii") as stream:
        held = int(stream.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + _EXTRA_BYTES, held + _EXTRA_BYTES))


def answer(case: Mapping[str, Any]) -> dict[str, Any]:
    """Build one config and validate it, as on a machine with the case's GPU, ranks and variables."""
    config = case.get("config")
    if not isinstance(config, Mapping):
        return {"outcome": "cannot-build", "error": "RefusedError", "message": "the config is no mapping"}
    builder = Builder(infer=bool(case.get("infer", "_target_" not in config)))
    told: dict[str, Any] = {"phase": "construct"}
    said: list[str] = []
    with _as_on_the_cluster(case), _listening(said):
        try:
            container = builder.container(config)
            _apply_mixed_precision(container)
            told["phase"] = "validate"
            before = read_values(container)
            container.validate()
            told |= {"outcome": "passes", "changed": _changes(before, read_values(container))}
        except RefusedError as error:
            told |= {"outcome": "cannot-build", "error": "RefusedError", "message": str(error)}
        except (SystemExit, Exception) as error:
            told |= {"outcome": "raises", **_words(error)}
    return {**told, "warnings": said, "dropped": builder.dropped}


def _apply_mixed_precision(container: Any) -> None:
    """Do what the training loop does with a mixed-precision recipe before it validates (runtime_config_update)."""
    from megatron.bridge.training.mixed_precision import get_mixed_precision_config

    if container.mixed_precision is None:
        return
    if isinstance(container.mixed_precision, str):
        container.mixed_precision = get_mixed_precision_config(container.mixed_precision)
    container.mixed_precision.finalize()
    container.mixed_precision.setup(container.model, container.optimizer, container.ddp)


def _words(error: BaseException) -> dict[str, str]:
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if "/megatron/" in frame.filename]
    place = f"{inside[-1].filename.rpartition('/megatron/')[2]}:{inside[-1].lineno}" if inside else ""
    return {"error": type(error).__name__, "message": str(error).strip()[:_LONGEST], "where": place}


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {
        name: [before.get(name), after.get(name)]
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    }


@contextmanager
def _as_on_the_cluster(case: Mapping[str, Any]) -> Iterator[None]:
    """Show validate() the ranks, variables, GPU, paths and Transformer Engine of the case; undo what it changes."""
    import torch
    from megatron.bridge.data.packing import config as packing
    from megatron.bridge.training.utils import checkpoint_utils
    from megatron.core import utils as core_utils
    from packaging.version import Version

    from skill_run.worker.inside.te_presence import te_presence

    major, minor, name = GPUS.get(str(case.get("gpu") or GPU), GPUS[GPU])
    properties = SimpleNamespace(major=major, minor=minor, name=name, total_memory=80 * 2**30)
    deterministic = torch.are_deterministic_algorithms_enabled()
    with ExitStack() as stack:
        stack.enter_context(_environment(case))
        stack.enter_context(te_presence())
        for owner, attribute, value in (
            (core_utils, "_te_version", Version(str(case.get("te") or TE))),
            (torch.cuda, "is_available", _always(True)),
            (torch.cuda, "get_device_properties", _always(properties)),
            (torch.cuda, "get_device_capability", _always((major, minor))),
            (torch.cuda, "get_device_name", _always(name)),
            # The paths of a config are those of the cluster.
            (checkpoint_utils, "file_exists", _always(True)),
            (packing, "resolve_packed_parquet_paths", lambda path: [path]),
            (Path, "exists", _always(True)),
        ):
            stack.enter_context(_replaced(owner, attribute, value))
        stack.callback(torch.use_deterministic_algorithms, deterministic)
        yield


@contextmanager
def _replaced(owner: Any, attribute: str, value: Any) -> Iterator[None]:
    held = getattr(owner, attribute)
    setattr(owner, attribute, value)
    try:
        yield
    finally:
        setattr(owner, attribute, held)


@contextmanager
def _environment(case: Mapping[str, Any]) -> Iterator[None]:
    """Set the variables of the run that the case gives, and no others of their kinds."""
    held = dict(os.environ)
    given = {str(key): str(value) for key, value in (case.get("env") or {}).items()}
    for name in [name for name in held if _RUN_VARIABLES.match(name)]:
        del os.environ[name]
    os.environ.update({**given, "WORLD_SIZE": str(case.get("world_size") or 1), "RANK": "0"})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(held)


def _always(value: Any) -> Any:
    return lambda *_values, **_options: value


@contextmanager
def _listening(said: list[str]) -> Iterator[None]:
    """Collect what is warned or logged as a warning, each sentence once."""

    class _Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            _note(said, record.getMessage())

    ear = _Ear(logging.WARNING)
    root = logging.getLogger()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_values, **_options: _note(said, str(message))
        root.addHandler(ear)
        try:
            yield
        finally:
            root.removeHandler(ear)


def _note(said: list[str], text: str) -> None:
    text = text.strip()[:_LONGEST]
    if text and text not in said and len(said) < 50:
        said.append(text)
