"""What attention and links of each kind of GPU reach, as round numbers from data/gpus.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from skill_run.errors import InputError
from skill_run.plan.links import gpu_name


@dataclass(frozen=True, slots=True)
class GpuRates:
    """Rates of one GPU: causal attention's forward pass and matrix products in FLOP/s, links in bytes/s one way."""

    name: str
    attention: float
    matmul: float
    nvlink: float
    network: float
    source: str

    def to_dict(self) -> dict[str, Any]:
        """Return the rates as JSON-ready data."""
        return {
            "gpu": self.name,
            "attention_tflops": round(self.attention / 1e12),
            "matmul_tflops": round(self.matmul / 1e12),
            "nvlink_gb_s": round(self.nvlink / 1e9),
            "network_gb_s": round(self.network / 1e9),
            "source": self.source,
        }


@cache
def gpu_rates(gpu: str) -> GpuRates:
    """Return the rates of a kind of GPU; InputError for one that is not known."""
    table = json.loads((files("skill_run.plan") / "data" / "gpus.json").read_text("utf-8"))["gpus"]
    name = gpu_name(gpu)
    if name not in table:
        raise InputError(f"{gpu[:40]!r} is not a known kind of GPU; known are {', '.join(table)}")
    entry = table[name]
    return GpuRates(
        name,
        entry["attention_tflops"] * 1e12,
        entry["matmul_tflops"] * 1e12,
        entry["nvlink_gb_s"] * 1e9,
        entry["nic_gb_s"] * 1e9,
        entry["source"],
    )
