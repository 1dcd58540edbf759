"""Other Megatron-Bridge releases beside a worker: their wheels are unpacked there and come before its own packages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from skill_run.errors import InputError, MissingError
from skill_run.worker.environments import Worker, find_worker, workers_folder
from skill_run.worker.install_errors import failure_of
from skill_run.worker.kinds import LOCKS, Pin, parse_lock
from skill_run.worker.records import write_json
from skill_run.worker.session import Event, run_task

# What inside/boot.py reads.
RELEASE_ENVIRONMENT: Final = "SKILL_RUN_RELEASE"
_RECORD: Final = "release.json"
_SECONDS: Final = 900.0
_PLACES: Final = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_REQUIRE_HASHES")
_NOTES: Final = (
    "The partition index is what Transformer Engine's kernel computes without its assertion; attention and CUDA calls "
    "are stand-ins, and everything else is the release's own code.",
)


def locked_releases() -> tuple[str, ...]:
    """Return the Bridge releases that can be put beside a worker, oldest first."""
    return tuple(sorted(path.stem for path in (LOCKS / "releases").glob("*.txt")))


def run_release_parity(
    bridge: str,
    layouts: Sequence[str] | None = None,
    on_event: Callable[[Event], None] | None = None,
    *,
    worker: Worker | None = None,
) -> dict[str, Any]:
    """Compare packed with unpacked training in the own loop of one Bridge release, and return what inside/bridge_parity
    tells, with "notes" on what the comparison leaves out.

    bridge: the worker's own release or one of locked_releases(), whose two wheels are fetched when they are not there.
    Raises InputError for another release or layout, MissingError without a worker or the wheels, WorkerFailure when
    the worker does not finish.
    """
    worker = worker or find_worker(bridge=True)
    environment = {}
    if bridge != worker.bridge:
        environment[RELEASE_ENVIRONMENT] = str(prepare_release(worker, bridge, on_event))
    request = {"layouts": list(layouts)} if layouts else {}
    report = run_task(worker, "bridge-parity", request, on_event=on_event, environment=environment)
    return {**report, "notes": list(_NOTES)}


def prepare_release(worker: Worker, bridge: str, on_event: Callable[[Event], None] | None = None) -> Path:
    """Return the folder with a release's packages beside `worker`; fetch and unpack them when it is not there.

    A folder is complete or absent; wheels that were fetched before a cut are kept for the next try.
    Raises InputError for a release without a lock, MissingError when its wheels cannot be had.
    """
    if bridge not in locked_releases():
        known = ", ".join(sorted({*locked_releases(), *([worker.bridge] if worker.bridge else [])}))
        raise InputError(f"Megatron-Bridge {bridge} cannot be put beside a worker; there are {known}")
    text = (LOCKS / "releases" / f"{bridge}.txt").read_text(encoding="utf-8")
    pins = parse_lock(text)
    root = workers_folder() / worker.name / "releases"
    folder = root / bridge
    if _is_ready(folder, pins):
        return folder
    if on_event is not None:
        size = sum(pin.size for pin in pins) / 1e6
        on_event(
            {"event": "progress", "text": f"fetching Megatron-Bridge {bridge} ({size:.1f} MB)", "done": 0, "total": 1}
        )
    try:
        wheels = root / f"{bridge}.wheels"
        wheels.mkdir(parents=True, exist_ok=True)
        _download(worker, pins, wheels)
        _unpack(wheels, pins, folder)
        shutil.rmtree(wheels, ignore_errors=True)
    except OSError as error:
        raise MissingError(f"{root} cannot be written: {error.strerror or error}") from error
    return folder


def _lines(pins: Sequence[Pin]) -> list[str]:
    return [pin.line for pin in pins]


def _is_ready(folder: Path, pins: Sequence[Pin]) -> bool:
    try:
        return bool(json.loads((folder / _RECORD).read_text(encoding="utf-8"))["lock"] == _lines(pins))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _download(worker: Worker, pins: Sequence[Pin], wheels: Path) -> None:
    """Fetch the pinned wheels with the worker's pip, which checks their hashes."""
    wanted = wheels / "requirements.txt"
    wanted.write_text("".join(f"{line}\n" for line in _lines(pins)), encoding="ascii")
    command = [*worker.command, "-I", "-m", "pip", "--disable-pip-version-check", "--no-input", "download"]
    command += ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--progress-bar", "off"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", *_PLACES))}
    try:
        done = subprocess.run(
            [*command, "--dest", str(wheels), "--requirement", str(wanted)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
            env={**environment, "PIP_CONSTRAINT": os.devnull},
        )
    except subprocess.TimeoutExpired as error:
        raise MissingError(f"the download of {pins[0].name} {pins[0].version} did not end; try again") from error
    except OSError as error:
        raise MissingError(f"worker {worker.name} cannot be started: {error.strerror or error}") from error
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise failure_of(lines or [f"pip ended with exit code {done.returncode}"], pins, wheels)


def _unpack(wheels: Path, pins: Sequence[Pin], folder: Path) -> None:
    """Unpack the wheels into `folder`, which appears in one step."""
    made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        for pin in pins:
            path = next(wheels.glob(f"{pin.key.replace('-', '_')}-{pin.version}-*.whl"), None)
            if path is None:
                raise MissingError(f"pip left no wheel of {pin.name} {pin.version}; try again")
            with zipfile.ZipFile(path) as wheel:
                wheel.extractall(made)
        write_json(made / _RECORD, {"lock": _lines(pins)})
        # What an older lock left there.
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(made, folder)
    except zipfile.BadZipFile as error:
        raise MissingError(
            f"a wheel of Megatron-Bridge {folder.name} is damaged; clear pip's cache and retry"
        ) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
