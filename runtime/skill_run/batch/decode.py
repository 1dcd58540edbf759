"""The text of a batch's sequences through a local tokenizer, with the tokens that are trained marked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from skill_run.batch.model import Batch, Row
from skill_run.errors import InputError, MissingError
from skill_run.report.wording import short

if TYPE_CHECKING:
    from skill_run.batch.inspect import InspectionReport, Sequence

MAX_SEQUENCES: Final = 50
MAX_TOKENS: Final = 400
MAX_FILE: Final = 2**28
# Decoders join tokens (word starts, bytes of one character), so each run is decoded behind a few tokens before it.
_CONTEXT: Final = 8
_BROKEN: Final = "\ufffd"
_ID_LIMIT: Final = 2**32
_IGNORED: Final = -100


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Neighbouring tokens as text; trained: the model is trained to write them."""

    text: str
    trained: bool


@dataclass(frozen=True, slots=True)
class SequenceText:
    """The text of one sequence of a row. left_out: tokens after the ones shown."""

    row: int
    number: int
    pieces: tuple[TextPiece, ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class DecodedText:
    """The texts of the first sequences. left_out: sequences after the ones shown."""

    sequences: tuple[SequenceText, ...]
    left_out: int


def decode_rows(report: InspectionReport, tokenizer_dir: str | Path) -> DecodedText:
    """Return the text of a report's sequences; nothing is fetched.

    tokenizer_dir: folder with a tokenizer.json, or that file. The loss at a position is for the token after it, so the
    marks are one token further than the loss mask. The last label of a sequence is shown too where the row does not
    hold it. Raises MissingError without the `tokenizers` package, InputError when the tokenizer or the batch cannot be
    read that way.
    """
    batch = report.batch
    if batch is None:
        raise InputError("a packed dataset is not decoded; inspect one batch of it with the tokenizer")
    if batch.per_rank:
        raise InputError("one rank's part of a batch cannot be decoded; inspect the whole batch with the tokenizer")
    if all(row.tokens is None for row in batch.rows):
        raise InputError("the batch holds no tokens to decode")
    tokenizer = _load(Path(tokenizer_dir))
    found: list[SequenceText] = []
    left_out = 0
    for row, number, sequence in _members(report, batch):
        if len(found) == MAX_SEQUENCES:
            left_out += 1
        else:
            found.append(_decoded(tokenizer, batch, row, number, sequence))
    return DecodedText(tuple(found), left_out)


def _members(report: InspectionReport, batch: Batch) -> Iterator[tuple[Row, int, Sequence]]:
    """Yield the sequences that hold real tokens and lie inside their row, with their number in it."""
    rows = {row.index: row for row in batch.rows}
    number, at = -1, -1
    for sequence in report.sequences:
        number = number + 1 if sequence.row == at else 0
        at = sequence.row
        tokens = rows[at].tokens
        filler = rows[at].token_count if batch.path == "offline_packed" else None
        if tokens is None or sequence.logical <= 0 or not 0 <= sequence.start < tokens.size:
            continue
        if filler is None or sequence.start < filler:
            yield rows[at], number, sequence


def _load(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingError("decoding needs the tokenizers package: pip install 'skill-run[text]'") from error
    try:
        file = path / "tokenizer.json" if path.is_dir() else path
        if file.stat().st_size > MAX_FILE:
            raise InputError(f"{short(str(file))} is larger than {MAX_FILE >> 20} MiB, which no tokenizer is")
        data = file.read_bytes()
    except (OSError, ValueError) as error:
        raise InputError(
            f"{short(str(path))} holds no readable tokenizer.json; save_pretrained() of a fast tokenizer writes one"
        ) from error
    try:
        return Tokenizer.from_buffer(data)
    except Exception as error:  # the package raises Exception itself
        raise InputError(f"{short(str(file))} is no tokenizer: {short(str(error))}") from error


def _decoded(tokenizer: Any, batch: Batch, row: Row, number: int, sequence: Sequence) -> SequenceText:
    assert row.tokens is not None
    end = min(sequence.start + min(sequence.logical, max(sequence.physical, 0)), row.tokens.size)
    shown = slice(sequence.start, min(end, sequence.start + MAX_TOKENS))
    ids = np.asarray(row.tokens[shown])
    targets = np.zeros(ids.size, dtype=bool)
    with_loss = _with_loss(row)[shown]
    targets[1:] = with_loss[:-1]
    if shown.stop == end and ids.size and with_loss[-1] and _ends_outside(batch, row, end):
        assert row.labels is not None
        ids = np.append(ids, row.labels[end - 1])
        targets = np.append(targets, True)
    pieces = tuple(_pieces(tokenizer, ids.tolist(), targets))
    return SequenceText(row.index, number, pieces, end - shown.stop)


def _with_loss(row: Row) -> NDArray[np.bool_]:
    assert row.tokens is not None
    found = np.zeros(row.tokens.size, dtype=bool)
    if row.loss_mask is not None and row.loss_mask.size == found.size:
        found = np.nan_to_num(np.asarray(row.loss_mask, dtype=np.float64)) > 0
    if row.labels is not None and row.labels.size == found.size:
        found &= np.asarray(row.labels != _IGNORED)
    return found


def _ends_outside(batch: Batch, row: Row, end: int) -> bool:
    """Tell whether the last target of a sequence is in the labels only, as offline packs have it."""
    return batch.path == "offline_packed" and row.labels is not None and end <= row.labels.size


def _pieces(tokenizer: Any, ids: list[int], targets: NDArray[np.bool_]) -> Iterator[TextPiece]:
    """Yield the text run by run; a run ends where the mark changes or an id is not the tokenizer's."""
    known = {value: _is_known(tokenizer, value) for value in set(ids)}
    kinds = [(bool(target), known[value]) for value, target in zip(ids, targets.tolist(), strict=True)]
    start = 0
    for at in range(1, len(ids) + 1):
        if at < len(ids) and kinds[at] == kinds[start]:
            continue
        trained, readable = kinds[start]
        text = (
            _run(tokenizer, ids, known, start, at) if readable else "".join(f"<id {value}>" for value in ids[start:at])
        )
        if text:
            yield TextPiece(text, trained)
        start = at


def _is_known(tokenizer: Any, value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < _ID_LIMIT and tokenizer.id_to_token(value) is not None


def _run(tokenizer: Any, ids: list[int], known: dict[int, bool], start: int, end: int) -> str:
    """Return the text of `ids[start:end]` as it reads behind the tokens before it."""
    first = start
    while first > 0 and start - first < _CONTEXT and known[ids[first - 1]]:
        first -= 1
    before = _decode(tokenizer, ids[first:start]).rstrip(_BROKEN)
    text = _decode(tokenizer, ids[first:end])
    if end < len(ids) and known[ids[end]]:
        # The rest of the character belongs to the next run, which shows it whole.
        text = text.rstrip(_BROKEN)
    return text.removeprefix(before)


def _decode(tokenizer: Any, ids: list[int]) -> str:
    if not ids:
        return ""
    try:
        text: str = tokenizer.decode(ids, skip_special_tokens=False)
    except Exception as error:  # the package raises Exception itself
        raise InputError(f"the tokenizer cannot decode its own tokens: {short(str(error))}") from error
    return text
