from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from skill_run.errors import InputError
from skill_run.pack.store import StoreWriter, open_store


def written(folder: Path, lengths: list[int], blocks: int = 1) -> None:
    writer = StoreWriter(folder)
    for number in range(blocks):
        total = sum(lengths)
        writer.add(
            tokens=np.arange(total, dtype=np.int32) + number,
            masks=np.ones(total, np.uint8),
            lengths=np.array(lengths, np.int32),
        )
    writer.finish({"kind": "tokens"})


def test_samples_come_back_with_their_offsets_and_what_was_told(tmp_path: Path) -> None:
    written(tmp_path / "store", [3, 2], blocks=2)
    store = open_store(tmp_path / "store")
    assert store is not None
    assert store.tokens.tolist() == [0, 1, 2, 3, 4, 1, 2, 3, 4, 5]
    assert store.lengths.tolist() == [3, 2, 3, 2]
    assert store.offsets.tolist() == [0, 3, 5, 8]
    assert store.masks.tolist() == [1] * 10
    assert store.told == {"kind": "tokens"}


def test_arrays_stay_on_disk(tmp_path: Path) -> None:
    written(tmp_path, [4])
    store = open_store(tmp_path)
    assert store is not None
    assert isinstance(store.tokens, np.memmap)


def test_a_store_that_was_not_finished_counts_as_none(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path)
    writer.add(tokens=np.zeros(2, np.int32), masks=np.zeros(2, np.uint8), lengths=np.array([2], np.int32))
    writer.close()
    assert open_store(tmp_path) is None


def test_a_folder_that_is_not_there_counts_as_none(tmp_path: Path) -> None:
    assert open_store(tmp_path / "none") is None


def test_writing_again_makes_the_old_store_unwhole_first(tmp_path: Path) -> None:
    written(tmp_path, [4])
    StoreWriter(tmp_path).close()
    assert open_store(tmp_path) is None


def test_an_empty_store_is_whole(tmp_path: Path) -> None:
    StoreWriter(tmp_path).finish({})
    store = open_store(tmp_path)
    assert store is not None
    assert not len(store.tokens)
    assert not len(store.lengths)


def test_a_store_that_was_cut_is_refused(tmp_path: Path) -> None:
    written(tmp_path, [3, 2])
    (tmp_path / "tokens.bin").write_bytes(b"\0" * 8)
    with pytest.raises(InputError, match="was changed since it was written"):
        open_store(tmp_path)
