"""How a run is spread over GPUs (Layout) and what it trains with (Run); which sizes a model and a world admit."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Final

from skill_run.plan.shape import ModelShape

CP_COMM_TYPES: Final = ("p2p", "all_gather", "a2a", "a2a+p2p")
_WRITTEN: Final = {"allgather": "all_gather"}


@dataclass(frozen=True, slots=True)
class Layout:
    """Parallel sizes of a run in Megatron's short names.

    vpp: virtual pipeline chunks per stage, None without interleaving. etp: tensor parallel size inside experts; 1 is
    Bridge's own default since 0.6 when EP > 1, earlier it was TP. hierarchical_sizes: CP's two factors for a2a+p2p.
    last_stage_layers: layers of the last stage (num_layers_in_last_pipeline_stage) where the stages are not alike.
    """

    tp: int = 1
    pp: int = 1
    vpp: int | None = None
    cp: int = 1
    ep: int = 1
    etp: int = 1
    sp: bool = False
    cp_comm_type: str | None = None
    hierarchical_sizes: tuple[int, ...] | None = None
    last_stage_layers: int | None = None

    @property
    def ranks(self) -> int:
        """Return the GPUs of one model replica: TP x PP x CP, and EP x ETP x PP where that is more."""
        return max(self.tp * self.cp, self.ep * self.etp) * self.pp

    def data_parallel(self, world_size: int) -> int:
        """Return the data-parallel size of the dense layers."""
        return max(1, world_size // (self.tp * self.pp * self.cp))

    def expert_data_parallel(self, world_size: int) -> int:
        """Return how many times the experts are held."""
        return max(1, world_size // (self.ep * self.etp * self.pp))

    @property
    def comm(self) -> str:
        """Return the CP communication type, Megatron's own default p2p where none is set."""
        return _WRITTEN.get(self.cp_comm_type or "p2p", self.cp_comm_type or "p2p")

    def to_dict(self) -> dict[str, Any]:
        """Return the sizes as JSON-ready data."""
        return {
            "tp": self.tp,
            "pp": self.pp,
            "vpp": self.vpp,
            "cp": self.cp,
            "ep": self.ep,
            "etp": self.etp,
            "sp": self.sp,
            "cp_comm_type": self.cp_comm_type,
            "hierarchical_sizes": list(self.hierarchical_sizes) if self.hierarchical_sizes else None,
            "last_stage_layers": self.last_stage_layers,
        }

    def __str__(self) -> str:
        """Return the sizes that are not 1, as people write them."""
        parts = [f"TP{self.tp}"]
        parts += [f"{name}{size}" for name, size in (("PP", self.pp), ("VPP", self.vpp or 1)) if size > 1]
        parts += [f"CP{self.cp} {self.comm}"] if self.cp > 1 else []
        parts += [f"{name}{size}" for name, size in (("EP", self.ep), ("ETP", self.etp)) if size > 1]
        return " ".join([*parts, *(["SP"] if self.sp else [])])


