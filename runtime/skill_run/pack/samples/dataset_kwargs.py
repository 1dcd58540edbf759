"""The settings of samples that a config's `dataset_kwargs` hold, as our options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from skill_run.errors import InputError

_SAME: Final = (
    "add_bos",
    "add_eos",
    "add_sep",
    "sep_id",
    "label_key",
    "prompt_template",
    "truncation_field",
    "truncation_method",
    "chat_loss_mode",
)
# They change a sample's tokens, and nobody packs with them.
_UNREAD: Final = ("virtual_tokens", "tokens_to_generate", "special_tokens", "hf_dataset")


def options_of_kwargs(dataset_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of SampleOptions that `dataset_kwargs` set.

    With `chat`, lines are chats, through NeMo's turn markers unless use_hf_tokenizer_chat_template is set, as in
    build_gpt_sft_split (data/builders/gpt_sft.py of 0.6.2). Two keys are passed over because they change nothing there:
    answer_only_loss, and chat_template, which is set on an object that nobody asks (give it with the tokenizer).
    Raises InputError for settings of which we cannot make samples.
    """
    unread = [key for key in _UNREAD if dataset_kwargs.get(key)]
    if unread:
        raise InputError(f"dataset_kwargs sets {', '.join(unread)}, with which skill-run makes no samples")
    found = {key: dataset_kwargs[key] for key in _SAME if key in dataset_kwargs}
    if "truncation_field" in found and found["truncation_field"] is None:
        found["truncation_field"] = ""
    if dataset_kwargs.get("chat"):
        found["kind"] = "chat"
        found["use_hf_tokenizer_chat_template"] = bool(dataset_kwargs.get("use_hf_tokenizer_chat_template", False))
    tools = dataset_kwargs.get("tool_schemas")
    if tools:
        found["tool_schemas"] = tools if isinstance(tools, str) else json.dumps(tools)
    return found
