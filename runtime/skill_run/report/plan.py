"""A packing plan as text: the lengths, pack sizes side by side, context parallelism, the recommendation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from skill_run.plan.memory import GIB
from skill_run.report.parity import wrapped
from skill_run.report.safe import flow
from skill_run.report.wording import count, short

if TYPE_CHECKING:
    from skill_run.plan.assess import Candidate
    from skill_run.plan.memory import MemoryEstimate
    from skill_run.plan.plan import PackingPlan
    from skill_run.plan.statistics import PackStatistics
    from skill_run.plan.traffic import Traffic

_LEGEND: Final = (
    "fill: tokens of samples in the slots; align, tail: padding within samples and behind the last; samples: a pack's "
    "mean (most); cut, dropped: samples (share of all tokens); GBS: packs a step; uneven: attention work of the packs, "
    "p99/p50 (with --balance); layout: with the level of recompute"
)


def render_plan(plan: PackingPlan, *, width: int = 100, verbose: bool = False) -> str:
    """Return the plan as text, without a final newline; verbose: every reason of the layout, and the limits."""
    parts = [wrapped(_head(plan), width), "\n".join(_sizes(plan, width))]
    chosen = plan.recommendation.candidate
    shown = chosen or next((each for each in plan.candidates if each.traffic), None)
    if shown is not None and shown.traffic:
        parts.append("\n".join(_traffic(shown, plan, width)))
    parts.append(wrapped(_recommendation(plan, verbose), width))
    if plan.overrides:
        parts.append("\n".join(["Settings:", *(f"  {flow(line)}" for line in plan.overrides)]))
    if plan.commands:
        parts.append("\n".join(["Next:", *(f"  {flow(line)}" for line in plan.commands)]))
    notes = [f"note: {flow(note)}" for note in (*plan.notes, *_limits(plan, verbose))]
    if notes:
        parts.append(wrapped(notes, width))
    return "\n\n".join(parts)


def _head(plan: PackingPlan) -> Iterator[str]:
    lengths, intent = plan.lengths, plan.intent
    shortest = int(lengths.values[0])
    told = f"{lengths.longest}" if shortest == lengths.longest else f"{shortest} to {lengths.longest}"
    told += f" tokens, median {lengths.quantile(0.5)}"
    yield (
        f"{short(lengths.source)}: {count(lengths.samples, 'sample')} of {told}, 95 % up "
        f"to {lengths.quantile(0.95)}; {lengths.tokens} tokens, the average one in a sample of "
        f"{lengths.weighted_mean():.0f}"
    )
    where = f" on {intent.gpus} {intent.gpu.upper()}" if intent.gpus is not None else ""
    model = f"{short(plan.model)}{where}; " if intent.shape is not None else ""
    yield f"{model}Megatron-Bridge {intent.bridge.version}; sizes are compared at {plan.tokens_per_step} tokens a step"


def _sizes(plan: PackingPlan, width: int) -> Iterator[str]:
    known = any(each.choice is not None for each in plan.candidates)
    heads = ["pack", "fill", "align", "tail", "samples", "cut", "dropped", "GBS", "steps", "uneven"]
    rows = [heads + (["layout", "GiB"] if known else [])]
    for each in plan.candidates:
        rows.append(_size_row(each, known, each is plan.recommendation.candidate or _is_chosen(plan, each)))
    yield from _table(rows)
    yield wrapped([f"({_LEGEND})"], width)


def _is_chosen(plan: PackingPlan, candidate: Candidate) -> bool:
    return candidate.pack_size == plan.recommendation.pack_size


def _size_row(each: Candidate, known: bool, chosen: bool) -> list[str]:
    packs = each.statistics
    row = [f"{each.pack_size}{'*' if chosen else ''}"]
    if packs is None:
        row += ["-"] * 4
    else:
        row += [f"{packs.fill:.1%}", f"{packs.alignment_padding:.1%}", f"{packs.tail_padding:.1%}"]
        row.append(f"{packs.sequences_mean:.1f} ({packs.sequences_max})")
    stored = each.stored_tokens
    row += [_part(each.cut.truncated_samples, each.cut.truncated_tokens, stored)]
    row += [_part(each.cut.dropped_samples, each.cut.dropped_tokens, stored)]
    row += [str(each.global_batch_size), "-" if each.steps is None else str(each.steps), _uneven(packs)]
    if known:
        row += [_layout(each)]
        row += [f"{each.choice.estimate.total / GIB:.0f}" if each.choice is not None else "-"]
    return row


def _layout(each: Candidate) -> str:
    if each.choice is None:
        return "does not fit"
    recompute = each.choice.run.recompute
    return f"{each.layout}, {recompute}" if recompute else str(each.layout)


def _part(samples: int, tokens: int, stored: int) -> str:
    return f"{samples} ({tokens / stored:.2%})" if samples else "0"


def _uneven(packs: PackStatistics | None) -> str:
    if packs is None:
        return "-"
    even = packs.balanced
    return f"{packs.spread.ratio:.2f}" + (f" ({even.ratio:.2f})" if even is not None else "")


def _table(rows: Sequence[Sequence[str]], left: frozenset[int] = frozenset()) -> Iterator[str]:
    """Yield lines with columns as wide as they need; columns in `left` start at their left edge."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(widths[at]) if at in left else cell.rjust(widths[at]) for at, cell in enumerate(row))
        yield f"  {'  '.join(cells)}".rstrip()


