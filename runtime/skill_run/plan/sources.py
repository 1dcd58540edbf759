"""Tell what a plan's source is (samples, tokens, packed files, lengths, a histogram) and read its lengths."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from skill_run.batch.load import DATASET_SUFFIXES, find_files
from skill_run.config.text import parse_json, read_text
from skill_run.errors import InputError
from skill_run.pack.facts import facts_dataset
from skill_run.pack.reader import STARTS, Dataset
from skill_run.pack.reader import Kind as PackedKind
from skill_run.plan.lengths import KINDS, Kind, Lengths, from_mapping, from_values
from skill_run.plan.number_files import read_array, read_json, read_numbers, read_table
from skill_run.plan.token_files import LENGTH_COLUMNS, TOKEN_COLUMNS, parquet_columns, read_packed, read_parquet_lengths
from skill_run.report.safe import clip, flow

STDIN: Final = "-"
_STDIN_NAME: Final = "standard input"
_HEAD: Final = 2**16
_NPY: Final = b"\x93NUMPY"
_PARQUET: Final = b"PAR1"
_ARROW: Final = b"ARROW1"
_TRAINING: Final = "training.jsonl"
_JSON_BYTES: Final = 2**26


@dataclass(frozen=True, slots=True)
class Reading:
    """How samples are read: the release whose conventions hold, the tokenizer's folder, what becomes of broken lines.

    on_progress: told as a worker tells its own: samples and bytes so far, while text is tokenised.
    """

    bridge: str
    tokenizer: str | Path | None = None
    options: Mapping[str, Any] | None = None
    skip_bad: bool = False
    workers: int = 1
    on_progress: Callable[[Mapping[str, Any]], None] | None = None


def read_lengths(source: Any, reading: Reading, *, kind: Kind | None = None) -> Lengths:
    """Return the lengths of a path, `-` for standard input, a mapping {length: count} or an array of lengths.

    Raises InputError when the source cannot be read or holds no lengths, MissingError without a package it needs.
    """
    if kind is not None and kind not in KINDS:
        raise InputError(f"a source is one of {', '.join(KINDS)}, not {clip(flow(str(kind)), 40)}")
    if isinstance(source, Mapping):
        return from_mapping(source, "the histogram")
    if not isinstance(source, str | Path):
        if not hasattr(source, "__len__"):
            raise InputError(f"lengths are a path, a mapping or a list, not a value of type {type(source).__name__}")
        return from_values(source, "the lengths")
    if str(source) == STDIN:
        return _of_stdin(reading, kind)
    text = str(source)
    folder = Path(text) / _TRAINING
    if kind in (None, "text", "tokens") and _is_file(folder):
        return _of_file(folder, str(folder), reading, kind)
    found = find_files(source)
    if len(found.files) > 1:
        return _of_packed(found.files, found.shown)
    return _of_file(found.files[0], found.shown, reading, kind)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _of_stdin(reading: Reading, kind: Kind | None) -> Lengths:
    """Copy standard input to a file, so that every form can be told and read as from one."""
    if sys.stdin is None:
        raise InputError("standard input is closed")
    try:
        with tempfile.NamedTemporaryFile(prefix="skill-run-lengths-") as copy:
            shutil.copyfileobj(sys.stdin.buffer, copy)
            copy.flush()
            found = _of_copy(Path(copy.name), reading, kind)
    except OSError as error:
        raise InputError(f"{_STDIN_NAME} cannot be kept in a temporary file: {error.strerror or error}") from error
    return replace(found, source=_STDIN_NAME)


def _of_copy(path: Path, reading: Reading, kind: Kind | None) -> Lengths:
    try:
        return _of_file(path, _STDIN_NAME, reading, kind)
    except InputError as error:
        # The copy's name means nothing to whoever wrote into the pipe.
        raise InputError(str(error).replace(str(path), _STDIN_NAME)) from error


def _of_packed(files: tuple[Path, ...], name: str) -> Lengths:
    kinds: set[PackedKind | None] = {DATASET_SUFFIXES.get(path.suffix.lower()) for path in files}
    if len(kinds) != 1 or None in kinds:
        raise InputError(f"{name} names {len(files)} files that are not packed files of one kind; name one file")
    (packed,) = kinds
    assert packed is not None
    return read_packed(Dataset(packed, files), name)


def _of_file(path: Path, name: str, reading: Reading, kind: Kind | None) -> Lengths:
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD)
            told = kind or tell_kind(path, head, name)
            return _READERS[told](path, name, head, reading)
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror or error}") from error


def tell_kind(path: Path, head: bytes, name: str) -> Kind:
    """Return what a file holds, by its first bytes. Raises InputError for an empty one or one that cannot be told."""
    if not head:
        raise InputError(f"{name} is empty; there is nothing to plan for")
    if head.startswith(_NPY):
        return "packed" if _holds_objects(path, name) else "lengths"
    if head.startswith(_PARQUET):
        return _parquet_kind(parquet_columns(path))
    if head.startswith(_ARROW):
        return "packed"
    return _text_kind(head, name)


def _parquet_kind(columns: frozenset[str]) -> Kind:
    if STARTS in columns:
        return "packed"
    if columns & set(TOKEN_COLUMNS):
        return "tokens"
    return "lengths" if columns & set(LENGTH_COLUMNS) else "text"


def _holds_objects(path: Path, name: str) -> bool:
    from skill_run.pack.npy import read_npy_header

    with path.open("rb") as stream:
        return bool(read_npy_header(stream, name)[2].hasobject)


def _text_kind(head: bytes, name: str) -> Kind:
    try:
        text = head.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The head of a longer file may end inside a character.
        if len(head) < _HEAD or error.start < len(head) - 4:
            raise InputError(f"{name} is neither text nor a file of arrays (byte {error.start})") from error
        text = head[: error.start].decode("utf-8-sig")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise InputError(f"{name} holds only blank space; there is nothing to plan for")
    if lines[0].startswith("{"):
        return _object_kind(lines)
    if lines[0].startswith("["):
        rest = text.lstrip()[1:].lstrip()
        if rest.startswith("{") and f'"{STARTS}"' in text:
            return "packed"
        return "histogram" if rest.startswith(("[", "{")) else "lengths"
    several = [line for line in lines[:2] if len(line.replace(",", " ").replace(";", " ").split()) > 1]
    return "histogram" if several else "lengths"


def _object_kind(lines: list[str]) -> Kind:
    try:
        first = json.loads(lines[0])
    except (ValueError, RecursionError):
        # A broken first line of many is a broken sample; one value over several lines is one JSON document.
        return "text" if lines[0].endswith("}") else "histogram"
    if STARTS in first:
        return "packed"
    if set(first) & set(TOKEN_COLUMNS):
        return "tokens"
    histogram = first and all(key.isdigit() for key in first)
    known = set(first) & {"lengths", "stored_lengths", "pack_lengths"} or set(first) == {"length", "count"}
    return "histogram" if len(lines) == 1 and (histogram or known or not first) else "text"


def _samples(path: Path, name: str, head: bytes, reading: Reading) -> Lengths:
    from skill_run.plan.sample_files import read_text_lengths

    return read_text_lengths(path, name, reading)


def _tokens(path: Path, name: str, head: bytes, reading: Reading) -> Lengths:
    if head.startswith(_PARQUET):
        return read_parquet_lengths(path, name)
    from skill_run.plan.sample_files import read_token_lines

    return read_token_lines(path, name, reading)


def _packed(path: Path, name: str, head: bytes, reading: Reading) -> Lengths:
    if not head.startswith((_NPY, _PARQUET, _ARROW)):
        dataset = facts_dataset(_json(path, name), name)
        if dataset is None:
            raise InputError(f"{name} holds no packed rows: a row has {STARTS} and input_ids")
        return read_packed(dataset, name)
    packed: PackedKind = "npy" if head.startswith(_NPY) else "parquet" if head.startswith(_PARQUET) else "arrow"
    return read_packed(Dataset(packed, (path,)), name)


def _json(path: Path, name: str) -> Any:
    text = read_text(path, _JSON_BYTES)
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].rstrip().endswith("}"):
        return [parse_json(line, f"{name}:{number}") for number, line in enumerate(lines, start=1)]
    return parse_json(text, name)


def _numbers(path: Path, name: str, head: bytes, reading: Reading) -> Lengths:
    if head.startswith(_NPY):
        return read_array(path, name)
    return read_parquet_lengths(path, name) if head.startswith(_PARQUET) else read_numbers(path, name)


def _histogram(path: Path, name: str, head: bytes, reading: Reading) -> Lengths:
    if head.startswith(_PARQUET):
        return read_parquet_lengths(path, name)
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    return read_json(path, name) if text.startswith((b"{", b"[")) else read_table(path, name)


_READERS: Final[dict[Kind, Callable[[Path, str, bytes, Reading], Lengths]]] = {
    "text": _samples,
    "tokens": _tokens,
    "packed": _packed,
    "lengths": _numbers,
    "histogram": _histogram,
}
