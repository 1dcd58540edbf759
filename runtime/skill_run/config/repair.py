"""What upstream's own launcher changes in a config before it validates it.

Source: scripts/training/run_recipe.py of Megatron-Bridge 0.6; direct Python users and other launchers get none of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from skill_run.bridge.release import by_version, index, matches
from skill_run.config.config import Config
from skill_run.config.model import Plain, Remark, Source, State, Value
from skill_run.config.typing import shown

_SCRIPT: Final = "run_recipe.py"
# What the script changes in silence; a length that loses to another has a remark of its own.
_REPAIRED: Final = (
    "dataset.offline_packing_specs.packed_sequence_size",
    "dataset.offline_packing_specs.pad_seq_to_mult",
    "model.calculate_per_token_loss",
    "ddp.average_in_collective",
)


def apply_launcher_repairs(config: Config, sources: Sequence[Source]) -> None:
    """Apply the repairs of `run_recipe.py` when the input is a command line that starts it.

    From 0.4 on the model takes the dataset's sequence length; from 0.6 on the loss settings of fine-tuning with context
    parallelism and the alignment of offline packs follow too.
    """
    scripts = [source.script for source in sources if source.script]
    if not any(script.rpartition("/")[2] == _SCRIPT for script in scripts):
        return
    length = config.get("dataset.seq_length")
    if matches(">=0.4", config.version) and length.state is State.SET and length.value is not None:
        own = config.get("model.seq_length")
        if own.written is not None and own.value not in (None, length.value):
            message = (
                f"run_recipe.py sets model.seq_length to dataset.seq_length ({length.value}) after all overrides, so "
                f"model.seq_length={own.value} has no effect; override dataset.seq_length."
            )
            config.remarks.append(Remark("override-has-no-effect", message, ("model.seq_length",), own.location))
        _put(config, "model.seq_length", length.value)
    if not matches(">=0.6.dev0", config.version):
        return
    before = {name: config.get(name) for name in _REPAIRED}
    if config.get("dataset.enable_offline_packing").value is True:
        _align_packs(config, length)
    cp = config.get("model.context_parallel_size").value
    classes = by_version(index()["dataset_classes"]["sft"], config.version) or []
    if isinstance(cp, int) and cp > 1 and config.dataset_type in classes:
        _put(config, "model.calculate_per_token_loss", True)
        _put(config, "ddp.average_in_collective", False)
    _tell_repairs(config, before)


def _tell_repairs(config: Config, before: Mapping[str, Value]) -> None:
    """Remark on what was repaired: the same settings started in another way are not."""
    changed = {
        name: (old.value, config.get(name).value)
        for name, old in before.items()
        if old.state is not State.UNKNOWN and old.value != config.get(name).value
    }
    if changed:
        told = ", ".join(
            f"{config.written(name)} from {shown(old)} to {shown(new)}" for name, (old, new) in changed.items()
        )
        message = (
            f"run_recipe.py changes {told}; another launcher or a script of your own does not, so set this yourself."
        )
        fields = tuple(config.written(name) for name in changed)
        fix = {config.written(name): new for name, (_, new) in changed.items()}
        config.remarks.append(Remark("launcher-repairs-config", message, fields, fix=fix))


def _align_packs(config: Config, length: Value) -> None:
    specs = "dataset.offline_packing_specs"
    if length.state is State.SET and length.value is not None:
        _put(config, f"{specs}.packed_sequence_size", length.value)
    cp = config.get("model.context_parallel_size").value
    if not isinstance(cp, int):
        return
    held = config.get(f"{specs}.pad_seq_to_mult").value
    tp, sp = config.get("model.tensor_model_parallel_size").value, config.get("model.sequence_parallel").value
    shards = cp * tp if isinstance(tp, int) and tp > 1 and sp is True else 1
    chunks = 2 * cp if cp > 1 else 1
    _put(
        config, f"{specs}.pad_seq_to_mult", math.lcm(held if isinstance(held, int) and held > 0 else 1, chunks, shards)
    )


def _put(config: Config, name: str, value: Plain) -> None:
    config.values[name] = Value(State.SET, value, config.get(name).location, name, reason="run_recipe.py")
