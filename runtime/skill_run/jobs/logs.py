"""Read the logs of a job in bounded time and memory, whatever they hold."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from skill_run.errors import InputError
from skill_run.jobs.folder import LOG, RANK_LOGS
from skill_run.report.safe import printable

LONGEST_LINE: Final = 2000
_TAIL_BYTES: Final = 4 * 2**20
_MOST_LOGS: Final = 512
_CHUNK: Final = 2**20
_DIGITS: Final = b"0123456789"
_ALIKE, _KINDS = 4, 20_000
_RANK_FILE: Final = re.compile(r"rank[_-]?(\d{1,6})\b")
# torchrun's folders: attempt_0/3/stderr.log.
_RANK_FOLDER: Final = re.compile(r"attempt_\d{1,4}/(\d{1,6})/")


@dataclass(frozen=True, slots=True)
class Log:
    """A log of a job; rank: whose it is, None for one of all together; name: relative to the job's folder."""

    path: Path
    name: str
    rank: int | None


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log. offset: its first byte; text: without what no terminal should get."""

    log: Log
    offset: int
    text: str


def find_logs(folder: Path) -> list[Log]:
    """Return the logs that a job's folder holds, the common one first; links are not followed."""
    found = [Log(folder / LOG, LOG, None)] if (folder / LOG).is_file() else []
    for place, folders, names in os.walk(folder / RANK_LOGS):
        folders.sort()
        for name in sorted(names):
            path = Path(place, name)
            if name.endswith((".log", ".err", ".out")) and path.is_file() and not path.is_symlink():
                told = str(path.relative_to(folder))
                rank = _RANK_FILE.search(name) or _RANK_FOLDER.search(told)
                found.append(Log(path, told, int(rank[1]) if rank else None))
            if len(found) >= _MOST_LOGS:
                return found
    return found


def pick_log(folder: Path, rank: int | None) -> Log:
    """Return the log of a rank, or the common one. Raises InputError when there is none."""
    for log in find_logs(folder):
        if log.rank == rank:
            return log
    raise InputError("the job has written no log yet" if rank is None else f"there is no log of rank {rank}")


def tail(log: Log, lines: int) -> list[str]:
    """Return the last lines of a log, each clipped and printable."""
    follower = Follower(log.path)
    found = follower.last_lines(lines) + follower.rest()
    return found[max(0, len(found) - lines) :]


class Follower:
    """Reads what a log gains, in whole lines; one that is not there yet, or was replaced, is read from its start."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        """Take the log and the byte to begin with."""
        self._path = path
        self._offset = offset
        self._rest = b""

    def last_lines(self, lines: int) -> list[str]:
        """Return the last complete lines, at most so many, and go on after them."""
        try:
            with self._path.open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                start = max(0, size - _TAIL_BYTES)
                stream.seek(start)
                *whole, self._rest = stream.read(size - start).split(b"\n")
        except FileNotFoundError:
            return []
        self._offset = size
        if start and whole:
            del whole[0]
        return [clean(line) for line in whole[max(0, len(whole) - lines) :]]

    def new_lines(self) -> list[str]:
        """Return the lines that were completed since the last call, a chunk at most."""
        try:
            with self._path.open("rb") as stream:
                if os.fstat(stream.fileno()).st_size < self._offset:
                    self._offset, self._rest = 0, b""
                stream.seek(self._offset)
                data = stream.read(_CHUNK)
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _CHUNK:
            whole, self._rest = [*whole, self._rest], b""
        return [clean(line) for line in whole]

    def rest(self) -> list[str]:
        """Return the last line when it has no end."""
        rest, self._rest = self._rest, b""
        return [clean(rest)] if rest else []


def clean(line: bytes) -> str:
    """Return a line as text: what a progress bar wrote last, clipped, without characters that steer a terminal."""
    line = line.rstrip(b"\r").rpartition(b"\r")[2]
    text = line[: LONGEST_LINE * 4].decode("utf-8", "replace").expandtabs(4)
    return printable(re.sub(r"\x1b\[[0-9;]{0,20}[A-Za-z]", "", text)[:LONGEST_LINE])


def marked_lines(log: Log, words: tuple[bytes, ...], *, each: int, largest: int) -> Iterator[Line]:
    """Yield the lines that hold one of some words, in order: the first `each` of them and the last `each`.

    Lines that differ in numbers only are yielded a few times. Of a file larger than `largest` bytes the first quarter
    of that and the last three are read.
    """
    try:
        size = log.path.stat().st_size
        spans = [(0, size)] if size <= largest else [(0, largest // 4), (size - largest // 4 * 3, size)]
        first: list[Line] = []
        seen: dict[bytes, int] = {}
        last: dict[int, Line] = {}
        for start, end in spans:
            for line in _marked(log, words, seen, start, end):
                if len(first) < each:
                    first.append(line)
                else:
                    last[line.offset] = line
                    if len(last) > each:
                        del last[next(iter(last))]
    except OSError:
        # A log that vanishes while it is read has nothing more to tell.
        return
    yield from first
    yield from last.values()


def _marked(log: Log, words: tuple[bytes, ...], seen: dict[bytes, int], start: int, end: int) -> Iterator[Line]:
    with log.path.open("rb") as stream:
        stream.seek(start)
        at, rest = start, b""
        while at < end:
            data = stream.read(min(_CHUNK, end - at))
            if not data:
                break
            block, base = rest + data, at - len(rest)
            at += len(data)
            cut = block.rfind(b"\n") + 1
            if cut == 0 and len(block) < 2 * _CHUNK:
                rest = block
                continue
            cut = cut or len(block)
            yield from _in_block(log, block[:cut], base, words, seen)
            rest = block[cut:]
        yield from _in_block(log, rest, at - len(rest), words, seen)


def _in_block(log: Log, block: bytes, base: int, words: tuple[bytes, ...], seen: dict[bytes, int]) -> Iterator[Line]:
    found: dict[int, int] = {}
    for word in words:
        at = block.find(word)
        while at >= 0:
            end = block.find(b"\n", at)
            end = len(block) if end < 0 else end
            found.setdefault(block.rfind(b"\n", 0, at) + 1, at)
            at = block.find(word, end)
    for start in sorted(found):
        # The beginning as it is: it tells the rank.
        key = block[start : start + 12] + block[start + 12 : start + 200].partition(b"\n")[0].translate(None, _DIGITS)
        if seen.get(key, 0) >= _ALIKE:
            continue
        if len(seen) < _KINDS:
            seen[key] = seen.get(key, 0) + 1
        # A long line is cut around the word.
        begin = max(start, found[start] - LONGEST_LINE // 2)
        end = block.find(b"\n", found[start])
        end = len(block) if end < 0 else end
        yield Line(log, base + start, clean(block[begin : min(end, begin + LONGEST_LINE)]))
