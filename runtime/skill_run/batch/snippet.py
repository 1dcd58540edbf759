"""The lines to paste into a training script so that its batches are dumped."""

from __future__ import annotations

from typing import Final

from skill_run.bridge.release import matches, newest_release
from skill_run.bridge.version import normalise

_BEFORE_SPLIT: Final = {
    "<0.6": "megatron.bridge.data.finetuning",
    "*": "megatron.bridge.data.batch_utils",
}
# What a dump of a release shows and what it cannot show, by specifier; every entry that matches is told.
_REMARKS: Final = {
    "<0.4": "finetune() takes no callbacks in this release, and no callback gets the batch in any: wrap the step.",
    ">=0.4": "No callback gets the batch, so the step is wrapped.",
    "<0.6": "In-batch packing happens inside the step: the files hold the padded rows that it starts from.",
    ">=0.6": "In-batch packs are built by the collator: the files hold them as attention gets them.",
    "<0.5": "Stages between the first and the last read no batch and write no file.",
    "*": "Ranks of one context parallel group write the same whole rows; the step cuts them afterwards.",
}


def capture_snippet(bridge: str | None = None) -> str:
    """Return the lines that dump batches from a job of a Megatron-Bridge release (the newest by default).

    Raises InputError when `bridge` is no version.
    """
    version = normalise(bridge) if bridge is not None else newest_release()
    split = next(module for specifier, module in _BEFORE_SPLIT.items() if matches(specifier, version))
    remarks = [text for specifier, text in _REMARKS.items() if matches(specifier, version)]
    return "\n".join(
        [
            f"# Megatron-Bridge {version}: every rank dumps the first 4 micro-batches that it reads, and trains on.",
            "# Needs `pip install skill-run` in the training environment, or skill_run/capture.py copied beside the",
            "# script (then: from capture import dumping).",
            "from megatron.bridge.training.finetune import finetune",
            "from megatron.bridge.training.gpt_step import forward_step  # or the step that your recipe uses",
            "from skill_run.capture import dumping",
            "",
            'finetune(config, dumping(forward_step, directory="batch_dump", batches=4))',
            "",
            *(f"# {remark}" for remark in remarks),
            "# To see the rows of a data parallel rank before they are split into micro-batches, wrap",
            f"# {split}.prepare_finetuning_batch instead.",
            "# Megatron-LM: give dumping(forward_step) to pretrain() in place of forward_step.",
            f"# Then: skill-run inspect 'batch_dump/rank*_batch0.pt' --bridge {version}",
            "",
        ]
    )
