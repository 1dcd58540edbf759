"""Load the HTTP server: many sessions at once, each with many calls of validate_config; print times and memory.

`python bench/mcp_http_load.py [--sessions 200] [--calls 50] [--rounds 3] [--era auto|legacy] [--json]` starts the
server as a child process and the SDK's own clients here, so both share the machine. The first round warms up; memory is
compared between the rounds after it. Exit code 1 when a call fails, 2 when memory grows.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import anyio
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

READY: Final = re.compile(r"MCP server at (\S+); token in (.+)")
MIB: Final = 2**20
# Each round's growth that is still no growth: the allocator's own breathing.
ALLOWED_GROWTH_MIB: Final = 16.0
SECONDS: Final = 600
CONFIG: Final = """\
model: {{tensor_model_parallel_size: 4, context_parallel_size: {cp}, sequence_parallel: true, seq_length: 16384}}
train: {{micro_batch_size: 1, global_batch_size: 16, train_iters: {iters}}}
dataset:
  seq_length: 16384
  enable_offline_packing: true
  offline_packing_specs: {{packed_sequence_size: 16384}}
"""


@dataclass(frozen=True, slots=True)
class Round:
    """One round: how long it and its calls took, and what the server held and spent."""

    seconds: float
    calls_per_second: float
    p50_ms: float
    p99_ms: float
    errors: int
    resident_mib: float
    server_cpu_seconds: float


def main(arguments: Sequence[str]) -> int:
    """Run the rounds and print them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sessions", type=int, default=200, metavar="N", help="sessions at the same time")
    parser.add_argument("--calls", type=int, default=50, metavar="N", help="calls of each session")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds, the first to warm up")
    parser.add_argument("--era", choices=("auto", "legacy"), default="legacy", help="auto: a request needs no session")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="skill-run-load-") as folder, _served(Path(folder)) as server:
        rounds = anyio.run(_rounds, server, options)
    print(json.dumps([asdict(each) for each in rounds], indent=1) if options.json else _table(rounds, options))
    if any(each.errors for each in rounds):
        return 1
    settled = rounds[1:] or rounds
    return 2 if settled[-1].resident_mib - settled[0].resident_mib > ALLOWED_GROWTH_MIB else 0


@dataclass(frozen=True, slots=True)
class _Server:
    pid: int
    url: str
    token: str

    def resident_mib(self) -> float:
        text = Path(f"/proc/{self.pid}/status").read_text("ascii")
        return int(text.partition("VmRSS:")[2].split()[0]) * 1024 / MIB

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text("ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _served(folder: Path) -> Iterator[_Server]:
    command = [sys.executable, "-m", "skill_run.cli", "mcp", "--http", "--port", "0", "--root", str(folder)]
    environment = {**os.environ, "SKILL_RUN_STATE": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        found = READY.search(process.stderr.readline())
        assert found is not None, process.stderr.read()
        yield _Server(process.pid, found[1], Path(found[2]).read_text("ascii").strip())
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.communicate()


async def _rounds(server: _Server, options: argparse.Namespace) -> list[Round]:
    return [await _round(server, options) for _ in range(options.rounds)]


async def _round(server: _Server, options: argparse.Namespace) -> Round:
    times: list[float] = []
    failures: list[str] = []
    begin, cpu = time.perf_counter(), server.cpu_seconds()
    async with anyio.create_task_group() as group:
        for number in range(options.sessions):
            group.start_soon(_session, server, options, number, times, failures)
    seconds = time.perf_counter() - begin
    for text in failures[:3]:
        print(f"failed: {text}", file=sys.stderr)
    missing = options.sessions * options.calls - len(times)
    spread = statistics.quantiles(times, n=100) if len(times) > 1 else [0.0] * 99
    return Round(
        seconds=round(seconds, 1),
        calls_per_second=round(len(times) / seconds, 1),
        p50_ms=round(spread[49] * 1000, 1),
        p99_ms=round(spread[98] * 1000, 1),
        errors=missing,
        resident_mib=round(server.resident_mib(), 1),
        server_cpu_seconds=round(server.cpu_seconds() - cpu, 1),
    )


async def _session(
    server: _Server, options: argparse.Namespace, number: int, times: list[float], failures: list[str]
) -> None:
    carried = {"authorization": f"Bearer {server.token}"}
    try:
        async with (
            httpx2.AsyncClient(headers=carried, timeout=SECONDS) as http,
            Client(streamable_http_client(server.url, http_client=http), mode=options.era) as client,
        ):
            for turn in range(options.calls):
                await _call(client, {"config_text": CONFIG.format(cp=1 + number % 8, iters=turn + 1)}, times)
    except Exception as error:  # every way to fail counts alike, and is shown
        failures.append(f"{type(error).__name__}: {str(error)[:200]}")


async def _call(client: Client, arguments: dict[str, Any], times: list[float]) -> None:
    begin = time.perf_counter()
    result = await client.call_tool("validate_config", {"world_size": 32, "bridge": "0.6.2", **arguments})
    if result.is_error or not result.structured_content:
        raise RuntimeError(str(result.content)[:200])
    times.append(time.perf_counter() - begin)


def _table(rounds: Sequence[Round], options: argparse.Namespace) -> str:
    lines = [
        f"{options.sessions} sessions x {options.calls} calls of validate_config, era {options.era}",
        "round  seconds  calls/s  p50 ms  p99 ms  errors  server MiB  server CPU s",
    ]
    for number, each in enumerate(rounds, 1):
        lines.append(
            f"{number:>5}  {each.seconds:>7}  {each.calls_per_second:>7}  {each.p50_ms:>6}  {each.p99_ms:>6}"
            f"  {each.errors:>6}  {each.resident_mib:>10}  {each.server_cpu_seconds:>12}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