def _traffic(candidate: Candidate, plan: PackingPlan, width: int) -> Iterator[str]:
    rates = plan.rates
    tp = f" beside TP {candidate.layout.tp}" if candidate.layout.tp > 1 else ""
    links = f"NVLink {rates.nvlink / 1e9:.0f} GB/s, network {rates.network / 1e9:.0f} GB/s"
    title = (
        f"Context parallelism{tp} with packs of {candidate.pack_size} for {short(plan.model)} on {rates.name.upper()}, "
        f"microseconds of one layer's forward pass (attention {rates.attention / 1e12:.0f} TFLOP/s, {links}):"
    )
    yield wrapped([title], width)
    needs = list(dict.fromkeys(row.why for row in candidate.traffic if row.why and row.verdict != "impossible"))
    rows = [["CP", "type", "attention", "transfer", "exposed", "of layer", "verdict"]]
    rows += [_traffic_row(row, needs) for row in candidate.traffic]
    yield from _table(rows, frozenset((1, 6)))
    yield from (wrapped([f"({at}) {flow(why)}"], width) for at, why in enumerate(needs, start=1))


def _traffic_row(row: Traffic, needs: Sequence[str]) -> list[str]:
    sizes = row.layout.hierarchical_sizes
    name = row.layout.comm + (f" {sizes[0]}x{sizes[1]}" if sizes is not None else "")
    if row.verdict == "impossible":
        return [str(row.layout.cp), name, "-", "-", "-", "-", f"impossible: {flow(row.why or '')}"]
    over = "NVLink" if row.link == "nvlink" else "network"
    told = f"{row.verdict}, {over}" + (f" ({needs.index(row.why) + 1})" if row.why else "")
    times = [f"{value:.0f}" for value in (row.attention, row.transfer, row.exposed)]
    return [str(row.layout.cp), name, *times, f"{row.wait:.1%}", told]


def _recommendation(plan: PackingPlan, verbose: bool) -> Iterator[str]:
    found = plan.recommendation
    chosen = found.candidate
    if chosen is None:
        yield "No pack size can be recommended:"
    else:
        rows = f"{chosen.global_batch_size} packs a step"
        yield f"Recommended: packs of {chosen.pack_size} tokens, {chosen.layout}, {rows}"
    for reason in found.reasons:
        yield f"- {flow(reason)}"
    if chosen is not None and chosen.choice is not None:
        yield f"Memory of the fullest GPU: {_memory(chosen.choice.estimate, verbose)}"
    if verbose and chosen is not None and chosen.choice is not None:
        for name, value, sentence in chosen.choice.reasons:
            yield f"- {name} {value}: {flow(sentence)}"


def _memory(estimate: MemoryEstimate, verbose: bool) -> str:
    sizes = ", ".join(f"{name} {size / GIB:.1f}" for name, size in estimate.parts.items())
    told = f"{sizes}; {estimate.total / GIB:.1f} of {estimate.budget / GIB:.0f} GiB"
    formula = "; ".join(f"{name}: {words}" for name, words in estimate.formula)
    return f"{told} ({formula})" if verbose else told


def _limits(plan: PackingPlan, verbose: bool) -> Sequence[str]:
    from skill_run.plan.plan import LIMITS

    if not verbose:
        return ()
    memory = plan.recommendation.candidate.choice if plan.recommendation.candidate is not None else None
    return (*LIMITS, *(memory.estimate.limits if memory is not None else ()))
