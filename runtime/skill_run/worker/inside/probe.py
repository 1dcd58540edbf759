"""Task `probe`: what this environment has and what it can do. What is broken becomes part of the answer."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from skill_run.worker.inside.errors import RefusedError
from skill_run.worker.inside.serve import Channel
from skill_run.worker.inside.versions import KNOWN, found_releases

DISTRIBUTIONS: Final = (
    "torch",
    "megatron-core",
    "megatron-bridge",
    "transformer-engine",
    "transformer-engine-torch",
    "flash-attn",
    "flash-attn-3",
    "nvidia-modelopt",
    "nvidia-resiliency-ext",
    "megatron-energon",
    "transformers",
    "datasets",
    "peft",
    "triton",
    "numpy",
    "pyarrow",
    "nvidia-nccl-cu13",
    "nvidia-nccl-cu12",
    "nvidia-cudnn-cu13",
    "nvidia-cudnn-cu12",
)
# Modules that Megatron-Bridge imports without asking whether they are there -> what pip installs for each.
HARD_IMPORTS: Final = {
    "transformer_engine": "transformer-engine[pytorch]",
    "modelopt": "nvidia-modelopt",
    "nvidia_resiliency_ext": "nvidia-resiliency-ext",
    "megatron.energon": "megatron-energon",
}
# Variables that change how a run behaves, by the start of their names.
VARIABLES: Final = ("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_VISIBLE_DEVICES", "LD_PRELOAD", "NCCL_", "NVTE_", "UB_")
_LONGEST: Final = 500


def run(request: Mapping[str, Any], channel: Channel) -> dict[str, Any]:
    """Return what is here, JSON-ready.

    request: {"deep": bool}; without it nothing heavy is imported, and the parts that need torch are None.
    Keys: python, executable, versions (distribution -> version), missing_imports (of Megatron-Bridge, [] without it),
    releases (known: the CPU layer has been proved on them), compile_helpers, environment, and torch, core,
    transformer_engine, gpus, driver.
    """
    deep = bool(request.get("deep"))
    versions = _versions()
    bridge = "megatron-bridge" in versions
    answer: dict[str, Any] = {
        "python": platform.python_version(),
        "executable": sys.executable,
        "system": f"{platform.system()} {platform.machine()}",
        "versions": versions,
        "missing_imports": [name for name in HARD_IMPORTS if not _is_there(name)] if bridge else [],
        "releases": _releases(),
        "compile_helpers": _compile_helpers(),
        "environment": {key: os.environ[key][:_LONGEST] for key in sorted(os.environ) if key.startswith(VARIABLES)},
        "torch": None,
        "core": None,
        "transformer_engine": None,
        "gpus": [],
        "driver": None,
    }
    if not deep:
        return answer
    channel.progress("importing torch", 0, 3)
    answer["torch"] = _asked(_torch)
    if answer["torch"]["error"] is None:
        channel.progress("importing Megatron-Core", 1, 3)
        answer["core"] = _asked(_core)
        channel.progress("asking the GPUs", 2, 3)
        answer["transformer_engine"] = _asked(_transformer_engine)
        answer.update(_gpus())
    else:
        answer["core"] = answer["transformer_engine"] = {"error": "torch cannot be imported"}
    return answer


def _versions() -> dict[str, str]:
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = str(importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _asked(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the answer with "error" None, or the error in words: a broken package may raise anything at import."""
    try:
        return {**ask(), "error": None}
    except (Exception, SystemExit) as error:
        return {"error": f"{type(error).__name__}: {error}"[:_LONGEST]}


def _torch() -> dict[str, Any]:
    import torch

    nccl = torch.cuda.nccl.version() if torch.version.cuda and torch.distributed.is_nccl_available() else None
    return {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if torch.version.cuda else None,
        "nccl": ".".join(map(str, nccl)) if nccl is not None else None,
        "gpu": torch.cuda.is_available(),
        "gloo": torch.distributed.is_gloo_available(),
        "varlen": _is_there("torch.nn.attention.varlen"),
    }


def _core() -> dict[str, Any]:
    import megatron.core

    return {"version": str(megatron.core.__version__)}


def _transformer_engine() -> dict[str, Any]:
    """Say whether Transformer Engine's torch part can be imported; a build for another torch or CUDA cannot."""
    if not _is_there("transformer_engine"):
        return {"version": None}
    import transformer_engine.pytorch

    return {"version": str(transformer_engine.__version__)}


def _gpus() -> dict[str, Any]:
    import torch

    if not torch.cuda.is_available():
        return {"gpus": [], "driver": _driver()}
    found = []
    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        found.append(
            {
                "name": about.name,
                "capability": f"{about.major}.{about.minor}",
                "memory_gib": round(about.total_memory / 2**30, 1),
            }
        )
    return {"gpus": found, "driver": _driver()}


def _driver() -> str | None:
    """Return the version of NVIDIA's kernel driver, or None without one."""
    try:
        first = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").splitlines()[0]
    except (OSError, IndexError):
        return None
    return next((word for word in first.split() if word[0].isdigit() and "." in word), None)


def _releases() -> dict[str, Any]:
    try:
        found = found_releases()
    except (RefusedError, OSError):
        return {"core": None, "bridge": None, "known": False}
    return {"core": found.core, "bridge": found.bridge, "known": found in KNOWN}


def _compile_helpers() -> dict[str, Any]:
    """Tell whether megatron-core's compile_helpers() can work: it runs make in a folder whose Makefile wheels lack."""
    try:
        spec = importlib.util.find_spec("megatron.core")
    except ImportError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        return {"folder": None, "makefile": None, "built": None, "make": None}
    folder = Path(next(iter(spec.submodule_search_locations))) / "datasets"
    return {
        "folder": str(folder),
        "makefile": (folder / "Makefile").is_file(),
        "built": any(folder.glob("helpers_cpp*.so")),
        "make": shutil.which("make") is not None,
    }
