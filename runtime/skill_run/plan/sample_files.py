"""Lengths of a data set's samples: text through the tokenizer as upstream's data set does, tokens by their number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from skill_run.errors import InputError
from skill_run.pack.samples.convert import parse_line
from skill_run.pack.samples.counts import PLACES
from skill_run.pack.samples.inputs import LONGEST_LINE
from skill_run.pack.samples.options import LONGEST, SampleOptions
from skill_run.pack.samples.read import read_samples
from skill_run.pack.samples.sample import BadSampleError
from skill_run.plan.lengths import LengthCounter, Lengths
from skill_run.plan.token_files import TOKEN_COLUMNS
from skill_run.report.wording import count

if TYPE_CHECKING:
    from skill_run.pack.samples.block import Progress
    from skill_run.plan.sources import Reading

_BATCH: Final = 65536


def read_text_lengths(path: Path, name: str, reading: Reading) -> Lengths:
    """Return the stored lengths of samples of text, none of them cut.

    Raises InputError for broken lines (all their places, unless reading.skip_bad), or when a tokenizer is missing.
    """
    unknown = sorted(set(reading.options or ()) - {each.name for each in fields(SampleOptions)})
    if unknown:
        raise InputError(f"{', '.join(unknown)} is no option of a data set")
    options = {"bridge": reading.bridge, "seq_length": LONGEST, **(reading.options or {})}
    stream = read_samples(
        path,
        tokenizer=reading.tokenizer,
        options=SampleOptions(**options),
        workers=reading.workers,
        skip_bad=reading.skip_bad,
        on_progress=_shown(reading),
    )
    counter = LengthCounter(name)
    for block in stream:
        counter.add(block.lengths.astype(np.int64))
    notes = []
    if stream.counts.bad.samples:
        notes.append(_left_out(stream.counts.bad.samples))
    if stream.counts.dropped_short.samples:
        notes.append(f"left out: {count(stream.counts.dropped_short.samples, 'sample')} of fewer than two tokens")
    return counter.lengths(
        "tokens" if stream.kind == "tokens" else "text", chat=stream.kind == "chat", notes=tuple(notes)
    )


def _shown(reading: Reading) -> Any:
    tell = reading.on_progress
    if tell is None:
        return None

    def show(progress: Progress) -> None:
        done = {"done": progress.done_bytes, "total": progress.total_bytes}
        tell({"event": "progress", "text": f"{progress.samples} samples", **done})

    return show


def read_token_lines(path: Path, name: str, reading: Reading) -> Lengths:
    """Return the stored lengths of JSON lines with token ids; what is trained of them need not be told.

    Raises InputError for broken lines, with the first places, unless reading.skip_bad.
    """
    counter = LengthCounter(name)
    bad: list[str] = []
    broken = 0
    lengths: list[int] = []
    for number, line in _lines(path, name):
        try:
            lengths.append(_tokens(line))
        except BadSampleError as error:
            broken += 1
            bad += [f"{name}:{number}: {error}"] if len(bad) < PLACES else []
        if len(lengths) == _BATCH:
            counter.add(np.array(lengths, dtype=np.int64))
            lengths = []
    if broken and not reading.skip_bad:
        raise InputError(f"{count(broken, 'line')} cannot be read ({'; '.join(bad)}); mend them, or pass --skip-bad")
    counter.add(np.array(lengths, dtype=np.int64))
    return counter.lengths("tokens", notes=(_left_out(broken),) if broken else ())


def _left_out(lines: int) -> str:
    return f"left out: {count(lines, 'line')} that cannot be read"


def _lines(path: Path, name: str) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as stream:
        number = 0
        while line := stream.readline(LONGEST_LINE + 1):
            number += 1
            if len(line) > LONGEST_LINE:
                raise InputError(f"{name}:{number} is longer than {LONGEST_LINE >> 20} MiB, which no sample is")
            if line.strip(b"\xef\xbb\xbf \t\r\n"):
                yield number, line


def _tokens(line: bytes) -> int:
    row = parse_line(line.removeprefix(b"\xef\xbb\xbf"))
    column = next((each for each in TOKEN_COLUMNS if each in row), None)
    if column is None:
        raise BadSampleError(f"there is none of {', '.join(TOKEN_COLUMNS)}")
    ids = row[column]
    if not isinstance(ids, list) or not ids:
        raise BadSampleError(f"'{column}' is no list of token ids")
    return len(ids)
