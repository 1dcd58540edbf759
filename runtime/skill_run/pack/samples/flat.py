"""From samples to a block: what is cut, dropped and counted, for a whole chunk at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from skill_run.pack.samples.align import aligned_lengths, grid_length, multiple_of, whole_limit
from skill_run.pack.samples.block import Block
from skill_run.pack.samples.counts import PLACES
from skill_run.pack.samples.options import SampleOptions, rules_of
from skill_run.pack.samples.sample import Sample

# A sample of fewer stored tokens has nothing to predict.
_SHORTEST: Final = 2

Bools = NDArray[np.bool_]


@dataclass(slots=True)
class Fate:
    """How many samples of a chunk met one fate, tokens lost by it, the first lines (counted from 1) with a note."""

    samples: int = 0
    tokens: int = 0
    places: list[tuple[int, str]] = field(default_factory=list)

    def add(self, line: int, note: str = "", tokens: int = 0) -> None:
        """Count one sample."""
        self.samples += 1
        self.tokens += tokens
        if len(self.places) < PLACES:
            self.places.append((line, note))


@dataclass(slots=True)
class Part:
    """What one chunk became: a block, how many lines were read, and the fates by name of the field of SampleCounts."""

    block: Block
    lines: int
    trained_tokens: int
    fates: dict[str, Fate]


@dataclass(slots=True)
class Flat:
    """Samples of one chunk, one behind the other, before anything is dropped.

    tokens, masks: [T]; lengths, lines (number of the line in the chunk), cut (tokens that truncation took): [N].
    ends_open: [N], see `Sample`.
    """

    tokens: NDArray[np.int32]
    masks: NDArray[np.uint8]
    lengths: NDArray[np.int64]
    lines: NDArray[np.int64]
    cut: NDArray[np.int64]
    ends_open: Bools


def flatten(samples: Sequence[tuple[int, Sample]]) -> Flat:
    """Return samples, each with its line, as arrays."""
    tokens: list[int] = []
    masks: list[int] = []
    for _, sample in samples:
        tokens.extend(sample.tokens)
        masks.extend(sample.mask)
    return Flat(
        np.array(tokens, dtype=np.int32),
        np.array(masks, dtype=np.uint8),
        np.array([len(sample.tokens) for _, sample in samples], dtype=np.int64),
        np.array([line for line, _ in samples], dtype=np.int64),
        np.array([sample.cut for _, sample in samples], dtype=np.int64),
        np.array([sample.ends_open for _, sample in samples], dtype=bool),
    )


def finish(flat: Flat, options: SampleOptions, *, by_field: bool, lines: int, bad: Fate) -> Part:
    """Drop, cut and count the samples of a chunk as the release does and return what is left.

    by_field: prompt-completion samples, which are cut already; the others are cut or dropped as a whole.
    """
    fates = {"bad": bad}
    longest = _longest(options, by_field)
    over = flat.lengths > longest
    if not by_field and multiple_of(options) == 1:
        flat = _dropped(flat, over, "dropped_long", fates)
    elif over.any():
        _cut(flat, longest)
    flat = _dropped(flat, flat.lengths < _SHORTEST, "dropped_short", fates)
    fates["truncated"] = _fate(flat, flat.cut > 0, int(flat.cut.sum()))
    starts = np.concatenate(([0], np.cumsum(flat.lengths)[:-1])) if flat.lengths.size else flat.lengths
    trained = np.add.reduceat(flat.masks, starts, dtype=np.int64) if starts.size else starts
    trained = trained - flat.masks[starts + flat.lengths - 1]
    fates["all_masked"] = _fate(flat, trained == 0)
    lengths = flat.lengths.astype(np.int32)
    runtime = aligned_lengths(lengths, options) - 1
    fates["off_grid"] = _fate(flat, runtime % multiple_of(options) != 0)
    return Part(Block(flat.tokens, flat.masks, lengths), lines, int(trained.sum()), fates)


def _longest(options: SampleOptions, by_field: bool) -> int:
    """Return the stored length to which every sample is cut, or beyond which it is dropped."""
    if not by_field:
        return whole_limit(options)
    if multiple_of(options) > 1 and rules_of(options.bridge).pads_runtime:
        return grid_length(options) + 1
    # Special tokens alone may be longer than seq_length, and upstream keeps them.
    return np.iinfo(np.int32).max


def _dropped(flat: Flat, gone: Bools, name: str, fates: dict[str, Fate]) -> Flat:
    fates[name] = _fate(flat, gone, int(flat.lengths[gone].sum()))
    if not gone.any():
        return flat
    kept = ~gone
    inside = np.repeat(kept, flat.lengths)
    return Flat(
        flat.tokens[inside],
        flat.masks[inside],
        flat.lengths[kept],
        flat.lines[kept],
        flat.cut[kept],
        flat.ends_open[kept],
    )


def _cut(flat: Flat, longest: int) -> None:
    """Cut all samples to `longest` stored tokens; a mask that was moved to the labels then ends with a 0 again."""
    lengths = np.minimum(flat.lengths, longest)
    starts = np.concatenate(([0], np.cumsum(flat.lengths)[:-1]))
    place = np.arange(flat.tokens.size) - np.repeat(starts, flat.lengths)
    inside = place < np.repeat(lengths, flat.lengths)
    closed = (flat.lengths > longest) & ~flat.ends_open
    flat.masks[(starts + lengths - 1)[closed]] = 0
    flat.tokens, flat.masks = flat.tokens[inside], flat.masks[inside]
    flat.cut = flat.cut + (flat.lengths - lengths)
    flat.lengths = lengths


def _fate(flat: Flat, chosen: Bools, tokens: int = 0) -> Fate:
    lines = flat.lines[chosen]
    return Fate(int(lines.size), tokens, [(int(line), "") for line in lines[:PLACES]])
