"""Offline packing by Megatron-Bridge's own builder, and what it makes of the data: lengths, packs, efficiency."""

from __future__ import annotations

import copy
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from skill_run.worker.inside.rehearse_data import TRAINING
from skill_run.worker.inside.rehearse_stages import StageFailure

# Longer than any sample, so that nothing is truncated when lengths are measured.
_UNBOUNDED: Final = 2**22


def pack_data(dataset: Any, tokenizer: Any, folder: Path) -> dict[str, Any]:
    """Pack training.jsonl in `folder` as the dataset config says, and return figures of the packs.

    dataset: GPTSFTDatasetConfig with offline packing; it is not changed. The packs stay in the folder, where training
    finds them. Raises StageFailure("packing").
    """
    from megatron.bridge.data.builders.gpt_sft import GPTSFTDatasetBuilder

    config = copy.deepcopy(dataset)
    config.dataset_root = str(folder)
    config.do_validation = config.do_test = False
    config.offline_packing_specs.num_tokenizer_workers = 1
    try:
        builder = GPTSFTDatasetBuilder(config, tokenizer)
        builder.prepare_packed_data()
        figures = _figures(Path(str(builder.train_path_packed)), config.offline_packing_specs.packed_sequence_size)
    except Exception as error:
        raise StageFailure.from_error("packing", error) from error
    if not figures["packs"]:
        raise StageFailure("packing", "the data fill no pack: no sample has a token to train on")
    return figures


def measure_lengths(dataset: Any, tokenizer: Any, folder: Path, limits: dict[str, int]) -> dict[str, Any]:
    """Return the untruncated lengths of the samples in tokens, and how many are longer than each of `limits`.

    The real dataset class tokenizes them. Raises StageFailure("data").
    """
    from megatron.bridge.data.builders.gpt_sft import build_gpt_sft_split, normalize_gpt_sft_dataset_kwargs

    config = copy.deepcopy(dataset)
    config.dataset_root = str(folder)
    try:
        rows = build_gpt_sft_split(
            folder / TRAINING,
            tokenizer=tokenizer,
            seq_length=_UNBOUNDED,
            memmap_workers=1,
            seed=config.seed,
            packed_sequence_size=-1,
            is_test=True,
            dataset_kwargs={**normalize_gpt_sft_dataset_kwargs(config), "pad_to_max_length": False},
        )
        # Packing stores one token more than it trains on, for the shift of the labels.
        lengths = [len(rows[at]["input_ids"]) - 1 for at in range(len(rows))]
    except json.JSONDecodeError as error:
        raise _with_blank_line(StageFailure.from_error("data", error), folder / TRAINING) from error
    except Exception as error:
        raise StageFailure.from_error("data", error) from error
    over = {name: sum(length > limit for length in lengths) for name, limit in limits.items()}
    return {**_spread(lengths), "longer_than": {name: [limits[name], count] for name, count in over.items()}}


def _with_blank_line(failure: StageFailure, path: Path) -> StageFailure:
    """Return the failure with the cause that is left when every other line is JSON."""
    with open(path, "rb") as stream:
        blank = next((number for number, line in enumerate(stream, 1) if not line.strip()), None)
    if blank is None:
        return failure
    sentence = f"line {blank} of {TRAINING} is blank, and Megatron-Bridge reads every line as a sample ({failure})"
    return StageFailure(failure.stage, sentence, failure.place, failure.detail)


def _figures(path: Path, size: int) -> dict[str, Any]:
    import pyarrow.parquet as parquet

    found = sorted(path.parent.glob(path.name)) if "*" in path.name else [path]
    packs = sequences = tokens = longest = 0
    for file in found:
        table = parquet.read_table(file, columns=["input_ids", "seq_start_id"])
        for ids, starts in zip(table["input_ids"].to_pylist(), table["seq_start_id"].to_pylist(), strict=True):
            packs += 1
            sequences += len(starts)
            # Of each stored sequence one token is only a label.
            tokens += len(ids) - len(starts)
            longest = max(longest, len(starts))
    return {
        "pack_size": size,
        "packs": packs,
        "sequences": sequences,
        "most_sequences_in_a_pack": longest,
        "efficiency": round(tokens / (packs * size), 4) if packs else 0.0,
    }


def _spread(lengths: Sequence[int]) -> dict[str, Any]:
    return {
        "samples": len(lengths),
        "shortest": min(lengths),
        "median": round(statistics.median(lengths)),
        "longest": max(lengths),
        "tokens": sum(lengths),
    }


def readable_batch(path: Path, most: int = 2**18) -> dict[str, Any] | None:
    """Return a captured micro-batch as lists, for a process without torch; None when it is too large to hand on."""
    import torch

    held = torch.load(path, weights_only=True)
    if sum(value.numel() for value in _tensors(held)) > most:
        return None
    found = _as_lists(held)
    assert isinstance(found, dict)
    return found


def _tensors(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _tensors(inner)
    elif hasattr(value, "numel"):
        yield value


def _as_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _as_lists(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_lists(inner) for inner in value]
    return value.tolist() if hasattr(value, "tolist") else value
