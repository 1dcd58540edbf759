"""Data and tokenizer of a rehearsal: the user's files when there are any, else made-up ones of the same columns."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from skill_run.worker.inside.errors import RefusedError

TRAINING: Final = "training.jsonl"
# What is read of a user's data: enough for every length that occurs, few enough for a laptop.
MOST_SAMPLES: Final = 2000
_MOST_BYTES: Final = 8 * 2**20
_MADE_SAMPLES: Final = 160
_WORDS: Final = 1000
_CONVERSATION: Final = ("messages", "conversation", "conversations")
_SPECIAL: Final = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
# ChatML with the mark that lets transformers tell what the assistant said.
_TEMPLATE: Final = (
    "{% for message in messages %}<s> {{ message['role'] }} "
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }} </s>{% endgeneration %}"
    "{% else %}{{ message['content'] }} </s>{% endif %} {% endfor %}"
)


def columns_of(dataset: Any) -> tuple[str, ...]:
    """Return the columns that the dataset reads: ("messages",) for chat, else those of prompt and answer."""
    from megatron.bridge.data.builders.gpt_sft import GPTSFTDatasetConfig, resolve_gpt_sft_preprocessing
    from megatron.bridge.data.sft_processing import ChatSFTPreprocessingConfig

    preprocessing = getattr(dataset, "preprocessing", None)
    if isinstance(dataset, GPTSFTDatasetConfig):
        options = dataset.dataset_kwargs or {}
        if dataset.preprocessing is None and options.get("chat"):
            return ("messages",)
        preprocessing = resolve_gpt_sft_preprocessing(dataset)
    if isinstance(preprocessing, ChatSFTPreprocessingConfig) or preprocessing is None:
        return ("messages",)
    return (preprocessing.prompt_column, preprocessing.completion_column)


def write_training_data(source: Path | None, columns: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """Write training.jsonl into `folder`: the first lines of the user's file, or a made-up set; return what it holds.

    The lines are the file's own, so that Bridge reads what it would read in the run.
    Raises RefusedError for a file that is missing, empty, no JSON on some line, or without the columns.
    """
    folder.mkdir(parents=True, exist_ok=True)
    samples, lines = 0, []
    for line in _read(source, columns) if source is not None else _made_up(columns):
        lines.append(line)
        samples += bool(line.strip())
    (folder / TRAINING).write_bytes(b"".join(lines))
    cut = (source is not None and source.stat().st_size > _MOST_BYTES) or samples == MOST_SAMPLES
    return {"samples": samples, "cut": cut, "made_up": source is None, "columns": list(columns)}


def _read(path: Path, columns: tuple[str, ...]) -> Iterator[bytes]:
    """Yield the first lines of a file, blank ones too, each of which was looked at."""
    if not path.is_file():
        raise RefusedError(f"{path} is not there; the data folder must hold {TRAINING}")
    read = size = number = 0
    with open(path, "rb") as stream:
        while line := stream.readline(_MOST_BYTES + 1):
            number += 1
            size += len(line)
            if read == MOST_SAMPLES or (read and size > _MOST_BYTES):
                return
            if len(line) > _MOST_BYTES:
                raise RefusedError(f"{path} line {number} is longer than {_MOST_BYTES >> 20} MiB, which is no sample")
            if line.strip():
                _check(line, f"{path} line {number}", columns)
                read += 1
            yield line
    if not read:
        raise RefusedError(f"{path} is empty: there is nothing to train on")


def _check(line: bytes, where: str, columns: tuple[str, ...]) -> None:
    """Raise RefusedError for a line that the config's dataset cannot read."""
    try:
        row = json.loads(line.decode("utf-8"))
        # Half of a pair of surrogates is no text, though JSON can name it.
        json.dumps(row, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise RefusedError(f"{where} is no JSON: {error.msg}") from error
    except UnicodeError as error:
        raise RefusedError(f"{where} is no JSON: not UTF-8") from error
    except RecursionError as error:
        raise RefusedError(f"{where} is no JSON that can be read: it is nested too deep") from error
    except ValueError as error:
        raise RefusedError(f"{where} is no JSON that can be read: {error}") from error
    if not isinstance(row, dict):
        raise RefusedError(f"{where} is no JSON object")
    if columns == ("messages",):
        if not any(isinstance(row.get(name), list) and row[name] for name in _CONVERSATION):
            raise RefusedError(f"{where} has no list under messages, conversation or conversations")
        return
    for name in columns:
        if not isinstance(row.get(name), str):
            raise RefusedError(f"{where} has no text under {name!r}, which the config's dataset reads")


def _made_up(columns: tuple[str, ...]) -> Iterator[bytes]:
    """Samples of many lengths whose answers can be learnt: they count upwards."""
    draw = random.Random(0)
    for _ in range(_MADE_SAMPLES):
        start = draw.randrange(_WORDS)
        prompt = " ".join(f"w{draw.randrange(_WORDS)}" for _ in range(draw.randint(3, 60)))
        answer = " ".join(f"w{(start + step) % _WORDS}" for step in range(draw.randint(2, 120)))
        if columns == ("messages",):
            turns = (("user", prompt), ("assistant", answer))
            row: dict[str, Any] = {"messages": [{"role": role, "content": content} for role, content in turns]}
        else:
            row = {columns[0]: prompt, columns[1]: answer}
        yield json.dumps(row).encode("ascii") + b"\n"


def make_tokenizer(folder: Path, data: Path | None) -> int:
    """Save a stand-in tokenizer into `folder` and return its number of tokens.

    data: the user's training.jsonl, on whose text a small byte-level BPE is trained; None for the made-up set, whose
    words it knows one by one.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    if data is None:
        words = [*_SPECIAL.values(), "user", "assistant", *(f"w{number}" for number in range(_WORDS))]
        tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=4096,
            special_tokens=list(_SPECIAL.values()),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(_texts(data), trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=_TEMPLATE, **_SPECIAL)
    fast.save_pretrained(folder)
    return len(fast)


def _texts(path: Path) -> Iterator[str]:
    with open(path, encoding="utf-8") as stream:
        for line in stream:
            if line.strip():
                yield from _strings(json.loads(line))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def training_file(folder: str) -> Path:
    """Return the training file in a folder of the user's; RefusedError when the folder is not there."""
    path = Path(folder)
    if not path.is_dir():
        raise RefusedError(f"{path} is not there: no such data folder")
    return path / TRAINING


def scratch(name: str) -> Path:
    """Return a folder of this task's own."""
    path = Path(os.environ["SKILL_RUN_SCRATCH"]) / name
    path.mkdir(parents=True, exist_ok=True)
    return path
