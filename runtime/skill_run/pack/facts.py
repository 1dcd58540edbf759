"""A packed dataset as JSON: rows as upstream packs them, or only the lengths that a report states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from skill_run.batch.arrays import integers, number_rows
from skill_run.batch.model import Ints
from skill_run.errors import InputError
from skill_run.pack.npy import row_faults
from skill_run.pack.reader import (
    CHUNK_ROWS,
    INPUT_IDS,
    LOSS_MASK,
    STARTS,
    Chunk,
    Column,
    Dataset,
    Facts,
    check_row_length,
    column_of,
)

TOKEN_COUNT: Final = "input_ids_len"
PACK_SIZE: Final = "packed_sequence_size"
_ROW_LISTS: Final = ("rows", "file_rows")


def facts_dataset(data: Any, name: str) -> Dataset | None:
    """Return the dataset that plain data describes, None when it describes none.

    Known forms: a row or a list of rows (seq_start_id with input_ids or input_ids_len); a mapping with such a list
    under `rows` or `file_rows`; `packed_sequence_size` with `stored_lengths` (samples) or `pack_lengths` (packs), in
    tokens. Raises InputError when it is one of these with values that cannot be.
    """
    if isinstance(data, list) and data and all(_is_row(item) for item in data):
        return Dataset("json", (), Facts(rows=tuple(data)))
    if not isinstance(data, Mapping):
        return None
    if _is_row(data):
        return Dataset("json", (), Facts(rows=(data,)))
    size = _pack_size(data.get(PACK_SIZE), name)
    listed = next((data[key] for key in _ROW_LISTS if isinstance(data.get(key), list)), None)
    if listed and all(_is_row(item) for item in listed):
        return Dataset("json", (), Facts(size, rows=tuple(listed)))
    stored, packs = (_lengths(data, key) for key in ("stored_lengths", "pack_lengths"))
    if stored is None and packs is None:
        return None
    return Dataset("json", (), Facts(size, stored, packs))


def _is_row(item: Any) -> bool:
    return isinstance(item, Mapping) and STARTS in item and (INPUT_IDS in item or TOKEN_COUNT in item)


def _pack_size(value: Any, name: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name}: {PACK_SIZE} must be a number of tokens, not {value!r:.40}")
    return value


def _lengths(data: Mapping[str, Any], key: str) -> Ints | None:
    value = data.get(key)
    if value is None:
        return None
    rows, _, dimensions = number_rows(value, key)
    if dimensions != 1 or not rows[0].size or int(integers(rows[0], key).min()) < 0:
        raise InputError(f"{key} must be a list of lengths in tokens")
    return integers(rows[0], key)


def fact_chunks(dataset: Dataset) -> Iterator[Chunk]:
    """Yield the rows that a JSON file states."""
    rows = dataset.facts.rows if dataset.facts is not None else ()
    name = dataset.files[0].name if dataset.files else "rows"
    for first in range(0, len(rows), CHUNK_ROWS):
        yield _chunk(name, first, rows[first : first + CHUNK_ROWS])


def _chunk(name: str, first: int, rows: tuple[Mapping[str, Any], ...]) -> Chunk:
    listed = all(isinstance(row.get(INPUT_IDS), list) for row in rows)
    names = (INPUT_IDS, LOSS_MASK, STARTS) if listed else (STARTS,)
    columns: dict[str, Column] = {}
    faults: dict[str, str] = {}
    for key in names:
        if any(key not in row for row in rows):
            faults[key] = "is missing"
            continue
        lists = [_numbers(row[key], key) for row in rows]
        broken = next((found for item in lists if (found := row_faults({key: item}).get(key))), None)
        if broken is None:
            columns[key] = column_of(lists)
        else:
            faults[key] = broken
    if not listed:
        columns[INPUT_IDS] = _counted(rows)
    return Chunk(name, first, len(rows), columns, faults)


def _numbers(value: Any, key: str) -> NDArray[Any]:
    rows, _, dimensions = number_rows(value, key)
    if dimensions != 1:
        raise InputError(f"{key} of a packed row must be one list of numbers")
    row = rows[0] if rows[0].size else np.empty(0, dtype=np.int64)
    check_row_length(row.size, key)
    return row if row.dtype.kind in "bf" else integers(row, key)


def _counted(rows: tuple[Mapping[str, Any], ...]) -> Column:
    counts = [0]
    for row in rows:
        count = len(row[INPUT_IDS]) if isinstance(row.get(INPUT_IDS), list) else row.get(TOKEN_COUNT)
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise InputError(f"{TOKEN_COUNT} must be a number of tokens, not {count!r:.40}")
        check_row_length(count, TOKEN_COUNT)
        counts.append(count)
    return Column(np.cumsum(counts, dtype=np.int64), None)
