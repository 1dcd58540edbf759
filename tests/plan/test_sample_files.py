from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from tokenizers import Tokenizer, models, pre_tokenizers

from skill_run.errors import InputError
from skill_run.plan.lengths import Lengths
from skill_run.plan.sources import Reading, read_lengths

WORDS = {word: at for at, word in enumerate(("<eos>", "<unk>", *"abcdefgh"))}
TEXTS = [("a b", "c"), ("a b c d", "e f"), ("a", "b")]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer that makes one token of each word."""
    folder = tmp_path_factory.mktemp("tokenizer")
    made = Tokenizer(models.WordLevel(WORDS, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>", "unk_token": "<unk>"}))
    return folder


def lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), "utf-8")
    return path


def listed(lengths: Lengths) -> list[int]:
    return list(np.repeat(lengths.values, lengths.counts).tolist())


def read(path: Path, tokenizer: Path | None = None, **settings: Any) -> Lengths:
    return read_lengths(path, Reading("0.6.2", tokenizer, **settings))


def test_text_is_tokenised_as_upstream_does_it_end_token_included(tmp_path: Path, tokenizer: Path) -> None:
    path = lines(tmp_path / "a.jsonl", [{"input": text, "output": answer} for text, answer in TEXTS])

    found = read(path, tokenizer)

    assert (listed(found), found.kind, found.chat) == ([3, 4, 7], "text", False)


def test_a_folder_of_a_data_set_means_its_training_file(tmp_path: Path, tokenizer: Path) -> None:
    lines(tmp_path / "training.jsonl", [{"input": "a", "output": "b"}])
    lines(tmp_path / "validation.jsonl", [{"input": "a b c", "output": "b"}])

    found = read(tmp_path, tokenizer)

    assert (listed(found), found.source) == ([3], str(tmp_path / "training.jsonl"))


def test_long_samples_are_not_cut_while_they_are_counted(tmp_path: Path, tokenizer: Path) -> None:
    path = lines(tmp_path / "a.jsonl", [{"input": "a " * 5000, "output": "b"}])

    assert listed(read(path, tokenizer)) == [5002]


def test_other_columns_are_read_by_option(tmp_path: Path, tokenizer: Path) -> None:
    path = lines(tmp_path / "a.jsonl", [{"question": "a b", "answer": "c"}])

    found = read(path, tokenizer, options={"prompt_column": "question", "completion_column": "answer"})

    assert listed(found) == [4]


def test_an_option_that_no_data_set_has_is_refused(tmp_path: Path, tokenizer: Path) -> None:
    path = lines(tmp_path / "a.jsonl", [{"input": "a", "output": "b"}])

    with pytest.raises(InputError, match="colour is no option of a data set"):
        read(path, tokenizer, options={"colour": "red"})


def test_faults_in_standard_input_are_told_as_such(tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"input": "a", "output": "b"}\n{"input"\n')))

    with pytest.raises(InputError, match=r"1 lines cannot be read \(standard input:2: "):
        read_lengths("-", Reading("0.6.2", tokenizer))


def test_progress_is_told_in_bytes(tmp_path: Path, tokenizer: Path) -> None:
    path = lines(tmp_path / "a.jsonl", [{"input": "a", "output": "b"}])
    told: list[Mapping[str, Any]] = []

    read(path, tokenizer, on_progress=told.append)

    size = path.stat().st_size
    assert told == [{"event": "progress", "text": "1 samples", "done": size, "total": size}]


def test_text_without_a_tokenizer_is_refused_with_the_option_that_is_needed(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", [{"input": "a", "output": "b"}])

    with pytest.raises(InputError, match="needs a tokenizer: give its folder with --tokenizer DIR"):
        read(path)


def test_a_tokenizer_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", [{"input": "a", "output": "b"}])

    with pytest.raises(InputError, match="nowhere"):
        read(path, tmp_path / "nowhere")


def test_broken_lines_of_text_are_named_or_left_out(tmp_path: Path, tokenizer: Path) -> None:
    rows = [{"input": "a", "output": "b"}, '{"input": "a"', {"input": "a"}, {"input": "a b", "output": "b"}]
    path = lines(tmp_path / "a.jsonl", rows)

    with pytest.raises(InputError, match=r"2 lines cannot be read .*a.jsonl:2.*a.jsonl:3.*; mend them"):
        read(path, tokenizer)
    found = read(path, tokenizer, skip_bad=True)

    assert (listed(found), found.notes) == ([3, 4], ("left out: 2 lines that cannot be read",))


@pytest.mark.parametrize("column", ["input_ids", "tokens", "token_ids"])
def test_tokens_are_counted_whatever_is_trained_of_them(tmp_path: Path, column: str) -> None:
    path = lines(tmp_path / "a.jsonl", [{column: [5, 6, 7]}, "", {column: [5]}])

    found = read(path)

    assert (listed(found), found.kind) == ([1, 3], "tokens")


def test_broken_lines_of_tokens_are_named_or_left_out(tmp_path: Path) -> None:
    rows = [{"tokens": [5, 6]}, "[1", {"tokens": "a"}, {"text": "a"}, {"tokens": []}, {"tokens": [1, 2, 3]}]
    path = lines(tmp_path / "a.jsonl", rows)

    with pytest.raises(
        InputError, match=r"4 lines cannot be read .*a.jsonl:2: .*a.jsonl:4: there is none of input_ids"
    ):
        read(path)
    found = read(path, skip_bad=True)

    assert (listed(found), found.notes) == ([2, 3], ("left out: 4 lines that cannot be read",))


def test_a_data_set_without_a_whole_line_is_refused(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", [{"tokens": "a"}])

    with pytest.raises(InputError, match="holds no lengths"):
        read(path, skip_bad=True)


def test_text_in_parquet_is_tokenised_too(tmp_path: Path, tokenizer: Path) -> None:
    columns = {"input": [text for text, _ in TEXTS], "output": [answer for _, answer in TEXTS]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")

    assert listed(read(tmp_path / "a.parquet", tokenizer)) == [3, 4, 7]


def test_chats_are_told_from_their_lines(tmp_path: Path, tokenizer: Path) -> None:
    template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    chat = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c d"}]
    path = lines(tmp_path / "a.jsonl", [{"messages": chat}])

    found = read(path, tokenizer, options={"chat_template": template, "chat_loss_mode": "full"})

    assert (found.chat, found.kind, found.samples) == (True, "text", 1)
