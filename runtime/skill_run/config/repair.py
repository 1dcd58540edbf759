"""What upstream's own launcher changes in a config before it validates it.

Source: scripts/training/run_recipe.py of Megatron-Bridge 0.6; direct Python users and other launchers get none of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from skill_run.bridge.release import by_version, index, matches
from skill_run.config.model import Plain, Source, State, Value
from skill_run.config.resolve import Config

_SCRIPT = "run_recipe.py"


def apply_launcher_repairs(config: Config, sources: Sequence[Source]) -> None:
    """Apply the repairs of `run_recipe.py` when the input is a command line that starts it (0.6 and later)."""
    scripts = [source.script for source in sources if source.script]
    if not any(script.rpartition("/")[2] == _SCRIPT for script in scripts) or not matches(">=0.6.dev0", config.version):
        return
    length = config.get("dataset.seq_length")
    if length.state is State.SET and length.value is not None:
        _put(config, "model.seq_length", length.value)
    cp = config.get("model.context_parallel_size")
    classes = by_version(index()["dataset_classes"]["sft"], config.version) or []
    if (
        cp.state is State.UNKNOWN
        or not isinstance(cp.value, int)
        or cp.value <= 1
        or config.dataset_type not in classes
    ):
        return
    _put(config, "model.calculate_per_token_loss", True)
    _put(config, "ddp.average_in_collective", False)
    if config.get("dataset.enable_offline_packing").value is True:
        _align_packs(config, cp.value)


def _align_packs(config: Config, cp: int) -> None:
    name = "dataset.offline_packing_specs.pad_seq_to_mult"
    held = config.get(name).value
    tp, sp = config.get("model.tensor_model_parallel_size").value, config.get("model.sequence_parallel").value
    shards = cp * tp if isinstance(tp, int) and tp > 1 and sp is True else 1
    _put(config, name, math.lcm(held if isinstance(held, int) and held > 0 else 1, 2 * cp, shards))


def _put(config: Config, name: str, value: Plain) -> None:
    config.values[name] = Value(State.SET, value, config.get(name).location, name, reason="run_recipe.py")
