"""`plan_packing`: from the lengths of samples to a pack size, parallel sizes and the reasons for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from skill_run.errors import InputError
from skill_run.pack.assign.lengths import random_of
from skill_run.plan.assess import Candidate, Terms, assess, with_comm
from skill_run.plan.commands import follow_up
from skill_run.plan.cp_table import TYPICAL
from skill_run.plan.gpus import GpuRates, gpu_rates
from skill_run.plan.intent import Intent, read_intent
from skill_run.plan.lengths import Kind, Lengths
from skill_run.plan.pack_sizes import DEFAULT_SLOTS, FIRST, pack_sizes_for
from skill_run.plan.recommend import Recommendation, recommend
from skill_run.plan.settings import overrides_of, settings_for
from skill_run.plan.sources import Reading, read_lengths
from skill_run.plan.traffic import Traffic

LIMITS: Final = (
    "Times are one layer's forward pass at round rates; kernels, launch gaps and the network's other users are not in "
    "them.",
    "Attention work counts the lengths with alignment padding; the tail of a pack is not counted.",
    "An epoch packs all samples once, by the histogram algorithm of skill-run pack.",
)
_MOST_NUMBER: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class PackingPlan:
    """A comparison of pack sizes at equal token slots, and a recommendation.

    tokens_per_step: the slots that are kept equal, pack size x packs. settings: canonical fields of the recommended
    size; overrides: the same in the release's names; commands: what to run next.
    """

    lengths: Lengths
    intent: Intent
    tokens_per_step: int
    candidates: tuple[Candidate, ...]
    recommendation: Recommendation
    settings: Mapping[str, Any]
    overrides: tuple[str, ...]
    commands: tuple[str, ...]
    notes: tuple[str, ...]
    rates: GpuRates

    @property
    def model(self) -> str:
        """Return the name of the model that traffic and memory are told for."""
        return self.intent.shape.name if self.intent.shape is not None else TYPICAL.name

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON-ready data; report/plan.schema.json gives its form."""
        shape = self.intent.shape
        chosen = self.recommendation.candidate
        return {
            "bridge": {"version": self.intent.bridge.version, "because": self.intent.bridge.because},
            "lengths": self.lengths.to_dict(),
            "model": self.model,
            "parameters": shape.parameters.total if shape is not None else None,
            "recipe": self.intent.recipe,
            "config": self.intent.config,
            "gpus": self.intent.gpus,
            "rates": self.rates.to_dict(),
            "tokens_per_step": self.tokens_per_step,
            "candidates": [candidate.to_dict() for candidate in self.candidates],
            "recommendation": {
                "pack_size": self.recommendation.pack_size,
                "layout": chosen.layout.to_dict() if chosen is not None else None,
                "reasons": list(self.recommendation.reasons),
                "settings": dict(self.settings),
                "overrides": list(self.overrides),
                "commands": list(self.commands),
            },
            "notes": list(self.notes),
            "limits": list(LIMITS),
        }


