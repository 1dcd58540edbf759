"""One sentence for each number of a chosen layout, from what the run would need with less of it."""

from __future__ import annotations

from dataclasses import replace

from skill_run.plan.layout import Layout, Run
from skill_run.plan.links import nvlink_domain
from skill_run.plan.memory import GIB, MemoryEstimate, estimate_memory
from skill_run.plan.shape import ModelShape

Reason = tuple[str, object, str]
_LESS = {"selective": None, "full": "selective"}


class Reasons:
    """Writes the sentences for one choice."""

    def __init__(
        self, shape: ModelShape, layout: Layout, run: Run, estimate: MemoryEstimate, *, world_size: int
    ) -> None:
        """Keep the choice and its estimate."""
        self.shape, self.layout, self.run = shape, layout, run
        self.estimate, self.world, self.gpu = estimate, world_size, estimate.gpu
        self.domain = nvlink_domain(estimate.gpu)

    def sentences(self, decided: frozenset[str]) -> tuple[Reason, ...]:
        """Return (field, value, sentence) for every field that is chosen, fixed ones included."""
        found: list[Reason] = []
        for name, sentence in (
            ("tp", self._tensor()),
            ("sp", self._sequence()),
            ("pp", self._pipeline()),
            ("cp", self._context()),
            ("cp_comm_type", self._comm()),
            ("hierarchical_sizes", self._hierarchical()),
            ("ep", self._experts()),
            ("recompute", self._recompute()),
            ("dp", self._data()),
        ):
            if sentence is not None:
                given = f"You fixed it. {sentence}" if name in decided else sentence
                found.append((name, self._value(name), given))
        return tuple(found)

    def _value(self, name: str) -> object:
        if name == "dp":
            return self.layout.data_parallel(self.world)
        return self.run.recompute if name == "recompute" else getattr(self.layout, name)

    def _with(self, layout: Layout | None = None, run: Run | None = None) -> str:
        """Return what the run would need, as `N of M GiB`."""
        other = estimate_memory(self.shape, layout or self.layout, run or self.run, world_size=self.world, gpu=self.gpu)
        return f"{other.total / GIB:.0f} of {other.budget / GIB:.0f} GiB"

    def _tensor(self) -> str:
        tp = self.layout.tp
        if tp == 1:
            return "Every GPU holds whole layers, so that no layer waits for another GPU."
        half = replace(self.layout, tp=tp // 2, sp=tp > 2)
        where = "Inside" if tp <= self.domain else "Beyond"
        return f"{where} the {self.domain} GPUs that NVLink joins; TP {tp // 2} would need {self._with(half)}."

    def _sequence(self) -> str | None:
        if self.layout.tp == 1:
            return None
        if not self.layout.sp:
            return "Without it every TP rank keeps the norms' activations of all tokens."
        return "With TP above 1 it splits the norms' activations over the TP ranks at no cost."

    def _pipeline(self) -> str:
        pp = self.layout.pp
        if pp == 1:
            return "The weights fit without pipeline stages, which would idle at the start and end of every step."
        fewer = max(size for size in range(1, pp) if pp % size == 0)
        less = self._with(replace(self.layout, pp=fewer, vpp=None, last_stage_layers=None))
        last = self.layout.last_stage_layers
        shorter = f", {last} of them in the last, which has the output layer too" if last else ""
        return f"{self.shape.layers} layers in {pp} stages{shorter}; PP {fewer} would need {less}."

    def _context(self) -> str:
        cp, tokens = self.layout.cp, self.run.tokens_per_row
        if cp == 1:
            return f"Rows of {tokens} tokens fit on one rank, and data parallelism is cheaper."
        half = replace(self.layout, cp=cp // 2, cp_comm_type="p2p", hierarchical_sizes=None)
        return f"{tokens // cp} tokens of a row of {tokens} on each rank; CP {cp // 2} would need {self._with(half)}."

    def _comm(self) -> str | None:
        if self.layout.cp == 1:
            return None
        if self.shape.sparse_attention:
            return "Sparse attention (DSA) picks keys from the whole row and has no other exchange."
        if self.layout.comm == "a2a":
            why = "Attention sinks have no other exchange, and" if self.shape.sinks else "Heads are exchanged, and"
            return f"{why} {self.shape.heads} heads and {self.shape.groups} key-value groups divide by TP x CP."
        if self.layout.comm == "a2a+p2p":
            return "Heads are exchanged inside NVLink, key-values go round a ring between the nodes."
        return "A ring of key-values hides behind the attention of the chunk before, whatever the number of heads."

    def _hierarchical(self) -> str | None:
        sizes = self.layout.hierarchical_sizes
        if sizes is None:
            return None
        return f"{sizes[0]} ranks exchange heads inside NVLink, {sizes[1]} such groups form the ring."

    def _experts(self) -> str | None:
        if not self.shape.experts:
            return None
        if self.layout.ep == 1:
            return "Every GPU holds all experts, so that no token travels."
        fewer = replace(self.layout, ep=self.layout.ep // 2)
        each = self.shape.experts // self.layout.ep
        return f"{each} of {self.shape.experts} experts on each GPU; EP {fewer.ep} would need {self._with(fewer)}."

    def _recompute(self) -> str:
        level = self.run.recompute
        if level is None:
            return "Activations fit as they are."
        less = replace(self.run, recompute=_LESS[level], recompute_method=None)
        name = _LESS[level] or "no"
        cost = "about 30 % more compute" if level == "full" else "a few per cent more compute"
        return f"For {cost} activations shrink; {name} recompute would need {self._with(run=less)}."

    def _data(self) -> str:
        dp = self.layout.data_parallel(self.world)
        sizes = f"TP {self.layout.tp} x PP {self.layout.pp} x CP {self.layout.cp}"
        return f"{self.world} GPUs / ({sizes}) train {dp} row{'s' if dp > 1 else ''} at once."
