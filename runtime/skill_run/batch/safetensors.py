"""Read the safetensors format: a length, a JSON header, and the bytes of the arrays one after another."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final, TypeGuard

import numpy as np
from numpy.typing import NDArray

from skill_run.config.text import parse_json
from skill_run.errors import InputError

MAX_HEADER_BYTES: Final = 2**24
MAX_TENSORS: Final = 2**14
METADATA: Final = "__metadata__"
# bfloat16 has no numpy type: its 16 bits are the upper half of a float32.
_TYPES: Final = {
    "BOOL": np.uint8,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "U32": np.uint32,
    "I32": np.int32,
    "U64": np.uint64,
    "I64": np.int64,
    "F16": np.float16,
    "BF16": np.uint16,
    "F32": np.float32,
    "F64": np.float64,
}


def read_safetensors(path: Path, data: bytes) -> dict[str, Any]:
    """Return arrays and metadata of a file by name; metadata that is JSON is decoded, an array wins over metadata.

    Raises InputError when offsets, shapes and size of the file do not fit together.
    """
    arrays, metadata = parse_safetensors(data, str(path))
    return {**{key: _decoded(value) for key, value in metadata.items()}, **arrays}


def parse_safetensors(data: bytes, name: str) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return the arrays and the metadata of safetensors bytes."""
    header, body = _header(data, name)
    metadata = header.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise InputError(f"{name}: {METADATA} must map text to text")
    if len(header) > MAX_TENSORS:
        raise InputError(f"{name} names {len(header)} arrays; a batch has at most {MAX_TENSORS}")
    places = {key: _place(entry, key, name) for key, entry in header.items()}
    end = 0
    for key, (first, last) in sorted(places.items(), key=lambda item: item[1]):
        if first != end:
            raise InputError(
                f"{name}: the bytes of {key!r:.60} begin at {first}, where {end} is the end of those before it"
            )
        end = last
    if end != len(body):
        raise InputError(
            f"{name} holds {len(body)} bytes of arrays but its header names {end}: it is truncated or damaged"
        )
    return {key: _array(header[key], body[first:last]) for key, (first, last) in places.items()}, metadata


def _header(data: bytes, name: str) -> tuple[dict[str, Any], memoryview]:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8 or length > MAX_HEADER_BYTES:
        raise InputError(f"{name} is no safetensors file, or is truncated: its header claims {length} bytes")
    try:
        text = data[8 : 8 + length].decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is no safetensors file: its header is not UTF-8") from error
    header = parse_json(text, f"header of {name}")
    if not isinstance(header, dict):
        raise InputError(f"{name} is no safetensors file: its header is not a mapping")
    return header, memoryview(data)[8 + length :]


def _place(entry: Any, key: str, name: str) -> tuple[int, int]:
    """Return first and last byte of an array, whose number must be what type and shape make."""
    told: dict[str, Any] = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = told.get("dtype"), told.get("shape"), told.get("data_offsets")
    if not _counts(shape) or not _counts(offsets) or len(offsets) != 2 or len(shape) > 32:
        raise InputError(f"{name}: the header says nothing usable of {key!r:.60}")
    if not isinstance(dtype, str) or dtype not in _TYPES:
        raise InputError(f"{name}: {key!r:.60} has the type {dtype!r:.20}, which no key of a batch has")
    first, last = offsets
    size = math.prod(shape) * np.dtype(_TYPES[dtype]).itemsize
    if last - first != size:
        raise InputError(f"{name}: {key!r:.60} of shape {shape!s:.60} needs {size} bytes but has {last - first}")
    return first, last


def _counts(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in value
    )


def _array(entry: dict[str, Any], data: memoryview) -> NDArray[Any]:
    values = np.frombuffer(data, _TYPES[entry["dtype"]])
    if entry["dtype"] == "BOOL":
        values = values != 0
    elif entry["dtype"] == "BF16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return values.reshape(entry["shape"])


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
