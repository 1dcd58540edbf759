"""The probe tells what is there, and makes a finding of what is broken."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from skill_run.worker.environments import Worker
from skill_run.worker.session import run_task

GPU_TORCH = """\
import types
__version__ = "2.14.1"
version = types.SimpleNamespace(cuda="13.0")
about = types.SimpleNamespace(name="H100", major=9, minor=0, total_memory=85 * 2**30)
cuda = types.SimpleNamespace(
    is_available=lambda: True, device_count=lambda: 2, get_device_properties=lambda number: about,
    nccl=types.SimpleNamespace(version=lambda: (2, 30, 7)),
)
backends = types.SimpleNamespace(cudnn=types.SimpleNamespace(version=lambda: 92400))
distributed = types.SimpleNamespace(is_nccl_available=lambda: True, is_gloo_available=lambda: True)
"""
RELEASE = "MAJOR = 0\nMINOR = {}\nPATCH = {}\n"


def probe(worker: Worker, *, deep: bool = True) -> dict[str, Any]:
    return run_task(worker, "probe", {"deep": deep})


def made_of(folder: Path, files: dict[str, str]) -> Worker:
    """Return a worker whose Python finds these modules."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return Worker("made", ("/usr/bin/env", f"PYTHONPATH={folder}", sys.executable))


@pytest.fixture(scope="module")
def core_answer(core_worker: Worker) -> dict[str, Any]:
    """What a real worker says."""
    return probe(core_worker)


def test_a_real_worker_tells_its_versions_and_that_it_works(core_answer: dict[str, Any]) -> None:
    assert core_answer["versions"]["megatron-core"] == "0.16.1"
    assert core_answer["torch"]["error"] is None
    assert core_answer["torch"]["version"].startswith("2.13.0")
    assert core_answer["torch"]["gloo"] is True
    assert core_answer["torch"]["varlen"] is True
    assert core_answer["core"] == {"version": "0.16.1", "error": None}
    assert core_answer["releases"] == {"core": "0.16.1", "bridge": None, "known": True}
    assert core_answer["missing_imports"] == []
    assert core_answer["transformer_engine"] == {"version": None, "error": None}


def test_a_wheel_of_megatron_core_has_built_helpers_and_no_makefile(core_answer: dict[str, Any]) -> None:
    helpers = core_answer["compile_helpers"]
    assert (helpers["makefile"], helpers["built"]) == (False, True)
    assert helpers["folder"].endswith("megatron/core/datasets")


def test_without_asking_deep_nothing_heavy_is_imported(tmp_path: Path) -> None:
    worker = made_of(tmp_path, {"torch/__init__.py": "raise SystemExit('imported')"})
    found = probe(worker, deep=False)
    assert (found["torch"], found["core"], found["transformer_engine"], found["gpus"]) == (None, None, None, [])


@pytest.mark.parametrize(
    "fault", ["raise OSError('libcudart.so.13: cannot open')", "import sys; sys.exit(1)", "1/0", "("]
)
def test_a_torch_that_is_broken_is_a_finding(tmp_path: Path, fault: str) -> None:
    found = probe(made_of(tmp_path, {"torch/__init__.py": fault}))
    assert found["torch"]["error"]
    assert found["core"] == {"error": "torch cannot be imported"}
    assert found["gpus"] == []


def test_an_empty_environment_answers_as_well() -> None:
    found = probe(Worker("none", (sys.executable, "-S")))
    assert found["torch"]["error"] == "ModuleNotFoundError: No module named 'torch'"
    assert found["releases"] == {"core": None, "bridge": None, "known": False}
    assert found["compile_helpers"]["folder"] is None
    assert found["versions"] == {}


def test_a_gpu_machine_tells_its_gpus_nccl_and_what_bridge_lacks(tmp_path: Path) -> None:
    """A stand-in for torch, since no GPU is needed to see what is asked of it."""
    worker = made_of(
        tmp_path,
        {
            "torch/__init__.py": GPU_TORCH,
            "torch/nn/attention/varlen.py": "",
            "torch/nn/attention/__init__.py": "",
            "torch/nn/__init__.py": "",
            "megatron/core/__init__.py": "__version__ = '0.19.2'",
            "megatron/core/package_info.py": RELEASE.format(19, 2),
            "megatron/core/datasets/Makefile": "default:",
            "megatron/bridge/__init__.py": "",
            "megatron/bridge/package_info.py": RELEASE.format(6, 2),
            "megatron_bridge-0.6.2.dist-info/METADATA": "Name: megatron-bridge\nVersion: 0.6.2\n",
            "modelopt.py": "",
            "transformer_engine/__init__.py": "",
            "transformer_engine/pytorch.py": "raise ImportError('undefined symbol')",
        },
    )
    found = probe(worker)
    assert found["gpus"] == [{"name": "H100", "capability": "9.0", "memory_gib": 85.0}] * 2
    assert (found["torch"]["nccl"], found["torch"]["cudnn"], found["torch"]["varlen"]) == ("2.30.7", 92400, True)
    assert found["transformer_engine"] == {"error": "ImportError: undefined symbol"}
    assert found["missing_imports"] == ["nvidia_resiliency_ext", "megatron.energon"]
    assert found["releases"] == {"core": "0.19.2", "bridge": "0.6.2", "known": True}
    assert found["compile_helpers"]["makefile"] is True


def test_variables_that_change_a_run_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("NVTE_FUSED_ATTN", "0")
    found = probe(Worker("none", (sys.executable, "-S")), deep=False)
    assert found["environment"].items() >= {"NCCL_DEBUG": "INFO", "NVTE_FUSED_ATTN": "0"}.items()
