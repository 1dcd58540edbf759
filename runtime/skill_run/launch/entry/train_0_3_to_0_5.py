"""Train by the files beside this one, on Megatron-Bridge 0.3 to 0.5: a job's own entry script.

torchrun or srun starts it on every rank; `train.py --pack` packs the data in one process before the ranks start.
Beside it: run.json, config.yaml, overrides.json, entry_job.py, entry_config.py, entry_hooks.py, capture.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import entry_job  # type: ignore[import-not-found]


def start(config: Any, step: Callable[..., Any], callback: Any, function: str) -> None:
    """Train with pretrain(); what finetune() adds is checked here, as that of 0.3 takes no callbacks."""
    from megatron.bridge.training.pretrain import pretrain

    if function == "finetune" and not (config.checkpoint.pretrained_checkpoint or config.checkpoint.load):
        raise ValueError("fine-tuning needs checkpoint.pretrained_checkpoint, or a checkpoint to resume from")
    pretrain(config, step, callbacks=[callback])


def pack_dataset(config: Any) -> None:
    """Write the packed files that the ranks will find: the providers of these releases pack as they build."""
    from megatron.bridge.data.utils import get_dataset_provider
    from megatron.bridge.training.tokenizers.tokenizer import build_tokenizer

    samples = [config.train.global_batch_size, 0, 0]
    get_dataset_provider(config.dataset)(samples, config.dataset, build_tokenizer(config.tokenizer))


def main(change: Callable[[Any], None] | None = None) -> None:
    """Pack or train; `change` is what a machine without GPUs has to change in the config."""
    entry_job.main(start, pack_dataset, change)


# Processes that torch spawns import this file again.
if __name__ == "__main__":
    main()
