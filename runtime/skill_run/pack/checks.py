"""The checks of a packed dataset; each names a rule of the flagship card and is told once, with its first place.

They stay silent on what looks wrong but is right: a stored row is longer than the pack by one token for each sequence,
and the stored mask may cover end-of-sequence padding, which the collate function of releases up to 0.6 masks itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from skill_run.batch.checks import Fault
from skill_run.batch.model import Ints
from skill_run.bridge.names import to_written
from skill_run.bridge.release import matches, newest_release
from skill_run.pack.folder import Told
from skill_run.pack.layout import Layout
from skill_run.pack.reader import COLUMNS, INPUT_IDS, LOSS_MASK, STARTS, Chunk, Kind
from skill_run.pack.statistics import Statistics

# Below this share of full packs a better packing algorithm or another pack size would save whole steps.
LOW_FILL: Final = 0.8
_SPECS: Final = "dataset.offline_packing_specs"

# A length at run time is the stored length minus 1.
_MESSAGES: Final = {
    "dataset-token-ids-not-negative": "input_ids holds {count} negative numbers, first {value} in {place}.",
    "dataset-mask-is-0-or-1": "loss_mask holds {count} values other than 0 and 1, first {value} in {place}.",
    "dataset-starts-at-zero": (
        "seq_start_id of {rows} does not start at 0, first {place}: tokens before the first start are dropped, and a "
        "row without starts has no sequence."
    ),
    "dataset-starts-within-row": (
        "seq_start_id of {rows} points outside the row, first {place}: {value[0]} in a row of {value[2]} tokens."
    ),
    "dataset-starts-increase": "seq_start_id of {rows} falls or repeats, first {place}: {value[0]} after {value[1]}.",
    "dataset-mask-matches-tokens": (
        "loss_mask and input_ids of {rows} differ in length, first {place}: {value[0]} against {value[1]}."
    ),
    "dataset-lengths-fit-cp": (
        "{sequences} have a length at run time (stored length minus 1) that is no multiple of {chunks} (2*CP), first "
        "{place} with {value} tokens; {grid}."
    ),
    "dataset-lengths-fit-multiple": (
        "{sequences} have a length at run time (stored length minus 1) that is no multiple of the config's "
        "pad_seq_to_mult {multiple}, first {place} with {value} tokens; {grid}."
    ),
    "dataset-sequence-fits-limit": (
        "{sequences} are longer at run time than {sequence_limit} tokens, first {place} with {value}."
    ),
    "dataset-no-empty-sequence": "{sequences} have one stored token and so none at run time, first {place}.",
    "dataset-row-fits-pack": (
        "{rows} have more tokens at run time than the pack size {row_limit}, first {place} with {value[0]}."
    ),
    "dataset-row-is-trained": "{rows} train no token, first {place}.",
    "dataset-loss-on-padding": (
        "{sequences} have loss on the padding at their end, first {place} with {value} such tokens (padding is told by "
        "token {end_token}, in which the sequences end)."
    ),
}
_FIELDS: Final = {
    "dataset-token-ids-not-negative": (INPUT_IDS,),
    "dataset-mask-is-0-or-1": (LOSS_MASK,),
    "dataset-mask-matches-tokens": (LOSS_MASK, INPUT_IDS),
    "dataset-row-is-trained": (LOSS_MASK,),
    "dataset-loss-on-padding": (LOSS_MASK,),
}
# What is at fault may be the path in the config, which leads to packs built for something else.
_STALE: Final = ("dataset-lengths-fit-cp", "dataset-lengths-fit-multiple", "dataset-row-fits-pack")


@dataclass(frozen=True, slots=True)
class Expected:
    """What the dataset is checked against; None is not known. Sizes in tokens.

    pack_size and pad_multiple: of the config; told: what the files' own names say;
    fingerprints: those the config may have, none when not known.
    """

    told: Told
    bridge: str | None = None
    cp: int | None = None
    pack_size: int | None = None
    pad_multiple: int | None = None
    seq_length: int | None = None
    fingerprints: tuple[str, ...] = ()

    @property
    def row_limit(self) -> int | None:
        """Most tokens of a row at run time."""
        return self.pack_size or self.told.pack_size

    @property
    def sequence_limit(self) -> int | None:
        """Most tokens of a sequence at run time."""
        return min((size for size in (self.row_limit, self.seq_length) if size), default=None)

    @property
    def configured(self) -> bool:
        """A config was given, so that its path to the packs can be at fault."""
        return self.pad_multiple is not None or self.pack_size is not None

    def written(self, name: str) -> str:
        """Return a field of the packing settings in the words of the release."""
        return to_written(f"{_SPECS}.{name}", self.bridge or newest_release())


@dataclass(slots=True)
class _Hit:
    count: int = 0
    place: str = ""
    value: Any = None


class Checker:
    """Runs the checks over chunks and remembers, for each, how often it hit and where first."""

    def __init__(self, expected: Expected, files: int) -> None:
        self.expected = expected
        self.end_token: int | None = None
        self.trained_padding = 0
        self._many = files > 1
        self._hits: dict[str, _Hit] = {}
        self._columns: dict[tuple[str, str], _Hit] = {}

    def look_at(self, chunk: Chunk, layout: Layout | None, statistics: Statistics) -> None:
        """Check one chunk; statistics are those so far, this chunk included."""
        for name in COLUMNS:
            if name in chunk.faults:
                hit = self._columns.setdefault((name, chunk.faults[name]), _Hit(place=self._where(chunk, 0)))
                hit.count += chunk.rows
        self._token_ids(chunk)
        self._mask_values(chunk)
        if layout is not None:
            self._starts(layout)
            self._mask_lengths(layout)
            self._lengths(layout)
            self._supervision(layout, statistics)
            self._padding(layout, statistics)

    def _where(self, chunk: Chunk, row: int) -> str:
        return f"row {chunk.first_row + row}" + (f" of {chunk.file}" if self._many else "")

    def _hit(self, rule: str, count: int, place: str, value: Any = None) -> None:
        found = self._hits.setdefault(rule, _Hit(place=place, value=value))
        found.count += count

    def _rows(self, rule: str, chunk: Chunk, flags: NDArray[np.bool_], values: Any = None) -> None:
        at = np.flatnonzero(flags)
        if at.size:
            value = None if values is None else tuple(int(item[at[0]]) for item in values)
            self._hit(rule, int(at.size), self._where(chunk, int(at[0])), value)

    def _sequences(self, rule: str, layout: Layout, flags: NDArray[np.bool_], lengths: Ints) -> None:
        """flags, lengths: over the sequences of sound rows."""
        at = np.flatnonzero(flags)
        if at.size:
            sequence = int(np.flatnonzero(layout.kept)[at[0]])
            place = layout.place(sequence) + (f" of {layout.chunk.file}" if self._many else "")
            self._hit(rule, int(at.size), place, int(lengths[at[0]]))

    # Values

    def _token_ids(self, chunk: Chunk) -> None:
        column = chunk.columns.get(INPUT_IDS)
        if column is None or column.values is None or not column.values.size or column.values.dtype.kind == "u":
            return
        if int(column.values.min()) < 0:
            self._values("dataset-token-ids-not-negative", chunk, column.offsets, column.values < 0, column.values)

    def _mask_values(self, chunk: Chunk) -> None:
        column = chunk.columns.get(LOSS_MASK)
        if column is None or column.values is None or not column.values.size or column.values.dtype.kind == "b":
            return
        values = column.values
        if values.dtype.kind == "f" or int(values.max()) > 1 or int(values.min()) < 0:
            bad = (values != 0) & (values != 1)
            if bad.any():
                self._values("dataset-mask-is-0-or-1", chunk, column.offsets, bad, values)

    def _values(self, rule: str, chunk: Chunk, offsets: Ints, flags: NDArray[np.bool_], values: NDArray[Any]) -> None:
        first = int(np.argmax(flags))
        row = int(np.searchsorted(offsets, first, side="right")) - 1
        self._hit(
            rule, int(flags.sum()), f"{self._where(chunk, row)}, token {first - int(offsets[row])}", values[first]
        )

    # Rows

    def _starts(self, layout: Layout) -> None:
        chunk, last = layout.chunk, layout.tokens[layout.row]
        self._rows("dataset-starts-at-zero", chunk, layout.first_starts != 0, (layout.first_starts,))
        outside = (layout.starts < 0) | (layout.starts >= last)
        inner = np.ones(layout.starts.size, dtype=bool)
        inner[chunk.columns[STARTS].offsets[:-1][layout.counts > 0]] = False
        previous = np.concatenate([[0], layout.starts[:-1]])
        falling = inner & (layout.starts <= previous)
        for rule, flags in (("dataset-starts-within-row", outside), ("dataset-starts-increase", falling)):
            rows = np.bincount(layout.row[flags], minlength=layout.tokens.size) > 0
            firsts = np.zeros(layout.tokens.size, dtype=np.int64)
            places = np.flatnonzero(flags)[::-1]
            firsts[layout.row[places]] = places
            at = np.clip(firsts, 0, max(layout.starts.size - 1, 0))
            if rows.any():
                self._rows(rule, chunk, rows, (layout.starts[at], previous[at], layout.tokens))

    def _mask_lengths(self, layout: Layout) -> None:
        mask = layout.chunk.columns.get(LOSS_MASK)
        if mask is not None and layout.chunk.columns[INPUT_IDS].values is not None:
            flags = mask.lengths != layout.tokens
            self._rows("dataset-mask-matches-tokens", layout.chunk, flags, (mask.lengths, layout.tokens))

    # Lengths

    def _lengths(self, layout: Layout) -> None:
        expected, runtime = self.expected, layout.runtime
        if expected.cp is not None and expected.cp > 1:
            self._sequences("dataset-lengths-fit-cp", layout, runtime % (2 * expected.cp) != 0, runtime)
        if expected.pad_multiple is not None and expected.pad_multiple > 1:
            self._sequences("dataset-lengths-fit-multiple", layout, runtime % expected.pad_multiple != 0, runtime)
        limit = expected.sequence_limit
        if limit is not None:
            self._sequences("dataset-sequence-fits-limit", layout, runtime > limit, runtime)
        self._sequences("dataset-no-empty-sequence", layout, runtime == 0, runtime)
        if expected.row_limit is not None:
            width = layout.tokens - layout.counts
            flags = layout.sound & (width > expected.row_limit)
            self._rows("dataset-row-fits-pack", layout.chunk, flags, (width,))

    # Loss

    def _supervision(self, layout: Layout, statistics: Statistics) -> None:
        if not layout.masked.any():
            return
        sums = np.bincount(layout.row, weights=np.maximum(layout.trained, 0), minlength=layout.tokens.size)
        flags = layout.masked & (sums == 0)
        statistics.untrained_rows += int(flags.sum())
        self._rows("dataset-row-is-trained", layout.chunk, flags)

    def _padding(self, layout: Layout, statistics: Statistics) -> None:
        if statistics.alignment < 2 or not layout.runtime.size:
            return
        if self.end_token is None:
            self.end_token = _end_token(layout)
        if self.end_token is None:
            return
        padding = layout.padding(self.end_token)
        statistics.padding = (statistics.padding or 0) + int(padding.sum())
        trained = layout.trained_padding(padding)
        self.trained_padding += int(trained.sum())
        flags = (trained > 0)[layout.kept]
        if self.expected.bridge is not None and matches(">=0.7.0.dev0", self.expected.bridge):
            self._sequences("dataset-loss-on-padding", layout, flags, trained[layout.kept])

    # Results

    def faults(self, statistics: Statistics, kind: Kind, fill: float | None) -> Iterator[Fault]:
        """Yield what was found, and what only the whole dataset shows."""
        for (name, reason), hit in self._columns.items():
            message = f"{name} {reason} in {hit.count} rows, first {hit.place}."
            yield Fault("dataset-columns", message, (name,))
        covered = "dataset-lengths-fit-cp" in self._hits
        for rule, hit in self._hits.items():
            if not (rule == "dataset-lengths-fit-multiple" and covered):
                yield Fault(rule, self._message(rule, hit, statistics), self._fields(rule))
        yield from self._metadata(statistics)
        yield from self._built_for(statistics)
        if kind == "npy" and self.expected.bridge is not None and matches(">=0.4", self.expected.bridge):
            message = "The rows are in a .npy file, which every process loads as a whole and which is deprecated."
            yield Fault("dataset-npy-deprecated", message, self._path_fields())
        if fill is not None and fill < LOW_FILL:
            message = f"The packs are {100 * fill:.1f} % full on average, so a good part of every step is filler."
            yield Fault("dataset-low-fill", message, (STARTS,))

    def _message(self, rule: str, hit: _Hit, statistics: Statistics) -> str:
        expected = self.expected
        grid = (
            f"the folder name says pad_seq_to_mult{expected.told.pad_multiple}"
            if expected.told.pad_multiple is not None
            else f"the greatest common divisor of all lengths is {statistics.alignment}"
        )
        return _MESSAGES[rule].format(
            count=hit.count,
            rows=f"{hit.count} of {statistics.rows} rows",
            sequences=f"{hit.count} of {statistics.sequences} sequences",
            place=hit.place,
            value=hit.value,
            grid=grid,
            chunks=2 * (expected.cp or 1),
            multiple=expected.pad_multiple,
            row_limit=expected.row_limit,
            sequence_limit=expected.sequence_limit,
            end_token=self.end_token,
        )

    def _path_fields(self) -> tuple[str, ...]:
        path = self.expected.written("packed_train_data_path")
        return (path,) if self.expected.configured else (INPUT_IDS,)

    def _fields(self, rule: str) -> tuple[str, ...]:
        columns = _FIELDS.get(rule, (STARTS,))
        if rule in _STALE and self.expected.configured:
            return (self.expected.written("packed_train_data_path"), *columns)
        return columns

    def _metadata(self, statistics: Statistics) -> Iterator[Fault]:
        told = self.expected.told
        field = self.expected.written("packed_metadata_path") if self.expected.configured else "metadata"
        if told.metadata_fault is not None:
            yield Fault("dataset-metadata-covers-packs", f"{told.metadata_fault}.", (field,))
        metadata = told.metadata
        if metadata is None or not statistics.sequences:
            return
        most = max(statistics.by_pack, default=0)
        wrong = []
        if most > metadata.most_samples:
            wrong.append(f"max_samples_per_bin is {metadata.most_samples} but a pack has {most} sequences")
        if statistics.longest > metadata.longest:
            wrong.append(f"dataset_max_seqlen is {metadata.longest} but a sequence has {statistics.longest} tokens")
        if statistics.narrowest_row is not None and statistics.narrowest_row < metadata.narrowest:
            narrowest = statistics.narrowest_row
            wrong.append(f"min_packed_seqlen is {metadata.narrowest} but a pack has only {narrowest} tokens")
        if told.pack_size is not None and told.pack_size not in metadata.pack_sizes:
            sizes = ", ".join(map(str, metadata.pack_sizes))
            wrong.append(f"pack_size is {sizes} but the file name says {told.pack_size}")
        if wrong:
            message = f"{metadata.name} does not cover these packs: {'; '.join(wrong)}."
            yield Fault("dataset-metadata-covers-packs", message, (field,))

    def _built_for(self, statistics: Statistics) -> Iterator[Fault]:
        expected, told = self.expected, self.expected.told
        wrong, fields = [], [expected.written("packed_train_data_path")]
        if None not in (expected.pad_multiple, told.pad_multiple) and expected.pad_multiple != told.pad_multiple:
            wrong.append(f"pad_seq_to_mult {told.pad_multiple} by their folder, {expected.pad_multiple} in the config")
            fields.append(expected.written("pad_seq_to_mult"))
        if None not in (expected.pack_size, told.pack_size) and expected.pack_size != told.pack_size:
            wrong.append(f"{told.pack_size} tokens per pack by their name, {expected.pack_size} in the config")
            fields.append(expected.written("packed_sequence_size"))
        if told.fingerprint is not None and expected.fingerprints and told.fingerprint not in expected.fingerprints:
            wrong.append(
                f"options with the fingerprint {told.fingerprint} by their folder, {expected.fingerprints[0]} in the "
                "config (dataset.seq_length, seed, dataset_kwargs)"
            )
        if wrong:
            message = f"The packs were built for another config: {'; '.join(wrong)}. Rows are used as they are."
            yield Fault("dataset-built-for-config", message, tuple(fields))


def _end_token(layout: Layout) -> int | None:
    """Return the token in which most sequences end, None when there is no such token."""
    last = layout.last_tokens()
    if last is None or not last.size:
        return None
    tokens, counts = np.unique(last, return_counts=True)
    best = int(np.argmax(counts))
    return int(tokens[best]) if 2 * int(counts[best]) > last.size else None
