"""Samples and a tokenizer for Bridge's own loop: prompt and answer of made-up words, the same in every release."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Final

# Tokens of a pack, and what packing makes of each sample set: the packed run takes all packs in one step.
PACK: Final = 512
PAD_MULTIPLE: Final = 4
SAMPLES: Final = 64
PACKS: Final = {"ragged": 8, "even": 4}
VOCABULARY: Final = 1024
_WORDS: Final = 1000
_SPECIAL: Final = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_SPLITS: Final = {"training": SAMPLES, "validation": 8, "test": 8}


def write_tokenizer(folder: Path) -> None:
    """Save a tokenizer that knows the words w0 to w999, one token each."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [*_SPECIAL.values(), *(f"w{number}" for number in range(_WORDS))]
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **_SPECIAL).save_pretrained(folder)


def write_samples(folder: Path, *, ragged: bool) -> None:
    """Write training, validation and test JSONL.

    ragged: 3 to 40 words of prompt and 5 to 60 of answer, so that packs hold different numbers of sequences; else every
    sample has the same length, and so every pack the same number of them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawn = random.Random(0)
    for split, count in _SPLITS.items():
        with open(folder / f"{split}.jsonl", "w", encoding="ascii") as stream:
            for _ in range(count):
                start, answer = drawn.randrange(900), drawn.randint(5, 60) if ragged else 20
                prompt = [f"w{drawn.randrange(_WORDS)}" for _ in range(drawn.randint(3, 40) if ragged else 10)]
                output = [f"w{(start + at) % _WORDS}" for at in range(answer)]
                stream.write(json.dumps({"input": " ".join(prompt), "output": " ".join(output)}) + "\n")
