"""Measure the budgets of the project, each with its peer in the same run: `python bench/run.py [--json] [--strict]`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import yaml

import skill_run
from skill_run.verify.recorded import shipped_cases

HELLO: Final = [sys.executable, str(Path(__file__).with_name("hello_server.py"))]
TOOL: Final = [sys.executable, "-m", "skill_run.cli"]
RELEASE: Final = "0.6.2"
WATCHDOG_SECONDS: Final = 120
PROTOCOL: Final = "2025-06-18"
WARM_CALLS: Final = 5
WRITTEN_BY_HAND: Final = """\
model: {tensor_model_parallel_size: 4, context_parallel_size: 2, sequence_parallel: true, seq_length: 16384}
train: {micro_batch_size: 1, global_batch_size: 16}
dataset:
  seq_length: 16384
  enable_offline_packing: true
  offline_packing_specs: {packed_sequence_size: 16384}
"""

BUDGET_VALIDATE_MS: Final = 15.0
BUDGET_RULES_MS: Final = 2.0
BUDGET_COLD_SECONDS: Final = 0.35
BUDGET_START_RATIO: Final = 1.15
BUDGET_CALL_EXTRA_MS: Final = 5.0
# Importing Megatron-Bridge 0.6.2 to ask its own validate(): measured once on CPU, since few machines can install it.
RECORDED_IMPORT_SECONDS: Final = 20.4


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: a median, what it may be at most (None: for information), and what it stands against."""

    what: str
    value: float
    unit: str
    budget: float | None = None
    peer: str = ""

    @property
    def held(self) -> bool | None:
        """Whether the budget holds; None when there is none."""
        return None if self.budget is None else self.value <= self.budget


@dataclass(frozen=True, slots=True)
class Failure:
    """A measurement that could not run."""

    what: str
    reason: str


@dataclass(frozen=True, slots=True)
class Setting:
    """What the measurements share: the config file, its GPU count, how often to repeat, the environment of children."""

    config: Path
    world_size: int
    repeat: int
    environment: Mapping[str, str]


Benchmark = Callable[[Setting], Iterator[Row]]


def main(arguments: Sequence[str]) -> int:
    """Run and print the benchmarks; return 2 if one could not run, 1 if `--strict` and a budget is missed, else 0."""
    parser = argparse.ArgumentParser(description="Measure the project's budgets against their peers.")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a budget is missed")
    parser.add_argument("--repeat", type=int, default=15, metavar="N", help="child processes per figure (default 15)")
    parser.add_argument("--only", choices=sorted(BENCHMARKS), help="run one group")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="skill-run-bench-") as folder:
        setting = _setting(Path(folder), max(1, options.repeat))
        rows, failures = _measure(setting, [options.only] if options.only else list(BENCHMARKS))
    print(_as_json(rows, failures) if options.json else _as_table(rows, failures))
    if failures:
        return 2
    return 1 if options.strict and any(row.held is False for row in rows) else 0


def _setting(folder: Path, repeat: int) -> Setting:
    case = next(
        case
        for case in shipped_cases()
        if case.version == RELEASE and case.config["dataset"].get("enable_offline_packing") and not case.raises
    )
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(case.config, sort_keys=False), "utf-8")
    package = str(Path(skill_run.__file__).parents[1])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "XDG_CACHE_HOME": str(folder / "cache")}
    return Setting(config, case.world_size, repeat, environment)


def _measure(setting: Setting, names: Sequence[str]) -> tuple[list[Row], list[Failure]]:
    rows: list[Row] = []
    failures: list[Failure] = []
    for name in names:
        try:
            rows += BENCHMARKS[name](setting)
        except Exception as error:
            failures.append(Failure(name, f"{type(error).__name__}: {str(error)[:300]}"))
    return rows, failures


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)


# In process


