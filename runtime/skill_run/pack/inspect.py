"""`inspect_dataset`: figures and faults of a packed dataset, read once from beginning to end."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from skill_run.batch.checks import Fault
from skill_run.bridge.release import matches
from skill_run.errors import InputError
from skill_run.pack.checks import Checker, Expected
from skill_run.pack.folder import Told, read_told
from skill_run.pack.layout import Layout, lay_out
from skill_run.pack.reader import LOSS_MASK, STARTS, Dataset, Facts, read_chunks
from skill_run.pack.statistics import Statistics

if TYPE_CHECKING:
    from skill_run.batch.inspect import InspectionReport, Run, Sequence
    from skill_run.batch.model import Generation

_FORMS: Final = {"parquet": "Parquet", "arrow": "Arrow", "npy": ".npy", "json": "JSON"}
SHOWN_ROWS: Final = 32
# A row may claim a sequence for each of its tokens.
SHOWN_SEQUENCES: Final = 20_000
_MEANING: Final = (
    "seq_start_id: first stored token of each sequence; a stored sequence has one token more than it has at run time"
)


def inspect_dataset(dataset: Dataset, name: str, run: Run, *, fingerprints: tuple[str, ...] = ()) -> InspectionReport:
    """Inspect a packed dataset; memory does not grow with its size.

    run: what is known of the run that reads it; fingerprints: what 0.6 may put into the folder name for the
    run's config (`folder.expected_fingerprints`), when that is known.

    Raises InputError when a file cannot be read or there is no row, MissingError without a package that it needs.
    """
    facts = dataset.facts or Facts()
    if facts.stored_lengths is not None or facts.pack_lengths is not None:
        return _inspect_lengths(facts, name, run)
    told = read_told(dataset.files) if dataset.kind != "json" else Told(pack_size=facts.pack_size)
    expected = Expected(
        told=told,
        bridge=run.bridge,
        cp=run.cp,
        pack_size=run.pack_size,
        pad_multiple=run.pad_multiple,
        seq_length=run.seq_length,
        fingerprints=fingerprints,
    )
    statistics = Statistics()
    checker = Checker(expected, len(dataset.files))
    masks: set[str] = set()
    shown: list[Sequence] = []
    for chunk in read_chunks(dataset):
        layout = lay_out(chunk)
        if layout is not None:
            statistics.add(layout)
            shown += islice(_first_sequences(layout, statistics.rows), SHOWN_SEQUENCES - len(shown))
        statistics.rows += chunk.rows
        checker.look_at(chunk, layout, statistics)
        mask = chunk.columns.get(LOSS_MASK)
        if mask is not None and mask.values is not None:
            masks.add(str(mask.values.dtype))
    if not statistics.rows:
        raise InputError(f"{name} holds no packed rows; Megatron-Bridge refuses an empty dataset")
    generation, because = _made_by(dataset, told, masks)
    size = told.pack_size or run.pack_size
    faults = list(checker.faults(statistics, dataset.kind, statistics.fill(size)))
    figures = {"files": len(dataset.files), **statistics.figures(size)}
    if size is None and statistics.widest_row:
        figures["fill"] = round(statistics.fill(statistics.widest_row) or 0.0, 4)
    notes = _notes(dataset, run, statistics, checker, size)
    if shown and statistics.rows > SHOWN_ROWS:
        notes += (
            f"the pack map and the list of sequences show the first {SHOWN_ROWS} rows; the figures are of all rows",
        )
    return _report(name, run, generation, because, statistics, faults, figures, notes, tuple(shown))


def _first_sequences(layout: Layout, first: int) -> Iterator[Sequence]:
    """Yield the sequences of the dataset's first sound rows as they are at run time, one token shorter than stored.

    first: number in the dataset of the chunk's first row.
    """
    from skill_run.batch.inspect import Sequence

    rows = max(min(layout.tokens.size, SHOWN_ROWS - first), 0)
    for at in range(min(int(layout.counts[:rows].sum()), SHOWN_SEQUENCES)):
        row = int(layout.row[at])
        if not layout.sound[row]:
            continue
        number = at - int(layout.chunk.columns[STARTS].offsets[row])
        length, trained = int(layout.stored[at]) - 1, int(layout.trained[at])
        yield Sequence(first + row, int(layout.starts[at]) - number, length, length, trained if trained >= 0 else None)


def _report(
    name: str,
    run: Run,
    generation: Generation,
    because: str,
    statistics: Statistics,
    faults: list[Fault],
    figures: dict[str, Any],
    notes: tuple[str, ...],
    sequences: tuple[Sequence, ...] = (),
) -> InspectionReport:
    from skill_run.batch.inspect import InspectionReport, findings_of

    return InspectionReport(
        source=name,
        path="packed_dataset",
        generation=generation,
        because=because,
        meaning=_MEANING,
        tokens=statistics.tokens or None,
        rows=statistics.rows,
        sequences=sequences,
        findings=findings_of(faults, run.bridge),
        notes=notes,
        statistics=figures,
    )


def _made_by(dataset: Dataset, told: Told, masks: set[str]) -> tuple[Generation, str]:
    """Return which releases write such files, and why."""
    form = _FORMS[dataset.kind]
    if dataset.kind == "npy":
        return "<=0.5", "a pickled list of rows in .npy, which only 0.3 writes by itself"
    if told.fingerprint is not None:
        return ">=0.6", f"{form} rows in a folder with a fingerprint, which 0.6 and newer add to its name"
    if dataset.kind == "parquet" and masks == {"bool"}:
        return "<=0.5", "Parquet rows whose loss_mask is a truth value, as 0.4 and 0.5 write them"
    if dataset.kind == "parquet" and masks == {"int8"}:
        return ">=0.6", "Parquet rows whose loss_mask is int8, as 0.6 and newer write them"
    return "unknown", f"{form} rows with seq_start_id; nothing tells which release wrote them"


def _notes(dataset: Dataset, run: Run, statistics: Statistics, checker: Checker, size: int | None) -> tuple[str, ...]:
    notes = []
    if size is None:
        notes.append(
            "neither the file name, its metadata nor a config tells the pack size, so fill is relative to the widest "
            f"row ({statistics.widest_row} tokens)"
        )
    old = run.bridge is not None and not matches(">=0.7.0.dev0", run.bridge)
    if checker.trained_padding and (run.bridge is None or old):
        notes.append(
            f"the stored mask covers {checker.trained_padding} padding tokens: releases up to 0.6 mask them in a "
            "batch, 0.7 trains them"
        )
    if dataset.kind == "npy" and run.bridge is None:
        notes.append(".npy packs are the format of 0.3; 0.4 and newer still read them, but no longer write them")
    return tuple(notes)


def _inspect_lengths(facts: Facts, name: str, run: Run) -> InspectionReport:
    """Judge samples or packs of which only the lengths are known."""
    statistics = Statistics()
    size = facts.pack_size or run.pack_size
    faults: list[Fault] = []
    figures: dict[str, Any] = {}
    if facts.stored_lengths is not None:
        runtime = np.maximum(facts.stored_lengths - 1, 0)
        statistics.add_lengths(runtime)
        over = np.flatnonzero(runtime > size) if size else np.empty(0, dtype=np.int64)
        figures["samples"] = int(runtime.size)
        if over.size:
            first = int(over[0])
            message = (
                f"{over.size} of {runtime.size} samples are longer at run time than the pack size {size}, first sample "
                f"{first} with {int(runtime[first])} tokens."
            )
            faults.append(Fault("dataset-sequence-fits-limit", message, (f"sample {first}", "stored_lengths")))
    if facts.pack_lengths is not None:
        statistics.rows = facts.pack_lengths.size
        statistics.add_rows(facts.pack_lengths)
        over = np.flatnonzero(facts.pack_lengths > size) if size else np.empty(0, dtype=np.int64)
        if over.size:
            first = int(over[0])
            message = (
                f"{over.size} of {statistics.rows} rows have more tokens at run time than the pack size {size}, first "
                f"row {first} with {int(facts.pack_lengths[first])}."
            )
            faults.append(Fault("dataset-row-fits-pack", message, ("pack_lengths",)))
    figures |= statistics.figures(size)
    because = "lengths of samples or packs without their rows"
    return _report(name, run, "unknown", because, statistics, faults, figures, ())
