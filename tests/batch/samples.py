"""The real sample batches, made by the unchanged library code of each release, as arrays.

samples.json.gz: whole data sets and steps of three releases; collated.json.gz: collate_fn of two more on made-up packs.
"""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

_FILES = [Path(__file__).parent / "data" / name for name in ("samples.json.gz", "collated.json.gz")]


def _decoded(value: Any) -> Any:
    if isinstance(value, dict) and "__array__" in value:
        return np.array(value["data"], dtype=value["__array__"]).reshape(value["shape"])
    if isinstance(value, dict):
        return {key: _decoded(item) for key, item in value.items()}
    return [_decoded(item) for item in value] if isinstance(value, list) else value


@cache
def _raw() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in _FILES:
        found |= json.loads(gzip.decompress(path.read_bytes()))
    return found


def sample_names() -> list[str]:
    """Return the names, `release/what_it_is`."""
    return sorted(_raw())


def load_sample(name: str) -> dict[str, Any]:
    """Return one sample batch."""
    found: dict[str, Any] = _decoded(_raw()[name])
    return found
