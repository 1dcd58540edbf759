"""The report on a worker for people, as plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from skill_run.report.safe import flow

if TYPE_CHECKING:
    from skill_run.worker.check import WorkerReport

_WIDTH: Final = 100
_NAMES: Final = {
    "megatron-core": "Megatron-Core",
    "megatron-bridge": "Megatron-Bridge",
    "transformer-engine": "Transformer Engine",
    "flash-attn": "flash-attn",
    "flash-attn-3": "flash-attn 3",
}


def render_worker(report: WorkerReport) -> str:
    """Return the report as text, without a final newline."""
    return "\n".join(_lines(report))


def _lines(report: WorkerReport) -> Iterator[str]:
    state = "needs repair" if report.broken else "ready"
    yield f"{report.worker.name}: {state}"
    if report.found:
        yield from _found(report)
    for name, ability in report.abilities.items():
        yield from _wrapped(f"{name}: {'yes' if ability.can else 'no'}, {ability.because}")
    for remark in report.remarks:
        yield from _wrapped(flow(f"{remark.severity} {remark.id}: {remark.message} {remark.todo}"))


def _found(report: WorkerReport) -> Iterator[str]:
    found = report.found
    yield from _wrapped(f"Python {found['python']} on {found['system']}: {flow(str(found['executable']))}")
    yield from _wrapped(f"Packages: {', '.join(_packages(found))}")
    yield from _wrapped(f"GPU: {_gpu(found)}")
    te = found["transformer_engine"]
    if te.get("version") is not None:
        yield from _wrapped(f"Packed (THD) sequences with context parallelism: cp_comm_type {_listed(report)}")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent="  ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _packages(found: Mapping[str, Any]) -> Iterator[str]:
    torch = found["torch"]
    if torch["error"] is None:
        built = f"CUDA {torch['cuda']}" if torch["cuda"] else "CPU only"
        nccl = f", NCCL {torch['nccl']}" if torch["nccl"] else ", no NCCL"
        varlen = "varlen attention" if torch["varlen"] else "no varlen attention"
        yield f"torch {torch['version']} ({built}{nccl}, {varlen})"
    for name, title in _NAMES.items():
        version = found["versions"].get(name)
        yield f"{title} {version}" if version is not None else f"no {title}"


def _gpu(found: Mapping[str, Any]) -> str:
    driver = f", driver {found['driver']}" if found["driver"] else ""
    cards = [f"{card['name']} (capability {card['capability']}, {card['memory_gib']} GiB)" for card in found["gpus"]]
    return f"{len(cards)}: {'; '.join(cards)}{driver}" if cards else f"none{driver}"


def _listed(report: WorkerReport) -> str:
    return ", ".join(report.thd_comm_types) or "none"
