"""Read a data set: blocks of tokens and masks as a stream, with counts of what became of its lines."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from skill_run.errors import InputError
from skill_run.pack.samples.block import Block, Progress
from skill_run.pack.samples.counts import PLACES, SampleCounts, Tally
from skill_run.pack.samples.flat import Fate, Part
from skill_run.pack.samples.inputs import Item, find_items, find_sources, first_row
from skill_run.pack.samples.options import SampleOptions
from skill_run.pack.samples.pool import run_children
from skill_run.pack.samples.tokenizer import TextTokenizer, load_tokenizer
from skill_run.pack.samples.tokens import IDS
from skill_run.pack.samples.work import Job, do_item, start_job
from skill_run.report.safe import clip, flow

MOST_WORKERS: Final = 256
_CHAT_KEYS: Final = ("messages", "conversations", "conversation")

Data = Path | str | Sequence[Path | str]
OnProgress = Callable[[Progress], None]


class SampleStream:
    """The blocks of a data set, to be gone through once, and what is known of it.

    kind: what the lines hold. eos_id: the id that alignment padding has, None when no tokenizer and no option tells it.
    counts: what became of the lines so far; complete when the blocks are all taken.
    """

    def __init__(
        self, job: Job, tokenizer: TextTokenizer | None, workers: int, skip_bad: bool, on_progress: OnProgress | None
    ) -> None:
        self._job = job
        self._tokenizer = tokenizer
        self._workers = workers
        self._skip_bad = skip_bad
        self._on_progress = on_progress
        self._lines_before: dict[int, int] = {}
        self.kind = job.kind
        self.counts = SampleCounts(kind=job.kind, files=len(job.sources))

    @property
    def eos_id(self) -> int | None:
        """Id of the end-of-text token: the tokenizer's, or the option's where that is set."""
        if self._job.options.eos_id is not None or self._tokenizer is None:
            return self._job.options.eos_id
        return self._tokenizer.token_id("eos_token")

    def __iter__(self) -> Iterator[Block]:
        """Yield the blocks in the order of the lines.

        Raises InputError when the data holds no sample, or unreadable lines without skip_bad: these are first collected
        until the list is full or the data ends.
        """
        done = 0
        total = sum(source.size for source in self._job.sources)
        items = find_items(self._job.sources, tokens=self.kind == "tokens")
        with closing(self._parts(items)) as parts:
            for item, part in parts:
                self._count(item, part)
                done += item.size
                if self._on_progress is not None:
                    self._on_progress(Progress(self.counts.samples, done, total))
                if self.counts.bad.samples and not self._skip_bad:
                    if self.counts.bad.samples >= PLACES:
                        break
                    continue
                if part.block.lengths.size:
                    yield part.block
        self._refuse()

    def _parts(self, items: Iterator[Item]) -> Generator[tuple[Item, Part]]:
        if self._workers > 1:
            yield from run_children(self._job, items, self._workers)
            return
        converter = start_job(self._job, self._tokenizer)
        for item in items:
            yield item, do_item(self._job, converter, item)

    def _count(self, item: Item, part: Part) -> None:
        path, before = self._job.sources[item.source].path, self._lines_before.get(item.source, 0)
        self._lines_before[item.source] = before + part.lines
        shown = clip(flow(str(path)), 200)
        tallies: dict[str, Any] = {name: _tally(fate, shown, before) for name, fate in part.fates.items()}
        lengths = part.block.lengths
        self.counts = self.counts.plus(
            SampleCounts(
                lines=part.lines,
                samples=int(lengths.size),
                tokens=int(lengths.sum(dtype=np.int64)) - int(lengths.size),
                trained_tokens=part.trained_tokens,
                **tallies,
            )
        )

    def _refuse(self) -> None:
        bad = self.counts.bad
        if bad.samples and not self._skip_bad:
            at_least = "at least " if bad.samples >= PLACES else ""
            listed = "; ".join(bad.places)
            raise InputError(f"{at_least}{bad.samples} lines cannot be read ({listed}); mend them, or pass --skip-bad")
        if not self.counts.samples:
            first = clip(flow(str(self._job.sources[0].path)), 200)
            raise InputError(f"{first} holds no sample that can be packed{_why(self.counts)}")


def read_samples(
    data: Data,
    *,
    tokenizer: Path | str | None,
    options: SampleOptions,
    workers: int = 1,
    skip_bad: bool = False,
    on_progress: OnProgress | None = None,
) -> SampleStream:
    """Return the samples of a data set as a stream of blocks; the same blocks whatever the number of workers.

    data: JSON lines or Parquet, a folder with training.jsonl, or several files. tokenizer: a folder with tokenizer.json
    or the id of a model in the hub's cache; may be None when the lines hold token ids. workers: processes that
    tokenise, 1 for this one alone. skip_bad: leave lines out that cannot be read.
    Raises InputError for what cannot be used, MissingError without a package that is needed.
    """
    options.check()
    if not isinstance(workers, int) or isinstance(workers, bool) or not 1 <= workers <= MOST_WORKERS:
        raise InputError(f"workers must be from 1 to {MOST_WORKERS}, not {clip(flow(repr(workers)), 40)}")
    sources = find_sources(data)
    kind = options.kind
    if kind == "auto":
        row = first_row(sources) or {}
        has_chat = any(key in row for key in _CHAT_KEYS)
        kind = "tokens" if IDS in row else "chat" if has_chat else "prompt-completion"
    if kind != "tokens" and tokenizer is None:
        raise InputError(f"the lines hold text ({kind}), which needs a tokenizer: give its folder with --tokenizer DIR")
    loaded = None if tokenizer is None else load_tokenizer(tokenizer)
    job = Job(sources, options, kind, None if loaded is None else loaded.folder)
    # Settings that do not fit are told before any file is read.
    start_job(job, loaded)
    return SampleStream(job, loaded, workers, skip_bad, on_progress)


def sample_lengths(
    data: Data,
    *,
    tokenizer: Path | str | None,
    options: SampleOptions,
    workers: int = 1,
    skip_bad: bool = False,
    on_progress: OnProgress | None = None,
) -> Iterator[NDArray[np.int32]]:
    """Yield the runtime lengths of a data set's samples, block by block: int32, without padding to any multiple.

    As `read_samples`, which tells arguments and errors.
    """
    stream = read_samples(
        data, tokenizer=tokenizer, options=options, workers=workers, skip_bad=skip_bad, on_progress=on_progress
    )
    for block in stream:
        yield block.lengths - 1


def _tally(fate: Fate, path: str, before: int) -> Tally:
    places = tuple(f"{path}:{before + line}" + (f": {note}" if note else "") for line, note in fate.places)
    return Tally(fate.samples, fate.tokens, places)


def _why(counts: SampleCounts) -> str:
    reasons = {
        "longer than seq_length": counts.dropped_long.samples,
        "shorter than two tokens": counts.dropped_short.samples,
        "unreadable": counts.bad.samples,
    }
    told = ", ".join(f"{number} {text}" for text, number in reasons.items() if number)
    return f" ({told})" if told else ""
