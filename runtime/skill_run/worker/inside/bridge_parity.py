"""Task `bridge-parity`: what a Bridge release's own training loop computes on packs, against unpacked samples.

The release is the worker's own, or another one whose wheels boot.py puts before it. Everything of Bridge and
Megatron-Core runs as it is, except for bridge_on_cpu.py, the CUDA shim and the core attention; the partition index is
Transformer Engine's as its kernel computes it, so that what a release feeds it matters.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from skill_run.worker.inside import bridge_on_cpu, bridge_samples, cuda_on_cpu
from skill_run.worker.inside.diagnosis import Diagnosis
from skill_run.worker.inside.errors import RankFailure, RefusedError
from skill_run.worker.inside.ranks import run_ranks
from skill_run.worker.inside.serve import Channel

DTYPE: Final = "float32"


@dataclass(frozen=True)
class BridgeLayout:
    """One run of the training loop. ragged: the rows hold different numbers of sequences, else all the same."""

    cp: int = 1
    pp: int = 1
    packed: bool = True
    ragged: bool = True

    @property
    def ranks(self) -> int:
        """Processes that the run takes."""
        return self.cp * self.pp

    @property
    def data(self) -> str:
        """Name of the sample set."""
        return "ragged" if self.ragged else "even"


LAYOUTS: Final = {
    "cp1": BridgeLayout(),
    "cp2": BridgeLayout(cp=2, ragged=False),
    "cp2-ragged": BridgeLayout(cp=2),
    "pp2": BridgeLayout(pp=2),
    "pp4": BridgeLayout(pp=4),
}
DEFAULT: Final = ("cp1", "pp4", "cp2-ragged")


def run(request: Mapping[str, Any], channel: Channel) -> dict[str, Any]:
    """Return {"bridge", "core", "patches", "passed", "layouts": [...]} for the layouts that request["layouts"] names.

    Each layout: {"layout", "loss_error", "gradient_error", "worst": {"tensor", "error"}, "passed", "norm_ratio",
    "cosine", "sentinels", "diagnosis": {"name", "sentence"} | None}; errors are relative.
    """
    names = [str(name) for name in request.get("layouts") or DEFAULT]
    for name in names:
        if name not in LAYOUTS:
            raise RefusedError(f"there is no layout {name!r} for Bridge's own loop; known are {', '.join(LAYOUTS)}")
    channel.progress("importing Megatron-Bridge", 0, len(names) + 1)
    releases = cuda_on_cpu.install()
    patches = bridge_on_cpu.install()
    from skill_run.worker.inside import bridge_loop
    from skill_run.worker.inside.compare import compare, tolerance_of

    folder = Path(os.environ["SKILL_RUN_SCRATCH"]) / "bridge"
    bridge_samples.write_tokenizer(folder / "tokenizer")
    tolerance = tolerance_of(DTYPE, experts=False)
    references: dict[str, Any] = {}
    told = []
    for number, name in enumerate(names):
        layout = LAYOUTS[name]
        if layout.data not in references:
            channel.progress("unpacked reference", number, len(names) + 1)
            bridge_samples.write_samples(folder / layout.data, ragged=layout.ragged)
            reference = BridgeLayout(packed=False, ragged=layout.ragged)
            references[layout.data] = _computed(bridge_loop, reference, folder)["outcome"]
        channel.progress(f"packed, {name}", number + 1, len(names) + 1)
        found = _computed(bridge_loop, layout, folder)
        errors = compare(found["outcome"], references[layout.data])
        passed = errors["finite"] and max(errors["loss_error"], errors["gradient_error"]) <= tolerance
        diagnosis = None if passed else _diagnosis(layout, found)
        told.append(
            {
                "layout": name,
                **{key: errors[key] for key in _TOLD},
                "passed": passed,
                "sentinels": found["sentinels"],
                "diagnosis": None if diagnosis is None else diagnosis.to_dict(),
            }
        )
    passed = all(layout["passed"] for layout in told)
    return {
        "bridge": releases.bridge,
        "core": releases.core,
        "patches": list(patches),
        "passed": passed,
        "layouts": told,
    }


_TOLD: Final = ("loss_error", "gradient_error", "worst", "norm_ratio", "cosine")


def _computed(bridge_loop: Any, layout: BridgeLayout, folder: Path) -> dict[str, Any]:
    """Run the training loop for one step and return its outcome and what was seen on the way, over all ranks."""
    path = folder / "outcome.pt"
    try:
        seen = run_ranks(layout.ranks, lambda rank, _tell: bridge_loop.train(layout, folder, path, rank))
    except RankFailure as error:
        size = f"CP {layout.cp}, PP {layout.pp}"
        raise RefusedError(f"the training loop stopped with {size}: {error}", "failed") from error
    return {
        "outcome": bridge_loop.read_outcome(path),
        "sentinels": sum(one["sentinels"] for one in seen),
        "wrong_indices": sum(one["wrong_indices"] for one in seen),
        "without_boundaries": [rank for rank, one in enumerate(seen) if one["without_boundaries"]],
    }


def _diagnosis(layout: BridgeLayout, found: Mapping[str, Any]) -> Diagnosis:
    if found["sentinels"]:
        return Diagnosis(
            "sentinel",
            "the rows of a batch hold different numbers of sequences, and this release gives their boundaries to the "
            f"partition index filled up with -1 ({found['sentinels']} of them): the CP ranks hold wrong tokens",
        )
    if found["without_boundaries"] and layout.pp > 1:
        ranks = ", ".join(str(rank) for rank in found["without_boundaries"])
        return Diagnosis(
            "middle-stage-without-boundaries",
            f"pipeline rank {ranks} got no packed_seq_params: there, sequences attend to those before them in the pack",
        )
    return Diagnosis("unknown", "packed and unpacked training differ, and no fault that is known here explains it")
