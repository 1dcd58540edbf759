"""The commands that carry out a recommendation."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from skill_run.plan.assess import Candidate, Terms
from skill_run.plan.intent import Intent
from skill_run.plan.lengths import Lengths
from skill_run.plan.sources import STDIN, Reading


def follow_up(
    source: Any, lengths: Lengths, intent: Intent, chosen: Candidate, reading: Reading, terms: Terms
) -> tuple[str, ...]:
    """Return the commands to run next: make the config, and pack the data where the source is data."""
    found = []
    generate = _generate(intent, chosen)
    if generate is not None:
        found.append(generate)
    if isinstance(source, str | Path) and str(source) != STDIN and lengths.kind in ("text", "tokens"):
        found.append(_pack(str(source), intent, chosen, reading, terms))
    return tuple(found)


def _generate(intent: Intent, chosen: Candidate) -> str | None:
    if intent.recipe is None and intent.shape is None:
        return None
    words = ["skill-run", "generate", "offline-packed-sft", "--bridge", intent.bridge.version]
    if intent.recipe is not None:
        words += ["--recipe", intent.recipe]
    else:
        assert intent.shape is not None
        words += ["--model", intent.shape.name]
    words += ["--gpus", str(intent.gpus), "--gpu", intent.gpu] if intent.gpus is not None else []
    words += ["--seq-length", str(chosen.pack_size)]
    return shlex.join(words)


def _pack(source: str, intent: Intent, chosen: Candidate, reading: Reading, terms: Terms) -> str:
    words = ["skill-run", "pack", source, "--out", "packed", "--bridge", intent.bridge.version]
    words += ["--pack-size", str(chosen.pack_size)]
    words += ["--seq-length", str(chosen.seq_length)] if chosen.seq_length != chosen.pack_size else []
    words += ["--pad-seq-to-mult", str(chosen.pad_seq_to_mult)] if chosen.pad_seq_to_mult > 1 else []
    words += ["--tokenizer", str(reading.tokenizer)] if reading.tokenizer is not None else []
    words += ["--max-sequences", str(terms.max_sequences)] if terms.max_sequences is not None else []
    return shlex.join(words)
