"""Where training looks for packed files: folder, file names, and the fingerprint in the folder's name since 0.6."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from skill_run.bridge.release import matches
from skill_run.pack.build.files import writes_npy
from skill_run.pack.folder import fingerprint as local_fingerprint
from skill_run.pack.samples import Preprocessing, SampleOptions


def packed_folder(
    out: Path, options: SampleOptions, *, tokenizer: str, seed: int, dataset_kwargs: Mapping[str, Any] | None
) -> Path:
    """Return the folder below the dataset root.

    tokenizer: tokenizer_model_name. Mirrors default_pack_path of data/builders/gpt_sft.py (0.6.2) and of
    data/builders/finetuning_dataset.py (0.3.1 to 0.5.1).
    """
    name = f"{tokenizer.replace('/', '--')}_pad_seq_to_mult{options.pad_seq_to_mult}"
    if matches(">=0.6.0.dev0", options.bridge):
        name += f"_sft_{fingerprint(options, seed, dataset_kwargs)}"
    return out / "packed" / name


def packed_file(folder: Path, split: str, pack_size: int, bridge: str) -> Path:
    """Return the file of a split (training or validation)."""
    return folder / f"{split}_{pack_size}{'.npy' if writes_npy(bridge) else '.idx.parquet'}"


def metadata_file(folder: Path, pack_size: int) -> Path:
    """Return the metadata file of both splits."""
    return folder / f"{pack_size}_metadata.jsonl"


def fingerprint(options: SampleOptions, seed: int, dataset_kwargs: Mapping[str, Any] | None) -> str:
    """Return the first 12 hex digits of SHA-256 over all that changes rows: _packing_fingerprint of 0.6.2."""
    explicit = options.preprocessing
    if explicit is None:
        return local_fingerprint(options.seq_length, seed, dict(dataset_kwargs or {}))
    identity = {
        "seq_length": options.seq_length,
        "seed": seed,
        "preprocessing_explicit": True,
        "preprocessing_type": type_name(explicit),
        "preprocessing": asdict(explicit),
        "dataset_kwargs": dict(dataset_kwargs or {}),
    }
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def type_name(preprocessing: Preprocessing) -> str:
    """Return the name of upstream's class that has these settings."""
    return "PromptCompletionSFTPreprocessingConfig"
