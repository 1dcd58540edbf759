"""Read `.npz` archives of number arrays; sizes are checked before anything is unpacked, and nothing is unpickled."""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np

from skill_run.errors import InputError
from skill_run.pack.npy import read_npy_header
from skill_run.report.safe import clip, flow

MAX_MEMBERS: Final = 4096
_DAMAGE: Final = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError, ValueError)


def archive_members(path: Path, limit: int) -> list[zipfile.ZipInfo]:
    """Return what a zip archive declares; InputError when it is none or unpacks to more than `limit` bytes."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except _DAMAGE as error:
        raise InputError(f"{path} is no archive, or is truncated: {clip(flow(str(error)), 120)}") from error
    total = sum(member.file_size for member in members)
    if len(members) > MAX_MEMBERS or total > limit:
        raise InputError(
            f"{path} would unpack to {total} bytes in {len(members)} parts, which no batch has ({limit} bytes at most)"
        )
    return members


def read_npz(path: Path, limit: int) -> dict[str, Any]:
    """Return the arrays of an archive by name; an array without dimensions becomes a number or text.

    limit: most bytes it may unpack to. Raises InputError for object arrays, damaged parts and too much data.
    """
    found: dict[str, Any] = {}
    members = archive_members(path, limit)
    with zipfile.ZipFile(path) as archive:
        for member in members:
            key = member.filename.removesuffix(".npy")
            if key == member.filename:
                raise InputError(f"{path} holds {clip(flow(key), 60)}, which is no array: it is no .npz of numpy")
            try:
                data = archive.read(member)
            except _DAMAGE as error:
                raise InputError(f"{path}: {clip(flow(key), 60)} is damaged: {clip(flow(str(error)), 120)}") from error
            found[key] = _array(data, f"{path}: {clip(flow(key), 60)}")
    return found


def _array(data: bytes, name: str) -> Any:
    stream = io.BytesIO(data)
    shape, fortran, dtype = read_npy_header(stream, name)
    if dtype.hasobject:
        raise InputError(f"{name} is an array of Python objects, which would have to be unpickled; it is not read")
    if dtype.kind not in "biufU" or (dtype.kind == "U" and shape):
        raise InputError(f"{name} holds {clip(str(dtype), 40)} values; a batch holds numbers and truth values only")
    size = math.prod(shape) * dtype.itemsize
    start = stream.tell()
    if size != len(data) - start:
        raise InputError(f"{name} claims {size} bytes by its shape but holds {len(data) - start}")
    if not shape:
        value = np.frombuffer(data, dtype, 1, start)[0] if size else np.str_("")
        return value.item()
    return np.frombuffer(data, dtype, math.prod(shape), start).reshape(shape, order="F" if fortran else "C")