def bench_validate(setting: Setting) -> Iterator[Row]:
    """Time `validate_config` on a real full config in a warm process, and its two parts."""
    from skill_run import validate_config
    from skill_run.rules.validate import build_config, bundle_rules, read_sources, report_on

    options: dict[str, Any] = {"bridge": RELEASE, "world_size": setting.world_size}
    whole: list[float] = []
    reading: list[float] = []
    judging: list[float] = []
    start = time.perf_counter()
    rules = bundle_rules()
    compiled = time.perf_counter() - start
    fields = 0
    for _ in range(setting.repeat * 10):
        start = time.perf_counter()
        validate_config(setting.config, **options)
        whole.append(time.perf_counter() - start)
        start = time.perf_counter()
        sources = read_sources(setting.config, bridge=RELEASE)
        config = build_config(sources, **options)
        read = time.perf_counter()
        report_on(config, rules, sources[0].name)
        reading.append(read - start)
        judging.append(time.perf_counter() - read)
        fields = len(sources[0].assignments)
    yield Row(f"validate_config, {fields} fields, warm process", 1000 * _median(whole), "ms", BUDGET_VALIDATE_MS)
    yield Row("  of it reading and resolving", 1000 * _median(reading), "ms")
    yield Row(f"  of it judging by {len(rules.rules)} rules", 1000 * _median(judging), "ms", BUDGET_RULES_MS)
    yield Row("loading and compiling the rules, once per process", 1000 * compiled, "ms")


# Cold processes


def bench_cold(setting: Setting) -> Iterator[Row]:
    """Measure the user CPU time of `skill-run validate` as a new process, alternating with an empty Python process."""
    arguments = ["validate", str(setting.config), "--bridge", RELEASE, "-n", str(setting.world_size)]
    command = [*TOOL, *arguments, "--level", "error"]
    empty = [sys.executable, "-c", "pass"]
    first = _user_seconds(command, setting.environment)
    tool: list[float] = []
    bare: list[float] = []
    for _ in range(setting.repeat):
        tool.append(_user_seconds(command, setting.environment))
        bare.append(_user_seconds(empty, setting.environment))
    recorded = f"{RECORDED_IMPORT_SECONDS} s, recorded: Megatron-Bridge {RELEASE}'s own validate()"
    yield Row("skill-run validate FILE, new process, user CPU", _median(tool), "s", BUDGET_COLD_SECONDS, recorded)
    yield Row("  of it an empty Python process", _median(bare), "s")
    yield Row("  the first run ever, without the rule cache", first, "s")


def _user_seconds(command: Sequence[str], environment: Mapping[str, str]) -> float:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=dict(environment))
    with _watched(process):
        assert process.stderr is not None
        told = process.stderr.read()
        code, user = _ended(process)
    if code != 0:
        raise RuntimeError(f"{' '.join(command[:5])} exited with {code}: {told.decode(errors='replace').strip()}")
    return user


