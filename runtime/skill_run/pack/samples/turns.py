"""Chats without a chat template: turns marked with extra_id texts, as NeMo's data sets have them.

Mirrors _preprocess and _mask_targets (data/datasets/utils.py, the same from Bridge 0.3.1 to 0.6.2) with the default
special_tokens of GPTSFTDataset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from skill_run.pack.samples.assistant_mask import find_span
from skill_run.pack.samples.options import SampleOptions, rules_of
from skill_run.pack.samples.sample import BadSampleError, Sample, shifted
from skill_run.pack.samples.tokenizer import TextTokenizer

_SYSTEM, _TURN, _LABEL, _END = "<extra_id_0>", "<extra_id_1>", "<extra_id_2>", "\n"
# Stands before a text whose own ids are wanted, since some tokenizers put something in front of a text.
_PREFIX: Final = "\x00"
_TO_VALUE, _TO_TEXT = "TEXT_TO_VALUE", "VALUE_TO_TEXT"


@dataclass(frozen=True, slots=True)
class Said:
    """A conversation as it is written out. form: None, TEXT_TO_VALUE or VALUE_TO_TEXT, which say where labels stand.

    wholes: the turns with their markers. masked: the speakers that are not trained, as one text.
    """

    header: str
    speakers: list[str]
    wholes: list[str]
    masked: str
    form: str | None

    @property
    def text(self) -> str:
        """The whole conversation; behind a trained last turn stands the marker of the next one."""
        ending = "" if self.speakers[-1] in self.masked else _TURN
        return self.header + "".join(self.wholes) + ending


@dataclass(frozen=True, slots=True)
class TurnChats:
    """Turns with markers: everybody but the masked speaker is trained.

    marker, label, end: ids of a turn's marker, of a label's and of a line's end.
    """

    tokenizer: TextTokenizer
    special_tokens: bool
    marker: list[int]
    label: list[int]
    end: list[int]

    def sample(self, row: Mapping[str, Any]) -> Sample:
        """Return the sample of a line; raises BadSampleError."""
        said = _read(row)
        names = [f"{_TURN}{speaker}{_END}" for speaker in said.speakers]
        try:
            ids, header = self.tokenizer.encode([said.text, said.header], special_tokens=self.special_tokens)
            own = _own(self.tokenizer, self.special_tokens, [*said.wholes, *names])
        except (UnicodeEncodeError, TypeError) as error:
            raise BadSampleError("its text holds half of a surrogate pair, which no tokenizer takes") from error
        turns, heads = own[: len(names)], [len(name) for name in own[len(names) :]]
        trained = [1] * len(ids)
        at = _clear(trained, 0, len(header))
        for number, (turn, head) in enumerate(zip(turns, heads, strict=True)):
            skip = self._skipped(turn, head, said.form)
            if skip is None:
                # Upstream goes on without moving over such a turn.
                _clear(trained, at, len(turn))
                continue
            if at >= len(ids):
                break
            first, count = self._untrained(number, turn, skip, said)
            _clear(trained, at + first, count)
            at += len(turn)
        if not any(trained):
            raise BadSampleError("nobody but the masked speaker says anything")
        return Sample(ids, shifted(trained))

    def _skipped(self, turn: list[int], head: int, form: str | None) -> int | None:
        """Return how many ids at the beginning of a trained turn are no answer, None when the turn is only a label."""
        place, behind = _find(turn, self.label)
        if place < 0 or form is None:
            return head
        if form == _TO_VALUE:
            return behind
        if place != head:
            raise BadSampleError("a label does not stand at the beginning of its turn")
        line, _ = _find(turn[head:], self.end)
        return None if line < 0 else head + line + len(self.end)

    def _untrained(self, number: int, turn: list[int], skip: int, said: Said) -> tuple[int, int]:
        """Return from where in a turn, and for how many ids, nothing is trained."""
        if number == 0 and said.form != _TO_VALUE:
            return 0, len(turn)
        if said.speakers[number] not in said.masked:
            return 0, skip
        # The marker of a later turn tells that the one before it has ended, so it is trained.
        kept = len(self.marker) if number > 1 or (number == 1 and said.form == _TO_VALUE) else 0
        return kept, max(len(turn) - kept, 0)


def turn_chats(tokenizer: TextTokenizer, options: SampleOptions) -> TurnChats:
    """Return the way of such chats with a tokenizer."""
    special_tokens = rules_of(options.bridge).special_tokens
    if options.include_special_tokens is not None:
        special_tokens = options.include_special_tokens
    return TurnChats(tokenizer, special_tokens, *_own(tokenizer, special_tokens, [_TURN, _LABEL, _END]))


def _own(tokenizer: TextTokenizer, special_tokens: bool, texts: list[str]) -> list[list[int]]:
    """Return the ids of texts without what the tokenizer puts in front of any text."""
    prefix, *found = tokenizer.encode([_PREFIX, *(_PREFIX + text for text in texts)], special_tokens=special_tokens)
    return [ids[len(prefix) :] for ids in found]


def _find(ids: list[int], pattern: list[int]) -> tuple[int, int]:
    """Return where a pattern begins and ends; one that the tokenizer loses is found at once, as upstream has it."""
    return find_span(ids, pattern, 0) if pattern else (0, 0)


def _clear(mask: list[int], start: int, count: int) -> int:
    """Set `count` values from `start` on to 0, as far as there are any; return the place behind them."""
    stop = start + count
    mask[start:stop] = [0] * len(mask[start:stop])
    return stop


def _read(row: Mapping[str, Any]) -> Said:
    said, system, form = row.get("conversations"), row.get("system"), row.get("type")
    masked = row.get("mask", "User")
    if not isinstance(said, list) or not said or not all(isinstance(turn, dict) for turn in said):
        raise BadSampleError("there is no list of turns in 'conversations'")
    if not all(isinstance(turn.get(key), str) for turn in said for key in ("from", "value")):
        raise BadSampleError("a turn of 'conversations' has no from and value")
    if not isinstance(system, str):
        raise BadSampleError("there is no 'system', which chats without a chat template need")
    if form not in (None, _TO_VALUE, _TO_TEXT):
        raise BadSampleError("its type is neither TEXT_TO_VALUE nor VALUE_TO_TEXT")
    speakers = [turn["from"] for turn in said]
    if not isinstance(masked, str) or not set(masked.split(",")) <= set(speakers):
        raise BadSampleError("the speaker of 'mask' (User where it is not set) says nothing")
    header = f"{_SYSTEM}System{_END}{system}{_END}"
    return Said(header, speakers, [_whole(turn, form) for turn in said], masked, form)


def _whole(turn: Mapping[str, Any], form: str | None) -> str:
    label = turn.get("label") if form is not None else None
    if label is not None and not isinstance(label, str):
        raise BadSampleError("a label is no text")
    marked = "" if label is None else f"{_LABEL}{label}{_END}"
    head, value = f"{_TURN}{turn['from']}{_END}", turn["value"]
    if form == _TO_TEXT:
        return f"{head}{marked}{value}{_END}"
    return f"{head}{value}{_END}{marked}"
