"""What the name, the folder and the metadata file of packed files say about how they were built.

Megatron-Bridge writes `packed/{tokenizer}_pad_seq_to_mult{m}[_sft_{fingerprint}]/training_{size}.idx.parquet` and
beside it `{size}_metadata.jsonl`, which despite its name is one JSON array with an object for each split.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from skill_run.bridge.release import matches
from skill_run.config.text import parse_json, read_text
from skill_run.errors import InputError

if TYPE_CHECKING:
    from skill_run.config.config import Config

MAX_METADATA_BYTES: Final = 2**20
_FILE: Final = re.compile(r"^(?:training|train|validation|valid|val|test)_(\d{1,9})(?:\.idx)?\.(?:npy|parquet|pq)$")
_FOLDER: Final = re.compile(r"_pad_seq_to_mult(\d{1,9}|None)(?:_sft_([0-9a-f]{12}))?$")
_COUNTS: Final = ("max_samples_per_bin", "dataset_max_seqlen", "min_packed_seqlen", "pack_size")

# What 0.6 fills in when a local text data set has no `preprocessing` of its own.
_LOCAL_PREPROCESSING: Final = {
    "prompt_column": "input",
    "completion_column": "output",
    "prompt_template": "{prompt}",
    "separator": " ",
    "loss_mode": "completion",
    "strip_whitespace": True,
    "add_bos": False,
    "add_sep": False,
    "add_eos": True,
    "truncation_method": "right",
}
_PREPROCESSING_CLASS: Final = "PromptCompletionSFTPreprocessingConfig"


@dataclass(frozen=True, slots=True)
class Metadata:
    """The metadata file over all its splits, as the collate function reads it, in tokens at run time."""

    name: str
    most_samples: int
    longest: int
    narrowest: int
    pack_sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """What is told beside the rows; None is not told. pad_multiple is the one the folder's name states."""

    pack_size: int | None = None
    pad_multiple: int | None = None
    fingerprint: str | None = None
    metadata: Metadata | None = None
    metadata_fault: str | None = None


def read_told(files: Sequence[Path]) -> Told:
    """Return what the names and the metadata file say; a metadata file that cannot be read is a fault, not an error."""
    sizes = {int(found[1]) for path in files if (found := _FILE.match(path.name))}
    size = sizes.pop() if len(sizes) == 1 else None
    folders = {found.groups() for path in files if (found := _FOLDER.search(path.absolute().parent.name))}
    multiple, fingerprint = folders.pop() if len(folders) == 1 else (None, None)
    metadata, fault = None, None
    path = metadata_file(files)
    if path is not None:
        try:
            metadata = _metadata(path)
        except InputError as error:
            fault = str(error)
    if size is None and metadata is not None and len(metadata.pack_sizes) == 1:
        size = metadata.pack_sizes[0]
    return Told(size, int(multiple) if multiple and multiple != "None" else None, fingerprint, metadata, fault)


def metadata_file(files: Sequence[Path]) -> Path | None:
    """Return the metadata file that belongs to packed files, None when there is none."""
    for path in files[:1]:
        found = _FILE.match(path.name)
        named = [path.parent / f"{found[1]}_metadata.jsonl"] if found is not None else []
        for candidate in named or sorted(path.parent.glob("*_metadata.jsonl"))[:2]:
            if candidate.is_file():
                return candidate
    return None


def _metadata(path: Path) -> Metadata:
    data = parse_json(read_text(path, MAX_METADATA_BYTES), str(path))
    entries = data if isinstance(data, list) else []
    if not entries or not all(_is_entry(entry) for entry in entries):
        raise InputError(f"{path.name} is not the array of objects with {', '.join(_COUNTS)} that packing writes")
    return Metadata(
        path.name,
        max(entry["max_samples_per_bin"] for entry in entries),
        max(entry["dataset_max_seqlen"] for entry in entries),
        min(entry["min_packed_seqlen"] for entry in entries),
        tuple(sorted({entry["pack_size"] for entry in entries})),
    )


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, Mapping) and all(
        isinstance(entry.get(key), int) and not isinstance(entry[key], bool) for key in _COUNTS
    )


def expected_fingerprints(config: Config) -> tuple[str, ...]:
    """Return the fingerprints that 0.6 may put into the folder name for a config; none when they cannot be told.

    They cover seq_length, seed, preprocessing, dataset_kwargs and max_single_sequence_length. They are told only for a
    local dataset that leaves preprocessing to its default, and only when the config says all of them.
    """
    from skill_run.config.model import State

    kwargs, cap = "dataset.dataset_kwargs", "dataset.offline_packing_specs.max_single_sequence_length"
    if not matches(">=0.6", config.version) or config.dataset_type not in (None, "GPTSFTDatasetConfig"):
        return ()
    if any(config.is_given(f"dataset.{name}") is not False for name in ("preprocessing", "hf_dataset")):
        return ()
    start = f"{kwargs}."
    inside = {name.removeprefix(start): value for name, value in config.values.items() if name.startswith(start)}
    length, seed, whole, longest = (config.get(name) for name in ("dataset.seq_length", "dataset.seed", kwargs, cap))
    enough = (State.SET, State.UNSET) if config.base == "complete" else (State.SET,)
    covered = [length, seed, *(inside.values() if inside else [whole])]
    nested = any("." in name for name in inside)
    if nested or longest.state is State.UNKNOWN or any(value.state not in enough for value in covered):
        return ()
    given: Any = {name: value.value for name, value in inside.items()} if inside else whole.value
    # Nothing and an empty mapping are the same options, but not the same text.
    options = [given] if given else [None, {}]
    return tuple(fingerprint(length.value, seed.value, option, longest.value) for option in options)


def fingerprint(
    seq_length: Any,
    seed: Any,
    dataset_kwargs: Any,
    longest: Any = None,
    preprocessing: Mapping[str, Any] | None = None,
) -> str:
    """Return the fingerprint of a local text data set, as `_packing_fingerprint` of data/builders/gpt_sft.py does.

    preprocessing: fields of the config's own PromptCompletionSFTPreprocessingConfig, None when it leaves that out.
    """
    identity: dict[str, Any] = {
        "seq_length": seq_length,
        "seed": seed,
        "preprocessing_explicit": preprocessing is not None,
        "preprocessing_type": _PREPROCESSING_CLASS,
        "preprocessing": _LOCAL_PREPROCESSING if preprocessing is None else dict(preprocessing),
        "dataset_kwargs": dataset_kwargs,
    }
    if longest is not None:
        identity["max_single_sequence_length"] = longest
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:12]
