"""The verdict of the real ConfigContainer.validate() on a config at its own size, where no GPU is."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from skill_run.rehearse.scale import plan_for_cpu
from skill_run.worker.inside.errors import RankFailure
from skill_run.worker.inside.ranks import Tell, run_ranks
from skill_run.worker.inside.rehearse_data import scratch
from skill_run.worker.inside.rehearse_fields import write_change
from skill_run.worker.inside.rehearse_stages import StageFailure


def judge_at_full_size(config: Any, values: dict[str, Any], world_size: int) -> None:
    """Raise StageFailure with upstream's words when it refuses the config; a fork judges, so nothing is changed.

    The stage is "validate", or "setup" for what the run makes of the config next and a rehearsal replaces.
    """
    failures: list[StageFailure] = []

    def judge(_rank: int, tell: Tell) -> None:
        os.environ["WORLD_SIZE"] = str(world_size)
        stage = "validate"
        try:
            _validate(config, values)
            stage = "setup"
            _set_up(config)
        except Exception as error:
            tell(StageFailure.from_error(stage, error).to_dict())

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


def _set_up(config: Any) -> None:
    """Make the batch sizes and the learning rate schedule as setup() does, and take the schedule to its end.

    A rehearsal trains with its own; mirrors training/initialize.py and training/optim.py of Bridge 0.6.2.
    """
    from megatron.bridge.training.optim import _get_scheduler
    from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator

    train = config.train
    init_num_microbatches_calculator(
        1,
        train.rampup_batch_size,
        train.global_batch_size,
        train.micro_batch_size,
        config.data_parallel_size,
        train.decrease_batch_size_if_needed,
    )
    decay = config.scheduler.lr_decay_steps
    if decay is None:
        # With epochs it follows from the data.
        return
    scheduler = _get_scheduler(config.optimizer, config.scheduler, SimpleNamespace(param_groups=[{}]))
    for part in (0.5, 0.25, 0.25):
        scheduler.step(int(decay * part))


def check_vocabulary(config: Any, tokens: int) -> None:
    """Raise StageFailure("setup") when the model's vocabulary is one that setup() refuses for this many tokens."""
    from megatron.bridge.training.setup import _validate_and_set_vocab_size

    try:
        _validate_and_set_vocab_size(
            model_vocab_size=config.model.vocab_size,
            tokenizer_vocab_size=tokens,
            use_tokenizer_vocab_size=getattr(config.tokenizer, "use_tokenizer_vocab_size", False),
        )
    except Exception as error:
        raise StageFailure.from_error("setup", error) from error


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
