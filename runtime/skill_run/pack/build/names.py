"""Where training looks for packed files: folder, file names, and the fingerprint in the folder's name since 0.6."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from skill_run.bridge.release import matches
from skill_run.pack.build.files import writes_npy
from skill_run.pack.folder import fingerprint
from skill_run.pack.samples import SampleOptions


def packed_folder(
    out: Path, options: SampleOptions, *, tokenizer: str, seed: int, dataset_kwargs: Mapping[str, Any]
) -> Path:
    """Return the folder below the dataset root.

    tokenizer: tokenizer_model_name. Mirrors default_pack_path of data/builders/gpt_sft.py (0.6.2) and of
    data/builders/finetuning_dataset.py (0.3.1 to 0.5.1).
    """
    name = f"{tokenizer.replace('/', '--')}_pad_seq_to_mult{options.pad_seq_to_mult}"
    if matches(">=0.6.0.dev0", options.bridge):
        explicit = None if options.preprocessing is None else asdict(options.preprocessing)
        told = fingerprint(options.seq_length, seed, dict(dataset_kwargs), preprocessing=explicit)
        name += f"_sft_{told}"
    return out / "packed" / name


def packed_file(folder: Path, split: str, pack_size: int, bridge: str) -> Path:
    """Return the file of a split (training or validation)."""
    return folder / f"{split}_{pack_size}{'.npy' if writes_npy(bridge) else '.idx.parquet'}"


def metadata_file(folder: Path, pack_size: int) -> Path:
    """Return the metadata file of both splits."""
    return folder / f"{pack_size}_metadata.jsonl"
