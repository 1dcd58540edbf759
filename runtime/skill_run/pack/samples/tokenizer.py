"""A fast tokenizer from a local folder, giving the ids that Bridge gets from transformers' AutoTokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from skill_run.bridge.models import hub_snapshot
from skill_run.config.text import parse_json, read_text
from skill_run.errors import InputError, MissingError
from skill_run.report.safe import clip, flow

MAX_FILE: Final = 512 << 20
_MAX_CONFIG: Final = 16 << 20
_NAMED: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_TEMPLATE_FILE: Final = "chat_template.jinja"
# Tokens that Bridge never trains (data/token_utils.py of 0.6.2).
_NEVER_TRAINED: Final = frozenset(
    (
        "<|im_start|>",
        "<|vision_start|>",
        "<|vision_end|>",
        "<|vision_pad|>",
        "<|image_pad|>",
        "<|video_pad|>",
        "<|AUDIO|>",
        "<|audio_bos|>",
        "<|audio_eos|>",
        "<image>",
        "<pad>",
        "<|begin_of_text|>",
        "<|finetune_right_pad_id|>",
        "<|step_id|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|python_tag|>",
        "<|image|>",
        "<image_soft_token>",
        "<audio_soft_token>",
        "<start_of_audio>",
        "<start_of_image>",
        "<end_of_audio>",
        "<end_of_image>",
    )
)


@dataclass(frozen=True, slots=True)
class TextTokenizer:
    """A tokenizer with what its folder says beside it.

    special: named special tokens as text (bos_token, eos_token, ...), completed as Megatron's wrapper does: a missing
    sep_token is the eos_token, a missing bos_token the cls_token, and the other way round (Megatron Core,
    tokenizers/text/libraries/huggingface_tokenizer.py). chat_templates: by name, the only one is "default".
    """

    folder: Path
    backend: Any
    special: Mapping[str, str]
    chat_templates: Mapping[str, str]

    def encode(self, texts: Sequence[str], *, special_tokens: bool) -> list[list[int]]:
        """Return the ids of each text; special_tokens: with what the tokenizer itself puts around a text."""
        encode = getattr(self.backend, "encode_batch_fast", self.backend.encode_batch)
        return [found.ids for found in encode(list(texts), add_special_tokens=special_tokens)]

    def encode_spans(self, text: str) -> Any:
        """Return the package's Encoding of a text, with character spans and without special tokens."""
        return self.backend.encode(text, add_special_tokens=False)

    def token_id(self, name: str) -> int | None:
        """Return the id of a named special token, None when the tokenizer has none."""
        token = self.special.get(name)
        found = None if token is None else self.backend.token_to_id(token)
        return None if found is None else int(found)

    @property
    def size(self) -> int:
        """Number of ids, added tokens included."""
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    def never_trained(self) -> frozenset[int]:
        """Return the ids that Bridge 0.6 and later leave out of the loss wherever they stand."""
        added = self.backend.get_added_tokens_decoder()
        return frozenset(int(found) for found, token in added.items() if token.content in _NEVER_TRAINED)

    def space_sensitive(self, *, by_id: bool) -> bool:
        """Tell whether 'x y' is more than 'x' and 'y' one after the other, by ids or by token texts."""
        whole, first, second = (self.backend.encode(text, add_special_tokens=False) for text in ("x y", "x", "y"))
        if by_id:
            return bool(whole.ids != first.ids + second.ids)
        return bool(whole.tokens != first.tokens + second.tokens)


def find_tokenizer(given: str | Path) -> Path:
    """Return the local folder of a tokenizer: a folder, its tokenizer.json, or a model id in the hub's cache.

    Raises InputError when there is none; nothing is fetched.
    """
    path = Path(given)
    try:
        if path.is_file():
            return path.parent
        if (path / "tokenizer.json").is_file():
            return path
        there = path.exists()
    except (OSError, ValueError):
        there = False
    shown = clip(flow(str(given)), 200)
    if there:
        raise InputError(
            f"{shown} holds no tokenizer.json; save_pretrained() of a fast tokenizer writes one, and sentencepiece or "
            "tiktoken files alone are not read"
        )
    snapshot = None if str(given).startswith((".", "/", "~")) else hub_snapshot(str(given), "tokenizer.json")
    if snapshot is None:
        raise InputError(
            f"there is no tokenizer at {shown}, neither as a folder nor in the hub's cache on this machine; give a "
            "folder with tokenizer.json"
        )
    return snapshot