def _ended(process: subprocess.Popen[bytes]) -> tuple[int, float]:
    """Wait for a child; return its exit code and user CPU time in seconds."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_utime


@contextmanager
def _watched(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill a child that hangs, so that the benchmark fails instead of waiting for ever."""
    timer = threading.Timer(WATCHDOG_SECONDS, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if process.returncode is None:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


# MCP


class Client:
    """The few lines of MCP over stdio that a measurement needs, without the SDK's own cost on this side."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.number = 0

    def connect(self) -> list[dict[str, Any]]:
        """Shake hands and return the tools."""
        about = {"name": "bench", "version": "0"}
        self.ask("initialize", {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": about})
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        tools: list[dict[str, Any]] = self.ask("tools/list", {})["tools"]
        return tools

    def call(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Call a tool; RuntimeError when the tool reports an error."""
        found = self.ask("tools/call", {"name": tool, "arguments": dict(arguments)})
        if found.get("isError"):
            raise RuntimeError(f"{tool}: {json.dumps(found['content'])[:300]}")
        return found

    def ask(self, method: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return its result."""
        self.number += 1
        self._send({"jsonrpc": "2.0", "id": self.number, "method": method, "params": dict(parameters)})
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            answer = json.loads(line)
            if answer.get("id") != self.number:
                continue
            if "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            result: dict[str, Any] = answer["result"]
            return result
        raise RuntimeError(f"the server ended before it answered {method}")

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()


@contextmanager
def _server(command: Sequence[str], setting: Setting) -> Iterator[Client]:
    with tempfile.TemporaryFile() as told:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=told,
            env=dict(setting.environment),
            cwd=setting.config.parent,
        )
        with _watched(process):
            try:
                yield Client(process)
            except (RuntimeError, OSError, ValueError) as error:
                told.seek(0)
                lines = told.read().decode(errors="replace").strip().splitlines()
                raise RuntimeError(f"{error}; {lines[-1] if lines else 'nothing on standard error'}") from error


def _mcp_command(setting: Setting) -> list[str]:
    return [*TOOL, "mcp", "--root", str(setting.config.parent)]


def bench_mcp_start(setting: Setting) -> Iterator[Row]:
    """Time both servers from the start of the process to the answer to tools/list, alternating."""
    ours: list[tuple[float, float]] = []
    hello: list[tuple[float, float]] = []
    for number in range(setting.repeat + 1):
        pair = _start(_mcp_command(setting), setting), _start(HELLO, setting)
        if number:  # The first pair only warms the disk and bytecode caches.
            ours.append(pair[0])
            hello.append(pair[1])
    start, user = (_median(column) for column in zip(*ours, strict=True))
    peer_start, peer_user = (_median(column) for column in zip(*hello, strict=True))
    yield Row("MCP start to tools/list, ratio to hello", start / peer_start, "x", BUDGET_START_RATIO)
    yield Row("  wall time", start, "s", peer=f"hello {peer_start:.3f} s")
    yield Row("  user CPU, start to end", user, "s", peer=f"hello {peer_user:.3f} s")


def _start(command: Sequence[str], setting: Setting) -> tuple[float, float]:
    """Return the seconds from start to tools/list, and the user CPU seconds of the whole life of the server."""
    start = time.perf_counter()
    with _server(command, setting) as client:
        client.connect()
        passed = time.perf_counter() - start
        assert client.process.stdin is not None
        client.process.stdin.close()
        return passed, _ended(client.process)[1]


def bench_mcp_call(setting: Setting) -> Iterator[Row]:
    """Time validate_config calls over stdio, each followed by a call of hello."""
    run = {"bridge": RELEASE, "world_size": setting.world_size}
    full = setting.config.read_text("utf-8")

    def by_hand(number: int) -> dict[str, Any]:
        return {**run, "config_text": f"{WRITTEN_BY_HAND}# {number}\n"}

    def changed(number: int) -> dict[str, Any]:
        setting.config.write_text(f"{full}# {number}\n", "utf-8")
        return {**run, "config_path": str(setting.config)}

    def unchanged(_: int) -> dict[str, Any]:
        return {**run, "config_path": str(setting.config)}

    # The server remembers reports, so only a config that it has not seen yet costs the whole work.
    cases = (
        ("a few fields, new text", by_hand),
        ("full config, new text", changed),
        ("full config, unchanged", unchanged),
    )
    with _server(_mcp_command(setting), setting) as tool, _server(HELLO, setting) as peer:
        tool.connect()
        peer.connect()
        for what, arguments in cases:
            ours, hello = _calls(tool, peer, arguments, setting.repeat * 10)
            limit = hello + BUDGET_CALL_EXTRA_MS
            yield Row(f"MCP validate_config, {what}, p50", ours, "ms", limit, f"hello {hello:.1f} ms")


def _calls(
    tool: Client, peer: Client, arguments: Callable[[int], Mapping[str, Any]], count: int
) -> tuple[float, float]:
    """Return the median milliseconds of a validate_config call and of a hello call."""
    ours: list[float] = []
    hello: list[float] = []
    for number in range(WARM_CALLS + count):
        asked = arguments(number)
        times = _timed(tool, "validate_config", asked), _timed(peer, "hello", {"name": "you"})
        if number >= WARM_CALLS:
            ours.append(times[0])
            hello.append(times[1])
    return 1000 * _median(ours), 1000 * _median(hello)


def _timed(client: Client, tool: str, arguments: Mapping[str, Any]) -> float:
    start = time.perf_counter()
    client.call(tool, arguments)
    return time.perf_counter() - start


BENCHMARKS: Final[dict[str, Benchmark]] = {
    "validate": bench_validate,
    "cold": bench_cold,
    "mcp-start": bench_mcp_start,
    "mcp-call": bench_mcp_call,
}


# Output


def _as_json(rows: Sequence[Row], failures: Sequence[Failure]) -> str:
    machine = {"python": platform.python_version(), "system": platform.platform(), "cpus": os.cpu_count()}
    figures = [{**asdict(row), "what": row.what.strip(), "held": row.held} for row in rows]
    return json.dumps({"machine": machine, "rows": figures, "failures": [asdict(item) for item in failures]}, indent=2)


def _as_table(rows: Sequence[Row], failures: Sequence[Failure]) -> str:
    verdicts = {True: "held", False: "MISSED", None: ""}
    cells = [("median of", "", "budget", "", "peer")]
    for row in rows:
        budget = "" if row.budget is None else f"{row.budget:.3g} {row.unit}"
        cells.append((row.what, f"{row.value:.3g} {row.unit}", budget, verdicts[row.held], row.peer))
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return "\n".join([*lines, *(f"FAILED {item.what}: {item.reason}" for item in failures)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
