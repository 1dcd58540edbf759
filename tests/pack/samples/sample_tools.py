"""Tokenizers and data that tests make: small, written out token by token, the same everywhere."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

EOS, BOS, PAD = "<|endoftext|>", "<s>", "<pad>"
MARKERS = ("<|im_start|>", "<|im_end|>")
WORDS = (
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "what",
    "is",
    "capital",
    "of",
    "france",
    "paris",
    "42",
    "zebra",
    ",",
    ".",
    "\u00e9t\u00e9",
)

_PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    + _PROMPT
)
CHATML_MARKED = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}{% endgeneration %}"
    "{% else %}{{ message['content'] }}{% endif %}<|im_end|>\n{% endfor %}" + _PROMPT
)
LLAMA = (
    "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
)
OWN_MARKED = (
    "{%- for message in messages -%}{%- if message['role'] == 'assistant' -%}"
    "{% generation %}A: {{ message['content'] }}\n{% endgeneration %}"
    "{%- else -%}{{ message['role'] | upper }}: {{ message['content'] }}\n{%- endif -%}{%- endfor -%}"
)
OWN = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
# Turns that only their markers tell apart: the template says something else about the beginning of a conversation.
SCANNED = (
    "{{ messages | length }} turns\n{% for message in messages %}<|im_start|>"
    "{{ 'assistant' if message['role'] == 'assistant' else message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{# <|im_start|>assistant #}"
)


def byte_tokenizer(folder: Path, *, chat_template: str | None = None) -> Path:
    """A byte-level tokenizer with a few merges, an end-of-text token and ChatML's markers; spaces matter to it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("\u0120", "th"), ("\u0120th", "e"), ("o", "x"), ("a", "n"), ("i", "s")]
    vocab = {token: number for number, token in enumerate([*alphabet, *("".join(pair) for pair in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (EOS, PAD, *MARKERS)])
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS, "pad_token": PAD}
    return _saved(folder, tokenizer, config | ({"chat_template": chat_template} if chat_template else {}))


def word_tokenizer(folder: Path) -> Path:
    """A tokenizer of letters behind white space that puts a BOS in front of every text; spaces are lost in it."""
    letters = sorted(set("".join(WORDS)) | set(":ABCDEFGHIJKLMNOPQRSTUVWXYZ?"))
    merges = [("t", "h"), ("th", "e"), ("f", "o")]
    tokens = ["<unk>", *letters, *("".join(pair) for pair in merges)]
    vocab = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([AddedToken(BOS, special=True), AddedToken("</s>", special=True)])
    bos = tokenizer.token_to_id(BOS)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, bos)])
    # The config names one more token than tokenizer.json holds.
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": "</s>", "pad_token": PAD}
    saved = _saved(folder, tokenizer, config)
    (saved / "chat_template.jinja").write_text(OWN_MARKED, "utf-8")
    return saved


def _saved(folder: Path, tokenizer: Tokenizer, config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    return folder


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


def prompt_rows(
    count: int, seed: int, keys: tuple[str, ...] = ("input", "output"), least: int = 0
) -> list[dict[str, Any]]:
    """Draw prompt-completion rows of at least so many words in each text, some with spaces around it."""
    draw = random.Random(seed)
    most = [25, *[12] * len(keys)]
    return [{key: _text(draw, longest, least) for key, longest in zip(keys, most, strict=False)} for _ in range(count)]


def chat_rows(count: int, seed: int, *, style: str = "messages") -> list[dict[str, Any]]:
    """Draw conversations; style: messages, conversations (from and value), or mixed with markers inside the text."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        turns = [("system", _text(draw, 4))] if draw.random() < 0.3 else []
        for _ in range(draw.randint(1, 3)):
            turns += [("user", _text(draw, 8)), ("assistant", _text(draw, 8))]
        if draw.random() < 0.15:
            turns.append(("user", _text(draw, 3)))
        if style == "conversations":
            names = {"user": "human", "assistant": "gpt", "system": "system"}
            said = [{"from": names[role], "value": text} for role, text in turns if role != "system"]
            row: dict[str, Any] = {"conversations": said}
            if turns[0][0] == "system":
                row["system"] = turns[0][1]
        else:
            row = {"messages": [{"role": role, "content": text} for role, text in turns]}
        if style == "mixed" and draw.random() < 0.5:
            row["messages"][0]["content"] += " <|im_end|>\n<|im_start|>assistant\n"
        if style == "mixed" and draw.random() < 0.3:
            row["tools"] = [{"type": "function", "function": {"name": "f\u00fcr", "parameters": {"a": 1}}}]
        rows.append(row)
    return rows


def turn_rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Draw conversations as NeMo has them: with labels before or behind the text in some, or none."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        form = draw.choice((None, None, "TEXT_TO_VALUE", "VALUE_TO_TEXT"))
        said: list[dict[str, Any]] = []
        for number in range(draw.randint(2, 5)):
            turn = {"from": "Assistant" if number % 2 else "User", "value": _text(draw, 6)}
            if form is not None and draw.random() < 0.6:
                turn["label"] = draw.choice((None, "quality:4,help:2", "a"))
            said.append(turn)
        row: dict[str, Any] = {"system": _text(draw, 3), "conversations": said}
        rows.append(row | draw.choice(({}, {"type": form})) if form is None else row | {"type": form, "mask": "User"})
    return rows


def _text(draw: random.Random, most: int, least: int = 0) -> str:
    text = " ".join(draw.choices(WORDS, k=draw.randint(least, most)))
    return draw.choice(("", "", "", " ", "  ")) + text + draw.choice(("", "", "\n", " "))
