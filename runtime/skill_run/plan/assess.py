"""One pack size judged: what becomes of the samples, layout and memory, figures of the packs, traffic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from typing import Any, Final

from skill_run.errors import InputError
from skill_run.plan.choose import Choice, choose_layout
from skill_run.plan.cost import relative_cost
from skill_run.plan.cp_table import TYPICAL, cp_table
from skill_run.plan.cutting import Cut, cut_for
from skill_run.plan.gpus import gpu_rates
from skill_run.plan.intent import Intent
from skill_run.plan.layout import Layout, Run
from skill_run.plan.lengths import Lengths, thinned
from skill_run.plan.pack_sizes import rows_of_step
from skill_run.plan.statistics import PackStatistics, pack_statistics
from skill_run.plan.traffic import Traffic

# More samples than this change no digit that is shown; they are thinned evenly.
MOST_SAMPLES: Final = 500_000


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pack size. choice: the layout that was chosen with its memory, None without a model or number of GPUs.

    unfit: why the size cannot be used; statistics: None where no sample is left. traffic: every CP degree and
    communication type. cost: time per trained token relative to the best possible, None without a choice.
    """

    pack_size: int
    seq_length: int
    layout: Layout
    pad_seq_to_mult: int
    data_parallel: int
    global_batch_size: int
    stored_tokens: int
    cut: Cut
    statistics: PackStatistics | None
    choice: Choice | None
    traffic: tuple[Traffic, ...]
    cost: float | None
    unfit: str | None

    @property
    def lost(self) -> float:
        """Return the share of all tokens that are cut or dropped."""
        return (self.cut.truncated_tokens + self.cut.dropped_tokens) / self.stored_tokens

    @property
    def steps(self) -> int | None:
        """Return the steps of an epoch, the last one filled up."""
        return ceil(self.statistics.packs / self.global_batch_size) if self.statistics is not None else None

    @property
    def own_traffic(self) -> Traffic | None:
        """Return the row of the layout's own CP and communication type."""
        rows = (row for row in self.traffic if (row.layout.cp, row.layout.comm) == (self.layout.cp, self.layout.comm))
        return next(rows, None) if self.layout.cp > 1 else None

    def to_dict(self) -> dict[str, Any]:
        """Return the candidate as JSON-ready data."""
        cut = self.cut
        return {
            "pack_size": self.pack_size,
            "seq_length": self.seq_length,
            "unfit": self.unfit,
            "upstream_stops": cut.stops,
            "samples": cut.samples,
            "tokens": cut.tokens,
            "truncated": {"samples": cut.truncated_samples, "tokens": cut.truncated_tokens},
            "dropped": {"samples": cut.dropped_samples, "tokens": cut.dropped_tokens},
            "empty": cut.empty,
            "lost": round(self.lost, 6),
            "layout": self.layout.to_dict(),
            "data_parallel": self.data_parallel,
            "pad_seq_to_mult": self.pad_seq_to_mult,
            "global_batch_size": self.global_batch_size,
            "tokens_per_step": self.global_batch_size * self.pack_size,
            "steps_per_epoch": self.steps,
            "packs": self.statistics.to_dict() if self.statistics is not None else None,
            "memory": self.choice.estimate.to_dict() if self.choice is not None else None,
            "recompute": self.choice.run.recompute if self.choice is not None else None,
            "layout_reasons": self.choice.to_dict()["reasons"] if self.choice is not None else [],
            "relative_cost": None if self.cost is None else round(self.cost, 4),
            "traffic": [row.to_dict() for row in self.traffic],
        }


@dataclass(frozen=True, slots=True)
class Terms:
    """What all candidates have in common. slots: tokens of a step; data_parallel: where the GPUs are not known."""

    slots: int
    data_parallel: int | None = None
    seq_length: int | None = None
    pad_seq_to_mult: int | None = None
    max_sequences: int | None = None
    seed: int = 0


