"""The layout of a rehearsal: at most four ranks, with as many kinds of the user's parallelism as fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from skill_run.rehearse.change import Draft

MOST_RANKS: Final = 4
_CONTEXT: Final = "model.context_parallel_size"
_TENSOR: Final = "model.tensor_model_parallel_size"
_PIPELINE: Final = "model.pipeline_model_parallel_size"
_EXPERT: Final = "model.expert_model_parallel_size"
_EXPERT_TENSOR: Final = "model.expert_tensor_parallel_size"


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of the parallel groups of a rehearsal."""

    tp: int = 1
    pp: int = 1
    cp: int = 1
    dp: int = 1
    ep: int = 1

    @property
    def ranks(self) -> int:
        """Number of processes."""
        return self.tp * self.pp * self.cp * self.dp

    def to_dict(self) -> dict[str, int]:
        """Return the layout as JSON-ready data."""
        return {"ranks": self.ranks, "tp": self.tp, "pp": self.pp, "cp": self.cp, "dp": self.dp, "ep": self.ep}


def choose_layout(draft: Draft, world_size: int | None) -> Layout:
    """Return the layout: context parallelism first, then tensor parallelism, pipeline, experts and data.

    world_size: the user's number of ranks, None when it is not known.
    """
    cp_user, tp_user, pp_user, ep_user = (_size(draft, name) for name in (_CONTEXT, _TENSOR, _PIPELINE, _EXPERT))
    cp = _context(draft, cp_user)
    # Megatron-Core's own layers for latent attention leave a gradient unsummed over tensor parallel ranks.
    latent = bool(draft.original("model.multi_latent_attention", False))
    tp = 2 if tp_user > 1 and not latent and cp * 2 <= MOST_RANKS else 1
    pp = 2 if pp_user > 1 and cp * tp * 2 <= MOST_RANKS else 1
    used = cp * tp * pp
    dp_user = (world_size or 0) // max(1, cp_user * tp_user * pp_user)
    dp = 2 if used == 1 and (dp_user > 1 or ep_user > 1) else 1
    ep = 2 if ep_user > 1 and (cp * tp * dp) % 2 == 0 else 1
    return Layout(tp=tp, pp=pp, cp=cp, dp=dp, ep=ep)


def put_layout(draft: Draft, layout: Layout) -> None:
    """Set the layout, and what only a larger one can have."""
    most = f"{layout.ranks} processes on this machine"
    draft.put(_CONTEXT, layout.cp, "layout", most)
    draft.put(_TENSOR, layout.tp, "layout", most)
    draft.put(_PIPELINE, layout.pp, "layout", most)
    draft.put(_EXPERT, layout.ep, "layout", most)
    if draft.original("model.num_moe_experts"):
        draft.put(
            _EXPERT_TENSOR, 1, "layout", "gloo cannot gather the uneven parts of experts cut by tensor parallelism"
        )
    if layout.tp == 1:
        draft.put("model.sequence_parallel", False, "layout", "needs tensor parallelism")
    for name in _OF_LARGE_PIPELINES:
        draft.put(name, None, "layout", "describes a pipeline with more stages")
    for name in ("model.account_for_embedding_in_pipeline_split", "model.account_for_loss_in_pipeline_split"):
        draft.put(name, False, "layout", "describes a pipeline with more stages")
    draft.put("dist.eval_context_parallel_size", None, "layout", "no evaluation")
    draft.put("model.hierarchical_context_parallel_sizes", _hierarchy(draft, layout), "layout", most)


_OF_LARGE_PIPELINES: Final = (
    "model.virtual_pipeline_model_parallel_size",
    "model.pipeline_model_parallel_layout",
    "model.num_layers_in_first_pipeline_stage",
    "model.num_layers_in_last_pipeline_stage",
)


def _size(draft: Draft, name: str) -> int:
    value = draft.original(name, 1)
    return value if isinstance(value, int) and value > 0 else 1


def _context(draft: Draft, user: int) -> int:
    if user <= 1:
        return 1
    hierarchical = "a2a+p2p" in _names(draft.original("model.cp_comm_type"))
    return 4 if hierarchical else 2


def _names(value: Any) -> list[str]:
    return [str(item) for item in (value if isinstance(value, list) else [value])]


def _hierarchy(draft: Draft, layout: Layout) -> list[int] | None:
    given = draft.original("model.hierarchical_context_parallel_sizes")
    return [2, 2] if given and layout.cp == MOST_RANKS else None
