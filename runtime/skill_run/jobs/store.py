"""The table of jobs: one SQLite file that several servers and commands use at once, and that its folders can replace.

Every call opens the file, does one transaction and closes it, so it is safe in threads and across processes. A file
that SQLite cannot read any more is moved aside; the caller then fills the new one from the jobs' folders.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from skill_run.errors import InputError
from skill_run.jobs.model import Job, State

FILE: Final = "jobs.sqlite3"
SCHEMA_VERSION: Final = 1
_BUSY_SECONDS: Final = 10.0
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS jobs (
    id TEXT PRIMARY KEY, state TEXT NOT NULL, created TEXT NOT NULL, version INTEGER NOT NULL, body TEXT NOT NULL
) STRICT, WITHOUT ROWID
"""
_ORDER: Final = "CREATE INDEX IF NOT EXISTS jobs_by_time ON jobs (created, id)"
_INSERT: Final = "INSERT OR IGNORE INTO jobs VALUES (?, ?, ?, ?, ?)"
_SIDE_FILES: Final = ("-wal", "-shm", "-journal")
# File systems where the shared memory of a write-ahead log does not reach other machines.
_NETWORKED: Final = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb", "fuse", "9p", "wekafs", "panfs")
_ROOM_BYTES: Final = 256 * 1024
_UNREADABLE: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

_T = TypeVar("_T")


class _UnreadableError(Exception):
    """The file is no store that SQLite can read."""


