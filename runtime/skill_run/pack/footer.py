"""The sizes that a Parquet footer claims, read before pyarrow is trusted with them.

pyarrow ends the whole process when it is asked for the metadata of a damaged column chunk, so the few numbers that tell
impossible sizes are taken from the footer directly. It is one Thrift structure in the compact protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from skill_run.errors import InputError

MAGIC: Final = b"PAR1"
MAX_FOOTER_BYTES: Final = 2**24
_MAX_DEPTH: Final = 16
# Numbers of fields in parquet.thrift.
_ROW_GROUPS: Final = 4
_GROUP_COLUMNS, _GROUP_ROWS = 1, 3
_CHUNK_METADATA: Final = 3
_PATH, _VALUES, _COMPRESSED = 3, 5, 7
# Types of the compact protocol.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)


@dataclass(frozen=True, slots=True)
class RowGroup:
    """What the footer claims of one row group. values, compressed: numbers and bytes of each top-level column."""

    rows: int
    values: Mapping[str, int]
    compressed: Mapping[str, int]


def read_row_groups(path: Path) -> list[RowGroup]:
    """Return what the footer of a Parquet file claims; InputError when it has none or it is damaged."""
    try:
        footer = Thrift(_footer(path)).structure()
        return [_row_group(group) for group in footer.get(_ROW_GROUPS, [])]
    except (IndexError, ValueError, AttributeError, TypeError) as error:
        raise InputError(f"{path} cannot be read as Parquet: its footer is damaged") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def _footer(path: Path) -> bytes:
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - 8))
        tail = stream.read(8)
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != MAGIC or length > size - 12:
            raise InputError(
                f"{path} cannot be read as Parquet: its end is missing, so it is truncated or another form"
            )
        if length > MAX_FOOTER_BYTES:
            raise InputError(f"{path} has a footer of {length} bytes, which no packed file needs")
        stream.seek(size - 8 - length)
        return stream.read(length)


def _row_group(group: Mapping[int, Any]) -> RowGroup:
    values: dict[str, int] = {}
    compressed: dict[str, int] = {}
    for chunk in group[_GROUP_COLUMNS]:
        facts = chunk[_CHUNK_METADATA]
        name = facts[_PATH][0].decode("utf-8")
        values[name] = values.get(name, 0) + int(facts[_VALUES])
        compressed[name] = compressed.get(name, 0) + int(facts[_COMPRESSED])
    return RowGroup(int(group[_GROUP_ROWS]), values, compressed)


class Thrift:
    """A reader of the compact protocol; what runs over the end raises IndexError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def structure(self, depth: int = 0) -> _Fields:
        """Return the fields of a structure by number."""
        if depth > _MAX_DEPTH:
            raise IndexError("nested too deep")
        found = _Fields()
        number = 0
        while (header := self._byte()) != 0:
            step = header >> 4
            number = number + step if step else self._integer()
            kind = header & 15
            found[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (_I16, _I32, _I64):
            return self._integer()
        if kind == _BINARY:
            return self._bytes(self._varint())
        if kind == _STRUCT:
            return self.structure(depth + 1)
        if kind in (_LIST, _SET):
            return self._list(depth)
        if kind == _MAP:
            return self._map(depth)
        if kind in (_BYTE, _TRUE, _FALSE):
            return self._byte()
        if kind == _DOUBLE:
            return self._bytes(8)
        raise IndexError("unknown type")

    def _list(self, depth: int) -> list[Any]:
        header = self._byte()
        size = header >> 4 if header >> 4 != 15 else self._varint()
        self._check(size)
        return [self._value(header & 15, depth + 1) for _ in range(size)]

    def _map(self, depth: int) -> None:
        size = self._varint()
        self._check(size)
        kinds = self._byte() if size else 0
        for _ in range(size):
            self._value(kinds >> 4, depth + 1)
            self._value(kinds & 15, depth + 1)

    def _check(self, size: int) -> None:
        """Every item takes a byte at least."""
        if size > len(self._data) - self._at:
            raise IndexError("more items than bytes")

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _bytes(self, size: int) -> bytes:
        self._check(size)
        self._at += size
        return self._data[self._at - size : self._at]

    def _varint(self) -> int:
        found = shift = 0
        while True:
            byte = self._byte()
            found |= (byte & 127) << shift
            if byte < 128:
                return found
            shift += 7
            if shift > 63:
                raise IndexError("number too long")

    def _integer(self) -> int:
        found = self._varint()
        return (found >> 1) ^ -(found & 1)


class _Fields(dict[int, Any]):
    """Fields of a structure; one that is asked for and not there is damage."""

    def __missing__(self, number: int) -> Any:
        raise IndexError(f"field {number} is missing")
