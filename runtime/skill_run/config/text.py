"""Read a text file that a user named, within limits."""

from __future__ import annotations

from pathlib import Path

from skill_run.errors import InputError


def read_text(path: Path, limit: int) -> str:
    """Return the UTF-8 text of a regular file of at most `limit` bytes; InputError with one sentence otherwise."""
    try:
        if path.is_dir():
            raise InputError(f"{path} is a directory; name one config file")
        if path.exists() and not path.is_file():
            raise InputError(f"{path} is not a regular file")
        with path.open("rb") as stream:
            data = stream.read(limit + 1)
    except InputError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path} cannot be read: {reason}") from error
    if len(data) > limit:
        raise InputError(f"{path} is larger than {limit // 1024} KiB, which no config is")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start})") from error
