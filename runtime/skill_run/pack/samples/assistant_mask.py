"""Which tokens of a rendered chat the assistant said, as Bridge 0.6 finds them: by the markers of known templates.

Mirrors data/conversation_processing.py of Bridge 0.6.2. Masks lie over the tokens here, 1 where the loss is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from skill_run.pack.samples.chat_template import ChatTemplate, TemplateValueError, Turn
from skill_run.pack.samples.sample import BadSampleError

ASSISTANT: Final = "assistant"
_OTHERS: Final = ("system", "developer", "user", "tool")


@dataclass(frozen=True, slots=True)
class _Form:
    """A known form of chat: texts its template holds, and how turns begin and end in it."""

    signs: tuple[str, ...]
    start: str
    end: str
    other_ends: tuple[str, ...]
    other_starts: Mapping[str, str]


_FORMS: Final = (
    _Form(
        ("<|im_start|>assistant", "<|im_end|>"),
        "<|im_start|>assistant\n",
        "<|im_end|>\n",
        ("<|im_end|>",),
        {role: f"<|im_start|>{role}\n" for role in _OTHERS},
    ),
    _Form(
        ("<|im_assistant|>", "<|im_user|>", "<|im_system|>", "<|im_middle|>", "<|im_end|>"),
        "<|im_assistant|>assistant<|im_middle|>",
        "<|im_end|>",
        (),
        {role: f"<|im_{role}|>{role}<|im_middle|>" for role in ("system", "user")},
    ),
    _Form(("<|turn>model", "<turn|>"), "<|turn>model\n", "<turn|>", (), {}),
    _Form(("<start_of_turn>model", "<end_of_turn>"), "<start_of_turn>model\n", "<end_of_turn>", (), {}),
    _Form(
        ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "<|eot_id|>",
        (),
        {role: f"<|start_header_id|>{role}<|end_header_id|>\n\n" for role in _OTHERS},
    ),
    _Form(
        ("<|start|>", "<|channel|>", "<|message|>"),
        "<|start|>assistant",
        "<|return|>",
        ("<|end|>", "<|call|>"),
        {role: f"<|start|>{role}" for role in _OTHERS},
    ),
)


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Ids with which turns of each role begin, and with which turns end, the preferred end first."""

    starts: Mapping[str, list[int]]
    ends: tuple[list[int], ...]


def known_boundaries(template: ChatTemplate) -> Boundaries | None:
    """Return the boundaries of a template of a known form, None for others."""

    def encode(text: str) -> list[int]:
        return template.tokenizer.encode([text], special_tokens=False)[0]

    for form in _FORMS:
        if not all(sign in template.source for sign in form.signs):
            continue
        start, end = encode(form.start), encode(form.end)
        if start and end:
            starts = {ASSISTANT: start, **{role: encode(text) for role, text in form.other_starts.items()}}
            ends = (end, *(encode(text) for text in form.other_ends))
            return Boundaries({role: ids for role, ids in starts.items() if ids}, tuple(ids for ids in ends if ids))
    return None


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered conversation with the renderings of its beginnings, which are made once each.

    prefixes: ids of the first n turns, by n.
    """

    template: ChatTemplate
    turns: Sequence[Turn]
    tools: Any
    ids: list[int]
    prefixes: dict[int, list[int]]

    def prefix(self, count: int) -> list[int]:
        """Return the ids of the first `count` turns alone; raises BadSampleError when the template refuses them."""
        if count == len(self.turns):
            return self.ids
        if count not in self.prefixes:
            self.prefixes[count] = self.template.ids(self.turns[:count], self.tools) if count else []
        return self.prefixes[count]


def assistant_mask(rendered: Rendered, marked: list[int] | None, boundaries: Boundaries | None) -> list[int]:
    """Return the mask of what the assistant says. marked: that of the template's generation blocks, if it has any.

    Raises BadSampleError where upstream finds no mask.
    """
    if boundaries is None:
        if marked is None:
            raise BadSampleError("the chat template has no generation block and is of no form whose turns Bridge knows")
        return marked
    if marked is not None and any(marked):
        ends = _by_turns(rendered, boundaries, content=False)
        if ends is None and not _holds_markers(rendered, boundaries):
            ends = _by_markers(rendered, boundaries, content=False)
        return marked if ends is None else [max(pair) for pair in zip(marked, ends, strict=True)]
    found = _by_turns(rendered, boundaries, content=True)
    if found is None and not _holds_markers(rendered, boundaries):
        found = _by_markers(rendered, boundaries, content=True)
    if found is not None and (marked is None or any(found)):
        return found
    if marked is None:
        raise BadSampleError("no turn of the assistant is found in the rendered conversation")
    return marked


def last_turn_start(rendered: Rendered, mask: Sequence[int]) -> int:
    """Return where the trained part begins when only the assistant's last turn is (chat_loss_mode last_turn)."""
    places = [at for at, turn in enumerate(rendered.turns) if turn.get("role") == ASSISTANT]
    if places:
        start = common_prefix(rendered.prefix(places[-1]), rendered.ids)
        if any(mask[start:]) or not any(mask):
            return start
    begins = [at for at, value in enumerate(mask) if value and (at == 0 or not mask[at - 1])]
    return begins[-1] if begins else 0


