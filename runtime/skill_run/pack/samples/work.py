"""One chunk's work, for this process and for its children: read, convert."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from skill_run.errors import InputError
from skill_run.pack.samples.convert import Converter, make_converter
from skill_run.pack.samples.flat import Part
from skill_run.pack.samples.inputs import Item, Source, read_lines
from skill_run.pack.samples.options import SampleOptions
from skill_run.pack.samples.tokenizer import TextTokenizer, load_tokenizer
from skill_run.pack.samples.tokens import IDS


@dataclass(frozen=True, slots=True)
class Job:
    """What every process of one reading needs to know. tokenizer: its folder."""

    sources: Sequence[Source]
    options: SampleOptions
    kind: str
    tokenizer: Path | None


def start_job(job: Job, tokenizer: TextTokenizer | None = None) -> Converter:
    """Return the converter of a job, with its tokenizer loaded unless it is given."""
    if tokenizer is None and job.tokenizer is not None:
        tokenizer = load_tokenizer(job.tokenizer)
    return make_converter(job.options, job.kind, tokenizer)


def do_item(job: Job, converter: Converter, item: Item) -> Part:
    """Return the part of one chunk; raises InputError when its file cannot be read any more."""
    source = job.sources[item.source]
    if source.row_groups is not None:
        from skill_run.pack.samples.parquet import read_columns, read_rows

        if job.kind == "tokens" and (columns := read_columns(source.path, item.start)) is not None:
            count = columns[IDS].size
            part = converter.columns(columns, np.arange(1, count + 1), read=count)
            if part is not None:
                return part
        return converter.rows(read_rows(source.path, item.start))
    try:
        data, too_long = read_lines(source.path, item)
    except OSError as error:
        raise InputError(f"{source.path} cannot be read: {error.strerror}") from error
    return converter.lines(data, first=item.start == 0, too_long=too_long)
