"""What a config itself says of layout, padding and loss: a fault in it stays one when its sizes are made smaller."""

from __future__ import annotations

from math import gcd
from typing import Final, Literal

from skill_run.config.config import Config
from skill_run.config.model import State
from skill_run.verify.layouts import COMM_TYPES, Layout

Loss = Literal["per-token", "per-microbatch"]
_SPECS: Final = "dataset.offline_packing_specs"


def layout_of(config: Config) -> Layout:
    """Return the config's own layout; what it leaves open has the size 1."""

    def size(name: str) -> int:
        value = config.get(f"model.{name}").value
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 1

    comm = config.get("model.cp_comm_type").value
    comm = comm[0] if isinstance(comm, (list, tuple)) and comm else comm
    return Layout(
        cp=size("context_parallel_size"),
        tp=size("tensor_model_parallel_size"),
        pp=size("pipeline_model_parallel_size"),
        ep=size("expert_model_parallel_size"),
        sp=config.get("model.sequence_parallel").value is True,
        cp_comm_type=str(comm) if comm in COMM_TYPES else "p2p",
    )


def multiple_of(config: Config, own: Layout, small: Layout) -> int:
    """Return pad_seq_to_mult for the small layout, where it fits exactly when the config's fits the config's own.

    What the config does not tell is taken to fit.
    """
    given = config.get(f"{_SPECS}.pad_seq_to_mult")
    unpacked = config.get("dataset.enable_offline_packing")
    off = unpacked.state is State.SET and unpacked.value is False
    value = given.value
    if off or given.state is State.UNKNOWN or not isinstance(value, int) or value < 1 or value % own.chunks == 0:
        return small.pad_multiple
    return max(1, gcd(value, own.chunks) * small.chunks // own.chunks)


def loss_of(config: Config, own: Layout) -> tuple[Loss, list[str]]:
    """Return how the config's packed run averages its loss, and what is changed for the comparison.

    Without CP a mean of each microbatch is a choice: packs weigh alike, whatever is in them. It is compared per token.
    """
    told = config.get("model.calculate_per_token_loss")
    if told.state is State.UNKNOWN or told.value is not False or not _is_packed(config):
        return "per-token", []
    if own.cp > 1:
        return "per-microbatch", []
    return "per-token", ["calculate_per_token_loss False -> True (else each pack weighs the same, however full it is)"]


def _is_packed(config: Config) -> bool:
    switches = ("dataset.enable_offline_packing", "dataset.enable_in_batch_packing")
    return config.is_given(_SPECS) is True or any(config.get(name).value is True for name in switches)
