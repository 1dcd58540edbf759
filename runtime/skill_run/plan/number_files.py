"""Files of lengths: numbers in text, arrays of numpy, histograms as CSV, TSV or JSON; read a block at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from skill_run.config.text import parse_json, read_text
from skill_run.errors import InputError
from skill_run.plan.lengths import Ints, LengthCounter, Lengths, as_int64, from_mapping, from_pairs, refusal
from skill_run.report.safe import clip, flow

_BLOCK: Final = 2**22
_MAX_JSON: Final = 2**26
_MAX_LINE: Final = 2**16
_ONLY_NUMBERS: Final = re.compile(rb"[0-9,\s\[\]]*")
_TOO_LONG: Final = re.compile(rb"[0-9]{19}")
_TOKEN: Final = re.compile(rb"[^,\s\[\]]+")
_SEPARATORS: Final = bytes.maketrans(b"[],", b"   ")
_HEADER: Final = re.compile(rb"\s*[\"']?[A-Za-z_][\w .#\"'-]*\n")
_CELLS: Final = re.compile(r"[,;\t]|\s+")
_LENGTH_NAMES: Final = frozenset(("length", "lengths", "len", "tokens", "num_tokens", "seq_len"))
_COUNT_NAMES: Final = frozenset(("count", "counts", "samples", "n", "number", "frequency"))


def read_numbers(path: Path, name: str) -> Lengths:
    """Return the lengths of a text of numbers: one a line, or a JSON list of them."""
    counter = LengthCounter(name)
    line = 1
    with path.open("rb") as stream:
        for at, block in enumerate(_blocks(stream, name)):
            body, first = block, line
            line += block.count(b"\n")
            if at == 0:
                header = _HEADER.match(body)
                skipped = header.end() if header is not None else 3 if body.startswith(b"\xef\xbb\xbf") else 0
                first += body[:skipped].count(b"\n")
                body = body[skipped:]
            counter.add(_numbers(body, name, first))
    return counter.lengths("lengths")


def _blocks(stream: IO[bytes], name: str) -> Iterator[bytes]:
    """Yield the text in blocks that end between two numbers."""
    rest = b""
    while data := stream.read(_BLOCK):
        data = rest + data
        cut = max(data.rfind(b"\n"), data.rfind(b","), data.rfind(b" ")) + 1
        if cut == 0 and len(data) > _MAX_LINE:
            raise InputError(f"{name} is no list of lengths: it has {len(data)} bytes without a separator")
        yield data[:cut]
        rest = data[cut:]
    yield rest


def _numbers(text: bytes, name: str, line: int) -> Ints:
    if _ONLY_NUMBERS.fullmatch(text) is None or _TOO_LONG.search(text) is not None:
        raise InputError(_first_wrong(text, name, line))
    if not any(digit in text for digit in b"0123456789"):
        return np.empty(0, dtype=np.int64)
    # Only digits and white space are left, so that nothing is read in part.
    found = np.fromstring(text.translate(_SEPARATORS).decode("ascii"), dtype=np.int64, sep=" ")
    if found.size and int(found.min()) < 1:
        raise InputError(_first_wrong(text, name, line))
    return found


def _first_wrong(text: bytes, name: str, line: int) -> str:
    for token in _TOKEN.finditer(text):
        written = token[0]
        if not written.isdigit() or len(written) > 18 or int(written) < 1:
            place = line + text[: token.start()].count(b"\n")
            number = int(written) if written.isdigit() and len(written) < 1000 else None
            shown = number if number is not None else written[:200].decode("utf-8", "replace")
            return f"{name}:{place}: {refusal(shown)}"
    return f"{name} is no list of lengths"


def read_table(path: Path, name: str) -> Lengths:
    """Return the lengths of a table with a length and a count in each line, separated by commas, tabs or spaces.

    A first line of names says which column is which (length and count); without it length comes first.
    """
    return from_pairs(_rows(path, name), name)


def _rows(path: Path, name: str) -> Iterator[tuple[str, str]]:
    columns = (0, 1)
    first = True
    with path.open("rb") as stream:
        number = 0
        while raw := stream.readline(_MAX_LINE):
            number += 1
            cells = _cells(raw, name, number)
            if not cells:
                continue
            if first and not cells[0].lstrip("-").isdigit():
                columns = _columns(cells, name)
            elif len(cells) != 2 and max(columns) >= len(cells):
                raise InputError(f"{name}:{number}: a line has a length and a count, not {clip(flow(str(cells)), 60)}")
            else:
                yield cells[columns[0]], cells[columns[1]]
            first = False


def _cells(raw: bytes, name: str, number: int) -> list[str]:
    try:
        text = raw.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise InputError(f"{name}:{number} is not UTF-8 text") from error
    return [cell.strip().strip("\"'") for cell in _CELLS.split(text)] if text else []


def _columns(cells: list[str], name: str) -> tuple[int, int]:
    names = [cell.lower() for cell in cells]
    length = next((at for at, cell in enumerate(names) if cell in _LENGTH_NAMES), None)
    count = next((at for at, cell in enumerate(names) if cell in _COUNT_NAMES), None)
    if length is None or count is None:
        raise InputError(f"{name} has the columns {clip(flow(', '.join(cells)), 80)}; length and count are needed")
    return length, count


def read_array(path: Path, name: str) -> Lengths:
    """Return the lengths of a .npy array of whole numbers, mapped into memory and read in blocks."""
    from skill_run.pack.npy import read_npy_header

    with path.open("rb") as stream:
        shape, _, dtype = read_npy_header(stream, name)
        start = stream.tell()
    if dtype.kind not in "iu":
        raise InputError(f"{name} holds values of type {dtype}; lengths are whole numbers of tokens")
    if len(shape) != 1:
        raise InputError(f"{name} is an array of shape {shape}; lengths are one list of numbers")
    if shape[0] * dtype.itemsize > path.stat().st_size - start:
        raise InputError(f"{name} is cut short: it says {shape[0]} numbers and does not hold them")
    counter = LengthCounter(name)
    if shape[0]:
        data = np.memmap(path, dtype=dtype, mode="r", offset=start, shape=shape)
        for at in range(0, shape[0], _BLOCK):
            counter.add(as_int64(data[at : at + _BLOCK]))
    return counter.lengths("lengths")


def read_json(path: Path, name: str) -> Lengths:
    """Return the lengths of JSON: {"400": 17}, {"lengths": [...]}, pairs [[400, 17]] or [{"length", "count"}]."""
    data: Any = parse_json(read_text(path, _MAX_JSON), name)
    if isinstance(data, dict):
        return from_mapping(data, name)
    if isinstance(data, list) and data and all(isinstance(item, list) and len(item) == 2 for item in data):
        return from_pairs(((length, count) for length, count in data), name)
    if isinstance(data, list) and data and all(isinstance(item, dict) and set(item) >= _COUNTED for item in data):
        return from_pairs(((item["length"], item["count"]) for item in data), name)
    if isinstance(data, list) and not data:
        raise InputError(f"{name} holds no lengths; there is nothing to plan for")
    raise InputError(f'{name} holds no lengths: a histogram is {{"400": 17, ...}}, a list of lengths is [400, 17, ...]')


_COUNTED: Final = frozenset(("length", "count"))