class Store:
    """The rows of the jobs. `find_again` gives those to begin with where there is no file, or none that can be read."""

    def __init__(
        self, folder: Path, *, find_again: Callable[[], Iterable[Job]] = tuple, busy_seconds: float = _BUSY_SECONDS
    ) -> None:
        """Take the state folder, which is made when it is not there. Raises InputError when that cannot be."""
        self.path = folder.absolute() / FILE
        self._find_again = find_again
        self._busy_seconds = busy_seconds
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise InputError(f"the folder of the job store, {folder}, cannot be made: {error.strerror}") from error

    def add(self, job: Job) -> bool:
        """Add a row; False when its id is there already."""
        return self._run(lambda db: db.execute(_INSERT, _row(job)).rowcount == 1)

    def get(self, job_id: str) -> Job | None:
        """Return one row, or None."""
        found = self._run(lambda db: db.execute("SELECT body, version FROM jobs WHERE id = ?", (job_id,)).fetchone())
        return None if found is None else Job.from_body(*found)

    def find(self, beginning: str, limit: int = 10) -> list[str]:
        """Return up to `limit` ids that begin so."""
        query = "SELECT id FROM jobs WHERE substr(id, 1, ?) = ? ORDER BY id LIMIT ?"
        found = self._run(lambda db: db.execute(query, (len(beginning), beginning, limit)).fetchall())
        return [job_id for (job_id,) in found]

    def rows(self, *, states: Collection[State] | None = None, limit: int | None = None) -> list[Job]:
        """Return rows, the newest first, of some states or of all."""
        asked = [state.value for state in (State if states is None else states)]
        query = f"SELECT body, version FROM jobs WHERE state IN ({', '.join('?' * len(asked))})"
        query += " ORDER BY created DESC, id DESC LIMIT ?"
        rows = self._run(lambda db: db.execute(query, (*asked, -1 if limit is None else limit)).fetchall())
        return [Job.from_body(*row) for row in rows]

    def count(self) -> dict[State, int]:
        """Return how many jobs there are in each state that occurs."""
        rows = self._run(lambda db: db.execute("SELECT state, count(*) FROM jobs GROUP BY state").fetchall())
        return {State(state): number for state, number in rows}

    def change(self, job: Job, **changes: Any) -> Job | None:
        """Change a row that is still as `job` has it; None when somebody else changed it first."""
        after = replace(job, **changes, version=job.version + 1)
        row = (after.state.value, after.version, after.body(), job.id, job.version)
        query = "UPDATE jobs SET state = ?, version = ?, body = ? WHERE id = ? AND version = ?"
        return after if self._run(lambda db: db.execute(query, row).rowcount == 1) else None

    def remove(self, job_id: str) -> None:
        """Remove a row."""
        self._run(lambda db: db.execute("DELETE FROM jobs WHERE id = ?", (job_id,)))

    def rebuild(self) -> None:
        """Put the file aside and make a new one from the jobs' folders."""
        with self._errors_as_sentences():
            self._replace(self._inode())

    def _run(self, action: Callable[[sqlite3.Connection], _T]) -> _T:
        """Do one transaction; once more in a new file when the old one is not there or is corrupt."""
        with self._errors_as_sentences():
            for _ in range(2):
                inode = self._inode()
                try:
                    if inode is not None:
                        with self._opened() as db:
                            return action(db)
                except _UnreadableError:
                    pass
                self._replace(inode)
            with self._opened() as db:
                return action(db)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            # Never made by opening: an empty file would look like a store without jobs.
            address = f"{self.path.as_uri()}?mode=rw"
            db = sqlite3.connect(address, uri=True, timeout=self._busy_seconds, isolation_level=None)
            try:
                self._check_version(db)
                yield db
            finally:
                db.close()
        except sqlite3.DatabaseError as error:
            if _code(error) in _UNREADABLE:
                raise _UnreadableError(str(error)) from error
            raise

    def _check_version(self, db: sqlite3.Connection) -> None:
        found = int(db.execute("PRAGMA user_version").fetchone()[0])
        if found > SCHEMA_VERSION:
            raise InputError(f"the job store {self.path} was made by a newer skill-run; update this one")
        if found != SCHEMA_VERSION:
            raise _UnreadableError("it is no job store")

    def _inode(self) -> int | None:
        """Return which file the store is now; None when there is none, or an empty one, which is no store either."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_ino if found.st_size else None

    def _replace(self, seen: int | None) -> None:
        """Put a new file in the place of the one that was seen; nothing when another process did so first."""
        with self._alone():
            if self._inode() != seen:
                return
            if seen is not None:
                stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%f}"
                for ending in ("", *_SIDE_FILES):
                    with contextlib.suppress(FileNotFoundError):
                        os.rename(f"{self.path}{ending}", f"{self.path}.corrupt-{stamp}{ending}")
            self._make()

    def _make(self) -> None:
        """Write a new file, with the jobs that were found again, under another name, and name it at last."""
        unfinished = self.path.with_suffix(".new")
        for ending in ("", *_SIDE_FILES):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{unfinished}{ending}")
        with contextlib.closing(sqlite3.connect(unfinished, isolation_level=None)) as db:
            if not _is_networked(self.path.parent):
                db.execute("PRAGMA journal_mode = WAL")
            db.execute("BEGIN")
            db.execute(_TABLE)
            db.execute(_ORDER)
            db.executemany(_INSERT, (_row(job) for job in self._find_again()))
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            db.execute("COMMIT")
        os.replace(unfinished, self.path)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock of the state folder, which the kernel drops when its holder ends."""
        handle = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    @contextlib.contextmanager
    def _errors_as_sentences(self) -> Iterator[None]:
        try:
            yield
        except _UnreadableError as error:
            raise InputError(f"the job store {self.path} breaks again and again: {error}") from error
        except sqlite3.Error as error:
            raise InputError(self._sentence(error)) from error
        except OSError as error:
            raise InputError(f"the job store {self.path} cannot be used: {error.strerror}") from error

    def _sentence(self, error: sqlite3.Error) -> str:
        code = _code(error)
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return (
                f"the job store {self.path} has been locked by another process for {self._busy_seconds:g} s; "
                "try again, or end the process that holds it"
            )
        if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _is_full(self.path.parent)):
            return f"the disk is full: the job store {self.path} cannot be written; free some space and try again"
        return f"the job store {self.path} cannot be used: {error}"


def _row(job: Job) -> tuple[str, str, str, int, str]:
    return job.id, job.state.value, job.created, job.version, job.body()


def _code(error: sqlite3.Error) -> int:
    """Return SQLite's primary code of an error; 0 for one of the module's own."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _is_full(folder: Path) -> bool:
    """Tell whether a file system has no room for the few pages that a transaction needs."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize < _ROOM_BYTES


def _is_networked(folder: Path) -> bool:
    """Tell whether a folder lies on a file system of several machines, by the kernel's list of mounts."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return False
    return file_system(os.path.realpath(folder), mounts).startswith(_NETWORKED)


def file_system(place: str, mounts: str) -> str:
    """Return the type of the file system that a real path lies on, by the text of /proc/self/mountinfo; "" if none."""
    best, kind = "", ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        mounted = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), before.split(" ")[4])
        inside = place == mounted or place.startswith(mounted.rstrip("/") + "/")
        if inside and len(mounted) >= len(best):
            best, kind = mounted, after.partition(" ")[0]
    return kind
