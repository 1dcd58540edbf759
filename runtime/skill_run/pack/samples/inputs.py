"""The files of a data set and the chunks they are read in; the chunks never depend on how many processes there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from skill_run.errors import InputError
from skill_run.pack.samples.convert import Row, parse_line
from skill_run.pack.samples.sample import BadSampleError
from skill_run.report.safe import clip, flow

TRAINING: Final = "training.jsonl"
# One chunk of text is tokenised in about a second; ids take less time for the same bytes.
_TEXT_CHUNK: Final = 2**20
_TOKEN_CHUNK: Final = 2**23
LONGEST_LINE: Final = 2**26
_STEP: Final = 2**16
_HEAD: Final = 2**20
_PARQUET: Final = b"PAR1"
_ARRAYS: Final = b"\x93NUMPY"
_COMPRESSED: Final = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7z": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK": "zip"}


@dataclass(frozen=True, slots=True)
class Source:
    """One input file: JSON lines, or Parquet with this number of row groups."""

    path: Path
    size: int
    row_groups: int | None


@dataclass(frozen=True, slots=True)
class Item:
    """One chunk of a source: bytes `start` to `end` of JSON lines, or row group `start` of a Parquet file.

    size: its share of the file's bytes, for progress.
    """

    source: int
    start: int
    end: int
    size: int


def find_sources(data: Path | str | Sequence[Path | str]) -> tuple[Source, ...]:
    """Return the files of a data set: the file, the training.jsonl of a folder, or several files in the given order.

    Raises InputError for what is not there, is compressed, is packed already or holds nothing at all.
    """
    given = [data] if isinstance(data, str | Path) else list(data)
    if not given:
        raise InputError("no data file is given")
    sources = tuple(_source(Path(each)) for each in given)
    if not any(source.size for source in sources):
        raise InputError(f"{_shown(sources[0].path)} holds no samples: it is empty")
    return sources


def _source(path: Path) -> Source:
    try:
        if path.is_dir():
            return _source(_in_folder(path))
        with open(path, "rb") as file:
            head = file.read(8)
        size = path.stat().st_size
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no path"
        raise InputError(f"{_shown(path)} cannot be read: {reason}") from error
    for magic, name in _COMPRESSED.items():
        if head.startswith(magic):
            raise InputError(
                f"{_shown(path)} is compressed ({name}); Megatron-Bridge reads plain JSON lines, so unpack it"
            )
    if head.startswith(_ARRAYS):
        raise InputError(f"{_shown(path)} is a NumPy file (packed already?); samples are JSON lines or Parquet")
    if head.startswith(_PARQUET):
        from skill_run.pack.samples.parquet import count_row_groups

        return Source(path, size, count_row_groups(path))
    if head.lstrip().startswith(b"["):
        raise InputError(f"{_shown(path)} is one JSON array; samples are JSON lines, one object on each")
    return Source(path, size, None)


def _in_folder(folder: Path) -> Path:
    for name in (TRAINING, "training.parquet"):
        if (folder / name).is_file():
            return folder / name
    raise InputError(f"{_shown(folder)} has no {TRAINING}; give that folder, or the data files themselves")


def _shown(path: Path) -> str:
    return clip(flow(str(path)), 200)


def first_row(sources: Sequence[Source]) -> Row | None:
    """Return the first line that is a JSON object (or the first row), None when none near the beginning is."""
    for source in sources:
        if source.row_groups is not None:
            from skill_run.pack.samples.parquet import read_first_row

            row = read_first_row(source.path)
        else:
            row = _first_line(source.path)
        if row is not None:
            return row
    return None


def _first_line(path: Path) -> Row | None:
    with open(path, "rb") as file:
        head = file.read(_HEAD)
        if b"\n" not in head:
            head += file.read(LONGEST_LINE)
    for line in head.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        try:
            return parse_line(line)
        except BadSampleError:
            continue
    return None


def find_items(sources: Sequence[Source], *, tokens: bool) -> Iterator[Item]:
    """Yield the chunks of all sources in order; each ends behind a line break or at the end of its file."""
    chunk = _TOKEN_CHUNK if tokens else _TEXT_CHUNK
    for number, source in enumerate(sources):
        if source.row_groups is not None:
            share = source.size // max(source.row_groups, 1)
            for group in range(source.row_groups):
                yield Item(number, group, group + 1, share)
            continue
        with open(source.path, "rb") as file:
            start = 0
            while start < source.size:
                end = _line_end(file, min(start + chunk, source.size), source.size)
                yield Item(number, start, end, end - start)
                start = end


def _line_end(file: BinaryIO, at: int, size: int) -> int:
    """Return the place behind the first line break at or after byte `at - 1`."""
    place = max(at - 1, 0)
    file.seek(place)
    while place < size:
        step = file.read(_STEP)
        if not step:
            return size
        found = step.find(b"\n")
        if found >= 0:
            return place + found + 1
        place += len(step)
    return size


def read_lines(path: Path, item: Item) -> tuple[bytes, bool]:
    """Return the lines of a chunk, and whether an endless one that follows them was left out."""
    with open(path, "rb") as file:
        file.seek(item.start)
        if item.end - item.start <= _TOKEN_CHUNK + LONGEST_LINE:
            return file.read(item.end - item.start), False
        data = file.read(_TOKEN_CHUNK)
    return data[: data.rfind(b"\n") + 1], True
