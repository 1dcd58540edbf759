"""One run of a comparison, and what it computed. Megatron is not needed to make or keep them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from skill_run.worker.inside.gpt_model import ModelShape
from skill_run.worker.inside.parallel import Layout
from skill_run.worker.inside.samples import Sample
from skill_run.worker.inside.variation import Variation


@dataclass(frozen=True)
class Case:
    """One run to make. samples: a list for each pack; multiple: pad_seq_to_mult; steps: optimizer steps.

    packed: False for an unpacked run, which has one microbatch for each sample; device: "cpu" or "cuda".
    """

    shape: ModelShape
    layout: Layout
    samples: Sequence[Sequence[Sample]]
    pack_size: int
    multiple: int
    dtype: str = "float64"
    steps: int = 0
    seed: int = 0
    variation: Variation = field(default_factory=Variation)
    packed: bool = True
    device: str = "cpu"


@dataclass
class Outcome:
    """What a run computed: the loss of each step, and on rank 0 gradients of the first and weights after the last."""

    losses: list[float]
    tokens: int
    gradients: dict[str, Any] | None = None
    weights: dict[str, Any] | None = None
