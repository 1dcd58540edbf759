"""From a chunk of lines, or of rows, to a part: parsing, tokenising, templates; the same in every process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from skill_run.pack.samples.flat import Fate, Flat, Part, finish, flatten
from skill_run.pack.samples.options import SampleOptions
from skill_run.pack.samples.prompts import PromptRecipe, prompt_recipe
from skill_run.pack.samples.quick_tokens import quick_columns
from skill_run.pack.samples.sample import BadSampleError, Sample
from skill_run.pack.samples.token_columns import Column, flat_columns
from skill_run.pack.samples.tokenizer import TextTokenizer
from skill_run.pack.samples.tokens import token_sample
from skill_run.report.safe import clip, flow

_BOM: Final = b"\xef\xbb\xbf"

Row = Mapping[str, Any]
Rows = Iterator[tuple[int, Row]]


@dataclass(frozen=True, slots=True)
class Converter:
    """Turns chunks into parts. kind: what the lines hold, decided. tokenizer: None for tokens without one."""

    options: SampleOptions
    kind: str
    tokenizer: TextTokenizer | None
    recipe: PromptRecipe | None
    chat: Callable[[Row], Sample] | None

    def lines(self, data: bytes, *, first: bool, too_long: bool = False) -> Part:
        """Return the part of a run of JSON lines. first: the file begins here; too_long: an endless line follows."""
        bad = Fate()
        if first and data.startswith(_BOM):
            data = data[len(_BOM) :]
        texts = data.split(b"\n")
        if not texts[-1]:
            texts.pop()
        part = self._quick_lines(texts) if self.kind == "tokens" and not too_long else None
        if part is None:
            part = self._convert(_parsed(texts, bad), bad, len(texts) + too_long)
        if too_long:
            part.fates["bad"].add(len(texts) + 1, "the line is too long")
        return part

    def _quick_lines(self, texts: list[bytes]) -> Part | None:
        lines = np.flatnonzero([bool(text) and not text.isspace() for text in texts]) + 1
        columns = quick_columns([texts[line - 1] for line in lines.tolist()])
        return None if columns is None else self.columns(columns, lines, read=len(texts))

    def rows(self, rows: Sequence[Row]) -> Part:
        """Return the part of rows that are parsed already (of a Parquet file)."""
        return self._convert(iter(enumerate(rows, start=1)), Fate(), len(rows))

    def columns(self, columns: dict[str, Column], lines: NDArray[np.int64], *, read: int) -> Part | None:
        """Return the part of tokenised rows as whole columns, None when they must be looked at one by one.

        lines: number of each row's line; read: how many lines there are in all.
        """
        limit = None if self.tokenizer is None else self.tokenizer.size
        flat = flat_columns(columns, lines, limit)
        if flat is None:
            return None
        return finish(flat, self.options, by_field=False, lines=read, bad=Fate())

    def _convert(self, rows: Rows, bad: Fate, lines: int) -> Part:
        empty: Fate = Fate()
        if self.kind == "tokens":
            flat = self._tokens(rows, bad)
        else:
            flat = flatten(list(self._prompts(rows, bad, empty) if self.recipe else self._chats(rows, bad)))
        # Lines are read before they are tokenised, so what is wrong with them is found in two passes.
        bad.places.sort()
        part = finish(flat, self.options, by_field=self.recipe is not None, lines=lines, bad=bad)
        part.fates["empty_completion"] = empty
        return part

    def _tokens(self, rows: Rows, bad: Fate) -> Flat:
        limit = None if self.tokenizer is None else self.tokenizer.size
        found = []
        for line, row in rows:
            try:
                found.append((line, *token_sample(row, limit)))
            except BadSampleError as error:
                bad.add(line, str(error))
        lengths = np.array([ids.size for _, ids, _, _ in found], dtype=np.int64)
        return Flat(
            np.concatenate([np.empty(0, np.int32), *(ids for _, ids, _, _ in found)]),
            np.concatenate([np.empty(0, np.uint8), *(mask for _, _, mask, _ in found)]),
            lengths,
            np.array([line for line, _, _, _ in found], dtype=np.int64),
            np.zeros(lengths.size, dtype=np.int64),
            np.array([ends_open for _, _, _, ends_open in found], dtype=bool),
        )

    def _prompts(self, rows: Rows, bad: Fate, empty: Fate) -> Iterator[tuple[int, Sample]]:
        assert self.recipe is not None
        numbers: list[int] = []
        texts: list[list[str]] = []
        for line, row in rows:
            try:
                pieces, says_nothing = self.recipe.pieces(row)
                _encodable(pieces)
            except BadSampleError as error:
                bad.add(line, str(error))
                continue
            if says_nothing:
                empty.add(line)
            numbers.append(line)
            texts.append(pieces)
        assert self.tokenizer is not None
        ids = iter(
            self.tokenizer.encode(
                [text for pieces in texts for text in pieces], special_tokens=self.recipe.special_tokens
            )
        )
        for line, pieces in zip(numbers, texts, strict=True):
            yield line, self.recipe.sample([next(ids) for _ in pieces])

    def _chats(self, rows: Rows, bad: Fate) -> Iterator[tuple[int, Sample]]:
        assert self.chat is not None
        for line, row in rows:
            try:
                yield line, self.chat(row)
            except BadSampleError as error:
                bad.add(line, str(error))


def make_converter(options: SampleOptions, kind: str, tokenizer: TextTokenizer | None) -> Converter:
    """Return the converter of a data set; raises InputError for settings that do not fit the tokenizer."""
    recipe = None
    chat = None
    if kind == "prompt-completion":
        assert tokenizer is not None
        recipe = prompt_recipe(options, tokenizer)
    elif kind == "chat":
        from skill_run.pack.samples.chat import chat_recipe

        assert tokenizer is not None
        chat = chat_recipe(options, tokenizer)
    return Converter(options, kind, tokenizer, recipe, chat)


def parse_line(text: bytes) -> Row:
    """Return the object on one line; raises BadSampleError with the reason."""
    try:
        row = json.loads(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadSampleError(f"byte {error.start + 1} of the line is no UTF-8") from error
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else clip(flow(str(error)), 100)
        raise BadSampleError(f"this is no JSON ({reason})") from error
    if not isinstance(row, dict):
        raise BadSampleError("this is no JSON object")
    return row


def _parsed(texts: list[bytes], bad: Fate) -> Rows:
    for number, text in enumerate(texts, start=1):
        if not text or text.isspace():
            continue
        try:
            yield number, parse_line(text)
        except BadSampleError as error:
            bad.add(number, str(error))


def _encodable(pieces: Sequence[str]) -> None:
    try:
        for text in pieces:
            if not text.isascii():
                text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadSampleError("its text holds half of a surrogate pair, which no tokenizer takes") from error
