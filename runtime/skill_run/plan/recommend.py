"""Pick a pack size and say why, in sentences that carry the numbers which decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log2
from typing import Any, Final

from skill_run.plan.assess import Candidate
from skill_run.plan.intent import Intent
from skill_run.plan.memory import GIB
from skill_run.plan.pack_sizes import FIRST
from skill_run.plan.traffic import Traffic
from skill_run.report.wording import count

# What a size may lose against the best one: tokens cut or dropped, fill, time per token.
LOST_TOLERANCE: Final = 0.001
FILL_TOLERANCE: Final = 0.01
COST_TOLERANCE: Final = 0.02
# A wait of ranks below this share of the attention is not worth a sentence.
_WAIT: Final = 0.02
# Of a layer's time, when another communication type is better by more than the figures are rough.
_CLEARLY: Final = 0.05
_MANY_SEQUENCES: Final = 256


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The pack size to use, None when no candidate can be, and why."""

    candidate: Candidate | None
    reasons: tuple[str, ...]

    @property
    def pack_size(self) -> int | None:
        """Return the recommended pack size."""
        return self.candidate.pack_size if self.candidate is not None else None


def recommend(
    candidates: Sequence[Candidate], intent: Intent, again: Callable[[Candidate, Traffic], Candidate]
) -> Recommendation:
    """Return the recommended candidate; again: judges a candidate anew with the communication type of a row.

    In this order: what fits and upstream packs without stopping; what loses hardly more tokens than the best; what is
    filled nearly as well; what costs hardly more time per token; of those the nearest to where upstream's guide starts.
    """
    reasons: list[str] = []
    left = [each for each in candidates if each.unfit is None and each.statistics is not None]
    reasons += _unfit(candidates)
    going = [each for each in left if each.cut.stops is None]
    if left and not going:
        return Recommendation(
            None, (*reasons, *dict.fromkeys(f"No size can be packed: {each.cut.stops}." for each in left))
        )
    if not going:
        return Recommendation(None, tuple(reasons))
    left = _within(going, LOST_TOLERANCE, lambda each: each.lost, reasons, _lost_sentence)
    if all(each.cost is not None for each in left):
        cheapest = min(each.cost or 0.0 for each in left)
        left = _within(left, COST_TOLERANCE * cheapest, lambda each: each.cost or 0.0, reasons, _cost_sentence)
    else:
        left = _within(left, FILL_TOLERANCE, lambda each: -_fill(each), reasons, _fill_sentence)
    best = min(left, key=lambda each: (abs(log2(each.pack_size / FIRST)), each.pack_size))
    if len(left) > 1:
        others = _sizes([each for each in left if each is not best])
        reasons.append(
            f"{others} would do as well; {best.pack_size} is nearest to {FIRST}, where upstream's packing guide starts."
        )
    better = better_comm(best, intent.fixed)
    if better is not None and best.own_traffic is not None:
        own = best.own_traffic
        reasons.append(
            f"{better.layout.comm} leaves {better.exposed:.0f} us of transfer a layer exposed, {own.layout.comm} "
            f"{own.exposed:.0f} us."
        )
        best = again(best, better)
    return Recommendation(best, (*reasons, *_figures(best), *_about(best)))


def _within(left: list[Candidate], tolerance: float, key: Any, reasons: list[str], sentence: Any) -> list[Candidate]:
    """Keep what is within the tolerance of the best, and say what is not and why."""
    best = min(key(each) for each in left)
    kept = [each for each in left if key(each) <= best + tolerance]
    out = [each for each in left if key(each) > best + tolerance]
    if out:
        reasons.append(sentence(out, kept))
    return kept


def _sizes(candidates: Sequence[Candidate]) -> str:
    return _and([str(each.pack_size) for each in candidates])