def plan_packing(
    source: Any,
    *,
    kind: Kind | None = None,
    chat: bool | None = None,
    pack_sizes: Sequence[int] = (),
    bridge: str | None = None,
    model: str | Path | None = None,
    recipe: str | None = None,
    config: str | Path | Mapping[str, Any] | None = None,
    gpus: int | None = None,
    gpu: str | None = None,
    tp: int | None = None,
    pp: int | None = None,
    cp: int | None = None,
    ep: int | None = None,
    sp: bool | None = None,
    cp_comm_type: str | None = None,
    dp: int | None = None,
    peft: str | None = None,
    recompute: str | None = None,
    tokenizer: str | Path | None = None,
    data_options: Mapping[str, Any] | None = None,
    seq_length: int | None = None,
    max_sequences: int | None = None,
    pad_seq_to_mult: int | None = None,
    global_batch_size: int | None = None,
    tokens_per_step: int | None = None,
    skip_bad: bool = False,
    workers: int = 1,
    seed: int = 0,
    on_progress: Callable[[Mapping[str, Any]], None] | None = None,
) -> PackingPlan:
    """Compare pack sizes for some data and recommend one.

    source: a path (JSONL with a local `tokenizer`, tokens as JSONL or Parquet, packed files, a file of lengths or a
    histogram), `-` for standard input, a mapping {length: count} or an array of lengths. Lengths are stored lengths in
    tokens, end token included. kind: what the source is, told from its content otherwise. chat: samples are
    conversations, which upstream does not cut. pack_sizes: sizes to compare, powers of two around the lengths
    otherwise. model, recipe, config with gpus and gpu: choose a layout and estimate its memory for each size; tp, pp,
    cp, ep, sp, cp_comm_type, recompute fix parts of it. dp: data-parallel size where `gpus` is not given. seq_length:
    limit of one sample, the pack size otherwise. global_batch_size: packs of a step, of the config's or recipe's pack
    size, else of the only size asked for, of seq_length or of 8192 tokens; tokens_per_step says the same in tokens.
    data_options: upstream's reading options (see SampleOptions).

    Raises InputError for a source, sizes or names that cannot be, MissingError without a package that is needed.
    """
    numbers = {"gpus": gpus, "tp": tp, "pp": pp, "cp": cp, "ep": ep, "dp": dp, "seq_length": seq_length}
    numbers |= {"max_sequences": max_sequences, "pad_seq_to_mult": pad_seq_to_mult, "workers": workers}
    _check(numbers | {"global_batch_size": global_batch_size, "tokens_per_step": tokens_per_step})
    fixed = {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "sp": sp, "cp_comm_type": cp_comm_type, "recompute": recompute}
    intent = read_intent(
        bridge=bridge, model=model, recipe=recipe, config=config, gpus=gpus, gpu=gpu, peft=peft, fixed=fixed
    )
    rates = gpu_rates(intent.gpu)
    reading = Reading(intent.bridge.version, tokenizer, data_options, skip_bad, workers, on_progress)
    lengths = read_lengths(source, reading, kind=kind)
    lengths = lengths if chat is None else replace(lengths, chat=chat)
    limit = seq_length or intent.seq_length
    sizes = pack_sizes_for(lengths, pack_sizes, limit)
    reference = intent.pack_size or (pack_sizes[0] if len(pack_sizes) == 1 else limit) or FIRST
    slots = tokens_per_step or (global_batch_size * reference if global_batch_size else intent.slots or DEFAULT_SLOTS)
    random_of(seed)
    terms = Terms(slots, dp, limit, pad_seq_to_mult or intent.pad_seq_to_mult, max_sequences, seed)
    candidates = tuple(assess(size, lengths, intent, terms) for size in sizes)

    def again(best: Candidate, row: Traffic) -> Candidate:
        return assess(best.pack_size, lengths, with_comm(intent, best.layout, row.layout), terms)

    recommendation = recommend(candidates, intent, again)
    return _plan(source, config, lengths, intent, slots, candidates, recommendation, rates, reading, terms)


def _plan(
    source: Any,
    config: Any,
    lengths: Lengths,
    intent: Intent,
    slots: int,
    candidates: tuple[Candidate, ...],
    recommendation: Recommendation,
    rates: GpuRates,
    reading: Reading,
    terms: Terms,
) -> PackingPlan:
    chosen = recommendation.candidate
    release = intent.bridge.release
    settings = settings_for(chosen, release, intent.base) if chosen is not None else {}
    overrides = overrides_of(settings, release)
    return PackingPlan(
        lengths=lengths,
        intent=intent,
        tokens_per_step=slots,
        candidates=candidates,
        recommendation=recommendation,
        settings=settings,
        overrides=overrides,
        commands=follow_up(source, lengths, intent, chosen, reading, terms) if chosen is not None else (),
        notes=(
            *lengths.notes,
            *_notes(intent, candidates),
            *(_findings(intent, config, overrides) if overrides else ()),
        ),
        rates=rates,
    )


def _check(numbers: Mapping[str, Any]) -> None:
    for name, value in numbers.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_NUMBER:
            shown = re.sub(r"\s+", " ", str(value))[:40]
            raise InputError(f"{name} must be a whole number from 1 on, not {shown}")


def _findings(intent: Intent, config: Any, overrides: Sequence[str]) -> list[str]:
    """Return what our own rules say against the settings, since a release may have no way to do it right."""
    from skill_run.rules.validate import validate_config

    report = validate_config(
        Path(config) if isinstance(config, str) else config,
        recipe=intent.recipe,
        overrides=overrides,
        bridge=intent.bridge.version,
        world_size=intent.gpus,
        gpu=intent.gpu,
    )
    return [f"{each.severity} {each.rule}: {each.message}" for each in report.at_least("corruption")]


def _notes(intent: Intent, candidates: Sequence[Candidate]) -> list[str]:
    found = []
    if intent.shape is None:
        found.append(
            f"no model is named, so traffic is told for {TYPICAL.name} ({TYPICAL.heads} heads, {TYPICAL.groups} "
            "key-value groups) and memory is not; give --model, --recipe or --config with --gpus"
        )
    elif intent.gpus is None:
        found.append("the number of GPUs is not known, so neither a layout nor memory is told; give --gpus")
    scale = max((each.statistics.scale for each in candidates if each.statistics is not None), default=1.0)
    if scale > 1:
        found.append(
            f"figures of packs are those of an even choice of 1 in {scale:.1f} samples; cut and dropped ones are "
            "counted over all"
        )
    return found