def load_tokenizer(given: str | Path) -> TextTokenizer:
    """Read a tokenizer as transformers reads one that has a tokenizer.json.

    Its own truncation and padding are off, tokens that only the config names are added. Raises InputError when it is
    not there or broken, MissingError without the `tokenizers` package.
    """
    folder = find_tokenizer(given)
    backend = _backend(folder / "tokenizer.json")
    config = _config(folder)
    special = {name: text for name in _NAMED if (text := _content(config.get(name))) is not None}
    _add_missing(backend, config, special)
    if special.get("eos_token") and "sep_token" not in special:
        special["sep_token"] = special["eos_token"]
    elif special.get("sep_token") and "eos_token" not in special:
        special["eos_token"] = special["sep_token"]
    if special.get("cls_token") and "bos_token" not in special:
        special["bos_token"] = special["cls_token"]
    elif special.get("bos_token") and "cls_token" not in special:
        special["cls_token"] = special["bos_token"]
    backend.encode_special_tokens = config.get("split_special_tokens") is True
    return TextTokenizer(folder, backend, special, _templates(folder, config))


def _backend(file: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingError("tokenising text needs the tokenizers package: pip install 'skill-run[text]'") from error
    try:
        if file.stat().st_size > MAX_FILE:
            raise InputError(f"{file} is larger than {MAX_FILE >> 20} MiB, which no tokenizer is")
        data = file.read_bytes()
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from error
    try:
        backend = Tokenizer.from_buffer(data)
    except Exception as error:  # the package raises Exception itself
        raise InputError(f"{file} is no tokenizer: {clip(flow(str(error)), 160)}") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _config(folder: Path) -> dict[str, Any]:
    """Return tokenizer_config.json, with special_tokens_map.json laid over it where transformers reads that one."""
    config = _json(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:
        config.update(_json(folder / "special_tokens_map.json"))
    return config


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    data = parse_json(read_text(file, _MAX_CONFIG), str(file))
    if not isinstance(data, dict):
        raise InputError(f"{file} does not hold a JSON object")
    return data


def _content(token: Any) -> str | None:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) and token else None


def _add_missing(backend: Any, config: Mapping[str, Any], special: Mapping[str, str]) -> None:
    """Add the tokens that tokenizer.json does not hold as added tokens: recorded ones by id, then special ones."""
    from tokenizers import AddedToken

    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    missing = []
    for content, flags in _recorded(config):
        if content not in known:
            missing.append(AddedToken(content, **flags))
            known.add(content)
    for content in (*special.values(), *_extra(config)):
        if content not in known:
            missing.append(AddedToken(content, special=True, normalized=False))
            known.add(content)
    if missing:
        backend.add_tokens(missing)


def _recorded(config: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, bool]]]:
    table = config.get("added_tokens_decoder")
    if not isinstance(table, dict):
        return
    named = {str(key): token for key, token in table.items() if str(key).isdigit() and isinstance(token, dict)}
    for key in sorted(named, key=int):
        content = _content(named[key])
        if content is not None:
            flags = {
                flag: named[key].get(flag) for flag in ("single_word", "lstrip", "rstrip", "normalized", "special")
            }
            yield content, {flag: bool(value) for flag, value in flags.items() if value is not None}


def _extra(config: Mapping[str, Any]) -> Iterator[str]:
    extra = config.get("extra_special_tokens", config.get("additional_special_tokens"))
    listed = list(extra.values()) if isinstance(extra, dict) else extra
    for token in listed if isinstance(listed, list) else ():
        content = _content(token)
        if content is not None:
            yield content
    for key, token in config.items():
        if key.endswith("_token") and key not in _NAMED and isinstance(token, str) and token:
            yield token


def _templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the chat templates by name; files stand before what the config holds, as in transformers."""
    found: dict[str, str] = {}
    if (folder / _TEMPLATE_FILE).is_file():
        found["default"] = read_text(folder / _TEMPLATE_FILE, _MAX_CONFIG)
    extra = folder / "additional_chat_templates"
    for file in sorted(extra.glob("*.jinja")) if extra.is_dir() else ():
        found[file.stem] = read_text(file, _MAX_CONFIG)
    if found:
        return found
    written = config.get("chat_template")
    if isinstance(written, str):
        return {"default": written}
    entries = written if isinstance(written, list) else []
    pairs = [(each.get("name"), each.get("template")) for each in entries if isinstance(each, dict)]
    return {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}


def describe_missing_template(tokenizer: TextTokenizer) -> str:
    """Return the sentence for a tokenizer that has no chat template."""
    names = json.dumps(sorted(tokenizer.chat_templates))[1:-1]
    held = f"only templates named {clip(flow(names), 80)}" if names else "no chat template"
    return f"{tokenizer.folder} holds {held}; give one with chat_template, or a tokenizer folder that has it"