def _and(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _unfit(candidates: Sequence[Candidate]) -> list[str]:
    return [f"{each.pack_size} is out: {each.unfit}." for each in candidates if each.unfit is not None]


def _lost_sentence(out: Sequence[Candidate], kept: Sequence[Candidate]) -> str:
    shares = _and([f"{each.lost:.2%}" for each in out])
    each = ", in this order" if len(out) > 1 else ""
    best = min(each.lost for each in kept)
    return f"Packs of {_sizes(out)} tokens would lose {shares} of the tokens to cutting{each}; larger ones {best:.2%}."


def _fill_sentence(out: Sequence[Candidate], kept: Sequence[Candidate]) -> str:
    shares = _and([f"{_fill(each):.1%}" for each in out])
    best = max(kept, key=_fill)
    return f"Packs of {_sizes(out)} tokens are filled to {shares} only, of {best.pack_size} to {_fill(best):.1%}."


def _cost_sentence(out: Sequence[Candidate], kept: Sequence[Candidate]) -> str:
    cheapest = min(each.cost or 0.0 for each in kept)
    best = min(kept, key=lambda each: each.cost or 0.0)
    told = [
        f"{each.pack_size} about {(each.cost or 0) / cheapest - 1:.0%} more ({_needs(each)}, {_fill(each):.1%} filled)"
        for each in out
    ]
    start = f"A trained token costs least time with {best.pack_size} ({_needs(best)}, {_fill(best):.1%} filled)"
    return f"{start}: {_and(told)}."


def _needs(candidate: Candidate) -> str:
    recompute = candidate.choice.run.recompute if candidate.choice is not None else None
    return str(candidate.layout) + (f", {recompute} recompute" if recompute else "")


def _fill(candidate: Candidate) -> float:
    return candidate.statistics.fill if candidate.statistics is not None else 0.0


def _figures(best: Candidate) -> list[str]:
    packs = best.statistics
    assert packs is not None
    found = [
        f"{best.pack_size} tokens: {packs.packs} packs, {packs.fill:.1%} filled, "
        f"{packs.sequences_mean:.1f} samples each on average; {best.global_batch_size} packs a step make "
        f"{count(best.steps or 0, 'step')} an epoch."
    ]
    if best.choice is not None:
        memory = best.choice.estimate
        found.append(
            f"{_needs(best)}: {memory.total / GIB:.0f} of {memory.budget / GIB:.0f} GiB on the fullest "
            f"{memory.gpu.upper()}."
        )
    return found


def better_comm(best: Candidate, fixed: Mapping[str, Any]) -> Traffic | None:
    """Return the communication type that exposes clearly less transfer than the layout's, None when none does.

    One that needs a particular Transformer Engine is not taken, and none when the user fixed it.
    """
    own = best.own_traffic
    if own is None or own.verdict == "impossible" or "cp_comm_type" in fixed:
        return None
    same = [row for row in best.traffic if row.layout.cp == own.layout.cp and row.verdict != "impossible"]
    fewest = min((row for row in same if row.why is None), key=lambda row: row.exposed, default=own)
    return fewest if fewest.wait < own.wait - _CLEARLY else None


def _traffic_sentence(row: Traffic, best: Candidate) -> str:
    packs = best.statistics
    assert packs is not None
    start = f"CP {row.layout.cp} over {'NVLink' if row.link == 'nvlink' else 'the network'} ({row.layout.comm})"
    length = f"a token lies in a sample of {packs.mean_length:.0f} tokens on average"
    if row.verdict == "hidden":
        return f"{start} hides behind attention: {length}, so attention takes {row.attention:.0f} us a layer."
    cost = f"{start} costs {row.wait:.0%} of a layer's time"
    if row.step_transfer == 0:
        return f"{cost}: nothing hides its {row.transfer:.0f} us of transfer."
    return (
        f"{cost}: {length}, so {row.attention:.0f} us of attention hide only a part of {row.transfer:.0f} us of "
        "transfer."
    )


def _about(best: Candidate) -> list[str]:
    packs = best.statistics
    assert packs is not None
    own = best.own_traffic
    found = [_traffic_sentence(own, best)] if own is not None and own.verdict != "impossible" else []
    if best.pad_seq_to_mult > 1:
        shares = f"{packs.alignment_padding:.2%} of the slots and {packs.alignment_work:.2%} of the attention"
        equal = "; so every context parallel rank has equal work" if best.layout.cp > 1 else ""
        found.append(f"Padding to a multiple of {best.pad_seq_to_mult} takes {shares}{equal}.")
    wait, even = packs.spread.wait, packs.balanced.wait if packs.balanced is not None else None
    if wait is not None and even is not None and wait > _WAIT and even < wait:
        found.append(
            f"Data-parallel ranks would wait {wait:.1%} of the attention time for the rank with the longest samples; "
            f"packed with --balance {even:.1%}."
        )
    if packs.sequences_max > _MANY_SEQUENCES:
        found.append(
            f"A pack holds up to {packs.sequences_max} samples; CUDA graphs need cu_seqlens of that length, which "
            "--max-sequences caps."
        )
    return found
