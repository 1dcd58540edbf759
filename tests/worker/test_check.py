"""What a worker's answer means: what it can do here, and what to repair."""

from __future__ import annotations

from typing import Any

import pytest

from skill_run.report.worker import render_worker
from skill_run.worker.check import WorkerReport, judge, thd_comm_types
from skill_run.worker.environments import Worker

GPU = {"name": "H100", "capability": "9.0", "memory_gib": 79.1}


def answer(**changes: Any) -> dict[str, Any]:
    """Return the answer of a healthy CPU worker with Megatron-Bridge, changed: `torch={...}` is laid over its part."""
    found: dict[str, Any] = {
        "python": "3.12.1",
        "executable": "/w/bin/python",
        "system": "Linux x86_64",
        "versions": {"torch": "2.14.1", "megatron-core": "0.19.2", "megatron-bridge": "0.6.2"},
        "missing_imports": [],
        "releases": {"core": "0.19.2", "bridge": "0.6.2", "known": True},
        "compile_helpers": {"folder": "/w/datasets", "makefile": True, "built": True, "make": True},
        "environment": {},
        "torch": {"version": "2.14.1", "cuda": None, "nccl": None, "gloo": True, "varlen": True, "error": None},
        "core": {"version": "0.19.2", "error": None},
        "transformer_engine": {"version": None, "error": None},
        "gpus": [],
        "driver": None,
    }
    for key, value in changes.items():
        found[key] = {**found[key], **value} if isinstance(value, dict) else value
    return found


def on_gpu(**changes: Any) -> dict[str, Any]:
    torch = {"cuda": "13.0", "nccl": "2.30.7", **changes.pop("torch", {})}
    return answer(**{"gpus": [GPU], "driver": "580.1", "torch": torch, **changes})


def report(found: dict[str, Any]) -> WorkerReport:
    return judge(Worker("w", ("python",)), found)


def severities(found: dict[str, Any]) -> dict[str, str]:
    return {remark.id: remark.severity for remark in report(found).remarks}


def test_a_healthy_worker_can_do_both_and_needs_nothing() -> None:
    found = report(answer())
    assert {name: ability.can for name, ability in found.abilities.items()} == {"parity": True, "rehearsal": True}
    assert (found.remarks, found.broken) == ((), False)


def test_without_bridge_there_is_parity_and_no_rehearsal() -> None:
    abilities = report(answer(releases={"bridge": None})).abilities
    assert (abilities["parity"].can, abilities["rehearsal"].can) == (True, False)
    assert "no Megatron-Bridge" in abilities["rehearsal"].because


@pytest.mark.parametrize(("part", "remark"), [("torch", "torch-broken"), ("core", "core-broken")])
def test_what_cannot_be_imported_is_an_error_and_rules_everything_out(part: str, remark: str) -> None:
    found = report(answer(**{part: {"error": "OSError: libcudart.so.13"}}))
    assert found.broken
    assert [one.id for one in found.remarks] == [remark]
    assert not any(ability.can for ability in found.abilities.values())


def test_unknown_releases_are_no_ground_for_the_cpu_layer() -> None:
    unknown = answer(releases={"known": False})
    assert severities(unknown) == {"releases-unknown": "warning"}
    assert not report(unknown).abilities["parity"].can
    assert severities(on_gpu(releases={"known": False})) == {}


@pytest.mark.parametrize(
    ("changes", "can", "because"),
    [
        ({"transformer_engine": {"version": "2.20"}}, True, "Transformer Engine's attention"),
        ({}, True, "torch's varlen attention"),
        ({"torch": {"varlen": False}}, False, "it needs Transformer Engine"),
        (
            {"transformer_engine": {"version": "2.20"}, "core": {"error": "x"}},
            False,
            "Megatron-Core cannot be imported",
        ),
    ],
)
def test_on_a_gpu_parity_runs_on_what_attention_there_is(changes: dict[str, Any], can: bool, because: str) -> None:
    ability = report(on_gpu(**changes)).abilities["parity"]
    assert (ability.can, because in ability.because) == (can, True)


def test_gaps_of_bridge_are_errors_on_a_gpu_and_known_on_cpu() -> None:
    gaps: dict[str, Any] = {
        "missing_imports": ["modelopt", "megatron.energon"],
        "compile_helpers": {"makefile": False},
    }
    assert severities(answer(**gaps)) == {"hard-imports-missing": "info", "compile-helpers-trap": "info"}
    assert severities(on_gpu(**gaps)) == {"hard-imports-missing": "error", "compile-helpers-trap": "error"}
    todo = {remark.id: remark.todo for remark in report(on_gpu(**gaps)).remarks}
    assert todo["hard-imports-missing"] == "Install them: pip install 'nvidia-modelopt' 'megatron-energon'"
    assert todo["compile-helpers-trap"].endswith("echo 'default:' > /w/datasets/Makefile")
    unbuilt = on_gpu(compile_helpers={"makefile": False, "built": False})
    assert report(unbuilt).remarks[0].todo.startswith("Copy megatron/core/datasets/Makefile")


def test_gaps_of_bridge_do_not_matter_without_bridge() -> None:
    assert severities(on_gpu(releases={"bridge": None}, compile_helpers={"makefile": False})) == {}


def test_a_gpu_that_torch_does_not_see_and_a_broken_te_are_told() -> None:
    assert severities(answer(driver="580.1")) == {"gpu-not-seen": "warning"}
    broken = on_gpu(transformer_engine={"error": "ImportError: undefined symbol"}, torch={"nccl": None})
    assert severities(broken) == {"nccl-missing": "error", "te-broken": "error"}


def test_variables_that_leave_no_attention_are_an_error() -> None:
    found = on_gpu(environment={"NVTE_FLASH_ATTN": "0", "NVTE_FUSED_ATTN": "0"})
    assert severities(found) == {"no-te-backend": "error", "variables-set": "info"}


def test_variables_that_are_kept_from_a_worker_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    (remark,) = report(answer()).remarks
    assert (remark.id, "PYTHONPATH" in remark.message) == ("variables-dropped", True)


@pytest.mark.parametrize(
    ("te", "kinds"),
    [
        ("2.9", ("p2p",)),
        ("2.10", ("p2p", "a2a")),
        ("2.18", ("p2p", "all_gather", "a2a")),
        ("2.20.2", ("p2p", "all_gather", "a2a", "a2a+p2p")),
    ],
)
def test_which_comm_types_can_pack_follows_the_rules(te: str, kinds: tuple[str, ...]) -> None:
    assert thd_comm_types(te) == kinds


def test_the_report_shows_versions_gpu_abilities_and_remarks_within_its_width() -> None:
    found = on_gpu(
        transformer_engine={"version": "2.18"},
        missing_imports=["modelopt"],
        versions={"transformer-engine": "2.18", "flash-attn": "2.8"},
    )
    text = render_worker(report(found))
    assert text.startswith("w: needs repair\n")
    parts = (
        "CUDA 13.0, NCCL 2.30.7",
        "1: H100 (capability 9.0, 79.1 GiB), driver 580.1",
        "flash-attn 2.8",
        "cp_comm_type p2p, all_gather, a2a",
        "parity: yes",
        "rehearsal: no",
        "error hard-imports-missing",
    )
    for part in parts:
        assert part in text
    assert max(map(len, text.splitlines())) <= 100
    data = report(found).to_dict()
    assert data["thd_comm_types"] == ["p2p", "all_gather", "a2a"]
    assert data["remarks"][0]["id"] == "hard-imports-missing"