def _by_turns(rendered: Rendered, boundaries: Boundaries, *, content: bool) -> list[int] | None:
    """Return the mask found turn by turn, between the renderings of the turns before and including each."""
    ids = rendered.ids
    mask = [0] * len(ids)
    found = False
    for number, turn in enumerate(rendered.turns):
        if turn.get("role") != ASSISTANT:
            continue
        try:
            begin = common_prefix(rendered.prefix(number), ids)
            limit = common_prefix(rendered.prefix(number + 1), ids)
        except TemplateValueError:
            return None
        if begin >= limit:
            return None
        _, start = find_span(ids, boundaries.starts[ASSISTANT], begin)
        if start < 0 or start > limit:
            return None
        ends = _ends(ids, boundaries, start, limit)
        if not ends:
            return None
        # The last end counts; of two at one place the preferred one.
        end, _, behind = max((end, -priority, behind) for end, priority, behind in ends)
        _mark(mask, start, end, behind, content)
        found = True
    return mask if found else None


def _by_markers(rendered: Rendered, boundaries: Boundaries, *, content: bool) -> list[int] | None:
    """Return the mask found by the markers alone; None unless they agree with the turns of the conversation."""
    ids = rendered.ids
    markers: list[tuple[int, int, str]] = []
    for role, pattern in boundaries.starts.items():
        at, behind = find_span(ids, pattern, 0)
        while at >= 0:
            markers.append((at, -len(pattern), role))
            at, behind = find_span(ids, pattern, behind)
    # Of several markers at one place the longest counts.
    markers.sort(key=lambda marker: marker[:2])
    markers = [each for number, each in enumerate(markers) if not number or markers[number - 1][0] != each[0]]
    said = [turn for turn in rendered.turns if turn.get("role") == ASSISTANT]
    if len(said) != sum(role == ASSISTANT for _, _, role in markers):
        return None
    mask = [0] * len(ids)
    found = False
    for number, (at, length, role) in enumerate(markers):
        if role != ASSISTANT:
            continue
        limit = markers[number + 1][0] if number + 1 < len(markers) else len(ids)
        ends = _ends(ids, boundaries, at - length, limit)
        if not ends:
            continue
        if len({end for end, _, _ in ends}) != 1:
            return None
        end, _, behind = min(ends)
        _mark(mask, at - length, end, behind, content)
        found = True
    return mask if found else None


def _mark(mask: list[int], start: int, end: int, behind: int, content: bool) -> None:
    first = start if content else end
    mask[first:behind] = [1] * max(behind - first, 0)


def _ends(ids: list[int], boundaries: Boundaries, start: int, limit: int) -> list[tuple[int, int, int]]:
    """Return all ends of a turn between `start` and `limit`: where, priority of the pattern, place behind."""
    found = []
    for priority, pattern in enumerate(boundaries.ends):
        at = start
        while at < limit:
            end, behind = find_span(ids, pattern, at)
            if end < 0 or behind > limit:
                break
            found.append((end, priority, behind))
            at = end + 1
    return found


def _holds_markers(rendered: Rendered, boundaries: Boundaries) -> bool:
    """Tell whether what the conversation says holds a marker itself, so that scanning for markers would mislead."""
    patterns = [*boundaries.starts.values(), *boundaries.ends]
    said: list[str] = []
    _texts([{key: value for key, value in turn.items() if key != "role"} for turn in rendered.turns], said)
    _texts(rendered.tools, said)
    encoded = rendered.template.tokenizer.encode(said, special_tokens=False) if said else []
    return any(find_span(ids, pattern, 0)[0] >= 0 for ids in encoded for pattern in patterns)


def _texts(value: Any, found: list[str]) -> None:
    if isinstance(value, str):
        found.append(value)
    elif isinstance(value, Mapping):
        for item in value.values():
            _texts(item, found)
    elif isinstance(value, list):
        for item in value:
            _texts(item, found)


def find_span(ids: list[int], pattern: list[int], start: int) -> tuple[int, int]:
    """Return begin and end of the first occurrence of `pattern` at or after `start`, (-1, -1) when there is none."""
    last = len(ids) - len(pattern) + 1
    at = start
    while pattern and at < last:
        try:
            at = ids.index(pattern[0], at, last)
        except ValueError:
            break
        if ids[at : at + len(pattern)] == pattern:
            return at, at + len(pattern)
        at += 1
    return -1, -1


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many ids two lists begin with alike."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    return next(at for at in range(shorter) if one[at] != other[at])
