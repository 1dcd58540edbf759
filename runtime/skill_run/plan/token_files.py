"""Lengths of tokenised data: token lists in Parquet and JSONL, and packed files, whose sequences are samples again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from skill_run.errors import InputError
from skill_run.pack.arrow import _pyarrow, _readable
from skill_run.pack.folder import read_told
from skill_run.pack.layout import lay_out
from skill_run.pack.reader import STARTS, Dataset, read_chunks
from skill_run.plan.lengths import Ints, LengthCounter, Lengths, from_pairs
from skill_run.report.safe import clip, flow

# Columns that hold a sample's tokens, the first of them that is there.
TOKEN_COLUMNS: Final = ("input_ids", "tokens", "token_ids")
LENGTH_COLUMNS: Final = ("length", "lengths", "num_tokens", "n_tokens")
_BATCH_ROWS: Final = 8192


def read_packed(dataset: Dataset, name: str) -> Lengths:
    """Return the stored lengths of the sequences in packed files, alignment padding included.

    Raises InputError when a file cannot be read or has rows without usable boundaries.
    """
    counter = LengthCounter(name)
    facts = dataset.facts
    if facts is not None and facts.stored_lengths is not None:
        counter.add(facts.stored_lengths)
        return counter.lengths("lengths")
    if facts is not None and not facts.rows:
        raise InputError(f"{name} tells the lengths of packs, not of the samples in them")
    for chunk in read_chunks(dataset):
        layout = lay_out(chunk)
        if layout is None or not bool(layout.sound.all()):
            why = "; ".join(f"{column} {fault}" for column, fault in chunk.faults.items())
            raise InputError(
                f"{name}: rows from {chunk.first_row} on of {chunk.file} have no usable boundaries in {STARTS}"
                f"{f' ({clip(flow(why), 100)})' if why else ''}; skill-run inspect tells more"
            )
        counter.add(layout.stored)
    told = read_told(dataset.files)
    multiple = told.pad_multiple or 1
    notes = (f"the lengths include the file's own padding to a multiple of {multiple}",) if multiple > 1 else ()
    return counter.lengths("packed", padded_to=multiple, notes=notes)


def read_parquet_lengths(path: Path, name: str) -> Lengths:
    """Return the lengths in a Parquet file: of its token lists, of a column of lengths, or a histogram's."""
    pyarrow = _pyarrow(path)
    with _readable(path, "Parquet", pyarrow):
        from pyarrow import parquet

        file = parquet.ParquetFile(path, memory_map=True)
        schema = file.schema_arrow
    names = set(schema.names)
    column = next((each for each in TOKEN_COLUMNS if each in names), None)
    length = next((each for each in LENGTH_COLUMNS if each in names), None)
    if column is not None:
        _check_list(schema.field(column).type, column, name, pyarrow)
        counter = LengthCounter(name)
        for batch in _batches(file, path, [column], pyarrow):
            counter.add(_list_lengths(batch.column(0), column, name))
        return counter.lengths("tokens")
    if length is None:
        listed = clip(flow(", ".join(schema.names)), 80)
        raise InputError(f"{name} has the columns {listed}; {', '.join(TOKEN_COLUMNS)} or length is needed")
    columns = [length, "count"] if "count" in names else [length]
    _check_whole(schema, columns, name, pyarrow)
    rows = list(_number_columns(file, path, columns, name, pyarrow))
    if len(columns) == 2:
        return from_pairs((pair for pairs in rows for pair in zip(*pairs, strict=True)), name)
    counter = LengthCounter(name)
    for (numbers,) in rows:
        counter.add(np.asarray(numbers, dtype=np.int64))
    return counter.lengths("lengths")


def parquet_columns(path: Path) -> frozenset[str]:
    """Return the names of a Parquet file's columns."""
    pyarrow = _pyarrow(path)
    with _readable(path, "Parquet", pyarrow):
        from pyarrow import parquet

        return frozenset(parquet.read_schema(path).names)


def _batches(file: Any, path: Path, columns: list[str], pyarrow: Any) -> Iterator[Any]:
    batches = file.iter_batches(batch_size=_BATCH_ROWS, columns=columns)
    while True:
        with _readable(path, "Parquet", pyarrow):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def _check_list(kind: Any, column: str, name: str, pyarrow: Any) -> None:
    types = pyarrow.types
    if not (types.is_list(kind) or types.is_large_list(kind)) or not types.is_integer(kind.value_type):
        raise InputError(f"{name}: column {column} is {clip(flow(str(kind)), 60)}, not lists of token ids")


def _check_whole(schema: Any, columns: list[str], name: str, pyarrow: Any) -> None:
    for column in columns:
        kind = schema.field(column).type
        if not pyarrow.types.is_integer(kind):
            raise InputError(f"{name}: column {column} is {clip(flow(str(kind)), 60)}, not whole numbers")


def _list_lengths(array: Any, column: str, name: str) -> Ints:
    if array.null_count:
        raise InputError(f"{name}: column {column} has rows without a value")
    offsets = np.asarray(array.offsets.to_numpy(), dtype=np.int64)
    return np.asarray(np.diff(offsets), dtype=np.int64)


def _number_columns(
    file: Any, path: Path, columns: list[str], name: str, pyarrow: Any
) -> Iterator[tuple[list[int], ...]]:
    for batch in _batches(file, path, columns, pyarrow):
        for at, column in enumerate(columns):
            if batch.column(at).null_count:
                raise InputError(f"{name}: column {column} has rows without a value")
        yield tuple(batch.column(at).to_pylist() for at in range(len(columns)))
