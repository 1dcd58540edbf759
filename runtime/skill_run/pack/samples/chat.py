"""Chat samples: conversations through the tokenizer's chat template, with the mask that a release derives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from skill_run.errors import InputError
from skill_run.pack.samples.options import SampleOptions
from skill_run.pack.samples.sample import Sample
from skill_run.pack.samples.tokenizer import TextTokenizer


def chat_recipe(options: SampleOptions, tokenizer: TextTokenizer) -> Callable[[Mapping[str, Any]], Sample]:
    """Return the way from a line to its sample; raises InputError."""
    raise InputError("conversations are not read yet; give prompt-completion lines or token ids")
