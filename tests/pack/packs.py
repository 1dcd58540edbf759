"""Packed rows for tests, and the ways upstream writes them into files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from hypothesis import settings
from hypothesis import strategies as st
from pyarrow import parquet

END = 2
# Tests that write a file for each example, and those that only compute.
FILES = settings(deadline=None, derandomize=True, max_examples=40)
FUZZ = settings(deadline=None, derandomize=True, max_examples=150)
Rows = list[dict[str, list[int]]]
DATA = Path(__file__).parent / "data"


def make_row(lengths: Sequence[int], *, padding: Sequence[int] = (), trained: int = 1) -> dict[str, list[int]]:
    """Return a packed row of sequences with these lengths at run time; each ends in END.

    padding: how many further END tokens at the end of each sequence are alignment padding; they are not trained, the
    `trained` tokens before them are.
    """
    ids: list[int] = []
    mask: list[int] = []
    starts: list[int] = []
    for number, length in enumerate(lengths):
        pad = padding[number] if number < len(padding) else 0
        starts.append(len(ids))
        ids += [10 + (number + at) % 90 for at in range(length - pad)] + [END] * (pad + 1)
        own = [0] * (length + 1)
        for at in range(max(0, length - pad - trained), length - pad):
            own[at] = 1
        mask += own
    return {"input_ids": ids, "loss_mask": mask, "seq_start_id": starts}


def write_parquet(path: Path, rows: Rows, *, mask: Any = None, row_group_size: int = 500) -> Path:
    """Write rows as Megatron-Bridge 0.6 does; mask: another type of the loss mask."""
    masks = pyarrow.array([row["loss_mask"] for row in rows], pyarrow.list_(pyarrow.int64()))
    table = pyarrow.table(
        {
            "input_ids": pyarrow.array([row["input_ids"] for row in rows], pyarrow.list_(pyarrow.int64())),
            "loss_mask": masks.cast(pyarrow.list_(mask or pyarrow.int8())),
            "seq_start_id": pyarrow.array([row["seq_start_id"] for row in rows], pyarrow.list_(pyarrow.int64())),
        }
    )
    parquet.write_table(table, path, row_group_size=row_group_size)
    return path


def write_npy(path: Path, rows: Sequence[Any]) -> Path:
    """Write rows as Megatron-Bridge 0.3 does."""
    np.save(path, rows, allow_pickle=True)  # type: ignore[arg-type]
    return path


@st.composite
def packed_rows(draw: st.DrawFn, multiple: int = 4) -> Rows:
    """Draw sound rows whose lengths are multiples of `multiple`."""
    rows = draw(st.lists(st.lists(st.integers(1, 8), min_size=1, max_size=5), min_size=1, max_size=6))
    return [make_row([multiple * length for length in row]) for row in rows]
