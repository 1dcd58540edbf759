"""Load what a user points at, whatever its form: a batch, the same batch of several ranks, or a packed dataset.

No form can run code: a pickle is read by `pack/unpickle.py`, which calls nothing, or by torch in a child process with
weights_only. Sizes are checked before memory is taken for them.
"""

from __future__ import annotations

import glob
import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from skill_run.batch.npz import read_npz
from skill_run.batch.safetensors import read_safetensors
from skill_run.config.text import parse_json
from skill_run.errors import InputError
from skill_run.pack.facts import facts_dataset
from skill_run.pack.reader import Dataset, Kind
from skill_run.report.safe import clip, flow

MAX_FILE_BYTES: Final = 2**29
# JSON takes up to thirty times its size in memory.
MAX_JSON_BYTES: Final = 2**26
MAX_FILES: Final = 4096

DATASET_SUFFIXES: Final[dict[str, Kind]] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".npy": "npy",
    ".arrow": "arrow",
    ".feather": "arrow",
}
TORCH_SUFFIXES: Final = (".pt", ".pth")
JSON_SUFFIXES: Final = (".json", ".jsonl", ".ndjson")
BATCH_SUFFIXES: Final = (".safetensors", ".npz", *JSON_SUFFIXES, *TORCH_SUFFIXES)
_KNOWN: Final = ", ".join((*BATCH_SUFFIXES, *DATASET_SUFFIXES))
_RANK: Final = re.compile(r"rank[_-]?(\d{1,6})", re.IGNORECASE)
_NUMBERED: Final = re.compile(r"(.+)#(\d{1,9})$", re.DOTALL)
# What upstream writes beside packed files and raw samples, which is neither a batch nor a dataset.
_BESIDE: Final = re.compile(r"_metadata\.jsonl?$|\.jsonl?\.idx\.npy$")


@dataclass(frozen=True, slots=True)
class Found:
    """The files that a source names, in order, and the number of the batch asked for (`FILE#2`), if any."""

    shown: str
    files: tuple[Path, ...]
    number: int | None = None


def load_source(source: str | Path, *, python: str | Path | None = None) -> Mapping[str, Any] | Dataset:
    """Return the batch that a file holds, a mapping of batches by rank, or the packed dataset.

    source: a file; `FILE#N` for the Nth of several batches in it; a folder or a glob of packed files, or of one batch
    as several ranks hold it (`rank` and its number in each name). python: an interpreter with torch, for .pt and .pth.

    Raises InputError when it cannot be read or is none of these, MissingError when that needs what is not installed.
    """
    found = find_files(source)
    if len(found.files) == 1:
        return _load_file(found.files[0], found.number, python)
    kinds = {_kind(path) for path in found.files}
    if len(kinds) == 1 and None not in kinds:
        return _dataset(found.files)
    if None not in kinds:
        raise InputError(f"{found.shown} names packed files of several kinds; name those of one kind")
    return _load_ranks(found, python)


def find_files(source: str | Path) -> Found:
    """Return the files that a source names, without opening one; InputError when there are none."""
    shown = clip(flow(str(source)), 200)
    text, number = str(source), None
    if not text or "\0" in text:
        raise InputError("the path of the batch is empty or holds a zero byte")
    numbered = _NUMBERED.match(text)
    if numbered is not None and not _there(text) and _there(numbered[1]):
        text, number = numbered[1], int(numbered[2])
    if _there(text):
        files = _folder(Path(text)) if os.path.isdir(text) else [Path(text)]
    elif glob.has_magic(text):
        files = _regular(Path(name) for name in glob.iglob(text))
    else:
        raise InputError(f"{shown} is not there: no such file or folder")
    if not files:
        raise InputError(f"{shown} names no file that holds a batch or packed rows ({_KNOWN})")
    return Found(shown, tuple(files), number)


def _there(text: str) -> bool:
    try:
        return os.path.exists(text)
    except (OSError, ValueError):
        return False


def _regular(paths: Any) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if path.is_file() and not _BESIDE.search(path.name) and not path.name.startswith("."):
            found.append(path)
        if len(found) > MAX_FILES:
            raise InputError(f"{path.parent} holds more than {MAX_FILES} files; name some of them by a glob")
    return sorted(found)


def _folder(path: Path) -> list[Path]:
    """Return what a folder holds of the first kind in this order: packed files, per-rank batches, one batch."""
    try:
        names = _regular(path / entry.name for entry in os.scandir(path))
    except OSError as error:
        raise InputError(f"{path} cannot be listed: {error.strerror}") from error
    for kind in dict.fromkeys(DATASET_SUFFIXES.values()):
        packed = [name for name in names if _kind(name) == kind]
        if packed:
            return packed
    batches = [name for name in names if name.suffix.lower() in BATCH_SUFFIXES]
    ranked = [name for name in batches if _RANK.search(name.name)]
    if not ranked and len(batches) > 1:
        raise InputError(f"{path} holds {len(batches)} files that may be batches; name one, such as {batches[0]}")
    return ranked or batches


def _kind(path: Path) -> Kind | None:
    return DATASET_SUFFIXES.get(path.suffix.lower())


def _dataset(files: Sequence[Path]) -> Dataset:
    for path in files:
        _check_file(path, None)
    kind = _kind(files[0])
    assert kind is not None
    return Dataset(kind, tuple(files))


def _check_file(path: Path, limit: int | None) -> None:
    try:
        facts = path.stat()
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not stat.S_ISREG(facts.st_mode):
        raise InputError(f"{path} is not a regular file")
    if facts.st_size == 0:
        raise InputError(f"{path} is empty")
    if limit is not None and facts.st_size > limit:
        raise InputError(f"{path} has {facts.st_size} bytes, which is more than one batch can have ({limit})")


