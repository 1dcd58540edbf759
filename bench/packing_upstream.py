"""Megatron-Bridge's own offline packing of pre-tokenised samples; runs in a worker's interpreter as a child.

`python packing_upstream.py RUNTIME DATA OUT PACK_SIZE`: the real prepare_gpt_sft_packed_data over a data set whose
samples come from a Parquet file of token ids.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq

sys.path.insert(0, sys.argv[1])
from skill_run.worker.inside import bridge_stubs

bridge_stubs.install()

from megatron.bridge.data.packing.offline import prepare_gpt_sft_packed_data  # noqa: E402


class Tokenised:
    """The part of upstream's data set that packing needs."""

    pad_seq_length_to_mult = 1
    tokenizer = SimpleNamespace(eod=2)

    def __init__(self, path: str) -> None:
        self._table = pq.read_table(path).combine_chunks()

    def __len__(self) -> int:
        return self._table.num_rows

    def __getitem__(self, index: int) -> dict:
        return {name: self._table.column(name)[index].as_py() for name in ("input_ids", "loss_mask")}


if __name__ == "__main__":
    data, out, pack_size = sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
    prepare_gpt_sft_packed_data(
        Path(data),
        out / "training.idx.parquet",
        out / "metadata.jsonl",
        pack_size,
        SimpleNamespace(eos_id=2),
        pack_size,
        num_tokenizer_workers=1,
        dataset_builder=lambda path, **options: Tokenised(path),
    )
