"""Measure `inspect` on a packed Parquet file against pyarrow reading the same columns, and its memory.

`python bench/inspect_parquet.py [--rows N] [--repeat N] [--json] [--strict]` writes a synthetic file in upstream's
layout (list<int64>, SNAPPY, row groups of 500 packs) and then runs both as new processes, in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import skill_run

PACK_TOKENS: Final = 8192
MULTIPLE: Final = 16
SEQUENCES: Final = 16
ROW_GROUP: Final = 500
VOCABULARY: Final = 128000
END: Final = VOCABULARY + 1
BUDGET_RATE: Final = 0.7
BUDGET_MEMORY_MB: Final = 600.0
# How much more memory the whole file may take than a tenth of it, for it to count as flat.
BUDGET_GROWTH: Final = 1.1

# Both print seconds, CPU seconds and peak memory of the process; imports are not timed.
_HEAD: Final = """
import json, re, sys, time
import pyarrow.parquet as parquet
{imports}
start, cpu = time.perf_counter(), time.process_time()
{body}
spent = time.perf_counter() - start, time.process_time() - cpu
# ru_maxrss would count the parent, as it was when it started this process.
used = int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
print(json.dumps([*spent, used / 1024, told]))
"""
OURS: Final = _HEAD.format(
    imports="from skill_run.batch.inspect import inspect_batch\nimport skill_run.pack.inspect",
    body="report = inspect_batch(sys.argv[1], cp=8, bridge='0.6.2')\n"
    "told = [report.rows, report.tokens, [finding.rule for finding in report.findings]]",
)
PEER: Final = _HEAD.format(
    imports="",
    body="told, file = 0, parquet.ParquetFile(sys.argv[1])\n"
    "for number in range(file.num_row_groups):\n"
    "    told += file.read_row_group(number, columns=['input_ids', 'loss_mask', 'seq_start_id']).num_rows",
)


@dataclass(frozen=True, slots=True)
class Run:
    """One process: seconds of wall time and of CPU, peak memory in MB, and what it said it found."""

    seconds: float
    cpu: float
    memory: float
    told: Any


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured; rates are ours over pyarrow's, 1.0 is as fast. Memory in MB."""

    rows: int
    file_mb: float
    rate: float
    rate_cpu: float
    seconds: float
    seconds_pyarrow: float
    tokens_per_second: float
    memory_mb: float
    memory_tenth_mb: float
    memory_pyarrow_mb: float

    @property
    def held(self) -> bool:
        """All budgets hold."""
        flat = self.memory_mb <= BUDGET_GROWTH * self.memory_tenth_mb
        return self.rate >= BUDGET_RATE and self.memory_mb <= BUDGET_MEMORY_MB and flat


