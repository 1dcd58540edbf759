"""Messages between this process and its children: a length and a pickle, both of our own making."""

from __future__ import annotations

import pickle
import struct
from typing import IO, Any, Final

_LENGTH: Final = struct.Struct("<Q")


def write_frame(stream: IO[bytes], value: Any) -> None:
    """Write one value."""
    data = pickle.dumps(value, protocol=5)
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> bytes:
    """Return the bytes of one value, or none at the end of the stream, also in the midst of a value."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return b""
    (length,) = _LENGTH.unpack(head)
    data = stream.read(length)
    return data if len(data) == length else b""
