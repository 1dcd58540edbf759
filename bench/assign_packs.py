"""Measure the assignment of lengths to packs: CPU time, packs and memory, beside the packers of three other projects.

`python bench/assign_packs.py [--repeat N] [--peer-count N] [--json] [--strict]`. Lengths are log-normal (median 400,
sigma 1, clipped to 8..8192), the pack has 8192 tokens. Megatron-Bridge's packer comes from a worker (`skill-run worker
setup cpu-0.6.2`); TRL's and Axolotl's are fetched once into a cache folder outside the clone. What cannot be had is
told as not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import platformdirs

from packing_peers import PACK_SIZE
from skill_run.errors import SkillRunError
from skill_run.pack.assign import arrange, assign_packs, steps_of_like_work

PEERS: Final = {
    "trl": ("trl==1.16.0", "trl/data_utils.py"),
    "axolotl": ("axolotl==0.18.0", "axolotl/utils/samplers/multipack.py"),
}
PEER_NEEDS: Final = ("numpy", "numba==0.68.1", "pyarrow")
SECONDS: Final = 900


@dataclass(frozen=True, slots=True)
class Row:
    """One figure beside its budget, which is a ceiling unless at_least. value None: not measured, and why."""

    name: str
    value: float | None
    unit: str
    budget: float | None = None
    at_least: bool = False
    why: str = ""

    @property
    def missed(self) -> bool:
        """The figure is on the wrong side of its budget."""
        if self.budget is None or self.value is None:
            return False
        return self.value < self.budget if self.at_least else self.value > self.budget

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.name:66} not measured: {self.why}"
        budget = "" if self.budget is None else f"  budget {'>=' if self.at_least else '<='} {self.budget:,g}"
        return f"{self.name:66} {self.value:12,.3f} {self.unit}{budget}{'  MISSED' if self.missed else ''}"


def lengths_of(count: int, longest: int = PACK_SIZE) -> np.ndarray:
    """Return log-normal lengths, the same for every count's first ones."""
    drawn = np.exp(np.random.default_rng(0).normal(np.log(400), 1.0, count))
    return np.clip(drawn.astype(np.int64), 8, longest)


def ours(lengths: np.ndarray, **options: Any) -> tuple[float, np.ndarray]:
    """Return CPU seconds and the ids."""
    start = time.process_time()
    ids = assign_packs(lengths, PACK_SIZE, **options)
    return time.process_time() - start, ids


