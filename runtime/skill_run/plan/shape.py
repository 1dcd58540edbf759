"""ModelShape: the sizes of a model that decide what a GPU must hold, from its config.json or a published one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from skill_run.bridge.models import hub_snapshot, published_sizes
from skill_run.errors import InputError
from skill_run.plan.parameters import Parameters, count_parameters


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The text model's sizes, in elements.

    blocks: for each layer the blocks in it, one letter each: `*` attention, `M` Mamba, `L` linear attention (gated
    delta net), `-` dense FFN, `E` experts. A plain transformer has `*-` in every layer. groups: key-value heads.
    ffn, moe_ffn, shared_ffn: inner width of the dense FFN, of one expert and of all shared experts together.
    q_rank, kv_rank, qk_nope, qk_rope, v_head: multi-latent attention (MLA), 0 without it. latent: width that experts
    work in when it is not the hidden size. index_layers: layers with an indexer of their own (DSA).
    vision: parameters of an encoder beside the text model. window: tokens
    seen by sliding-window layers. source: the file, or `published`.
    """

    name: str
    blocks: tuple[str, ...]
    hidden: int
    vocab: int
    heads: int = 0
    groups: int = 0
    head_dim: int = 0
    ffn: int = 0
    gated: bool = True
    tied: bool = False
    qkv_bias: bool = False
    linear_bias: bool = False
    qk_norm: bool = False
    output_gate: bool = False
    experts: int = 0
    topk: int = 0
    moe_ffn: int = 0
    shared_ffn: int = 0
    latent: int = 0
    q_rank: int = 0
    kv_rank: int = 0
    qk_nope: int = 0
    qk_rope: int = 0
    v_head: int = 0
    index_heads: int = 0
    index_dim: int = 0
    index_topk: int = 0
    index_layers: int = 0
    mamba_heads: int = 0
    mamba_head_dim: int = 0
    mamba_state: int = 0
    mamba_groups: int = 0
    linear_key_heads: int = 0
    linear_value_heads: int = 0
    linear_key_dim: int = 0
    linear_value_dim: int = 0
    conv: int = 4
    window: int = 0
    mtp_layers: int = 0
    vision: int = 0
    max_tokens: int = 0
    model_type: str = ""
    source: str = ""

    @property
    def layers(self) -> int:
        """Return the number of layers that pipeline stages divide."""
        return len(self.blocks)

    @property
    def mla(self) -> bool:
        """Tell whether attention is multi-latent."""
        return self.kv_rank > 0

    @property
    def has_attention(self) -> bool:
        """Tell whether any layer attends over the whole row."""
        return self.heads > 0 and any("*" in layer for layer in self.blocks)

    @property
    def hybrid(self) -> bool:
        """Tell whether some layers keep a state instead of attending: Mamba or gated delta net."""
        return any("M" in layer or "L" in layer for layer in self.blocks)

    def count(self, block: str) -> int:
        """Return how many layers hold a block."""
        return Counter("".join(self.blocks))[block]

    @property
    def sparse_attention(self) -> bool:
        """Tell whether an indexer picks the keys (DSA), as in DeepSeek-V3.2 and GLM-5."""
        return self.index_topk > 0

    @property
    def sinks(self) -> bool:
        """Tell whether attention has learned sinks, as in GPT-OSS."""
        return self.model_type == "gpt_oss"

    @property
    def windowed(self) -> bool:
        """Tell whether every layer attends in a sliding window (Mistral's window_size)."""
        return self.window > 0 and self.model_type == "mistral"

    @property
    def biased_attention(self) -> bool:
        """Tell whether attention needs a bias over the whole row, as in the multimodal Gemma 3."""
        return self.vision > 0 and self.model_type.startswith("gemma3")

    @property
    def mtp_blocks(self) -> tuple[str, ...]:
        """Return the layers that one multi-token prediction layer adds: one attention and the last feed-forward."""
        ffn = next((block for layer in reversed(self.blocks) for block in layer[::-1] if block in "E-"), "-")
        return (f"*{ffn}",)

    @property
    def parameters(self) -> Parameters:
        """Return the number of parameters by part."""
        return count_parameters(self)


def shape_of(model: str | Path | None, hf_model: str | None = None) -> ModelShape:
    """Return the shape of a model.

    model: a folder with config.json, that file, or a model id; hf_model: the id that a recipe starts from, used when
    `model` is None. An id is looked up in the user's Hugging Face hub cache, then among the published shapes.
    Raises InputError when nothing is known of the model, or its config.json lacks what a shape needs.
    """
    from skill_run.plan.hf_shape import read_config, shape_from_config

    named = str(model) if model is not None else hf_model
    if not named:
        raise InputError("no model is named: give a folder with config.json, that file or a model id")
    path = Path(named)
    if _exists(path):
        return shape_from_config(read_config(path), named, source=str(path))
    if named.startswith((".", "/", "~")) or named.endswith((".json", "/")):
        raise InputError(f"{named[:200]} is not there; give a folder with config.json, that file, or a model id")
    snapshot = hub_snapshot(named, "config.json")
    if snapshot is not None:
        return shape_from_config(read_config(snapshot), named, source=str(snapshot))
    published = published_sizes(named)
    if published is None:
        raise InputError(
            f"the sizes of {named[:200]} are not known here; give the folder of the model (its config.json is enough)"
        )
    return shape_from_config(published, named, source="published")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
