"""From symptoms to the fault that causes them. Numbers in, a name and a sentence out; no torch is needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

# A norm ratio this near to a factor is that factor, times a weight per rank or microbatch that differs a little.
_NEAR: Final = 0.3
_MTP: Final = "multi-token prediction rolls labels by the logical boundaries (cu_seqlens_q) of a padded pack"


@dataclass(frozen=True, slots=True)
class Symptoms:
    """What a comparison saw; None where it was not measured.

    Errors are relative to the unpacked reference; tolerance: what rounding explains. outside, gradient_outside,
    before, unmoved: see leak.py. lost, twice: tokens that no rank or two ranks of a CP group hold; pattern: how the
    ranks hold them ("sequences", "contiguous", "whole"). uneven: physical lengths that 2*CP does not divide; negative:
    -1 among the boundaries that the index was given; stopped: the sentence of what stopped the run; refused: it was
    stopped because its data or sizes cannot be right. mtp, balanced: the model predicts more tokens, or has a loss that
    balances its experts; padded: some sequence has a longer physical than logical length.
    """

    tolerance: float
    loss_error: float | None = None
    gradient_error: float | None = None
    norm_ratio: float | None = None
    tokens: int | None = None
    reference_tokens: int | None = None
    outside: float | None = None
    gradient_outside: float | None = None
    before: float | None = None
    unmoved: int | None = None
    lost: int = 0
    twice: int = 0
    pattern: str = "sequences"
    uneven: int = 0
    negative: bool = False
    stopped: str = ""
    refused: bool = False
    cp: int = 1
    pp: int = 1
    dp: int = 1
    vpp: bool = False
    mtp: bool = False
    balanced: bool = False
    padded: bool = False

    @property
    def wrong(self) -> bool:
        """Whether anything is beyond what rounding explains."""
        errors = (self.loss_error, self.gradient_error)
        return bool(self.stopped) or any(error is None or not error <= self.tolerance for error in errors)

    @property
    def only_gradients(self) -> bool:
        """Whether the loss is right and the gradients are not."""
        if self.loss_error is None or self.gradient_error is None:
            return False
        return self.loss_error <= self.tolerance < self.gradient_error

    @property
    def leaks(self) -> bool | None:
        """Whether a token moved another sequence, or one before it; None when that was not tested."""
        measured = [value for value in (self.outside, self.gradient_outside, self.before) if value is not None]
        return any(not value <= self.tolerance for value in measured) if measured else None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A fault by its name, and what to tell of it."""

    name: str
    sentence: str

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready data."""
        return {"name": self.name, "sentence": self.sentence}


def diagnose(symptoms: Symptoms) -> Diagnosis | None:
    """Return the fault that explains the symptoms, None when there is none to explain."""
    if not symptoms.wrong and not symptoms.leaks and not symptoms.unmoved:
        return None
    for rule in (_stopped, _index, _pattern, _boundaries, _extra_loss, _balance, _scaling, _alignment):
        found = rule(symptoms)
        if found is not None:
            return found
    return Diagnosis("unknown", "the numbers fit no fault that is known here; compare the worst tensor by hand")


def _stopped(s: Symptoms) -> Diagnosis | None:
    if not s.stopped:
        return None
    if s.refused and s.uneven:
        return Diagnosis(
            "pad-multiple-1",
            f"pad_seq_to_mult is no multiple of 2*CP = {2 * s.cp}: {s.uneven} sequences cannot be cut into equal "
            f"chunks, and the run was stopped ({s.stopped})",
        )
    if s.mtp and s.padded and not s.refused:
        return Diagnosis("mtp-boundaries", f"{_MTP}, and the run was stopped: {s.stopped}")
    return Diagnosis("stopped", f"the run was stopped: {s.stopped}")


def _index(s: Symptoms) -> Diagnosis | None:
    if not (s.lost or s.twice or s.uneven or s.negative):
        return None
    told = f"{s.lost} tokens are on no rank and {s.twice} on more than one"
    if s.negative:
        return Diagnosis(
            "sentinel",
            f"{told}: the partition index was given boundaries padded with -1, which its kernel does not expect",
        )
    if s.uneven:
        return Diagnosis(
            "pad-multiple-1",
            f"{told}: {s.uneven} sequences have lengths that 2*CP = {2 * s.cp} does not divide, so pad_seq_to_mult "
            "must be a multiple of it",
        )
    return Diagnosis("partition", f"{told}: the partition index is wrong")


def _pattern(s: Symptoms) -> Diagnosis | None:
    if s.pattern == "contiguous":
        return Diagnosis(
            "contiguous-split",
            f"each of the {s.cp} CP ranks holds one run of the pack, while attention and RoPE expect chunks r and "
            "2*CP-1-r of every sequence",
        )
    # With no boundaries at all, a cut over the whole pack loses nothing: see _boundaries.
    if s.pattern == "whole" and s.unmoved:
        return Diagnosis(
            "dense-zigzag",
            "the pack was cut as if it were one sequence; packed batches are cut sequence by sequence",
        )
    return None


def _boundaries(s: Symptoms) -> Diagnosis | None:
    if not s.leaks:
        return None
    if s.unmoved:
        return Diagnosis(
            "logical-boundaries",
            "tokens at the ends of sequences belong to their neighbours: attention was given logical boundaries "
            "(cu_seqlens) of a padded pack instead of cu_seqlens_padded",
        )
    if s.before is not None and not s.before <= s.tolerance:
        return Diagnosis("not-causal", "a token changes those before it in its own sequence: the mask is not causal")
    if s.pp > 2:
        return Diagnosis(
            "middle-stage-without-boundaries",
            f"sequences attend to those before them in the pack, with PP {s.pp}: the middle stages get no "
            "packed_seq_params",
        )
    return Diagnosis(
        "ignored-boundaries",
        "sequences attend to those before them in the pack: the boundaries do not reach attention",
    )


def _extra_loss(s: Symptoms) -> Diagnosis | None:
    if not (s.mtp and s.padded and s.only_gradients):
        return None
    return Diagnosis(
        "mtp-boundaries",
        f"the main loss is right and the gradients are not: {_MTP}, so its targets are shifted",
    )


def _balance(s: Symptoms) -> Diagnosis | None:
    if not (s.balanced and s.only_gradients and not s.leaks):
        return None
    return Diagnosis(
        "aux-loss-scaling",
        "the loss is right and the gradients are not, and the model has a balancing loss for its experts: under "
        "calculate_per_token_loss Megatron-Core 0.16.1 weighs it by a rank's tokens without the factor CP*TP "
        "(transformer/moe/router.py), which 0.19.2 has",
    )


def _scaling(s: Symptoms) -> Diagnosis | None:
    if not s.only_gradients or s.norm_ratio is None:
        return None
    for name, factor in (("CP", s.cp), ("1/CP", 1 / s.cp), ("DP", s.dp), ("1/DP", 1 / s.dp)):
        if factor != 1 and abs(s.norm_ratio / factor - 1) < _NEAR:
            return Diagnosis(
                "loss-scaling",
                f"the loss is right and the gradient norm is {s.norm_ratio:.3f} times the reference's, about {name}: "
                "the loss is averaged on each CP rank and multiplied once too often",
            )
    if abs(s.norm_ratio - 1) < _NEAR:
        return Diagnosis(
            "loss-scaling",
            f"the loss is right and the gradients are not, with a norm ratio of {s.norm_ratio:.3f}: each microbatch "
            "and CP rank counts the same, however many tokens it has (calculate_per_token_loss must be True)",
        )
    if s.vpp:
        return Diagnosis(
            "pipeline-messages",
            f"the gradient norm is {s.norm_ratio:.3g} times the reference's with virtual pipelining: stages received "
            "each other's messages (overlap_p2p_comm must be True and batch_p2p_comm False with two stages)",
        )
    return Diagnosis(
        "loss-scaling",
        f"the loss is right and the gradient norm is {s.norm_ratio:.3g} times the reference's: the gradients are "
        "scaled by a wrong count",
    )


def _alignment(s: Symptoms) -> Diagnosis | None:
    if s.leaks is not False or s.unmoved or not s.wrong:
        return None
    counted = ""
    if s.tokens != s.reference_tokens:
        counted = f" ({s.tokens} tokens count instead of {s.reference_tokens})"
    return Diagnosis(
        "loss-mask-shift",
        f"nothing leaks and every token is where it belongs, but other tokens count in the loss{counted}: loss mask "
        "or labels are not aligned with the tokens",
    )
