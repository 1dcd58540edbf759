"""Chat samples: conversations through the tokenizer's chat template, with the mask that a release derives.

Mirrors _chat_preprocess (data/datasets/utils.py of 0.3.1 to 0.5.1) and tokenize_chat_example
(data/conversation_processing.py of 0.6.2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from skill_run.config.text import parse_json
from skill_run.errors import InputError
from skill_run.pack.samples.assistant_mask import (
    Boundaries,
    Rendered,
    assistant_mask,
    known_boundaries,
    last_turn_start,
)
from skill_run.pack.samples.chat_template import ChatTemplate, Turn, chat_template
from skill_run.pack.samples.options import LossMode, ReleaseRules, SampleOptions, rules_of
from skill_run.pack.samples.sample import BadSampleError, Sample, shifted
from skill_run.pack.samples.tokenizer import TextTokenizer
from skill_run.pack.samples.turns import turn_chats

_ALIASES: Final = {"human": "user", "gpt": "assistant"}

Row = Mapping[str, Any]
ChatRecipe = Callable[[Row], Sample]


def chat_recipe(options: SampleOptions, tokenizer: TextTokenizer) -> ChatRecipe:
    """Return the way from a line to its sample; raises InputError for a template that the release cannot mask."""
    if not options.use_hf_tokenizer_chat_template:
        return turn_chats(tokenizer, options).sample
    template = chat_template(options.chat_template, tokenizer)
    tools = _tools(options.tool_schemas)
    rules = rules_of(options.bridge)
    if rules.chat_masks == "boundaries":
        never_trained = tokenizer.never_trained()
        return BoundedChats(template, tools, known_boundaries(template), options.chat_loss_mode, never_trained).sample
    if rules.chat_masks == "generation" and not template.has_generation:
        raise InputError(
            "the chat template has no {% generation %} block, which Megatron-Bridge of this release needs for the loss "
            "mask; give a template that has one with chat_template"
        )
    return MarkedChats(template, tools, rules, tokenizer.token_id("eos_token")).sample


@dataclass(frozen=True, slots=True)
class MarkedChats:
    """Chats of 0.3 to 0.5: the mask is that of generation blocks, or everything where a template has none."""

    template: ChatTemplate
    tools: Any
    rules: ReleaseRules
    eos_id: int | None

    def sample(self, row: Row) -> Sample:
        """Return the sample of a line; raises BadSampleError."""
        turns = _older_turns(row)
        ids, mask = self.template.ids_and_mask(turns, row.get("tools") or self.tools)
        if not self.template.has_generation:
            mask = [1] * len(ids)
        # An id of 0 is taken for none there.
        if self.rules.ends_chats and self.eos_id and (not ids or ids[-1] != self.eos_id):
            ids, mask = [*ids, self.eos_id], [*mask, 1]
        return Sample(ids, shifted(mask))


@dataclass(frozen=True, slots=True)
class BoundedChats:
    """Chats of 0.6 and later: the mask comes from generation blocks and the known ends of turns together."""

    template: ChatTemplate
    tools: Any
    boundaries: Boundaries | None
    loss_mode: LossMode
    never_trained: frozenset[int]

    def sample(self, row: Row) -> Sample:
        """Return the sample of a line; raises BadSampleError."""
        turns = _newer_turns(row)
        tools = row.get("tools") or self.tools or row.get("tools")
        ids, marked = self.template.ids_and_mask(turns, tools)
        mask = self._mask(Rendered(self.template, turns, tools, ids, {}), marked)
        if self.never_trained:
            mask = [0 if token in self.never_trained else value for token, value in zip(ids, mask, strict=True)]
        return Sample(ids, shifted(mask))

    def _mask(self, rendered: Rendered, marked: list[int]) -> list[int]:
        if self.loss_mode == "full":
            return [1] * len(rendered.ids)
        mask = assistant_mask(rendered, marked if self.template.has_generation else None, self.boundaries)
        if self.loss_mode == "last_turn":
            start = last_turn_start(rendered, mask)
            mask = [0] * start + mask[start:]
        return mask


def _newer_turns(row: Row) -> list[Turn]:
    """Return the turns as normalize_chat_conversation of 0.6 does; messages go before conversation(s)."""
    key = next((key for key in ("messages", "conversation", "conversations") if row.get(key) is not None), None)
    turns = []
    for turn in _listed(row, key):
        if "role" in turn and "content" in turn:
            turns.append(turn)
        elif "from" in turn and "value" in turn:
            role = str(turn["from"]).lower()
            turns.append({"role": _ALIASES.get(role, role), "content": turn["value"]})
        else:
            raise BadSampleError("a turn has neither role and content nor from and value")
    if row.get("system") and not any(turn.get("role") == "system" for turn in turns):
        turns.insert(0, {"role": "system", "content": row["system"]})
    return turns


def _older_turns(row: Row) -> list[Turn]:
    """Return the turns as _convert_to_openai_messages of 0.3 to 0.5 does; conversations go before messages."""
    if not row.get("conversations"):
        return _listed(row, "messages" if row.get("messages") else None)
    turns: list[Turn] = []
    for turn in _listed(row, "conversations"):
        if "value" not in turn or not isinstance(turn.get("from"), str):
            raise BadSampleError("a turn of 'conversations' has no from and value")
        turns.append({"role": turn["from"].lower(), "content": turn["value"]})
    if row.get("system"):
        turns.insert(0, {"role": "system", "content": row["system"]})
    return turns


def _listed(row: Row, key: str | None) -> list[Turn]:
    if key is None:
        raise BadSampleError("there is no 'messages' and no 'conversations'")
    turns = row[key]
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, dict) for turn in turns):
        raise BadSampleError(f"'{key}' is no list of turns")
    return turns


def _tools(schemas: str | None) -> Any:
    if schemas is None:
        return None
    tools = parse_json(schemas, "tool_schemas")
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise InputError("tool_schemas is a JSON list of tool definitions")
    return tools
