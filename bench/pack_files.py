"""Measure packing end to end: pre-tokenised samples to a packed file, beside Megatron-Bridge's own offline packing.

`python bench/pack_files.py [--samples N] [--json] [--strict]` writes Parquet of token ids (log-normal lengths, median
400, clipped to 8..4096), packs them with `skill-run pack` and, in a worker with Megatron-Bridge (the command
`skill-run worker setup cpu-0.6.2` makes one), with its prepare_gpt_sft_packed_data. Time is that of the whole process,
imports included; memory its peak.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import skill_run
from assign_packs import Row
from skill_run.errors import SkillRunError

PACK_SIZE: Final = 8192
FASTER: Final = 5.0
SMALLER: Final = 3.0


@dataclass(frozen=True, slots=True)
class Run:
    """One packing: seconds on the clock and of CPU, peak memory in MB of its largest process, and packs."""

    wall: float
    cpu: float
    megabytes: float
    packs: int


def write_samples(path: Path, count: int) -> None:
    """Write a Parquet file of token ids with a loss mask."""
    draw = np.random.default_rng(0)
    schema = pa.schema([("input_ids", pa.list_(pa.int64())), ("loss_mask", pa.list_(pa.int8()))])
    with pq.ParquetWriter(path, schema) as writer:
        for _ in range(0, count, 10_000):
            lengths = np.clip(np.exp(draw.normal(np.log(400), 1.0, min(count, 10_000))).astype(int), 8, 4096)
            offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
            tokens = draw.integers(3, 50_000, int(lengths.sum()))
            mask = (draw.random(len(tokens)) < 0.7).astype(np.int8)
            columns = [pa.ListArray.from_arrays(offsets, pa.array(values)) for values in (tokens, mask)]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))


def timed(command: list[str], out: Path) -> Run:
    """Run a command to its end and measure it; SkillRunError when it fails."""
    start = time.perf_counter()
    with tempfile.TemporaryFile() as told:
        process = subprocess.Popen(command, stdout=told, stderr=told, stdin=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - start
        if process.returncode:
            told.seek(0)
            raise SkillRunError(told.read().decode(errors="replace").strip()[-300:])
    (made,) = out.rglob("*.parquet")
    packs = pq.ParquetFile(made).metadata.num_rows
    return Run(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1000, packs)


def measure(count: int) -> list[Row]:
    """Return every row."""
    with tempfile.TemporaryDirectory() as scratch:
        data, ours_out, theirs_out = Path(scratch, "training.parquet"), Path(scratch, "ours"), Path(scratch, "theirs")
        write_samples(data, count)
        theirs_out.mkdir()
        command = [sys.executable, "-m", "skill_run.cli", "pack", str(data), "--out", str(ours_out)]
        options = ["--pack-size", str(PACK_SIZE), "--bridge", "0.6.2", "--eos-id", "2"]
        ours = timed([*command, *options], ours_out)
        name = f"{count:,} samples: "
        rows = [
            Row(f"{name}ours, wall", ours.wall, "s"),
            Row(f"{name}ours, CPU", ours.cpu, "s"),
            Row(f"{name}ours, peak memory", ours.megabytes, "MB"),
            Row(f"{name}ours, packs", ours.packs, "packs"),
        ]
        try:
            from skill_run.worker.environments import find_worker

            python = list(find_worker(bridge=True).command)
            script = str(Path(__file__).with_name("packing_upstream.py"))
            runtime = str(Path(skill_run.__file__).parents[1])
            theirs = timed([*python, script, runtime, str(data), str(theirs_out), str(PACK_SIZE)], theirs_out)
        except (SkillRunError, OSError) as error:
            return [*rows, Row(f"{name}Megatron-Bridge", None, "s", why=str(error))]
        return [
            *rows,
            Row(f"{name}Megatron-Bridge, wall", theirs.wall, "s"),
            Row(f"{name}Megatron-Bridge, CPU", theirs.cpu, "s"),
            Row(f"{name}Megatron-Bridge, peak memory", theirs.megabytes, "MB"),
            Row(f"{name}Megatron-Bridge, packs", theirs.packs, "packs"),
            Row(f"{name}ours is faster by, wall", theirs.wall / ours.wall, "x", FASTER, at_least=True),
            Row(f"{name}ours takes less memory by", theirs.megabytes / ours.megabytes, "x", SMALLER, at_least=True),
        ]


def main() -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(description="Measure packing end to end.")
    parser.add_argument("--samples", type=int, default=200_000, help="samples to pack")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a budget is missed")
    options = parser.parse_args()
    rows = measure(options.samples)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        for row in rows:
            print(row)
    return 1 if options.strict and any(row.missed for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
