"""What every entry script does, whatever the release: pack on one process, or train as one rank. Needs Megatron-Bridge.

Files of the job's folder: run.json, config.yaml and overrides.json say what to train; see entry_config and entry_hooks.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import entry_config  # type: ignore[import-not-found]
import entry_hooks  # type: ignore[import-not-found]
from capture import dumping  # type: ignore[import-not-found]

FOLDER = Path(__file__).resolve().parent

Change = Callable[[Any], None]
# Train with (config, forward step, callback, name of the function: finetune or pretrain).
Train = Callable[[Any, Callable[..., Any], Any, str], None]


def make_config(run: dict[str, Any], change: Change | None = None) -> Any:
    """Return the config of the job; `change` is what a machine without GPUs has to change in it."""
    config = entry_config.build(run, FOLDER)
    if change is not None:
        change(config)
    # A checkpoint is loaded only when the plan says so: recipes point at a folder that an earlier run may have filled.
    own = Path(run["checkpoints"])
    started = (own / "latest_checkpointed_iteration.txt").exists()
    config.checkpoint.load = str(own) if started else run["resume"]
    config.checkpoint.save = str(own)
    config.train.exit_signal_handler = True
    return config


def pack(pack_dataset: Callable[[Any], None], change: Change | None = None) -> None:
    """Let the real validate() judge the config, then pack its data, in this one process."""
    run = entry_config.read_run(FOLDER)
    os.environ["WORLD_SIZE"] = str(run["world_size"])
    config = make_config(run, change)
    validate(copy.deepcopy(config))
    os.environ["WORLD_SIZE"] = "1"
    if run["pack"]:
        pack_dataset(config)


def validate(config: Any) -> None:
    """Run what pretrain() runs first: mixed precision and overlap are applied, then validate() judges."""
    from megatron.bridge.training.config import runtime_config_update

    runtime_config_update(config)


def train(start: Train, rank: int, change: Change | None = None) -> None:
    """Train as one rank; a file says when it was made to end early with a checkpoint."""
    from megatron.bridge.training.gpt_step import forward_step

    run = entry_config.read_run(FOLDER)
    config = make_config(run, change)
    counter, ending = entry_hooks.Counter(), entry_hooks.Ending(FOLDER)
    step = dumping(counter.counting(forward_step), directory=FOLDER / "capture", batches=run["capture"])
    callback = entry_hooks.make_callback(FOLDER, rank, counter, ending)
    try:
        start(config, step, callback, run["function"])
    except SystemExit as end:
        # Bridge leaves its loop this way after it has saved for a signal. To launchers it is no failure: they would
        # kill the ranks that are a moment later.
        if end.code not in (0, None):
            raise
        if rank == 0:
            (FOLDER / entry_hooks.ENDED_EARLY).touch()


def main(start: Train, pack_dataset: Callable[[Any], None], change: Change | None = None) -> None:
    """Pack or train, as the command line says; a failure stands in the rank's own log and is named in the job's."""
    rank = entry_hooks.take_place()
    if "--pack" in sys.argv[1:]:
        pack(pack_dataset, change)
        return
    log = entry_hooks.split_logs(FOLDER, rank)
    try:
        train(start, rank, change)
    except Exception as error:
        entry_hooks.tell_failure(rank, log, error)
        sys.exit(1)
