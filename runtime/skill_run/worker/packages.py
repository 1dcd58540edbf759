"""Install a lock's files into a virtual environment with uv or pip, in batches that are kept when a set-up is cut."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from skill_run.worker.install_errors import failure_of
from skill_run.worker.kinds import Lock, Pin
from skill_run.worker.records import write_json

LEASH: Final = Path(__file__).with_name("leash.py")
MARKER: Final = "building.json"
# A batch is what a cut set-up may have to do again.
_BATCH_BYTES: Final = 120_000_000
_BATCH_PINS: Final = 12
_KEPT_LINES: Final = 400
_PROGRESS: Final = re.compile(r"Progress (\d+) of \d+")
_COLLECTING: Final = re.compile(r"Collecting ([A-Za-z0-9._-]+)==|Processing (?:\S*/)?([A-Za-z0-9._]+)-")
# Settings that would install somewhere else or read somebody else's modules.
_DROPPED: Final = ("PYTHON", "VIRTUAL_ENV", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_REQUIRE_HASHES")

# The lock is all that decides about versions.
_SET: Final = {"PIP_CONSTRAINT": os.devnull, "UV_CONSTRAINT": os.devnull, "PIP_NO_COLOR": "1", "NO_COLOR": "1"}


@dataclass(frozen=True, slots=True)
class Sources:
    """Where packages come from, beside what pip's own configuration says. A folder or a page is a find_links entry."""

    find_links: tuple[str, ...] = ()
    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    no_index: bool = False

    def options(self) -> list[str]:
        """Return the options that pip and uv share."""
        found = ["--no-index"] if self.no_index else []
        if self.index_url is not None:
            found += ["--index-url", self.index_url]
        for url in self.extra_index_urls:
            found += ["--extra-index-url", url]
        for place in self.find_links:
            found += ["--find-links", place]
        return found


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a set-up is. note: the text stays for the reader, and the numbers say nothing."""

    text: str
    packages_done: int = 0
    packages: int = 0
    bytes_done: int = 0
    bytes: int = 0
    note: bool = False


OnProgress = Callable[[Progress], None]


def batches(pins: Sequence[Pin]) -> Iterator[tuple[Pin, ...]]:
    """Yield the pins in the order of their installation: pip, torch, other wheels, then what is built from source.

    torch comes early because it is what may be missing from an index.
    """
    first = [pin for key in ("pip", "torch") for pin in pins if pin.key == key]
    yield from ((pin,) for pin in first)
    batch: list[Pin] = []
    for pin in pins:
        if pin in first or pin.source:
            continue
        if batch and (len(batch) == _BATCH_PINS or sum(one.size for one in batch) + pin.size > _BATCH_BYTES):
            yield tuple(batch)
            batch = []
        batch.append(pin)
    if batch:
        yield tuple(batch)
    yield from ((pin,) for pin in pins if pin.source)


class Installation:
    """Installs a lock into `folder`/venv and notes in `folder` which batches are done."""

    def __init__(self, folder: Path, lock: Lock, python: str, sources: Sources, on_progress: OnProgress) -> None:
        self.folder = folder
        self.lock = lock
        self.python = python
        self.sources = sources
        self.on_progress = on_progress
        self.uv = shutil.which("uv")
        self.done: set[str] = set()

    @property
    def venv_python(self) -> Path:
        """The interpreter of the environment."""
        return self.folder / "venv" / "bin" / "python"

    @property
    def _scratch(self) -> Path:
        """Temporary files of the installers, here so that those of one that was killed are found again."""
        return self.folder / "tmp"

    def run(self) -> None:
        """Make the environment, or go on with one that was cut; raises MissingError with what went wrong."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        if not self._resume():
            self._start()
        for batch in batches(self.lock.pins):
            if any(pin.key not in self.done for pin in batch):
                self._mark(started=batch)
                self._install(batch)
                self.done.update(pin.key for pin in batch)
                self._mark()
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._tell("installed", self.lock.pins)

    def _resume(self) -> bool:
        """Take up what a cut set-up of the same lock left; False when there is nothing to take up."""
        try:
            marker = json.loads((self.folder / MARKER).read_text(encoding="utf-8"))
            done, started = set(marker["done"]), set(marker["started"])
        except (OSError, ValueError, KeyError, TypeError):
            return False
        if not done or marker.get("lock") != self.lock.digest or not self.venv_python.exists():
            return False
        # A pip that was cut cannot repair itself.
        if any(pin.key == "pip" and pin.key not in done for pin in self.lock.pins):
            return False
        # A package whose installation was cut looks complete to pip as soon as its metadata is there.
        for path in self.folder.glob("venv/lib/python*/site-packages/*.dist-info"):
            if _key_of(path) in started - done:
                shutil.rmtree(path)
        self.done = done
        self.on_progress(Progress(f"going on with a set-up that was cut: {len(done)} packages are there", note=True))
        return True

    def _start(self) -> None:
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True)
        self._mark()
        self._tell("making a virtual environment", ())
        self._scratch.mkdir()
        lines = self._run([self.python, "-I", "-m", "venv", str(self.folder / "venv")], None)
        if lines is not None:
            raise failure_of(lines, (), self.folder)

    def _mark(self, started: Sequence[Pin] = ()) -> None:
        marker = {
            "lock": self.lock.digest,
            "done": sorted(self.done),
            "started": sorted(pin.key for pin in started),
        }
        write_json(self.folder / MARKER, marker)

    def _install(self, batch: Sequence[Pin]) -> None:
        self._tell(f"installing {', '.join(pin.key for pin in batch[:3])}{', ...' if batch[3:] else ''}", ())
        self._scratch.mkdir(exist_ok=True)
        wanted = self._scratch / "requirements.txt"
        wanted.write_text("".join(f"{pin.line}\n" for pin in batch), encoding="ascii")
        if self.uv is not None:
            lines = self._run([*self._uv_command(self.uv, batch), "-r", str(wanted)], batch)
            if lines is None:
                return
            reason = next((line for line in lines if "error" in line.lower() or "No solution" in line), lines[-1])
            self.on_progress(Progress(f"uv could not do it ({reason.strip()[:200]}); pip goes on", note=True))
            self.uv = None
        lines = self._run([*self._pip_command(batch), "-r", str(wanted)], batch)
        if lines is not None:
            raise failure_of(lines, batch, self.folder)

    def _uv_command(self, uv: str, batch: Sequence[Pin]) -> list[str]:
        build = ["--no-build-isolation"] if batch[0].source else ["--no-build"]
        # Hashes decide which file is the right one, so every index may be asked.
        strategy = ["--index-strategy", "unsafe-best-match"]
        command = [uv, "pip", "install", "--python", str(self.venv_python), "--no-deps", "--require-hashes", *strategy]
        return [*command, "--no-progress", *build, *self.sources.options()]

    def _pip_command(self, batch: Sequence[Pin]) -> list[str]:
        build = ["--no-build-isolation"] if batch[0].source else ["--only-binary", ":all:"]
        # The pip that comes with Python may not know the bar that a program can read.
        bar = ["--progress-bar", "raw" if "pip" in self.done else "off"]
        command = [str(self.venv_python), "-I", "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
        return [*command, "--no-deps", "--require-hashes", *bar, *build, *self.sources.options()]

    def _run(self, command: Sequence[str], batch: Sequence[Pin] | None) -> list[str] | None:
        """Run an installer; return None when it succeeded, else the end of what it printed, never empty."""
        kept: deque[str] = deque(maxlen=_KEPT_LINES)
        environment = {key: value for key, value in os.environ.items() if not key.startswith(_DROPPED)}
        child = subprocess.Popen(
            [sys.executable, "-I", str(LEASH), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**environment, **_SET, "TMPDIR": str(self._scratch)},
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        try:
            assert child.stdout is not None
            collected: list[Pin] = []
            for line in child.stdout:
                kept.append(line.rstrip())
                self._read(line, batch or (), collected)
            code = child.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            for stream in (child.stdin, child.stdout):
                if stream is not None:
                    stream.close()
        return None if code == 0 else [*kept, f"{Path(command[0]).name} ended with exit code {code}"]

    def _read(self, line: str, batch: Sequence[Pin], collected: list[Pin]) -> None:
        """Tell how far the batch is, from one line of pip's."""
        if (now := _COLLECTING.match(line)) is not None:
            collected += [pin for pin in batch if pin.key == _normal(now[1] or now[2])]
            if collected:
                self._tell(f"fetching {collected[-1].key} {collected[-1].version}", collected[:-1])
        elif (part := _PROGRESS.match(line)) is not None and collected:
            self._tell(f"fetching {collected[-1].key} {collected[-1].version}", collected[:-1], int(part[1]))
        elif line.startswith("Installing collected packages"):
            self._tell(f"installing {', '.join(pin.key for pin in collected[:3])}", collected)

    def _tell(self, text: str, fetched: Sequence[Pin], part: int = 0) -> None:
        ready = [pin for pin in self.lock.pins if pin.key in self.done or pin in fetched]
        total = sum(pin.size for pin in self.lock.pins)
        done = min(total, sum(pin.size for pin in ready) + part)
        self.on_progress(Progress(text, len(ready), len(self.lock.pins), done, total))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _key_of(dist_info: Path) -> str:
    return _normal(dist_info.name.removesuffix(".dist-info").rpartition("-")[0])
