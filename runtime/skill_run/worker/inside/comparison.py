"""Cases of one parity request against references that they share, with what was measured put into one form."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

from skill_run.worker.inside.backend import Backend
from skill_run.worker.inside.case import Case
from skill_run.worker.inside.compare import tolerance_of
from skill_run.worker.inside.controls import uneven_lengths
from skill_run.worker.inside.diagnosis import Symptoms
from skill_run.worker.inside.errors import RankFailure
from skill_run.worker.inside.gpt_model import ModelShape
from skill_run.worker.inside.parallel import Layout
from skill_run.worker.inside.samples import Sample, draw_samples, enough_samples, pack_samples
from skill_run.worker.inside.variation import Variation

Lengths = Sequence[Sequence[Mapping[str, int]]]

_NOTHING: Final[Mapping[str, Any]] = dict.fromkeys(
    ("loss_error", "gradient_error", "worst", "norm_ratio", "cosine", "tokens", "reference_tokens", "steps", "leak")
)


@dataclass(frozen=True)
class Data:
    """Lengths to draw samples of, and how they are packed."""

    packs: Lengths
    pack_size: int
    multiple: int


@dataclass(frozen=True)
class Measured:
    """What one case showed. figures: see compare.compare; stopped: the sentence of what stopped it, else empty."""

    figures: Mapping[str, Any]
    stopped: str
    symptoms: Symptoms


@dataclass
class Comparison:
    """The settings that all cases of a request have, and the references that were computed.

    tell: is called with what is being done.
    """

    backend: Backend
    dtype: str
    seed: int
    steps: int
    tell: Callable[[str], None]
    _drawn: dict[Any, list[list[Sample]]] = field(default_factory=dict)
    _references: dict[Any, str] = field(default_factory=dict)

    def case(self, shape: ModelShape, layout: Layout, data: Data, variation: Variation | None = None) -> Case:
        """Return a packed case; layouts that need as many packs get the same samples."""
        variation = variation or Variation()
        return Case(
            shape=shape,
            layout=layout,
            samples=self._samples(data, shape.vocab_size, layout.fewest_packs),
            pack_size=data.pack_size,
            multiple=data.multiple,
            dtype=self.dtype,
            steps=self.steps,
            seed=self.seed,
            variation=variation,
            device=self.backend.device,
        )

    def _samples(self, data: Data, vocabulary: int, fewest: int) -> list[list[Sample]]:
        key = (repr(data.packs), vocabulary, fewest)
        if key not in self._drawn:
            drawn = draw_samples(data.packs, vocabulary, self.seed)
            self._drawn[key] = enough_samples(drawn, fewest)
        return self._drawn[key]

    def reference(self, case: Case) -> str:
        """Return the file of the case's reference; it is computed once for all cases that share it."""
        plain = replace(case, layout=Layout(), variation=Variation())
        plain = plain if case.shape.balanced else replace(plain, packed=False)
        key = (repr(plain.shape), id(case.samples), plain.steps, plain.packed and plain.multiple)
        if key not in self._references:
            self.tell("packed reference on one rank" if plain.packed else "unpacked reference")
            path = os.path.join(os.environ["SKILL_RUN_SCRATCH"], f"reference-{len(self._references)}.pt")
            self.backend.run(plain, save=path)
            self._references[key] = path
        return self._references[key]

    def measure(self, case: Case, *, leak: bool) -> Measured:
        """Run a case against its reference; what stops it is told instead of its figures."""
        reference = self.reference(case)
        stopped = refused = ""
        try:
            figures = self.backend.run(case, reference=reference, leak=leak)
        except RankFailure as error:
            figures, stopped = dict(_NOTHING), str(error)
            refused = stopped if error.kind == "input" else ""
        return Measured(figures, stopped, self._symptoms(case, figures, stopped, refused))

    def tolerance(self, case: Case) -> float:
        """Return the largest error of the case that rounding explains."""
        return tolerance_of(self.dtype, experts=case.shape.experts)

    def _symptoms(self, case: Case, figures: Mapping[str, Any], stopped: str, refused: str) -> Symptoms:
        packs = [pack_samples(samples, case.pack_size, case.multiple) for samples in case.samples]
        lengths = [end - start for pack in packs for start, end in pairwise(pack.physical)]
        leak = figures["leak"] or {}
        told = {name: leak[name] for name in ("outside", "before", "unmoved") if name in leak}
        told |= {name: leak["index"][name] for name in ("lost", "twice", "pattern")} if leak else {}
        if not case.shape.gradients_meet:
            told["gradient_outside"] = leak.get("gradient_outside")
        layout = case.layout
        return Symptoms(
            tolerance=self.tolerance(case),
            **{name: figures[name] for name in ("loss_error", "gradient_error", "norm_ratio", "tokens")},
            reference_tokens=figures["reference_tokens"],
            uneven=uneven_lengths(lengths, layout.cp),
            negative=case.variation.sentinels,
            stopped=stopped,
            refused=bool(refused),
            cp=layout.cp,
            pp=layout.pp,
            dp=layout.dp,
            vpp=bool(layout.vpp),
            mtp=case.shape.predicts_more,
            balanced=case.shape.balanced,
            padded=any(pack.logical != pack.physical for pack in packs),
            **told,
        )
