"""Samples in Parquet are those of the same JSON lines, as whole columns and row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sample_tools as tools

from skill_run.errors import InputError
from skill_run.pack.samples import SampleOptions, read_samples


def rows() -> list[dict[str, Any]]:
    draw = np.random.default_rng(3)
    lengths = [*draw.integers(2, 30, 40).tolist(), 0, 1, 2]
    return [{"input_ids": draw.integers(0, 99, n).tolist()} for n in lengths]


def with_key(key: str) -> list[dict[str, Any]]:
    draw = np.random.default_rng(4)
    found = []
    for row in rows():
        size = len(row["input_ids"])
        trained = draw.integers(0, 2, size).tolist()
        labels = [token if use else -100 for token, use in zip(row["input_ids"], trained, strict=True)]
        start = int(draw.integers(0, size + 1))
        found.append(row | {key: {"loss_mask": trained, "labels": labels, "answer_start_idx": start}[key]})
    return found


def read(path: Path, **options: Any) -> list[Any]:
    stream = read_samples(path, tokenizer=None, options=SampleOptions(seq_length=20, **options))
    blocks = list(stream)
    parts = [np.concatenate([getattr(block, name) for block in blocks]) for name in ("tokens", "masks", "lengths")]
    counts = stream.counts
    return [*(part.tolist() for part in parts), counts.tokens, counts.trained_tokens, counts.all_masked.samples]


@pytest.mark.parametrize("key", ["loss_mask", "labels", "answer_start_idx"])
@pytest.mark.parametrize("multiple", [1, 4])
@pytest.mark.parametrize("nullable", [False, True], ids=["columns", "rows"])
def test_tokenised_rows_equal_their_json_lines(tmp_path: Path, key: str, multiple: int, nullable: bool) -> None:
    lines = tools.write_lines(tmp_path / "a.jsonl", with_key(key))
    table = pa.Table.from_pylist(with_key(key))
    if nullable:
        # A column of nulls makes the reader look at each row.
        table = table.append_column("answer_start_idx" if key != "answer_start_idx" else "labels", pa.nulls(len(table)))
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=7)
    assert read(tmp_path / "a.parquet", pad_seq_to_mult=multiple) == read(lines, pad_seq_to_mult=multiple)


def test_text_rows_equal_their_json_lines(tmp_path: Path) -> None:
    tokenizer = tools.byte_tokenizer(tmp_path / "tokenizer", chat_template=tools.CHATML)
    for name, drawn in {"prompts": tools.prompt_rows(30, 1), "chats": tools.chat_rows(30, 2)}.items():
        lines = tools.write_lines(tmp_path / f"{name}.jsonl", drawn)
        pq.write_table(pa.Table.from_pylist(drawn), tmp_path / f"{name}.parquet", row_group_size=8)
        found = [
            np.concatenate([block.tokens for block in read_samples(path, tokenizer=tokenizer, options=SampleOptions())])
            for path in (lines, tmp_path / f"{name}.parquet")
        ]
        assert found[0].tolist() == found[1].tolist()


def test_a_wrong_row_is_named_by_its_number(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([{"input_ids": [1, 2], "loss_mask": [1, 1]}, {"input_ids": [1], "loss_mask": [1, 1]}])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a.parquet:2: 'loss_mask' has 2 values for 1 tokens"):
        read(tmp_path / "a.parquet")


def test_a_packed_file_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([{"input_ids": [1, 2], "seq_start_id": [0]}]), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="is packed already"):
        read(tmp_path / "a.parquet")
