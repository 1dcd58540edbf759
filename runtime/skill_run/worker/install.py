"""Set up, register and remove workers: a worker is listed only after its own interpreter has answered."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from skill_run.errors import InputError, MissingError, SkillRunError
from skill_run.report.safe import clip, flow
from skill_run.worker.environments import RECORD, Worker, read_worker, workers_folder
from skill_run.worker.install_errors import AbsentError
from skill_run.worker.interpreters import find_python, own_path
from skill_run.worker.kinds import Kind, Lock, find_kind
from skill_run.worker.packages import MARKER, Installation, OnProgress, Progress, Sources
from skill_run.worker.records import write_json
from skill_run.worker.session import BOOT, WorkerFailure, run_task

AUTO: Final = "auto"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# What a set-up that was cut may have left.
_OURS: Final = ("releases", "tmp", "venv")
_TEMPORARY: Final = tuple(f".{name}." for name in (RECORD, MARKER))
# What must be in an environment that somebody else made.
_NEEDED: Final = ("torch", "megatron-core")
_VERIFY_SILENCE: Final = 300.0


def setup_worker(
    kind: str | None = None,
    *,
    name: str | None = None,
    build: str = AUTO,
    sources: Sources | None = None,
    on_progress: OnProgress | None = None,
) -> Worker:
    """Build the worker `kind` (default: the first of the shipped ones) and return it; a ready one is returned as it is.

    build: `cpu` or `cuda-build`, the build of torch; `auto` takes the first that an index has.
    Raises InputError for an unknown kind, build or name, MissingError when there is no Python, no room, no file or no
    network. A set-up that ends early, however it ends, is never listed; the next one goes on where it stopped.
    """
    return build_worker(find_kind(kind), name=name, build=build, sources=sources, on_progress=on_progress)


def build_worker(
    kind: Kind,
    *,
    name: str | None = None,
    build: str = AUTO,
    sources: Sources | None = None,
    on_progress: OnProgress | None = None,
) -> Worker:
    """Build a worker of a kind at hand: see `setup_worker`."""
    tell = on_progress or _tell_nobody
    locks = _locks_of(kind, build)
    folder = _folder_of(kind.name if name is None else name)
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise MissingError(
            f"worker {kind.name} is built from files for x86-64 Linux; --python PATH makes an environment with torch "
            "and Megatron-Core that is here already a worker"
        )
    with _alone(folder):
        ready = _ready(folder, locks)
        if ready is not None:
            return ready
        _refuse_strangers(folder)
        python = find_python(kind.python)
        for number, lock in enumerate(locks):
            try:
                return _build(kind, lock, folder, python, sources or Sources(), tell)
            except AbsentError as error:
                rest = locks[number + 1 :]
                if error.pin is None or error.pin.key != "torch" or not rest:
                    raise _without_torch(error, kind) from error
                tell(Progress(_instead(error.pin.version, rest[0]), note=True))
    raise AssertionError("a kind has no lock")


def register_worker(command: str, *, name: str | None = None, container: bool = False) -> Worker:
    """Make an existing environment a worker.

    command: an interpreter's path, or with `container` the words that start one there, up to its python. The
    environment must have torch and Megatron-Core, which is asked of itself. Raises InputError when there is no such
    program or the name is taken, MissingError when it cannot be a worker.
    """
    words = _words(command, container)
    default = "container" if container else "local"
    folder = _folder_of(default if name is None else name)
    with _alone(folder):
        if (folder / RECORD).exists() or (folder / MARKER).exists():
            raise InputError(
                f"there is a worker {folder.name} already; --name gives this one another name, and skill-run worker "
                f"remove {folder.name} makes room"
            )
        found = probe(Worker(folder.name, words), container=container)
        lacking = [each for each in _NEEDED if each not in found["versions"]]
        if lacking:
            raise MissingError(
                f"{clip(flow(shlex.join(words)), 200)} has no {' and no '.join(lacking)}; a worker needs it"
            )
        worker = Worker(folder.name, words, found["versions"])
        folder.mkdir(exist_ok=True)
        write_json(folder / RECORD, {"command": list(words), "versions": found["versions"], "built": False})
        return worker


def remove_worker(name: str) -> bool:
    """Remove a worker, or what a set-up that was cut left; True when an environment was deleted, not only its record.

    An environment that was registered stays. Raises InputError when there is no such worker.
    """
    folder = _folder_of(name)
    worker = read_worker(folder)
    if not folder.is_dir() or folder.is_symlink() or not ((folder / RECORD).exists() or (folder / MARKER).exists()):
        raise InputError(f"there is no worker {name!r}; skill-run worker list shows those that are there")
    with _alone(folder):
        ours = worker is None or worker.built
        (folder / RECORD).unlink(missing_ok=True)
        if ours:
            shutil.rmtree(folder)
        else:
            with contextlib.suppress(OSError):
                folder.rmdir()
    return ours


def probe(worker: Worker, *, container: bool = False, deep: bool = True) -> dict[str, Any]:
    """Ask a worker what it has: see inside/probe.py. MissingError when it does not answer.

    deep: torch and Megatron-Core are imported as well.
    """
    try:
        return run_task(worker, "probe", {"deep": deep}, silence=_VERIFY_SILENCE)
    except WorkerFailure as error:
        if "can't open file" in f"{error} {error.log}":
            package = BOOT.parents[2]
            how = f"mount it there, such as -v {package}:{package}:ro" if container else "its folder must be readable"
            raise MissingError(f"worker {worker.name} does not see {package}; {how}") from error
        raise MissingError(f"{error}; nothing was added or changed") from error


def _locks_of(kind: Kind, build: str) -> list[Lock]:
    if build == AUTO:
        return list(kind.locks.values())
    if build not in kind.locks:
        raise InputError(f"{kind.name} has no lock for --torch {build}; it has {' and '.join(kind.locks)}")
    return [kind.locks[build]]


def _folder_of(name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise InputError(f"{name[:80]!r} cannot be a worker's name: letters, digits, '.', '_' and '-', 64 at most")
    return workers_folder() / name


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep others from setting up or removing the same worker meanwhile."""
    import fcntl

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(_lock_path(folder), os.O_WRONLY | os.O_CREAT, 0o644)
    except OSError as error:
        raise MissingError(
            f"{folder.parent} cannot be written ({error.strerror}); $SKILL_RUN_WORKERS names another folder for workers"
        ) from error
    with os.fdopen(handle, "wb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise MissingError(f"worker {folder.name} is being set up or removed by another process") from error
        try:
            yield
        except OSError as error:
            where = f"{clip(flow(str(error.filename)), 200)}: " if error.filename is not None else ""
            raise MissingError(
                f"worker {folder.name} cannot be set up or removed: {where}{error.strerror or error}"
            ) from error


def _lock_path(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.lock"


def _ready(folder: Path, locks: list[Lock]) -> Worker | None:
    """Return the worker in the folder when it is complete and of one of the locks; InputError when it is another's."""
    worker = read_worker(folder)
    if worker is None:
        return None
    if not worker.built:
        raise InputError(f"worker {folder.name} is registered, not built; --name gives the new one another name")
    record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    fresh = record.get("lock") in {lock.digest for lock in locks}
    return worker if fresh and Path(worker.command[0]).exists() else None


def _refuse_strangers(folder: Path) -> None:
    """Raise InputError for a folder in the worker's place that no set-up made: it would be deleted."""
    if folder.is_symlink():
        raise InputError(f"{folder} is a link, so no worker is built there; remove it, or take another --name")
    if not folder.exists() or (folder / RECORD).exists() or (folder / MARKER).exists():
        return
    found = [folder.name] if not folder.is_dir() else sorted(path.name for path in folder.iterdir())
    strangers = [name for name in found if name not in _OURS and not name.startswith(_TEMPORARY)]
    if strangers:
        raise InputError(
            f"{folder} is no worker's folder ({clip(flow(strangers[0]), 80)} is there); move it away, or take another "
            "--name"
        )


def _build(kind: Kind, lock: Lock, folder: Path, python: str, sources: Sources, tell: OnProgress) -> Worker:
    _check_room(folder, lock)
    size = f"{lock.download_mb} MB to download, {lock.disk_mb} MB on disk, about {lock.minutes} min"
    tell(Progress(f"worker {folder.name}: {size}", note=True))
    # What is being replaced must not be listed meanwhile.
    (folder / RECORD).unlink(missing_ok=True)
    installation = Installation(folder, lock, python, sources, tell)
    installation.run()
    tell(Progress("asking the new worker what it has", len(lock.pins), len(lock.pins)))
    command = (str(installation.venv_python),)
    found = probe(Worker(folder.name, command))
    _check_answer(found, lock)
    record = {"command": list(command), "versions": found["versions"], "built": True}
    write_json(folder / RECORD, {**record, "kind": kind.name, "torch": lock.build, "lock": lock.digest})
    (folder / MARKER).unlink()
    return Worker(folder.name, command, found["versions"], built=True)


def _check_room(folder: Path, lock: Lock) -> None:
    """Refuse to start what the disk cannot hold; what a cut set-up left counts as room."""
    used = sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir()) if folder.is_dir() else 0
    free = shutil.disk_usage(folder.parent).free + used
    # A package file lies there while it is unpacked.
    need = lock.disk_mb * 1e6 + max(pin.size for pin in lock.pins)
    if free < need:
        raise MissingError(
            f"{folder.parent} has {free / 1e6:.0f} MB free, and the set-up needs {need / 1e6:.0f} MB; make room, or "
            "let $SKILL_RUN_WORKERS name a folder on another disk"
        )


def _check_answer(found: dict[str, Any], lock: Lock) -> None:
    """Raise MissingError when what was installed does not work."""
    for pin in lock.pins:
        told = found["versions"].get(pin.key)
        if pin.key in _NEEDED and told != pin.version:
            raise MissingError(f"the new worker has {pin.name} {told}, not {pin.version}; run the same command again")
    for part in ("torch", "core"):
        error = found[part]["error"]
        if error is not None:
            raise MissingError(f"the new worker does not work: {clip(flow(str(error)), 300)}")


def _words(command: str, container: bool) -> tuple[str, ...]:
    """Return the argument list of a command, never a shell's, with the program's absolute path when it is a path."""
    try:
        words = shlex.split(command) if container else [command]
    except ValueError as error:
        raise InputError(f"--command cannot be read: {error}") from error
    if not words or not words[0]:
        raise InputError("--python and --command must name a program")
    program = os.path.expanduser(words[0])
    found = shutil.which(program)
    if found is None:
        raise InputError(f"{clip(flow(words[0]), 200)} is not a program that can be run")
    return (os.path.abspath(found), *words[1:]) if container else (own_path(found),)


def _instead(version: str, lock: Lock) -> str:
    return (
        f"no index has torch {version}, the CPU-only build, so the build for GPUs is taken: {lock.download_mb} MB to "
        "download; --find-links or --extra-index-url with a place that has the CPU-only build avoids that"
    )


def _without_torch(error: AbsentError, kind: Kind) -> SkillRunError:
    """Add the other way to the error, when the build of torch is what is missing and there is another."""
    others = [lock for lock in kind.locks.values() if error.pin is not None and error.pin not in lock.pins]
    if error.pin is None or error.pin.key != "torch" or not others:
        return error
    return MissingError(f"{error}, or take --torch {others[0].build} ({others[0].download_mb} MB to download)")


def _tell_nobody(progress: Progress) -> None:
    """Ignore the progress."""


__all__ = ["AUTO", "build_worker", "probe", "register_worker", "remove_worker", "setup_worker"]
