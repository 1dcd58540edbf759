"""Packed files in the layout of each release, written beside their place and then moved there."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from skill_run.bridge.release import matches
from skill_run.errors import InputError, MissingError
from skill_run.pack.build.rows import ROWS_AT_ONCE, Rows


def writes_npy(bridge: str) -> bool:
    """Tell whether a release's training reads .npy files only; Parquet came with 0.4."""
    return matches("<0.4.0.dev0", bridge)


@contextmanager
def written_whole(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file beside `path` that takes its name once everything is on disk; it goes when something fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    held = os.umask(0)
    os.umask(held)
    return held


def write_rows(path: Path, rows: Iterable[Rows], bridge: str, on_rows: Callable[[int], None]) -> None:
    """Write a packed file: Parquet as write_packed_parquet of the release does it, or .npy for 0.3.

    on_rows: told how many rows are done. Raises MissingError without pyarrow, InputError when the disk is full or the
    folder cannot be written.
    """
    try:
        with written_whole(path) as file:
            if writes_npy(bridge):
                _write_npy(file, rows, on_rows)
            else:
                _write_parquet(file, rows, bridge, on_rows)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}; nothing is left of it") from error


def _write_parquet(file: IO[bytes], rows: Iterable[Rows], bridge: str, on_rows: Callable[[int], None]) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingError("writing Parquet needs pyarrow: pip install 'skill-run[parquet]'") from error
    # Upstream's own types: masks were written as booleans before 0.6.
    masks = pa.int8() if matches(">=0.6.0.dev0", bridge) else pa.bool_()
    schema = pa.schema(
        [
            ("input_ids", pa.list_(pa.int64())),
            ("loss_mask", pa.list_(masks)),
            ("seq_start_id", pa.list_(pa.int64())),
        ]
    )
    done = 0
    with pq.ParquetWriter(file, schema) as writer:
        for part in rows:
            offsets = pa.array(part.row_offsets.astype(np.int32))
            mask = pa.array(part.masks if masks == pa.int8() else part.masks.astype(np.bool_))
            columns = [
                pa.ListArray.from_arrays(offsets, pa.array(part.tokens)),
                pa.ListArray.from_arrays(offsets, mask),
                pa.ListArray.from_arrays(pa.array(part.start_offsets.astype(np.int32)), pa.array(part.starts)),
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=ROWS_AT_ONCE)
            done += len(part)
            on_rows(done)


def _write_npy(file: IO[bytes], rows: Iterable[Rows], on_rows: Callable[[int], None]) -> None:
    held: list[dict[str, list[Any]]] = []
    for part in rows:
        for row in range(len(part)):
            tokens = slice(part.row_offsets[row], part.row_offsets[row + 1])
            starts = slice(part.start_offsets[row], part.start_offsets[row + 1])
            held.append(
                {
                    "input_ids": part.tokens[tokens].tolist(),
                    "loss_mask": part.masks[tokens].astype(np.bool_).tolist(),
                    "seq_start_id": part.starts[starts].tolist(),
                }
            )
        on_rows(len(held))
    array = np.empty(len(held), dtype=object)
    array[:] = held
    np.save(file, array, allow_pickle=True)


def write_metadata(path: Path, entries: Iterable[dict[str, Any]]) -> None:
    """Write the metadata file: one JSON array, an object for each split, as prepare_gpt_sft_packed_data does."""
    try:
        with written_whole(path) as file:
            file.write(json.dumps(list(entries)).encode())
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error
