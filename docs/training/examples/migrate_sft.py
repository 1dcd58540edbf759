"""Packed SFT on the hub's SQuAD, written for Megatron-Bridge 0.5."""

from megatron.bridge.data.builders.hf_dataset import HFDatasetConfig
from megatron.bridge.data.datasets.packed_sequence import PackedSequenceSpecs
from megatron.bridge.data.hf_processors.squad import process_squad_example
from megatron.bridge.recipes.llama import llama32_1b_sft_config


def build(pack: bool = True):
    cfg = llama32_1b_sft_config()
    cfg.model.seq_length = 4096
    cfg.dataset = HFDatasetConfig(
        dataset_name="rajpurkar/squad",
        process_example_fn=process_squad_example,
        seq_length=4096,
        do_test=False,
        rewrite=False,  # keep the prepared files
        packed_sequence_specs=PackedSequenceSpecs(packed_sequence_size=4096) if pack else None,
    )
    train = cfg.train
    train.eval_iters = 8
    return cfg
