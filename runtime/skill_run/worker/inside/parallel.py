"""A layout of parallel sizes, and the process groups of its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from skill_run.worker.inside.errors import RefusedError

COMM_TYPES: Final = ("all_gather", "p2p", "a2a", "a2a+p2p")


@dataclass(frozen=True, slots=True)
class Layout:
    """Parallel sizes in Megatron's words; vpp: virtual_pipeline_model_parallel_size, dp: data-parallel size."""

    cp: int = 1
    tp: int = 1
    pp: int = 1
    vpp: int | None = None
    ep: int = 1
    dp: int = 1
    sp: bool = False
    cp_comm_type: str = "all_gather"

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Layout:
        """Return the layout of a request; raises RefusedError for one that no run can have."""
        layout = cls(**{name: values[name] for name in cls.__slots__ if values.get(name) is not None})
        if layout.cp_comm_type not in COMM_TYPES:
            raise RefusedError(f"there is no cp_comm_type {layout.cp_comm_type!r}")
        if min(layout.cp, layout.tp, layout.pp, layout.ep, layout.dp) < 1 or layout.size % layout.ep:
            raise RefusedError(f"no run can have the parallel sizes {layout.to_dict()}")
        return layout

    @property
    def size(self) -> int:
        """Number of ranks; expert parallelism runs over the ranks of the others."""
        return self.cp * self.tp * self.pp * self.dp

    @property
    def fewest_packs(self) -> int:
        """Microbatches that show this layout's faults: for VPP the p2p fault hides with as many as there are stages."""
        return self.dp * (4 * self.pp if self.vpp else 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the layout as JSON-ready data."""
        return asdict(self)

    def __str__(self) -> str:
        sizes = {"CP": self.cp, "TP": self.tp, "PP": self.pp, "VPP": self.vpp or 1, "EP": self.ep, "DP": self.dp}
        told = [f"{name} {size}" for name, size in sizes.items() if size > 1] or ["one rank"]
        return " x ".join(told + ["SP"] * self.sp) + (f", {self.cp_comm_type}" if self.cp > 1 else "")

    def start(self) -> None:
        """Make Megatron's process groups; the default group must exist."""
        from megatron.core import parallel_state

        inner = {}
        if self.cp_comm_type == "a2a+p2p" and self.cp > 1:
            inner["hierarchical_context_parallel_sizes"] = [2, self.cp // 2]
        parallel_state.initialize_model_parallel(
            self.tp,
            self.pp,
            self.vpp,
            context_parallel_size=self.cp,
            expert_model_parallel_size=self.ep,
            # gloo gathers no uneven parts, which experts split over TP need.
            expert_tensor_parallel_size=1,
            **inner,
        )
