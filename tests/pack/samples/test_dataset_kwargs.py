"""What a config says about its samples is what we read by."""

from __future__ import annotations

import pytest

from skill_run.errors import InputError
from skill_run.pack.samples import SampleOptions
from skill_run.pack.samples.dataset_kwargs import options_of_kwargs


def test_prompt_settings_are_taken_over_by_name() -> None:
    given = {"prompt_template": "{a} {b}", "label_key": "b", "truncation_field": None, "pad_to_max_length": True}
    assert options_of_kwargs(given) == {"prompt_template": "{a} {b}", "label_key": "b", "truncation_field": ""}
    SampleOptions(**options_of_kwargs(given)).check()


def test_chats_have_turn_markers_unless_the_template_is_asked_for() -> None:
    assert options_of_kwargs({"chat": True}) == {"kind": "chat", "use_hf_tokenizer_chat_template": False}
    found = options_of_kwargs({"chat": True, "use_hf_tokenizer_chat_template": True, "tool_schemas": [{"name": "f"}]})
    assert found == {"kind": "chat", "use_hf_tokenizer_chat_template": True, "tool_schemas": '[{"name": "f"}]'}


def test_settings_that_change_tokens_unread_are_refused() -> None:
    with pytest.raises(InputError, match="dataset_kwargs sets virtual_tokens"):
        options_of_kwargs({"virtual_tokens": 4})
    assert options_of_kwargs({"virtual_tokens": 0, "answer_only_loss": False}) == {}
