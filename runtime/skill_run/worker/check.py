"""Turn what a worker says of itself into a report: what is there, what it can do, and what to repair."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

from skill_run.errors import MissingError
from skill_run.worker.environments import Worker
from skill_run.worker.inside.probe import HARD_IMPORTS
from skill_run.worker.install import probe

Severity = Literal["error", "warning", "info"]
COMM_TYPES: Final = ("p2p", "all_gather", "a2a", "a2a+p2p")
# Rules that tell from which Transformer Engine on a cp_comm_type takes packed sequences.
_TE_RULES: Final = "-packed-needs-te-"


@dataclass(frozen=True, slots=True)
class Remark:
    """Something a user should know. todo: what to do about it, empty when nothing need be done."""

    id: str
    severity: Severity
    message: str
    todo: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the remark as JSON-ready data."""
        return {"id": self.id, "severity": self.severity, "message": self.message, "todo": self.todo}


@dataclass(frozen=True, slots=True)
class Ability:
    """Whether a worker can do something here, and how or why not, in words."""

    can: bool
    because: str

    def to_dict(self) -> dict[str, Any]:
        """Return the ability as JSON-ready data."""
        return {"can": self.can, "because": self.because}


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What is known of a worker.

    found: see inside/probe.py, empty without an answer; thd_comm_types: the cp_comm_types that can pack there.
    """

    worker: Worker
    found: Mapping[str, Any]
    thd_comm_types: tuple[str, ...]
    abilities: Mapping[str, Ability]
    remarks: tuple[Remark, ...]

    @property
    def broken(self) -> bool:
        """True when a remark is an error."""
        return any(remark.severity == "error" for remark in self.remarks)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready data."""
        return {
            "worker": self.worker.to_dict(),
            "found": dict(self.found),
            "thd_comm_types": list(self.thd_comm_types),
            "abilities": {name: ability.to_dict() for name, ability in self.abilities.items()},
            "remarks": [remark.to_dict() for remark in self.remarks],
        }


def check_worker(worker: Worker) -> WorkerReport:
    """Ask a worker what it has and judge it; one that does not answer gets a report without `found`."""
    try:
        found = probe(worker)
    except MissingError as error:
        silent = Ability(False, "the worker does not answer")
        remark = Remark("no-answer", "error", f"{error}.", "Repair it, or remove it and set it up again.")
        return WorkerReport(worker, {}, (), {"parity": silent, "rehearsal": silent}, (remark,))
    return judge(worker, found)


def judge(worker: Worker, found: Mapping[str, Any]) -> WorkerReport:
    """Judge what a worker said of itself (the answer of a deep probe)."""
    te = found["transformer_engine"].get("version")
    return WorkerReport(
        worker=worker,
        found=found,
        thd_comm_types=thd_comm_types(te) if te is not None else (),
        abilities={"parity": _parity(found), "rehearsal": _rehearsal(found)},
        remarks=tuple(_remarks(found)),
    )


@lru_cache
def thd_comm_types(te: str) -> tuple[str, ...]:
    """Return the cp_comm_types for which a Transformer Engine release takes packed (THD) sequences, by the rules."""
    from skill_run.rules.validate import validate_config

    found = []
    for kind in COMM_TYPES:
        config = {
            "model": {
                "context_parallel_size": 4,
                "cp_comm_type": kind,
                "hierarchical_context_parallel_sizes": [2, 2],
                "experimental_attention_variant": None,
            },
            "dataset": {
                "enable_offline_packing": True,
                "offline_packing_specs": {"packed_sequence_size": 4096, "pad_seq_to_mult": 8},
            },
        }
        report = validate_config(config, te=te)
        if not any(_TE_RULES in finding.rule for finding in report.findings):
            found.append(kind)
    return tuple(found)


def _works(found: Mapping[str, Any]) -> str | None:
    """Return why nothing can run at all, or None."""
    for part, title in (("torch", "torch"), ("core", "Megatron-Core")):
        if found[part]["error"] is not None:
            return f"{title} cannot be imported"
    return None


def _parity(found: Mapping[str, Any]) -> Ability:
    broken = _works(found)
    if broken is not None:
        return Ability(False, broken)
    if not found["gpus"]:
        return _on_cpu(found)
    te = found["transformer_engine"]
    if te.get("version") is not None:
        return Ability(True, "on the GPU, with Transformer Engine's attention")
    if found["torch"]["varlen"]:
        return Ability(True, "on the GPU, with torch's varlen attention, as Transformer Engine is not usable")
    return Ability(False, "on the GPU it needs Transformer Engine, or a torch that has torch.nn.attention.varlen")


def _rehearsal(found: Mapping[str, Any]) -> Ability:
    broken = _works(found)
    if broken is not None:
        return Ability(False, broken)
    if found["releases"]["bridge"] is None:
        return Ability(False, "it has no Megatron-Bridge")
    if found["gpus"]:
        return Ability(False, "rehearsals run on CPU, in a worker that sees no GPU")
    return _on_cpu(found)


