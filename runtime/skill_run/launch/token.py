"""Tokens that confirm one very preview: bound to the plan's digest, signed, and valid for a while."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import time
from pathlib import Path
from typing import Final

from skill_run.errors import InputError
from skill_run.jobs.model import check_id

VALID_SECONDS: Final = 15 * 60
_SECRET_FILE: Final = "confirm.key"
_BYTES: Final = 32


def make_token(state_folder: Path, job_id: str, digest: str, *, seconds: int = VALID_SECONDS) -> str:
    """Return the token that starts the job with this plan within so many seconds."""
    expires = int(time.time()) + seconds
    return f"{check_id(job_id)}.{expires}.{_sign(state_folder, job_id, digest, expires)}"


def job_of(token: str) -> str:
    """Return the id of the job that a token is for, unchecked. Raises InputError for what is no token."""
    return _parts(token)[0]


def check_token(state_folder: Path, token: str, digest: str) -> None:
    """Raise InputError unless the token was made here for this very plan and has not expired."""
    job_id, expires, signature = _parts(token)
    if not hmac.compare_digest(signature, _sign(state_folder, job_id, digest, expires)):
        raise InputError("the confirm token does not belong to this plan; preview the launch again and use its token")
    if time.time() > expires:
        raise InputError("the confirm token has expired; preview the launch again and use its token")


def _parts(token: str) -> tuple[str, int, str]:
    job_id, _, rest = token.partition(".")
    expires, _, signature = rest.partition(".")
    if not (expires.isascii() and expires.isdigit() and len(expires) < 16 and signature.isascii()):
        raise InputError("this is no confirm token; the preview of a launch gives one")
    return check_id(job_id), int(expires), signature


def _sign(state_folder: Path, job_id: str, digest: str, expires: int) -> str:
    text = f"{job_id}.{expires}.{digest}".encode("ascii")
    return hmac.new(_secret(state_folder), text, hashlib.sha256).hexdigest()


def _secret(state_folder: Path) -> bytes:
    """Return the secret of this state folder; the first caller makes it, and all others find it whole."""
    path = state_folder / _SECRET_FILE
    state_folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        draft = state_folder / f".{_SECRET_FILE}.{os.getpid()}.{secrets.token_hex(4)}"
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(secrets.token_bytes(_BYTES))
            # A link never replaces the secret that somebody else made meanwhile.
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
        finally:
            os.unlink(draft)
    found = path.read_bytes()
    if len(found) != _BYTES:
        raise InputError(f"{path} is no secret of this program; remove it, and preview the launch again")
    return found
