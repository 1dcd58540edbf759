"""Faults that are put in on purpose: a comparison that cannot find them proves nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from skill_run.worker.inside.parallel import Layout
from skill_run.worker.inside.variation import Variation

_CP2: Final = Layout(cp=2)


@dataclass(frozen=True, slots=True)
class Control:
    """One fault: what is done wrong, on which ranks, and the diagnosis that must be made of it.

    multiple: pad_seq_to_mult of its packs, None for the run's own; layers: fewest layers that show it; positions: False
    to leave RoPE out, which stops at uneven sequences; checked: the same fault in this way must be refused.
    """

    title: str
    variation: Variation
    diagnosis: str
    layout: Layout = _CP2
    multiple: int | None = None
    layers: int = 1
    positions: bool = True
    checked: Variation | None = None


CONTROLS: Final[Mapping[str, Control]] = {
    "contiguous-split": Control(
        "each CP rank takes one run of the pack", Variation(split="contiguous"), "contiguous-split"
    ),
    "ignored-boundaries": Control(
        "the boundaries do not reach the model: the pack is one sequence",
        Variation(boundaries="none"),
        "ignored-boundaries",
    ),
    "loss-scaling": Control(
        "the loss is averaged on each microbatch and CP rank (calculate_per_token_loss=False)",
        Variation(loss="per-microbatch"),
        "loss-scaling",
    ),
    "cp-loss-factor": Control(
        "each CP rank returns its own mean, and the schedule multiplies it by CP",
        Variation(loss="local-mean"),
        "loss-scaling",
    ),
    "pad-multiple-1": Control(
        "sequences are not padded (pad_seq_to_mult=1) under CP 2, cut as the CUDA kernel does it unchecked",
        Variation(kernel=True),
        "pad-multiple-1",
        multiple=1,
        positions=False,
        checked=Variation(),
    ),
    "logical-boundaries": Control(
        "cu_seqlens is used where cu_seqlens_padded belongs",
        Variation(boundaries="logical"),
        "logical-boundaries",
        layout=Layout(),
    ),
    "sentinel": Control(
        "boundaries padded with -1 reach the partition index, as before Bridge 0.5.1",
        Variation(sentinels=True),
        "sentinel",
    ),
    "dense-zigzag": Control(
        "the pack is cut as one sequence, as in Bridge 0.2", Variation(split="whole"), "dense-zigzag"
    ),
    "loss-mask-shift": Control("the loss mask is one token late", Variation(shifted_mask=True), "loss-mask-shift"),
    "middle-stage-without-boundaries": Control(
        "middle pipeline stages get no packed_seq_params, as before Bridge 0.5.1",
        Variation(deaf_middle=True),
        "middle-stage-without-boundaries",
        layout=Layout(pp=3),
        layers=3,
    ),
}

# Lengths that show every fault, for data that cannot: uneven, prompt and answer, and unequal packs.
PACKS: Final[Sequence[Sequence[Mapping[str, int]]]] = (
    ({"length": 26, "trained": 20}, {"length": 13, "trained": 13}, {"length": 9, "trained": 4}),
    (
        {"length": 7, "trained": 5},
        {"length": 22, "trained": 11},
        {"length": 16, "trained": 16},
        {"length": 3, "trained": 1},
    ),
)
PACK_SIZE: Final = 64
MULTIPLE: Final = 4


def can_show(packs: Sequence[Sequence[Mapping[str, int]]], multiple: int) -> bool:
    """Whether packs of these lengths show every fault.

    Each has several sequences, of which one before the last is padded and trained; some lengths are odd; the packs
    differ in the tokens that count; and by logical boundaries a sequence of the first pack would end in its neighbour.
    """
    if multiple % 4 or len(packs) < 2:
        return False
    for pack in packs:
        inner = any(each["length"] % multiple and each["trained"] > 1 for each in pack[:-1])
        if not inner or not any(each["length"] % 4 in (1, 3) for each in pack):
            return False
    if not _drifts(packs[0], multiple):
        return False
    counts = {sum(int(each["trained"]) for each in pack) for pack in packs}
    return len(counts) > 1


def _drifts(pack: Sequence[Mapping[str, int]], multiple: int) -> bool:
    """Whether the padding before some sequence is shorter than the sequence is, so that only its end is cut off."""
    padding = 0
    for each in pack:
        length = int(each["length"])
        if 0 < padding < length and each["trained"] > 1:
            return True
        padding += -length % multiple
    return False


def uneven_lengths(physical: Sequence[int], cp_size: int) -> int:
    """Return how many physical lengths 2*CP does not divide, which matters under CP only."""
    return sum(1 for length in physical if length % (2 * cp_size)) if cp_size > 1 else 0
