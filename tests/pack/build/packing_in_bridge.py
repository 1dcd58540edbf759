"""Run by the interpreter of a worker: the real builder of Megatron-Bridge 0.6.2 beside files that skill-run packed.

Takes the folder of skill_run, reads a request from standard input and prints one JSON object as the last line.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from skill_run.worker.inside import bridge_stubs

bridge_stubs.install()

from megatron.bridge.data.builders.gpt_sft import GPTSFTDatasetBuilder, GPTSFTDatasetConfig  # noqa: E402
from megatron.bridge.data.packing.config import PackedSequenceSpecs  # noqa: E402
from megatron.bridge.data.sft_processing import PromptCompletionSFTPreprocessingConfig  # noqa: E402
from megatron.bridge.training.tokenizers.config import TokenizerConfig  # noqa: E402
from megatron.bridge.training.tokenizers.tokenizer import build_tokenizer  # noqa: E402


def build(request, tokenizer):
    explicit = request["preprocessing"]
    config = GPTSFTDatasetConfig(
        dataset_root=request["root"],
        seq_length=request["seq_length"],
        seed=request["seed"],
        preprocessing=None if explicit is None else PromptCompletionSFTPreprocessingConfig(**explicit),
        dataset_kwargs=request["dataset_kwargs"],
        enable_offline_packing=True,
        offline_packing_specs=PackedSequenceSpecs(
            packed_sequence_size=request["pack_size"],
            tokenizer_model_name="words",
            pad_seq_to_mult=request["multiple"],
        ),
        do_test=False,
        do_validation=False,
        num_workers=0,
    )
    if hasattr(config, "finalize"):
        config.finalize()
    builder = GPTSFTDatasetBuilder(config=config, tokenizer=tokenizer)
    path = Path(builder.train_path_packed)
    before = path.stat().st_mtime_ns if path.exists() else None
    datasets = builder.build()
    train = datasets[0]
    rows = [train[index] for index in range(len(train))]
    batch = train.collate_fn(rows[:1])
    return {
        "path": str(path),
        "metadata": str(builder.pack_metadata),
        "reused": before is not None and path.stat().st_mtime_ns == before,
        "rows": [[list(map(int, row[key])) for key in ("input_ids", "loss_mask", "seq_boundaries")] for row in rows],
        "batch": {name: list(value.shape) for name, value in batch.items() if hasattr(value, "shape")},
    }


def main():
    request = json.load(sys.stdin)
    tokenizer = build_tokenizer(
        TokenizerConfig(tokenizer_type="HuggingFaceTokenizer", tokenizer_model=request["tokenizer"])
    )
    print("\n" + json.dumps([build(each, tokenizer) for each in request["configs"]]))


main()
