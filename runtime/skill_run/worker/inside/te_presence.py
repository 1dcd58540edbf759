"""Let the checks of config classes find Transformer Engine, as on the machine that the config is for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

# Names that are None without Transformer Engine; config classes only ask whether they are there.
_FUNCTIONS: Final = {
    "megatron.core.extensions.transformer_engine": (
        "fused_permute",
        "fused_permute_with_probs",
        "fused_sort_chunks_by_index",
        "fused_sort_chunks_by_index_with_probs",
        "fused_unpermute",
    ),
    "megatron.core.transformer.moe.moe_utils": (
        "fused_permute",
        "fused_permute_with_probs",
        "fused_sort_chunks_by_index",
        "fused_sort_chunks_by_index_with_probs",
        "fused_unpermute",
    ),
    "megatron.core.models.common.embeddings.rope_utils": (
        "fused_apply_rotary_pos_emb",
        "fused_apply_rotary_pos_emb_thd",
    ),
}
_OPTIMIZERS: Final = "transformer_engine.pytorch.optimizers"


class FusedAdam:
    """Has the arguments that OptimizerConfig looks for in Transformer Engine's optimizer."""

    def __init__(
        self,
        params: Any,
        master_weight_dtype: Any = None,
        exp_avg_dtype: Any = None,
        exp_avg_sq_dtype: Any = None,
        use_decoupled_grad: bool = False,
    ) -> None:
        raise NotImplementedError


@contextmanager
def te_presence() -> Iterator[None]:
    """Show Transformer Engine to checks that look for its functions and its optimizer."""
    shown = [
        (module, name)
        for path, names in _FUNCTIONS.items()
        for module in [importlib.import_module(path)]
        for name in names
        if getattr(module, name, module) is None
    ]
    packages = {name: ModuleType(name) for name in _parents(_OPTIMIZERS) if name not in sys.modules}
    for module, name in shown:
        setattr(module, name, _never_called)
    for package in packages.values():
        vars(package).update(FusedAdam=FusedAdam, __path__=[])
    sys.modules.update(packages)
    try:
        yield
    finally:
        for module, name in shown:
            setattr(module, name, None)
        for name in packages:
            del sys.modules[name]


def _parents(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]


def _never_called(*_values: Any, **_options: Any) -> None:
    raise NotImplementedError
