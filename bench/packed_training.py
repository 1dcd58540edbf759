"""Measure proofs on the real Megatron: packed training's tokens per second, and how long parity and verify take.

`python bench/packed_training.py [--worker NAME] [--repeat N] [--json] [--strict]` needs a worker
(`skill-run worker setup`). Unpacked training of the same samples on one rank is the peer.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Final

from skill_run.verify.layouts import Layout
from skill_run.worker.environments import Worker, find_worker
from skill_run.worker.session import run_task

BUDGET_TOKENS_PER_SECOND: Final = 4000.0
BUDGET_PARITY_SECONDS: Final = 45.0
BUDGET_VERIFY_SECONDS: Final = 90.0
PACK: Final = 1024
PACKS: Final = 4
MODEL: Final = {
    "num_layers": 2,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_query_groups": 2,
    "kv_channels": 32,
    "ffn_hidden_size": 256,
    "vocab_size": 1024,
    "normalization": "RMSNorm",
    "gated_linear_unit": True,
    "activation": "silu",
    "position_embedding_type": "rope",
    "add_bias_linear": False,
}


@dataclass(frozen=True, slots=True)
class Row:
    """One figure beside its budget; at_least: the budget is a floor."""

    name: str
    value: float
    unit: str
    budget: float | None = None
    at_least: bool = False

    @property
    def missed(self) -> bool:
        """The figure is on the wrong side of its budget."""
        return self.budget is not None and (self.value < self.budget if self.at_least else self.value > self.budget)

    def __str__(self) -> str:
        budget = "" if self.budget is None else f"  budget {'>=' if self.at_least else '<='} {self.budget:.0f}"
        return f"{self.name:58} {self.value:10.1f} {self.unit}{budget}{'  MISSED' if self.missed else ''}"


def packs() -> list[list[dict[str, int]]]:
    """Return packs of log-normal lengths, filled up as a packer would."""
    draw = random.Random(0)
    found = []
    for _ in range(PACKS):
        pack: list[dict[str, int]] = []
        left = PACK
        while left >= 16:
            length = min(max(8, round(draw.lognormvariate(4.6, 0.8))), left)
            pack.append({"length": length, "trained": max(1, length // 2)})
            left -= -(-length // 4) * 4
        found.append(pack)
    return found


def training(worker: Worker, repeat: int) -> Iterator[Row]:
    """Yield tokens per second, unpacked and packed."""
    layouts = [Layout(), Layout(cp=2), Layout(cp=2, cp_comm_type="p2p")]
    request: dict[str, Any] = {
        "model": MODEL,
        "packs": packs(),
        "pack_size": PACK,
        "pad_seq_to_mult": 4,
        "dtype": "float32",
        "repeats": repeat,
        "layouts": [layout.to_dict() for layout in layouts],
    }
    told = run_task(worker, "throughput", request)
    yield Row("unpacked training, one rank (peer)", told["unpacked"]["tokens_per_second"], "tokens/s")
    for layout, found in zip(layouts, told["layouts"], strict=True):
        budget = BUDGET_TOKENS_PER_SECOND if layout.cp > 1 else None
        yield Row(f"packed training, {layout}", found["tokens_per_second"], "tokens/s", budget, at_least=True)


def commands(worker: Worker, repeat: int) -> Iterator[Row]:
    """Yield the time of whole commands as new processes."""
    for arguments, budget in (("--parity", BUDGET_PARITY_SECONDS), ("", BUDGET_VERIFY_SECONDS)):
        command = [sys.executable, "-m", "skill_run.cli", "verify", *arguments.split(), "--worker", worker.name]
        seconds = []
        for _ in range(repeat):
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            seconds.append(time.perf_counter() - start)
        yield Row(f"skill-run verify {arguments}".rstrip(), statistics.median(seconds), "s", budget)


def main() -> int:
    """Print every figure; return 1 when a budget is missed and --strict asks for it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--strict", action="store_true")
    given = parser.parse_args()
    worker = find_worker(given.worker)
    rows = []
    for row in chain(training(worker, given.repeat), commands(worker, given.repeat)):
        rows.append(row)
        if not given.json:
            print(row, flush=True)
    if given.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    return int(given.strict and any(row.missed for row in rows))


if __name__ == "__main__":
    sys.exit(main())