@dataclass(frozen=True, slots=True)
class Run:
    """What a run trains, and with what; sizes are per data-parallel replica.

    tokens_per_row: tokens of one row (the pack, or sequence length). micro_batch_size: rows at once, 1 with offline
    packing. peft: None for full finetuning, else lora, dora or canonical_lora with `peft_dim` and `peft_targets`.
    recompute: None, selective (with `recompute_modules`) or full (with `recompute_method` and
    `recompute_num_layers`). offload_layers: layers per stage whose activations wait in the host's memory.
    mtp_layers: multi-token prediction layers, None for as many as the model's config.json has. frozen: the language
    model is not trained (a projector is). precision: bf16, fp8 or fp4 for the matrix products; weights are kept in bf16
    all the same unless fp8_params. grad_bytes, main_bytes, moment_bytes: bytes per parameter of gradients, master
    weights and each Adam moment. optimizer_offload: the share of the optimizer's state in the host's memory.
    """

    tokens_per_row: int
    micro_batch_size: int = 1
    global_batch_size: int | None = None
    packed: bool = True
    task: str = "sft"
    peft: str | None = None
    peft_dim: int = 32
    peft_targets: tuple[str, ...] = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
    recompute: str | None = None
    recompute_method: str | None = None
    recompute_num_layers: int = 1
    recompute_modules: tuple[str, ...] = ("core_attn",)
    offload_layers: int = 0
    mtp_layers: int | None = None
    frozen: bool = False
    optimizer: str = "adam"
    distributed_optimizer: bool = True
    optimizer_offload: float = 0.0
    grad_bytes: int = 4
    main_bytes: int = 4
    moment_bytes: int = 4
    precision: str = "bf16"
    fp8_params: bool = False
    fused_cross_entropy: bool = True
    bridge: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready data."""
        found = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def problems(shape: ModelShape, layout: Layout, run: Run, *, world_size: int) -> tuple[str, ...]:
    """Return a sentence for every size that model, row or world cannot be divided by; () when all can be."""
    return (
        *_world_problems(layout, run, world_size),
        *_model_problems(shape, layout),
        *_row_problems(shape, layout, run),
    )


def _world_problems(layout: Layout, run: Run, world_size: int) -> list[str]:
    found = []
    dense, experts = layout.tp * layout.pp * layout.cp, layout.ep * layout.etp * layout.pp
    if world_size % dense:
        found.append(f"{world_size} GPUs cannot be divided by TP x PP x CP = {dense}")
    if world_size % experts:
        found.append(f"{world_size} GPUs cannot be divided by EP x ETP x PP = {experts}")
    if not found and run.global_batch_size is not None:
        rows = run.micro_batch_size * layout.data_parallel(world_size)
        if run.global_batch_size % rows:
            found.append(f"a global batch of {run.global_batch_size} cannot be divided by MBS x DP = {rows}")
    return found


def _model_problems(shape: ModelShape, layout: Layout) -> list[str]:
    found = []
    if shape.has_attention and shape.heads % layout.tp:
        found.append(f"{shape.heads} attention heads cannot be divided by TP = {layout.tp}")
    if shape.has_attention and not shape.mla and max(shape.groups, layout.tp) % min(shape.groups, layout.tp):
        found.append(f"{shape.groups} key-value groups and TP = {layout.tp} do not divide each other")
    found += _state_problems(shape, layout)
    if layout.ep > 1 and not shape.experts:
        found.append(f"EP = {layout.ep} needs a model with experts")
    if shape.experts and shape.experts % layout.ep:
        found.append(f"{shape.experts} experts cannot be divided by EP = {layout.ep}")
    return found + _stage_problems(shape, layout)


def _stage_problems(shape: ModelShape, layout: Layout) -> list[str]:
    chunks = layout.pp * (layout.vpp or 1)
    if layout.vpp is not None and layout.vpp > 1 and layout.pp == 1:
        return ["virtual pipeline stages need PP > 1"]
    last = layout.last_stage_layers
    if last is None:
        return [f"{shape.layers} layers cannot be divided by PP x VPP = {chunks}"] if shape.layers % chunks else []
    if layout.pp == 1 or last < 1 or last >= shape.layers or (shape.layers - last) % (layout.pp - 1):
        return [f"{shape.layers} layers cannot be spread over PP = {layout.pp} with {last} in the last stage"]
    return [] if layout.vpp in (None, 1) else ["a shorter last stage and virtual stages are not planned together"]


def _state_problems(shape: ModelShape, layout: Layout) -> list[str]:
    """Mamba and linear attention split their heads over TP x CP, whatever the communication type."""
    ranks = layout.tp * layout.cp
    found = []
    for heads, what in (
        (shape.mamba_heads, "Mamba heads"),
        (shape.linear_key_heads, "linear attention key heads"),
        (shape.linear_value_heads, "linear attention value heads"),
    ):
        if heads and heads % ranks:
            found.append(f"{heads} {what} cannot be divided by TP x CP = {ranks}")
    if shape.mamba_groups and shape.mamba_heads:
        groups, left = divmod(shape.mamba_groups, layout.tp)
        if left or max(groups, layout.cp) % min(groups, layout.cp):
            found.append(f"{shape.mamba_groups} Mamba groups do not fit TP = {layout.tp} and CP = {layout.cp}")
    return found


def _row_problems(shape: ModelShape, layout: Layout, run: Run) -> list[str]:
    found = []
    if layout.cp > 1 and run.tokens_per_row % (2 * layout.cp):
        found.append(f"rows of {run.tokens_per_row} tokens cannot be divided by 2 x CP = {2 * layout.cp}")
    if layout.sp and run.tokens_per_row % (layout.tp * layout.cp):
        found.append(f"rows of {run.tokens_per_row} tokens cannot be divided by TP x CP = {layout.tp * layout.cp}")
    if layout.sp and layout.tp == 1:
        found.append("sequence parallelism needs TP > 1")
    if layout.ep > 1 and layout.tp > 1 and not layout.sp:
        found.append("experts with TP > 1 need sequence parallelism")
    if layout.cp > 1:
        found += _heads_problems(shape, layout)
    return found


def heads_exchanged(layout: Layout) -> int:
    """Return by how much a rank's heads are divided for the attention: CP with a2a, its first factor with a2a+p2p."""
    if layout.comm == "a2a":
        return layout.cp
    if layout.comm == "a2a+p2p" and layout.hierarchical_sizes:
        return layout.hierarchical_sizes[0]
    return 1


def _heads_problems(shape: ModelShape, layout: Layout) -> list[str]:
    found = []
    if layout.comm == "a2a+p2p":
        sizes = layout.hierarchical_sizes
        if sizes is None or len(sizes) != 2 or prod(sizes) != layout.cp:
            found.append(f"a2a+p2p needs two hierarchical sizes with the product CP = {layout.cp}")
    split = heads_exchanged(layout)
    if split > 1 and shape.has_attention:
        for heads, what in ((shape.heads, "attention heads"), (shape.groups, "key-value groups")):
            if heads % layout.tp or heads // layout.tp % split:
                found.append(f"{heads} {what} over TP {layout.tp} cannot be divided by {split} for {layout.comm}")
    return found