def write_packs(path: Path, rows: int, seed: int = 0) -> None:
    """Write packs of aligned sequences of random tokens, answers trained, as upstream's writer lays them out."""
    import numpy as np
    import pyarrow
    from pyarrow import parquet

    random = np.random.default_rng(seed)
    cuts = np.arange(1, PACK_TOKENS // MULTIPLE)

    def lists(values: Any, counts: Any, kind: Any) -> Any:
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return pyarrow.ListArray.from_arrays(offsets, pyarrow.array(values, type=kind))

    names = ["input_ids", "loss_mask", "seq_start_id"]
    kinds = [pyarrow.int64(), pyarrow.int8(), pyarrow.int64()]
    schema = pyarrow.schema([(name, pyarrow.list_(kind)) for name, kind in zip(names, kinds, strict=True)])
    with parquet.ParquetWriter(path, schema) as writer:
        for first in range(0, rows, ROW_GROUP):
            count = min(ROW_GROUP, rows - first)
            chosen = [np.sort(random.choice(cuts, SEQUENCES - 1, replace=False)) for _ in range(count)]
            edges = np.pad(np.asarray(chosen) * MULTIPLE, ((0, 0), (1, 1)), constant_values=(0, PACK_TOKENS))
            stored = np.diff(edges, axis=1) + 1
            starts = np.cumsum(stored, axis=1) - stored
            ends = np.cumsum(stored.reshape(-1))
            place = np.arange(ends[-1]) - np.repeat(ends - stored.reshape(-1), stored.reshape(-1))
            # Few tokens are frequent, as in text.
            tokens = (random.random(ends[-1]) ** 3 * VOCABULARY).astype(np.int64)
            tokens[ends - 1] = END
            mask = (place >= np.repeat(stored.reshape(-1) // 3, stored.reshape(-1))).astype(np.int8)
            width = stored.sum(axis=1)
            columns = [
                lists(tokens, width, kinds[0]),
                lists(mask, width, kinds[1]),
                lists(starts.reshape(-1), np.full(count, SEQUENCES), kinds[2]),
            ]
            writer.write_table(pyarrow.table(columns, schema=schema), row_group_size=ROW_GROUP)


def run(code: str, path: Path) -> Run:
    """Run one side as a process of its own."""
    package = str(Path(skill_run.__file__).parents[1])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"a side ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return Run(*json.loads(done.stdout.splitlines()[-1]))


def measure(folder: Path, rows: int, repeat: int) -> Result:
    """Write the file and a tenth of it, and measure both sides in turn; the first pair only warms the disk cache."""
    whole, tenth = folder / f"training_{PACK_TOKENS}.idx.parquet", folder / "tenth.parquet"
    write_packs(tenth, max(1, rows // 10))
    write_packs(whole, rows)
    pairs = [(run(OURS, whole), run(PEER, whole)) for _ in range(repeat + 1)][1:]
    ours, peer = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    expected = [rows, rows * PACK_TOKENS, []]
    if any(side.told != expected for side in ours) or any(side.told != rows for side in peer):
        raise RuntimeError(f"the sides did not read what was written: {ours[0].told}, {peer[0].told}")
    seconds = statistics.median(side.seconds for side in ours)
    return Result(
        rows=rows,
        file_mb=whole.stat().st_size / 2**20,
        rate=statistics.median(theirs.seconds / mine.seconds for mine, theirs in pairs),
        rate_cpu=statistics.median(theirs.cpu / mine.cpu for mine, theirs in pairs),
        seconds=seconds,
        seconds_pyarrow=statistics.median(side.seconds for side in peer),
        tokens_per_second=rows * PACK_TOKENS / seconds,
        memory_mb=max(side.memory for side in ours),
        memory_tenth_mb=max(run(OURS, tenth).memory for _ in range(repeat)),
        memory_pyarrow_mb=max(side.memory for side in peer),
    )


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return 1 when `--strict` and a budget is missed, 2 when it could not run, else 0."""
    parser = argparse.ArgumentParser(description="Measure inspecting a packed Parquet file against pyarrow.")
    parser.add_argument("--rows", type=int, default=20000, help="packs in the file (default 20000, about 0.4 GB)")
    parser.add_argument("--repeat", type=int, default=5, help="pairs of processes (default 5)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a budget is missed")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="skill-run-bench-") as folder:
        try:
            found = measure(Path(folder), max(1, options.rows), max(1, options.repeat))
        except (ImportError, OSError, RuntimeError, ValueError) as error:
            print(f"not measured: {error}", file=sys.stderr)
            return 2
    if options.json:
        print(json.dumps({**asdict(found), "held": found.held}, indent=2))
    else:
        print(
            f"{found.rows} packs of {PACK_TOKENS} tokens, {found.file_mb:.0f} MB\n"
            f"rate against pyarrow  {found.rate:.2f}  (budget at least {BUDGET_RATE}); CPU {found.rate_cpu:.2f}\n"
            f"seconds               {found.seconds:.2f}  pyarrow {found.seconds_pyarrow:.2f}\n"
            f"tokens per second     {found.tokens_per_second:.3g}\n"
            f"peak memory           {found.memory_mb:.0f} MB  (budget {BUDGET_MEMORY_MB:.0f}); a tenth of the file "
            f"{found.memory_tenth_mb:.0f} MB; pyarrow {found.memory_pyarrow_mb:.0f} MB\n"
            f"{'held' if found.held else 'MISSED'}"
        )
    return 1 if options.strict and not found.held else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
