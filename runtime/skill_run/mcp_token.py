"""The bearer token of the HTTP server: a file that only its user can read, made once and replaced on demand."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import stat
import tempfile
from pathlib import Path
from typing import Final

from skill_run.errors import InputError

FILE_NAME: Final = "http.token"
_BYTES: Final = 32
_SHORTEST: Final = 32
_LONGEST: Final = 512
# What a bearer token may hold (RFC 6750, section 2.1).
_FORM: Final = re.compile(rb"[A-Za-z0-9._~+/-]+=*")


def default_token_file() -> Path:
    """Return where the token lies unless another file is named: in the folder that also holds the jobs."""
    from skill_run.jobs.folder import state_folder

    return state_folder() / FILE_NAME


def make_token(path: Path, *, replace: bool) -> None:
    """Write a new token with mode 0600, in one step. An existing file is kept unless it is to be replaced.

    Raises InputError when the file cannot be written.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A temporary file has mode 0600 from its first moment.
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="ascii") as stream:
                stream.write(secrets.token_urlsafe(_BYTES) + "\n")
                stream.flush()
                os.fsync(stream.fileno())
            if replace:
                os.replace(draft, path)
            else:
                # A link never replaces the token that another server made meanwhile.
                with contextlib.suppress(FileExistsError):
                    os.link(draft, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft)
    except OSError as error:
        raise InputError(f"the token file {path} cannot be written: {error.strerror}") from error


def replace_token(path: Path | None) -> Path:
    """Replace the token in a file (None: the user's own) and return its path; servers that run take it at once.

    Raises InputError when it cannot be written.
    """
    found = path or default_token_file()
    make_token(found, replace=True)
    return found


def read_token(path: Path) -> bytes:
    """Return the token of a file.

    Raises InputError when it is not there, when others than its user can read or write it, or when it holds no token.
    """
    try:
        # Not to wait for the other end where the name is that of a pipe.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        try:
            _check_private(path, os.fstat(handle))
            token = os.read(handle, _LONGEST + 2).strip()
        finally:
            os.close(handle)
    except OSError as error:
        raise InputError(f"the token file {path} cannot be read: {error.strerror}") from error
    if not (_SHORTEST <= len(token) <= _LONGEST and _FORM.fullmatch(token)):
        raise InputError(
            f"the token file {path} holds no token, which is {_SHORTEST} to {_LONGEST} letters, digits or ._~+/- and "
            "nothing else; --rotate-token writes a new one"
        )
    return token


def _check_private(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"the token file {path} is no file")
    if os.name != "posix":
        return
    if found.st_uid not in (os.geteuid(), 0):
        raise InputError(f"the token file {path} belongs to another user")
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InputError(f"the token file {path} is open to other users; close it with: chmod 600 {path}")


class Token:
    """The token that a file holds now: when the file changes, the old token is refused from the next request on."""

    def __init__(self, path: Path) -> None:
        """Read the file; InputError as for read_token."""
        self.path = path
        self._token: bytes | None = read_token(path)
        self._seen = self._state()

    def accepts(self, given: str) -> bool:
        """Tell whether this is the token; never, while the file cannot be used."""
        token = self._current()
        return token is not None and hmac.compare_digest(given.encode("utf-8", "surrogatepass"), token)

    def owner(self) -> str:
        """Return a name for who holds the token, which tells nothing of it and changes with it."""
        return hashlib.sha256(b"owner of " + (self._current() or b"")).hexdigest()[:16]

    def _current(self) -> bytes | None:
        now = self._state()
        if now != self._seen:
            self._seen = now
            try:
                self._token = read_token(self.path)
            except InputError:
                self._token = None
        return self._token

    def _state(self) -> tuple[int, ...] | None:
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size
