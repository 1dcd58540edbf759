"""The verdict of the real ConfigContainer.validate() on a config at its own size, where no GPU is."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from skill_run.rehearse.scale import plan_for_cpu
from skill_run.worker.inside.errors import RankFailure
from skill_run.worker.inside.ranks import Tell, run_ranks
from skill_run.worker.inside.rehearse_data import scratch
from skill_run.worker.inside.rehearse_fields import write_change
from skill_run.worker.inside.rehearse_stages import StageFailure


def judge_at_full_size(config: Any, values: dict[str, Any], world_size: int) -> None:
    """Raise StageFailure("validate") with upstream's words when it refuses; a fork judges, so nothing is changed."""
    failures: list[StageFailure] = []

    def judge(_rank: int, tell: Tell) -> None:
        os.environ["WORLD_SIZE"] = str(world_size)
        try:
            _validate(config, values)
        except Exception as error:
            tell(StageFailure.from_error("validate", error).to_dict())

    def heard(_rank: int, told: dict[str, Any]) -> None:
        failures.append(StageFailure(told["stage"], told["message"], told["place"], told["detail"]))

    try:
        run_ranks(1, judge, on_tell=heard)
    except RankFailure as error:
        raise StageFailure("validate", str(error), "", error.detail) from error
    if failures:
        raise failures[0]


def _validate(config: Any, values: dict[str, Any]) -> None:
    """Call what pretrain() calls first: mixed precision and overlap are applied, then validate() judges."""
    from megatron.bridge.training.config import runtime_config_update

    for change in plan_for_cpu(values):
        write_change(config, change)
    pretrained = getattr(config.checkpoint, "pretrained_checkpoint", None)
    if pretrained is not None:
        # The user's checkpoint is on their cluster; only whether there is one is judged here.
        config.checkpoint.pretrained_checkpoint = str(scratch("pretrained"))
    runtime_config_update(config)


def least_ranks(values: Mapping[str, Any]) -> int:
    """Return the smallest number of ranks that the layout and the batch sizes allow."""

    def size(name: str) -> int:
        value = values.get(f"model.{name}")
        return value if isinstance(value, int) and value > 0 else 1

    stages, dense = (
        size("pipeline_model_parallel_size"),
        size("tensor_model_parallel_size") * size("context_parallel_size"),
    )
    expert = size("expert_model_parallel_size") * size("expert_tensor_parallel_size")
    return stages * math.lcm(dense, expert)
