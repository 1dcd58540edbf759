"""Train by the files beside this one, on Megatron-Bridge 0.6 and later: a job's own entry script.

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
    """Train with finetune(), which demands a checkpoint to start from, or with pretrain()."""
    from megatron.bridge.training.finetune import finetune
    from megatron.bridge.training.pretrain import pretrain

    run = finetune if function == "finetune" else pretrain
    run(config, step, callbacks=[callback])


def pack_dataset(config: Any) -> None:
    """Write the packed files that the ranks will find."""
    from megatron.bridge.data.builders.gpt_sft import GPTSFTDatasetBuilder
    from megatron.bridge.training.tokenizers.tokenizer import build_tokenizer

    GPTSFTDatasetBuilder(config.dataset, build_tokenizer(config.tokenizer)).prepare_data()


def main(change: Callable[[Any], None] | None = None) -> None:
    """Pack or train; `change` is what a machine without GPUs has to change in the config."""
    entry_job.main(start, pack_dataset, change)


# Processes that torch spawns import this file again.
if __name__ == "__main__":
    main()
