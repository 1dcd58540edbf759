"""A tokenizer's folder: what is read of it, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import sample_tools as tools

from skill_run.errors import InputError, MissingError
from skill_run.pack.samples import Preprocessing, SampleOptions, read_samples
from skill_run.pack.samples.tokenizer import load_tokenizer


def test_special_tokens_stand_in_for_each_other_as_in_megatron(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tools.byte_tokenizer(tmp_path))
    assert tokenizer.token_id("sep_token") == tokenizer.token_id("eos_token")
    assert tokenizer.token_id("bos_token") is None
    assert tokenizer.never_trained() == {
        tokenizer.token_id("pad_token"),
        *tokenizer.encode(["<|im_start|>"], special_tokens=False)[0],
    }


def test_a_token_that_only_the_config_names_is_added(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tools.word_tokenizer(tmp_path))
    assert tokenizer.token_id("pad_token") == tokenizer.size - 1


def test_a_model_in_the_hub_cache_is_found_by_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools.byte_tokenizer(tmp_path / "models--acme--tiny" / "snapshots" / "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert load_tokenizer("acme/tiny").token_id("eos_token") is not None


def test_a_broken_tokenizer_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}", "utf-8")
    with pytest.raises(InputError, match="is no tokenizer"):
        load_tokenizer(tmp_path)


def test_without_the_package_the_sentence_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tools.byte_tokenizer(tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingError, match=r"skill-run\[text\]"):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (SampleOptions(add_bos=True), "has no bos_token, which the settings ask for .add_bos."),
        (SampleOptions(prompt_template="{output} {input}"), "must end with {output}"),
        (SampleOptions(truncation_field="question"), "truncation_field names question"),
        (SampleOptions(seq_length=1, preprocessing=Preprocessing(add_sep=True)), "no room for the special tokens"),
        (SampleOptions(kind="chat"), "holds no chat template"),
        (SampleOptions(kind="chat", chat_template="{% if %}"), "the chat template cannot be read"),
        (SampleOptions(kind="chat", chat_template=tools.OWN, bridge="0.5.1"), "no {% generation %} block"),
        (SampleOptions(kind="chat", chat_template=tools.OWN, tool_schemas="{}"), "tool_schemas is a JSON list"),
    ],
)
def test_settings_that_do_not_fit_the_tokenizer_are_refused_before_reading(
    tmp_path: Path, options: SampleOptions, sentence: str
) -> None:
    data = tools.write_lines(tmp_path / "a.jsonl", [{"input": "x", "output": "y"}])
    with pytest.raises(InputError, match=sentence):
        read_samples(data, tokenizer=tools.byte_tokenizer(tmp_path / "tokenizer"), options=options)


def test_ids_beyond_the_tokenizer_are_bad(tmp_path: Path) -> None:
    data = tools.write_lines(tmp_path / "a.jsonl", [{"input_ids": [1, 5000], "loss_mask": [1, 1]}])
    tokenizer = tools.byte_tokenizer(tmp_path / "tokenizer")
    size = load_tokenizer(tokenizer).size
    with pytest.raises(InputError, match=f"token id 5000 is too large: the vocabulary has {size}"):
        list(read_samples(data, tokenizer=tokenizer, options=SampleOptions()))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": []}, "'messages' is no list of turns"),
        ({"messages": [{"role": "user"}]}, "a turn has neither role and content nor from and value"),
        ({"messages": [{"role": "assistant", "content": 3}]}, "the chat template cannot take it"),
        ({"input": "x"}, "there is no 'messages'"),
        ({"messages": [{"role": "assistant", "content": "\ud800"}]}, "half of a surrogate pair"),
    ],
)
def test_a_conversation_that_cannot_be_rendered_is_bad(tmp_path: Path, row: object, reason: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row), "utf-8")
    template = "{% for m in messages %}{% generation %}{{ 'A: ' + m['content'] }}{% endgeneration %}{% endfor %}"
    options = SampleOptions(kind="chat", chat_template=template)
    with pytest.raises(InputError, match=reason):
        list(read_samples(path, tokenizer=tools.byte_tokenizer(tmp_path / "tokenizer"), options=options))
