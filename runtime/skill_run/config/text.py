"""Read a text file that a user named, within limits, and the JSON in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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


def parse_json(text: str, name: str) -> Any:
    """Return the data of JSON text; InputError with its place and the reason when it cannot be parsed."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise InputError(f"{name}: the JSON is nested too deep") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{name}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}") from error
    except ValueError as error:
        raise InputError(f"{name}: the JSON holds a number with too many digits") from error