def peer(name: str, lengths: np.ndarray) -> dict[str, Any]:
    """Run a peer as a child; SkillRunError or OSError when it cannot be had."""
    python, file = bridge_file() if name == "bridge" else peer_file(name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "lengths.npy")
        np.save(path, lengths)
        script = str(Path(__file__).with_name("packing_peers.py"))
        done = subprocess.run(
            [*python, script, name, str(path)],
            env={**os.environ, "PEER_FILE": str(file)},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    if done.returncode:
        raise SkillRunError(f"{name} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1][:200]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def bridge_file() -> tuple[list[str], Path]:
    """Return a worker's interpreter and the file of its Megatron-Bridge that packs."""
    from skill_run.worker.environments import find_worker

    command = list(find_worker(bridge=True).command)
    asked = "import importlib.util as u; print(u.find_spec('megatron.bridge').submodule_search_locations[0])"
    done = subprocess.run([*command, "-c", asked], capture_output=True, text=True, timeout=SECONDS, check=True)
    return command, Path(done.stdout.splitlines()[-1]) / "data" / "packing" / "algorithms.py"


def peer_file(name: str) -> tuple[list[str], Path]:
    """Return an interpreter with what a peer's packer imports, and its released file, fetched when missing."""
    folder = platformdirs.user_cache_path("skill-run", appauthor=False) / "bench-peers"
    python = folder / "venv" / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    if not (folder / "ready").is_file():
        venv.create(folder / "venv", with_pip=True, clear=True)
        _run([*pip, "install", *PEER_NEEDS])
        (folder / "ready").touch()
    requirement, inside = PEERS[name]
    file = folder / requirement / inside
    if not file.is_file():
        with tempfile.TemporaryDirectory() as scratch:
            _run([*pip, "download", "--no-deps", "--dest", scratch, requirement])
            (wheel,) = Path(scratch).glob("*.whl")
            zipfile.ZipFile(wheel).extract(inside, folder / requirement)
    return [str(python)], file


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode:
        raise SkillRunError(
            f"{' '.join(command[-2:])}: {(done.stderr.strip().splitlines() or ['no message'])[-1][:200]}"
        )


def peak_of(count: int) -> tuple[float, float]:
    """Return CPU seconds and peak memory in MB of a child that assigns `count` lengths."""
    code = (
        "import sys, json, resource; sys.path.insert(0, sys.argv[1]); from assign_packs import lengths_of, ours; "
        f"lengths = lengths_of({count}).astype('int32'); seconds, ids = ours(lengths); "
        "print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent)], capture_output=True, text=True, check=True
    )
    seconds, megabytes = json.loads(done.stdout)
    return seconds, megabytes


def spread(ids: np.ndarray, lengths: np.ndarray) -> float:
    """Return by how much the attention work of the 99th percentile pack exceeds the median's, as its multiple."""
    work = np.bincount(ids, weights=lengths.astype(float) ** 2)
    return float(np.percentile(work, 99) / np.percentile(work, 50) - 1)


def waiting(packs: Any, lengths: np.ndarray, per_step: int) -> float:
    """Return the share of attention work that ranks wait for the pack with most work of their step."""
    squares = lengths.astype(float)[packs.order] ** 2
    work = np.add.reduceat(squares, packs.starts[:-1])
    steps = work[: len(work) // per_step * per_step].reshape(-1, per_step)
    return float(1 - steps.mean() / steps.max(axis=1).mean())


def measure(repeat: int, peer_count: int) -> list[Row]:
    """Return every row."""
    lengths = lengths_of(10**6)
    runs = [ours(lengths) for _ in range(repeat)]
    seconds = statistics.median(run[0] for run in runs)
    packs = int(runs[0][1].max()) + 1
    rows = [Row("10^6 lengths: ours, CPU", seconds, "s"), Row("10^6 lengths: ours, packs", packs, "packs")]
    try:
        bridge = peer("bridge", lengths)
        rows += [
            Row("10^6 lengths: Megatron-Bridge first_fit_decreasing, CPU", bridge["cpu"], "s"),
            Row("10^6 lengths: CPU of Megatron-Bridge / ours", bridge["cpu"] / seconds, "x", 100, at_least=True),
            Row("10^6 lengths: packs over Megatron-Bridge's", packs - bridge["packs"], "packs", 0),
        ]
    except (SkillRunError, OSError, subprocess.SubprocessError) as error:
        rows.append(Row("10^6 lengths: Megatron-Bridge first_fit_decreasing", None, "s", why=str(error)))
    fewer = lengths_of(peer_count)
    own, ids = ours(fewer)
    rows.append(Row(f"{peer_count:,} lengths: ours, CPU", own, "s"))
    rows.append(Row(f"{peer_count:,} lengths: ours, packs", int(ids.max()) + 1, "packs"))
    for name in PEERS:
        try:
            found = peer(name, fewer)
            rows.append(Row(f"{peer_count:,} lengths: {name}, CPU", found["cpu"], "s"))
            rows.append(Row(f"{peer_count:,} lengths: {name}, packs", found["packs"], "packs"))
        except (SkillRunError, OSError, subprocess.SubprocessError) as error:
            rows.append(Row(f"{peer_count:,} lengths: {name}", None, "s", why=str(error)))
    many, memory = peak_of(10**7)
    rows += [Row("10^7 lengths: ours, CPU", many, "s", 3), Row("10^7 lengths: peak memory", memory, "MB", 1000)]
    return rows + limits(lengths, packs)


def limits(lengths: np.ndarray, packs: int) -> list[Row]:
    """Return the rows on a limit of sequences and on balance."""
    _, limited = ours(lengths, max_sequences=32)
    rows = [
        Row("sequences in the fullest pack, first_fit_decreasing", _most(lengths, "first_fit_decreasing"), "sequences"),
        Row("sequences in the fullest pack, ours", _most(lengths, "histogram"), "sequences"),
        Row("more packs at 32 sequences a pack at most", (limited.max() + 1) / packs * 100 - 100, "%", 0.5),
    ]
    for longest, budget in ((PACK_SIZE, None), (PACK_SIZE // 2, 3.0)):
        drawn = np.minimum(lengths, longest)
        _, classic = ours(drawn, algorithm="first_fit_decreasing")
        _, even = ours(drawn, balance=True)
        name = f"longest {longest}: "
        ratio = spread(classic, drawn) / spread(even, drawn)
        rows += [
            Row(f"{name}spread of work (p99/p50 - 1), first_fit_decreasing", spread(classic, drawn), ""),
            Row(f"{name}spread of work, balanced", spread(even, drawn), ""),
            Row(f"{name}spread is smaller by", ratio, "x", budget, at_least=True),
            Row(f"{name}more packs for balance", (even.max() + 1) / (classic.max() + 1) * 100 - 100, "%", 1),
        ]
    arranged = arrange(even, seed=0)
    rows.append(Row("waiting in steps of 64 packs, mixed", waiting(arranged, drawn, 64) * 100, "%"))
    ordered = steps_of_like_work(arranged, drawn, 64, seed=0)
    return [*rows, Row("waiting in steps of 64 packs, of like work", waiting(ordered, drawn, 64) * 100, "%")]


def _most(lengths: np.ndarray, algorithm: str) -> int:
    return int(np.bincount(ours(lengths, algorithm=algorithm)[1]).max())


def main() -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(description="Measure the assignment of lengths to packs.")
    parser.add_argument("--repeat", type=int, default=5, help="runs of ours, of which the median counts")
    parser.add_argument("--peer-count", type=int, default=200_000, help="lengths for TRL and Axolotl")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a budget is missed")
    options = parser.parse_args()
    rows = measure(options.repeat, options.peer_count)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        for row in rows:
            print(row)
    return 1 if options.strict and any(row.missed for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
