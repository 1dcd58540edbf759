"""Settings that are read both by Bridge's own code (`sample_upstream.py`) and by ours, and ours in the same form.

`python sample_cases.py VERSION WHEEL PYTHON` records what an older release makes of them, into data/: WHEEL is a folder
with the unpacked wheel, PYTHON an interpreter with torch, Megatron Core and transformers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sample_tools as tools

import skill_run
from skill_run.pack.samples import Preprocessing, SampleOptions, read_samples
from skill_run.pack.samples.align import aligned_lengths, padding_is_trained
from skill_run.pack.samples.options import rules_of

Stored = list[list[list[int]]]
DATA = Path(__file__).parent / "data"
RECORDED_LINES = 8
_PLAIN = {"add_eos": True}
_LEFT = {"truncation_method": "left"}
_COLUMNS = {
    "prompt_template": "Context: {context}\\n Question:  {question} Answer: {answer}",
    "label_key": "answer",
    "truncation_field": "context,question",
}
_NOTHING_CUT = {"prompt_template": "Q: {input}A:{output}", "truncation_field": None}


def prompt_cases(folder: Path, count: int) -> list[dict[str, Any]]:
    """Return prompt-completion cases over both tokenizers, several templates, truncations and multiples."""
    bytes_, words = tools.byte_tokenizer(folder / "bytes"), tools.word_tokenizer(folder / "words")
    pairs = tools.write_lines(folder / "pairs.jsonl", tools.prompt_rows(count, 1))
    three = tools.write_lines(folder / "three.jsonl", tools.prompt_rows(count, 2, ("context", "question", "answer")))
    bos = {"add_bos": True, "add_sep": True, "sep_id": 5, **_LEFT}
    return [
        _case(bytes_, pairs, 30, 1, _PLAIN),
        _case(bytes_, pairs, 30, 4, _PLAIN),
        _case(words, pairs, 21, 4, bos),
        _case(words, three, 500, 1, {**_COLUMNS, "add_eos": False}),
        _case(bytes_, three, 40, 8, _COLUMNS),
        _case(words, three, 25, 1, {**_COLUMNS, **_LEFT}),
        _case(bytes_, pairs, 16, 3, _NOTHING_CUT),
        _case(words, pairs, 9, 1, {**_NOTHING_CUT, "add_bos": True}),
    ]


def explicit_cases(folder: Path, count: int) -> list[dict[str, Any]]:
    """Return cases of PromptCompletionSFTPreprocessingConfig (0.6 and later)."""
    bytes_, words = tools.byte_tokenizer(folder / "bytes"), tools.word_tokenizer(folder / "words")
    pairs = tools.write_lines(folder / "named.jsonl", tools.prompt_rows(count, 3, ("prompt", "completion"), least=1))
    columns = {"prompt_template": "Q: {prompt}\nA:", "separator": " ", "add_bos": True, "add_sep": True}
    return [
        _case(bytes_, pairs, 30, 1, {}, {}),
        _case(bytes_, pairs, 30, 4, {}, {"loss_mode": "full", "separator": " "}),
        _case(words, pairs, 18, 4, {}, {**columns, **_LEFT}),
        _case(words, pairs, 40, 1, {}, {**columns, "strip_whitespace": False}),
    ]


def chat_cases(folder: Path, count: int, bridge: str) -> list[dict[str, Any]]:
    """Return chat cases; of an older release only those that its own code can do."""
    words = tools.word_tokenizer(folder / "words")
    bytes_ = tools.byte_tokenizer(folder / "bytes")
    plain = tools.write_lines(folder / "plain.jsonl", tools.chat_rows(count, 4))
    older = tools.write_lines(folder / "older.jsonl", tools.chat_rows(count, 5, style="conversations"))
    mixed = tools.write_lines(folder / "mixed.jsonl", tools.chat_rows(count, 6, style="mixed"))
    turns = tools.write_lines(folder / "turns.jsonl", tools.turn_rows(count, 8))
    extra = {"use_hf_tokenizer_chat_template": False}
    found = [
        _case(bytes_, turns, 200, 1, extra) | {"kwargs": {"chat": True}},
        _case(words, turns, 900, 1, extra) | {"kwargs": {"chat": True}},
        _chat(words, plain, 120, 1, tools.OWN_MARKED),
        _chat(bytes_, older, 400, 1, tools.CHATML_MARKED),
        _chat(bytes_, mixed, 400, 1, tools.CHATML_MARKED),
    ]
    if rules_of(bridge).chat_masks == "generation_or_all":
        found.append(_chat(bytes_, plain, 400, 1, tools.CHATML))
    if rules_of(bridge).explicit:
        found += [
            _chat(bytes_, plain, 60, 4, tools.CHATML),
            _chat(bytes_, mixed, 90, 1, tools.CHATML),
            _chat(bytes_, plain, 90, 4, tools.SCANNED),
            # Two that upstream refuses: what is said holds a marker, and nothing at all tells the turns apart.
            _chat(bytes_, mixed, 90, 4, tools.SCANNED),
            _chat(bytes_, plain, 90, 1, tools.OWN),
            _chat(bytes_, plain, 200, 1, tools.SCANNED, chat_loss_mode="last_turn"),
            _chat(words, older, 64, 8, tools.LLAMA),
            _chat(words, plain, 64, 8, tools.OWN_MARKED, chat_loss_mode="last_turn"),
            _chat(bytes_, mixed, 300, 1, tools.CHATML_MARKED, chat_loss_mode="last_turn"),
            _chat(bytes_, plain, 80, 2, tools.OWN, chat_loss_mode="full"),
        ]
    return found


def _case(
    tokenizer: Path,
    data: Path,
    seq_length: int,
    multiple: int,
    settings: dict[str, Any],
    explicit: dict[str, Any] | None = None,
) -> dict[str, Any]:
    kwargs = settings if explicit is None else {"prompt_completion_config": explicit}
    return {
        "tokenizer": str(tokenizer),
        "data": str(data),
        "seq_length": seq_length,
        "pad_seq_to_mult": multiple,
        "kwargs": kwargs,
        "settings": settings,
        "explicit": explicit,
    }


def _chat(tokenizer: Path, data: Path, seq_length: int, multiple: int, template: str, **loss: str) -> dict[str, Any]:
    case = _case(tokenizer, data, seq_length, multiple, {"chat_template": template, **loss})
    return case | {
        "chat_template": template,
        "kwargs": {"chat": True, "use_hf_tokenizer_chat_template": True, **loss},
    }


def ask_upstream(
    command: Sequence[str], cases: list[dict[str, Any]], *, bridge: str, wheel: str | None = None
) -> list[Stored | str]:
    """Return what Bridge's own code makes of the cases, from one run of an interpreter."""
    special_tokens = rules_of(bridge).special_tokens
    runtime = str(Path(skill_run.__file__).parent)
    request = {"wheel": wheel, "runtime": runtime, "cases": cases, "special_tokens": special_tokens}
    script = Path(__file__).with_name("sample_upstream.py")
    done = subprocess.run(
        [*command, str(script)], input=json.dumps(request), capture_output=True, text=True, check=True
    )
    answers: list[Stored | str] = json.loads(done.stdout.splitlines()[-1])
    return answers


