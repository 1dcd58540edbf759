"""Packs of other projects' algorithms, run as a child: `packing_peers.py PEER FILE` prints CPU seconds and packs.

PEER: `bridge` (create_packing_strategy of a worker's Megatron-Bridge), `trl` (_pack_bfd) or `axolotl` (pack_parallel),
each from the released file named by $PEER_FILE. FILE: lengths as .npy. Modules that such a file imports and does not
need for packing are replaced by empty ones, so that neither torch nor a model library is imported.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from types import ModuleType
from typing import Any

import numpy as np

PACK_SIZE = 8192
EMPTY = {
    "bridge": {"megatron.bridge.utils.safe_pickle": ["safe_load_npy"]},
    "trl": {
        "datasets": ["Dataset", "DatasetDict", "IterableDataset", "IterableDatasetDict"],
        "transformers": ["PreTrainedTokenizerBase", "ProcessorMixin"],
    },
    "axolotl": {
        "torch.utils.data": ["BatchSampler", "Sampler", "SequentialSampler"],
        "axolotl.utils.distributed": ["reduce_and_broadcast"],
        "axolotl.utils.logging": [],
    },
}


def load(peer: str, path: str) -> Any:
    """Load one released file with what it does not need left empty."""
    for name, members in EMPTY[peer].items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            sys.modules.setdefault(".".join(parts[:end]), ModuleType(".".join(parts[:end])))
        for member in members:
            setattr(sys.modules[name], member, type(member, (), {"__class_getitem__": classmethod(lambda cls, _: cls)}))
    if peer == "axolotl":
        import logging

        sys.modules["axolotl.utils.logging"].get_logger = logging.getLogger  # type: ignore[attr-defined]
    spec = importlib.util.spec_from_file_location(f"peer_{peer}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def packs_of(peer: str, module: Any, lengths: np.ndarray) -> tuple[float, int]:
    """Return CPU seconds and packs; preparation and compilation are not counted."""
    if peer == "bridge":
        counts = np.bincount(lengths, minlength=PACK_SIZE + 1).tolist()
        start = time.process_time()
        bins, _ = module.create_packing_strategy(counts, PACK_SIZE, "first_fit_decreasing")
        return time.process_time() - start, len(bins)
    if peer == "axolotl":
        module.pack_parallel(lengths[:1000], PACK_SIZE, 100_000, 200, 1)
        start = time.process_time()
        bins = module.pack_parallel(lengths, PACK_SIZE, 100_000, 200, 1)
        return time.process_time() - start, len(bins)
    import pyarrow as pa

    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = pa.array(np.zeros(int(offsets[-1]), np.int8))
    table = pa.table({"input_ids": pa.LargeListArray.from_arrays(pa.array(offsets), tokens)})
    start = time.process_time()
    packed = module._pack_bfd(table, PACK_SIZE)
    return time.process_time() - start, len(packed)


if __name__ == "__main__":
    name, file = sys.argv[1:]
    seconds, packs = packs_of(name, load(name, os.environ["PEER_FILE"]), np.load(file))
    print(json.dumps({"cpu": seconds, "packs": packs}))