def _read(path: Path, limit: int) -> bytes:
    _check_file(path, limit)
    try:
        with path.open("rb") as stream:
            data = stream.read(limit + 1)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > limit:
        raise InputError(f"{path} is more than one batch can have ({limit} bytes)")
    return data


def _load_file(path: Path, number: int | None, python: str | Path | None) -> Mapping[str, Any] | Dataset:
    suffix = path.suffix.lower()
    if _kind(path) is not None:
        if number is not None:
            raise InputError(f"{path} is a packed dataset, which is inspected as a whole: leave out #{number}")
        return _dataset([path])
    if suffix in JSON_SUFFIXES:
        return _load_json(path, number)
    if suffix not in BATCH_SUFFIXES:
        raise InputError(f"{path} has a name that tells no form of batch or packed file; known are {_KNOWN}")
    return _one(_load_batches([path], python)[0], path, number)


def _load_batches(paths: Sequence[Path], python: str | Path | None) -> list[Any]:
    """Return what files of one form hold; torch starts only once for all of them."""
    if paths[0].suffix.lower() in TORCH_SUFFIXES:
        from skill_run.batch.torch_file import read_torch

        for path in paths:
            _check_file(path, MAX_FILE_BYTES)
        return read_torch(paths, python, MAX_FILE_BYTES)
    found: list[Any] = []
    for path in paths:
        if path.suffix.lower() == ".npz":
            _check_file(path, MAX_FILE_BYTES)
            found.append(read_npz(path, MAX_FILE_BYTES))
        elif path.suffix.lower() == ".safetensors":
            found.append(read_safetensors(path, _read(path, MAX_FILE_BYTES)))
        else:
            found.append(_load_json(path, None))
    return found


def _one(held: Any, path: Path, number: int | None) -> Mapping[str, Any]:
    """Return the batch that a file holds, or the one that was asked for."""
    batches: list[Any] = held if isinstance(held, list) else [held]
    if not batches or not all(isinstance(batch, Mapping) for batch in batches):
        raise InputError(f"{path} holds no batch: a mapping from names to arrays is needed, not {_word(held)}")
    found: Mapping[str, Any] = _pick(batches, path, number)
    return found


def _word(value: Any) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)} items"
    return {"ndarray": "one array", "NoneType": "null"}.get(type(value).__name__, f"a {type(value).__name__}")


def _pick(batches: Sequence[Any], path: Path, number: int | None) -> Any:
    """Return the Nth item, counted from 1; without a number there may be only one."""
    count = len(batches)
    if number is None:
        if count > 1:
            raise InputError(f"{path} holds {count} batches; name one of them: {path}#1 to {path}#{count}")
        return batches[0]
    if not 1 <= number <= count:
        raise InputError(f"{path} holds {count} batches, so #{number} is not there (#1 to #{count})")
    return batches[number - 1]


# JSON


def _load_json(path: Path, number: int | None) -> Mapping[str, Any] | Dataset:
    if _BESIDE.search(path.name):
        raise InputError(f"{path} is packing metadata; name the packed file or the folder it belongs to")
    data = _read(path, MAX_JSON_BYTES)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start})") from error
    held = _parse(text, path)
    dataset = facts_dataset(held, str(path))
    if dataset is not None:
        return Dataset(dataset.kind, (path,), dataset.facts)
    if path.suffix.lower() != ".json" and isinstance(held, list) and len(held) == 1:
        held = held[0]
    return _one(held, path, number)


def _parse(text: str, path: Path) -> Any:
    """Return the data of a JSON file, or of a file of JSON lines as a list."""
    if path.suffix.lower() == ".json":
        return parse_json(text, str(path))
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    found = []
    for number, line in lines:
        try:
            found.append(json.loads(line))
        except RecursionError as error:
            raise InputError(f"{path}:{number}: the JSON is nested too deep") from error
        except ValueError as error:
            if not found:
                return parse_json(text, str(path))
            raise InputError(f"{path}:{number}: this line is not valid JSON") from error
    return found


# Ranks


def _load_ranks(found: Found, python: str | Path | None) -> Mapping[str, Any]:
    """Return the batches of several ranks by rank name; their files are told by `rank` and its number."""
    by_rank: dict[int, list[Path]] = {}
    for path in found.files:
        match = _RANK.search(path.name)
        if match is None or path.suffix.lower() not in BATCH_SUFFIXES:
            raise InputError(
                f"{found.shown} names {len(found.files)} files that are neither packed files nor one batch of each "
                f"rank (rank0_*, rank1_*, ...): {path.name}"
            )
        by_rank.setdefault(int(match[1]), []).append(path)
    most = max(len(paths) for paths in by_rank.values())
    if most > 1:
        first = by_rank[min(by_rank)][0]
        one = first.with_name(_RANK.sub(lambda match: match[0].replace(match[1], "*"), first.name, count=1))
        raise InputError(f"{found.shown} names up to {most} batches of one rank; name one of each, such as {one}")
    ranks = sorted(by_rank)
    paths = [by_rank[rank][0] for rank in ranks]
    if len({path.suffix.lower() for path in paths}) > 1:
        raise InputError(f"{found.shown} names files of several forms; name those of one form")
    if sum(path.stat().st_size for path in paths) > MAX_FILE_BYTES:
        raise InputError(f"{found.shown} names more data than one batch can have ({MAX_FILE_BYTES} bytes)")
    held = _load_batches(paths, python)
    return {f"rank{rank}": _one(batch, path, None) for rank, path, batch in zip(ranks, paths, held, strict=True)}