def _on_cpu(found: Mapping[str, Any]) -> Ability:
    if not found["releases"]["known"]:
        return Ability(False, "the CPU layer is not proved on these releases of Megatron")
    if not found["torch"]["gloo"]:
        return Ability(False, "its torch has no gloo, which the ranks talk through on CPU")
    return Ability(True, "on CPU")


def _remarks(found: Mapping[str, Any]) -> Iterator[Remark]:
    yield from _import_remarks(found)
    yield from _gpu_remarks(found)
    yield from _bridge_remarks(found)
    yield from _variable_remarks(found)


def _import_remarks(found: Mapping[str, Any]) -> Iterator[Remark]:
    again = "Set it up again, or repair that environment."
    if found["torch"]["error"] is not None:
        yield Remark("torch-broken", "error", f"torch cannot be imported: {found['torch']['error']}", again)
        return
    if found["core"]["error"] is not None:
        yield Remark("core-broken", "error", f"Megatron-Core cannot be imported: {found['core']['error']}", again)
    if not found["releases"]["known"] and not found["gpus"]:
        yield Remark(
            "releases-unknown",
            "warning",
            "The CPU layer patches private parts of Megatron and is not proved on the releases in this worker.",
            "Build one of the workers that skill-run worker list shows as available.",
        )


def _gpu_remarks(found: Mapping[str, Any]) -> Iterator[Remark]:
    torch = found["torch"]
    if torch["error"] is not None:
        return
    if found["driver"] is not None and not found["gpus"]:
        yield Remark(
            "gpu-not-seen",
            "warning",
            f"The machine has NVIDIA driver {found['driver']}, and torch sees no GPU.",
            "Look at CUDA_VISIBLE_DEVICES, and whether torch is the CPU-only build or newer than the driver.",
        )
    if found["gpus"] and torch["nccl"] is None:
        yield Remark("nccl-missing", "error", "torch has no NCCL, which ranks on several GPUs talk through.", "")
    te = found["transformer_engine"]
    if te["error"] is not None:
        yield Remark(
            "te-broken",
            "error",
            f"Transformer Engine is installed and cannot be imported: {te['error']}",
            "Install the build for this torch and CUDA, or take it out.",
        )


def _bridge_remarks(found: Mapping[str, Any]) -> Iterator[Remark]:
    if found["releases"]["bridge"] is None:
        return
    gpu = bool(found["gpus"])
    missing = found["missing_imports"]
    if missing:
        packages = " ".join(f"'{HARD_IMPORTS[name]}'" for name in missing)
        yield Remark(
            "hard-imports-missing",
            "error" if gpu else "info",
            f"Megatron-Bridge imports {', '.join(missing)} without asking, and this environment lacks "
            f"{'it' if len(missing) == 1 else 'them'}"
            + ("." if gpu else "; on CPU the worker puts stand-ins in their place."),
            f"Install them: pip install {packages}" if gpu else "",
        )
    helpers = found["compile_helpers"]
    if helpers["makefile"] is False:
        folder = helpers["folder"]
        yield Remark(
            "compile-helpers-trap",
            "error" if gpu else "info",
            f"Megatron runs make in {folder}, which has no Makefile, since no wheel ships it: training exits with 1"
            + ("." if gpu else " outside this worker, which leaves that step out."),
            _makefile_todo(folder, bool(helpers["built"])) if gpu else "",
        )


def _makefile_todo(folder: str, built: bool) -> str:
    if built:
        return f"The helpers are built, so a Makefile that does nothing will do: echo 'default:' > {folder}/Makefile"
    return f"Copy megatron/core/datasets/Makefile of the same release of Megatron-LM into {folder}"


def _variable_remarks(found: Mapping[str, Any]) -> Iterator[Remark]:
    variables = found["environment"]
    if variables.get("NVTE_FLASH_ATTN") == "0" and variables.get("NVTE_FUSED_ATTN") == "0":
        yield Remark(
            "no-te-backend",
            "error" if found["gpus"] else "warning",
            "NVTE_FLASH_ATTN and NVTE_FUSED_ATTN are both 0, so Transformer Engine has no attention left for packed "
            "sequences with context parallelism.",
            "Unset one of them.",
        )
    if variables:
        told = ", ".join(f"{key}={value}" for key, value in variables.items())
        yield Remark("variables-set", "info", f"Set here and seen by the worker: {told}.", "")
    dropped = sorted(key for key in os.environ if key.startswith(("PYTHONPATH", "PYTHONHOME", "TORCH_")))
    if dropped:
        yield Remark("variables-dropped", "info", f"Set here and kept from the worker: {', '.join(dropped)}.", "")