def options_of(case: dict[str, Any], bridge: str) -> SampleOptions:
    """Return a case's settings as ours."""
    settings = {key: "" if value is None else value for key, value in case["settings"].items()}
    explicit = None if case["explicit"] is None else Preprocessing(**case["explicit"])
    return SampleOptions(
        bridge=bridge,
        seq_length=case["seq_length"],
        pad_seq_to_mult=case["pad_seq_to_mult"],
        preprocessing=explicit,
        **settings,
    )


def ours(case: dict[str, Any], bridge: str) -> Stored:
    """Return our samples of a case with their alignment padding, in upstream's form."""
    options = options_of(case, bridge)
    stream = read_samples(case["data"], tokenizer=case["tokenizer"], options=options)
    found: Stored = []
    for block in stream:
        ends = np.cumsum(block.lengths)
        for end, length, padded in zip(ends, block.lengths, aligned_lengths(block.lengths, options), strict=True):
            filler = int(padded - length)
            tokens = [*block.tokens[end - length : end].tolist(), *[stream.eos_id] * filler]
            trained = int(padding_is_trained(options, stream.kind))
            found.append([tokens, [*block.masks[end - length : end].tolist(), *[trained] * filler]])
    return found


def recorded_cases(folder: Path, bridge: str) -> list[dict[str, Any]]:
    """Return the cases of an older release whose answers are in data/."""
    return [*prompt_cases(folder, RECORDED_LINES), *chat_cases(folder, RECORDED_LINES, bridge)]


def read_record(bridge: str) -> list[Stored]:
    """Return an older release's answers: per case and sample the ids and the mask."""
    record = json.loads((DATA / f"upstream-{bridge}.json").read_text("utf-8"))
    return [[[ids, [int(value) for value in mask]] for ids, mask in case] for case in record]


def _record(bridge: str, wheel: str, python: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        answers = ask_upstream([python], recorded_cases(Path(folder), bridge), bridge=bridge, wheel=wheel)
    refused = [answer for answer in answers if isinstance(answer, str)]
    assert not refused, refused
    lines = [json.dumps([[ids, "".join(map(str, mask))] for ids, mask in case]) for case in answers]
    (DATA / f"upstream-{bridge}.json").write_text("[\n" + ",\n".join(lines) + "\n]\n", "utf-8")


if __name__ == "__main__":
    _record(*sys.argv[1:])
