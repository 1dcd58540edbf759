"""Tests of skill_run.batch.decode, and of the text that reports show."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skill_run.batch.decode import MAX_SEQUENCES, MAX_TOKENS, SequenceText, decode_rows
from skill_run.batch.inspect import InspectionReport, inspect_batch
from skill_run.errors import InputError, MissingError
from skill_run.report.html import render_html
from skill_run.report.inspection import render_inspection

pytest.importorskip("tokenizers", reason="decoded text needs the extra `text`")

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "<b>", "\x1b[31m", "::error::x", "a\nb"]
TEXTS = ["the quick brown fox", "the fox  jumps, \u00e9\u00e8 \u4f60\u597d \U0001f600 over", "a"]


def word_level() -> Any:
    """Return a tokenizer with one id a word."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    found = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="the"))
    found.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return found


def byte_level() -> Any:
    """Return a tokenizer whose tokens are bytes, as Llama 3's and Qwen's are."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    found.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=280, initial_alphabet=alphabet, show_progress=False)
    )
    return found


def metaspace() -> Any:
    """Return a tokenizer whose decoder drops the space before the first word, as SentencePiece's does."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pieces = [
        ("<unk>", 0.0),
        *((piece, -1.0) for piece in ("\u2581", "\u2581the", "\u2581fox", *"abcdefghijklmnopqrstuvwxyz,")),
    ]
    found = Tokenizer(models.Unigram(pieces, 0, False))
    found.pre_tokenizer = pre_tokenizers.Metaspace()
    found.decoder = decoders.Metaspace()
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the word-level tokenizer."""
    word_level().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def in_batch(sequences: list[list[int]], mask: list[list[int]]) -> dict[str, Any]:
    """Return an in-batch packed batch of 0.6: labels shifted inside each sequence, its last position untrained."""
    edges = np.array([0, *np.cumsum([len(ids) for ids in sequences])], dtype=np.int32)
    labels = [[*ids[1:], -100] for ids in sequences]
    return {
        "tokens": np.concatenate(sequences)[None],
        "labels": np.concatenate(labels)[None],
        "loss_mask": np.concatenate(mask)[None].astype(np.float32),
        "position_ids": np.concatenate([np.arange(len(ids)) for ids in sequences])[None],
        "cu_seqlens_q": edges,
        "max_seqlen_q": int(np.diff(edges).max()),
        "total_tokens": int(edges[-1]),
    }


def marked(sequence: SequenceText) -> str:
    return "".join(f"[{piece.text}]" if piece.trained else piece.text for piece in sequence.pieces)


def decoded(batch: dict[str, Any], folder: Path) -> list[str]:
    return [marked(sequence) for sequence in decode_rows(inspect_batch(batch), folder).sequences]


def test_the_mark_is_on_the_token_that_is_predicted(folder: Path) -> None:
    batch = in_batch([[0, 1, 2, 3], [4, 5, 3]], [[0, 1, 1, 0], [1, 0, 0]])
    assert decoded(batch, folder) == ["the quick[ brown fox]", "jumps[ over] fox"]


def test_the_file_itself_is_accepted_too(folder: Path) -> None:
    batch = in_batch([[0, 1]], [[0, 0]])
    assert decoded(batch, folder / "tokenizer.json") == ["the quick"]


def test_the_last_token_of_an_offline_sequence_is_shown_from_the_labels(folder: Path) -> None:
    batch = {
        "tokens": np.array([[0, 1, 4, 9, 0, 0]]),
        "labels": np.array([[1, 2, 5, 3, 0, 0]]),
        "loss_mask": np.array([[0, 1, 1, 0, 0, 0]]),
        "token_count": [4],
        "cu_seqlens_q": np.array([[0, 2, 4, 6]], dtype=np.int32),
        "max_seqlen_q": np.array([[2]], dtype=np.int32),
    }
    first, second = decode_rows(inspect_batch(batch), folder).sequences
    assert marked(first) == "the quick[ brown]"
    assert marked(second) == "jumps[ a\nb]"
    assert (first.number, second.number) == (0, 1)


def test_padding_and_tail_filler_are_not_text(folder: Path) -> None:
    batch = {
        "tokens": np.array([[0, 1, 2, 9, 3, 9, 9, 9]]),
        "labels": np.array([[1, 2, 9, 9, 3, 9, 9, 9]]),
        "loss_mask": np.zeros((1, 8), dtype=np.int64),
        "token_count": [6],
        "cu_seqlens_q": np.array([[0, 3, 4, 4]], dtype=np.int32),
        "cu_seqlens_q_padded": np.array([[0, 4, 6, 8]], dtype=np.int32),
        "max_seqlen_q": np.array([[4]], dtype=np.int32),
    }
    assert decoded(batch, folder) == ["the quick brown", "fox"]


@pytest.mark.parametrize("make", [word_level, byte_level, metaspace])
@pytest.mark.parametrize("pattern", [1, 2, 3, 7])
def test_marks_do_not_change_the_text(make: Callable[[], Any], pattern: int, tmp_path: Path) -> None:
    tokenizer = make()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    sequences = [tokenizer.encode(text).ids for text in TEXTS]
    mask = [[int(at % pattern == 0) for at in range(len(ids))] for ids in sequences]
    found = decode_rows(inspect_batch(in_batch(sequences, mask)), tmp_path).sequences
    for ids, sequence in zip(sequences, found, strict=True):
        whole = tokenizer.decode(ids, skip_special_tokens=False)
        assert "".join(piece.text for piece in sequence.pieces) == whole


@pytest.mark.parametrize("bad", [-1, -(2**40), 10, 2**32, 2**62])
def test_an_id_that_the_tokenizer_lacks_is_shown_as_a_number(bad: int, folder: Path) -> None:
    batch = in_batch([[0, bad, 1]], [[1, 0, 0]])
    assert decoded(batch, folder) == [f"the[<id {bad}>]quick"]


def test_long_sequences_and_many_are_cut_and_counted(folder: Path) -> None:
    batch = in_batch(
        [[0] * (MAX_TOKENS + 5)] + [[1, 2]] * (MAX_SEQUENCES + 3),
        [[0] * (MAX_TOKENS + 5)] + [[0, 0]] * (MAX_SEQUENCES + 3),
    )
    found = decode_rows(inspect_batch(batch), folder)
    assert len(found.sequences) == MAX_SEQUENCES
    assert found.left_out == 4
    assert found.sequences[0].left_out == 5
    text = render_inspection(inspect_batch(batch), "text", tokenizer=folder)
    assert "(5 more tokens)" in text
    assert "4 more sequences not shown" in text


def test_broken_boundaries_give_the_text_inside_the_row(folder: Path) -> None:
    batch = in_batch([[0, 1, 2], [3, 4]], [[0, 0, 0], [0, 0]])
    batch["cu_seqlens_q"] = np.array([0, 3, 903], dtype=np.int32)
    assert decoded(batch, folder) == ["the quick brown", "fox jumps"]
    batch["cu_seqlens_q"] = np.array([0, 4, 2, 5], dtype=np.int32)
    assert decoded(batch, folder) == ["the quick brown fox", "brown fox jumps"]


def test_without_a_loss_mask_nothing_is_marked(folder: Path) -> None:
    batch = in_batch([[0, 1, 2]], [[1, 1, 0]])
    del batch["loss_mask"]
    assert decoded(batch, folder) == ["the quick brown"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "holds no readable tokenizer.json"),
        (b"", "is no tokenizer"),
        (b"{}", "is no tokenizer"),
        (b"\xff\xfe", "is no tokenizer"),
        (b"[" * 200_000, "is no tokenizer"),
        (b'{"version":"1.0","model":{"type":"Unigram","vocab":[["a",0]],"unk_id":7}}', "is no tokenizer"),
    ],
)
def test_a_folder_without_a_usable_tokenizer_is_one_sentence(
    content: bytes | None, reason: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(InputError, match=reason) as caught:
        decoded(in_batch([[0, 1]], [[0, 0]]), tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["no/such/folder", "nul\0", "x" * 5000])
def test_a_path_that_cannot_be_is_one_sentence(name: str) -> None:
    with pytest.raises(InputError, match=r"holds no readable tokenizer\.json"):
        decode_rows(inspect_batch(in_batch([[0, 1]], [[0, 0]])), name)


def test_a_file_too_large_to_be_a_tokenizer_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(InputError, match="larger than 256 MiB"):
        decode_rows(inspect_batch(in_batch([[0, 1]], [[0, 0]])), tmp_path)


def test_a_batch_without_tokens_is_refused(folder: Path) -> None:
    batch = in_batch([[0, 1]], [[0, 0]])
    del batch["tokens"]
    with pytest.raises(InputError, match="holds no tokens"):
        decode_rows(inspect_batch(batch), folder)


def test_one_ranks_part_is_refused(folder: Path) -> None:
    batch = in_batch([[0, 1, 2, 3]], [[0, 0, 0, 0]])
    batch["cu_seqlens_q"] = np.array([[0, 8]], dtype=np.int32)
    report = inspect_batch(batch, cp=2)
    assert report.batch is not None
    assert report.batch.per_rank
    with pytest.raises(InputError, match="one rank's part"):
        decode_rows(report, folder)


def test_a_dataset_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="a packed dataset is not decoded"):
        decode_rows(InspectionReport("d", "packed_dataset", ">=0.6", "b", "m", 1, 1, (), ()), folder)


def test_without_the_package_the_sentence_says_how_to_get_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingError, match=r"pip install 'skill-run\[text\]'"):
        decode_rows(inspect_batch(in_batch([[0, 1]], [[0, 0]])), folder)


def test_the_text_report_marks_what_is_trained_and_shows_no_control_characters(folder: Path) -> None:
    report = inspect_batch(in_batch([[0, 6, 7, 8, 9]], [[1, 1, 0, 1, 0]]))
    text = render_inspection(report, "text", tokenizer=folder, width=200)
    assert "row 0, sequence 0: the[[ <b> \\x1b[31m]]" in text
    assert "\\x1b" in text
    assert "a\\nb" in text
    assert not any(line.strip().startswith("::") for line in text.split("\n"))


def test_the_page_marks_what_is_trained_and_escapes_it(folder: Path) -> None:
    report = inspect_batch(in_batch([[0, 6, 7, 9]], [[1, 0, 0, 0]]))
    page = render_html(report, tokenizer=folder)
    assert "the<mark> &lt;b&gt;</mark> \\x1b[31m a\nb" in page
    assert "<mark>" not in render_html(report)


def test_nothing_else_is_read_from_the_folder(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": "evil.Evil"}}), "utf-8")
    (folder / "evil.py").write_text("raise SystemExit(9)", "utf-8")
    assert decoded(in_batch([[0, 1]], [[0, 0]]), folder) == ["the quick"]
    assert not [name for name in sys.modules if re.search("transformers|evil", name)]