def assess(pack_size: int, lengths: Lengths, intent: Intent, terms: Terms) -> Candidate:
    """Return the figures of one pack size."""
    run = _run(intent, pack_size)
    choice, unfit = _choose(intent, run)
    layout = choice.layout if choice is not None else fixed_layout(intent)
    multiple = terms.pad_seq_to_mult or pad_multiple(layout.tp, layout.cp, layout.sp)
    ranks = layout.data_parallel(intent.gpus) if intent.gpus is not None else terms.data_parallel or 1
    rows = rows_of_step(terms.slots, pack_size, ranks)
    limit = terms.seq_length or pack_size
    settings: dict[str, Any] = {
        "bridge": intent.bridge.version,
        "pack_size": pack_size,
        "seq_length": limit,
        "pad_seq_to_mult": multiple,
    }
    cut = cut_for(lengths, **settings)
    statistics = None
    if pack_size % multiple:
        unfit = unfit or f"a pack of {pack_size} tokens is not a multiple of pad_seq_to_mult {multiple}"
    elif cut.samples:
        fewer, scale = thinned(lengths, MOST_SAMPLES)
        statistics = pack_statistics(
            cut_for(fewer, **settings) if scale > 1 else cut,
            pack_size,
            max_sequences=terms.max_sequences,
            scale=scale,
            data_parallel=ranks,
            rows_per_step=rows,
            seed=terms.seed,
        )
    else:
        unfit = unfit or "no sample is left to pack"
    return Candidate(
        pack_size,
        limit,
        layout,
        multiple,
        ranks,
        rows,
        lengths.tokens,
        cut,
        statistics,
        choice,
        _traffic(intent, layout, run, statistics),
        _cost(intent, choice, statistics),
        unfit,
    )


def with_comm(intent: Intent, layout: Layout, comm: Layout) -> Intent:
    """Return the intent with a layout fixed, and another communication type than its own."""
    sizes = {"tp": layout.tp, "pp": layout.pp, "cp": layout.cp, "ep": layout.ep, "cp_comm_type": comm.cp_comm_type}
    return replace(intent, fixed={**intent.fixed, **sizes})


def _run(intent: Intent, pack_size: int) -> Run:
    # The global batch follows from the layout, so it has no say in choosing one.
    return replace(intent.run, tokens_per_row=pack_size, micro_batch_size=1, global_batch_size=None, packed=True)


def _choose(intent: Intent, run: Run) -> tuple[Choice | None, str | None]:
    if intent.shape is None or intent.gpus is None:
        return None, None
    try:
        return choose_layout(intent.shape, gpus=intent.gpus, gpu=intent.gpu, run=run, fixed=intent.fixed), None
    except InputError as error:
        return None, str(error)


def fixed_layout(intent: Intent) -> Layout:
    """Return the layout that was decided; what was not has Megatron's default."""
    known = {name: value for name, value in intent.fixed.items() if name != "recompute"}
    tp = int(known.get("tp", 1))
    known["sp"] = bool(known.get("sp", tp > 1)) and tp > 1
    return Layout(**known)


@cache
def pad_multiple(tp: int, cp: int, sp: bool) -> int:
    """Return the multiple that lengths need, as the rules derive it from a config: lcm(2 CP, CP TP with SP)."""
    from skill_run.config.model import Assignment, Source
    from skill_run.rules.derived import Facts
    from skill_run.rules.validate import build_config

    sizes = {
        "model.tensor_model_parallel_size": tp,
        "model.context_parallel_size": cp,
        "model.sequence_parallel": sp,
    }
    source = Source("mapping", "layout", assignments=[Assignment(name, value) for name, value in sizes.items()])
    return Facts(build_config([source])).count("derived.pad_multiple")


def _traffic(intent: Intent, layout: Layout, run: Run, statistics: PackStatistics | None) -> tuple[Traffic, ...]:
    shape = intent.shape or TYPICAL
    if statistics is None or not shape.has_attention:
        return ()
    rates = gpu_rates(intent.gpu)
    return cp_table(shape, layout, run, rates, gpus=intent.gpus, attention=statistics.attention)


def _cost(intent: Intent, choice: Choice | None, statistics: PackStatistics | None) -> float | None:
    if choice is None or statistics is None or intent.shape is None or intent.gpus is None:
        return None
    cost = relative_cost(intent.shape, choice.layout, choice.run, world_size=intent.gpus, gpu=intent.gpu)
    return cost / statistics.fill
