"""How a parity run is spread over ranks: the user's parallel sizes, brought down to what a CPU can fork."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import lcm
from typing import Any, Final

from skill_run.errors import InputError

# More forked ranks than this only wait for each other on a small machine.
MAX_RANKS: Final = 4
COMM_TYPES: Final = ("all_gather", "p2p", "a2a", "a2a+p2p")
DEFAULT_COMM_TYPES: Final = ("all_gather", "p2p")


@dataclass(frozen=True, slots=True)
class Layout:
    """Parallel sizes in Megatron's words; vpp: virtual_pipeline_model_parallel_size, dp: data parallel size."""

    cp: int = 1
    tp: int = 1
    pp: int = 1
    vpp: int | None = None
    ep: int = 1
    dp: int = 1
    sp: bool = False
    cp_comm_type: str = "all_gather"

    @property
    def ranks(self) -> int:
        """Number of processes; expert parallelism runs over the ranks of the others."""
        return self.cp * self.tp * self.pp * self.dp

    @property
    def chunks(self) -> int:
        """Equal parts that CP cuts every sequence into."""
        return 2 * self.cp if self.cp > 1 else 1

    @property
    def pad_multiple(self) -> int:
        """Every sequence must be padded to a multiple of this many tokens: 2*CP, and TP under sequence parallelism."""
        return lcm(self.chunks, self.cp * self.tp if self.sp else 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the layout as JSON-ready data."""
        return asdict(self)

    def __str__(self) -> str:
        sizes = {"CP": self.cp, "TP": self.tp, "PP": self.pp, "VPP": self.vpp or 1, "EP": self.ep, "DP": self.dp}
        told = [f"{name} {size}" for name, size in sizes.items() if size > 1] or ["one rank"]
        if self.sp:
            told.append("SP")
        return " x ".join(told) + (f", {self.cp_comm_type}" if self.cp > 1 else "")


def check(layout: Layout) -> None:
    """Raise InputError for sizes that no run can have, or that are too many for this machine's ranks."""
    for name in ("cp", "tp", "pp", "ep", "dp"):
        if getattr(layout, name) < 1:
            raise InputError(f"--{name} must be at least 1, not {getattr(layout, name)}")
    if layout.vpp is not None and (layout.vpp < 2 or layout.pp < 2):
        raise InputError(
            f"--vpp {layout.vpp} with --pp {layout.pp} is no virtual pipeline: it needs 2 stages and 2 chunks at least"
        )
    if layout.ranks > MAX_RANKS:
        raise InputError(
            f"CP {layout.cp} x TP {layout.tp} x PP {layout.pp} x DP {layout.dp} are {layout.ranks} ranks; parity runs "
            f"at most {MAX_RANKS}: smaller sizes prove the same"
        )
    if layout.ranks % layout.ep:
        raise InputError(f"EP {layout.ep} does not divide the {layout.ranks} ranks; add --cp, --tp or --dp")
    if layout.sp and layout.tp == 1:
        raise InputError("--sp needs --tp of at least 2: sequence parallelism splits over the tensor-parallel ranks")
    if layout.cp_comm_type == "a2a+p2p" and layout.cp < 4:
        raise InputError("cp_comm_type a2a+p2p needs --cp 4: it is a ring over groups of two")


def fitted(layout: Layout) -> tuple[Layout, list[str]]:
    """Return a layout of at most MAX_RANKS ranks that keeps every dimension in use, and what was changed.

    CP is kept first, since it is what packing meets; then TP with SP, PP and EP, at size 2 each.
    """
    changes: list[str] = []
    left = MAX_RANKS
    sizes: dict[str, int] = {}
    for name, size in (("cp", layout.cp), ("tp", layout.tp), ("pp", layout.pp)):
        sizes[name] = min(size, 2, left)
        left //= sizes[name]
        if sizes[name] != size:
            changes.append(f"{name.upper()} {size} -> {sizes[name]}")
    kept = Layout(cp=sizes["cp"], tp=sizes["tp"], pp=sizes["pp"])
    if layout.ep > 1 and kept.ranks == 1:
        # Experts are spread over the ranks that the others make, data parallel ones here.
        kept = replace(kept, dp=2)
    ep = min(layout.ep, 2, kept.ranks)
    if ep != layout.ep:
        changes.append(f"EP {layout.ep} -> {ep}")
    sp = layout.sp and kept.tp > 1
    if sp != layout.sp:
        changes.append("SP off, since TP is 1")
    comm = layout.cp_comm_type
    if comm == "a2a+p2p":
        comm = "a2a"
        changes.append("cp_comm_type a2a+p2p -> a2a, since CP is 2")
    return replace(kept, ep=ep, sp=sp, cp_comm_type=comm), changes
