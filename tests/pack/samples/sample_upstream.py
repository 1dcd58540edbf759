"""What Bridge's own code makes of samples before it packs them; runs in a worker's interpreter.

Standard input: {"wheel": folder of an unpacked older wheel or null, "runtime": the folder skill_run, "cases": [...]},
as `sample_cases.py` has them. Standard output: the last line is JSON, for each case the stored samples as
[ids, loss mask] with alignment padding, or an error.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
import types
from pathlib import Path


def stub(wheel: str) -> None:
    """Make an older wheel's modules importable without running the code of their packages."""
    import megatron

    for name in ("bridge", "bridge.data", "bridge.data.datasets", "bridge.training", "bridge.training.tokenizers"):
        module = types.ModuleType(f"megatron.{name}")
        module.__path__ = [str(Path(wheel, "megatron", *name.split(".")))]
        sys.modules[f"megatron.{name}"] = module
    from megatron.core.tokenizers import MegatronTokenizer

    tokenizers = types.ModuleType("megatron.bridge.training.tokenizers.tokenizer")
    tokenizers.MegatronTokenizer = MegatronTokenizer
    sys.modules[tokenizers.__name__] = tokenizers
    common = types.ModuleType("megatron.bridge.utils.common_utils")
    common.get_rank_safe = lambda: 0
    common.print_rank_0 = print
    for name in ("bridge.utils", "bridge.utils.safe_pickle"):
        sys.modules[f"megatron.{name}"] = types.ModuleType(f"megatron.{name}")
    sys.modules["megatron.bridge.utils.safe_pickle"].safe_pickle_load = __import__("pickle").load
    sys.modules["megatron.bridge.utils.safe_pickle"].safe_load_npy = None
    sys.modules[common.__name__] = common
    assert megatron


def tokenizer_of(case: dict, special_tokens: bool):
    from megatron.core.tokenizers import MegatronTokenizer

    return MegatronTokenizer.from_pretrained(
        tokenizer_path=case["tokenizer"],
        metadata_path={"library": "huggingface"},
        include_special_tokens=special_tokens,
        chat_template=case.get("chat_template"),
    )


def tokenised(case: dict, wheel: str | None, special_tokens: bool):
    """Return upstream's tokenised data set, its eos id, and its create_hist and fill_packing_strategy."""
    kwargs = dict(case["kwargs"])
    if "prompt_completion_config" in kwargs:
        from megatron.bridge.data.sft_processing import PromptCompletionSFTPreprocessingConfig

        kwargs["prompt_completion_config"] = PromptCompletionSFTPreprocessingConfig(
            **kwargs["prompt_completion_config"]
        )
    tokenizer = tokenizer_of(case, special_tokens)
    if wheel is None:
        from megatron.bridge.data.builders.gpt_sft import build_gpt_sft_split
        from megatron.bridge.data.packing import algorithms
        from megatron.bridge.data.packing.offline import tokenize_dataset

        given = {"dataset_builder": build_gpt_sft_split}
    else:
        algorithms = importlib.import_module("megatron.bridge.data.datasets.packing_utils")
        tokenize_dataset = importlib.import_module("megatron.bridge.data.datasets.packed_sequence").tokenize_dataset
        given = {}
    workers = {} if wheel and "0.3" in wheel else {"num_tokenizer_workers": 1}
    rows = tokenize_dataset(
        Path(case["data"]), tokenizer, case["seq_length"], 0, kwargs, case["pad_seq_to_mult"], **workers, **given
    )
    return rows, tokenizer.eos_id, algorithms


def stored(case: dict, wheel: str | None, special_tokens: bool) -> list:
    """Return each sample as the packed file stores it, alone in a pack."""
    rows, eos_id, algorithms = tokenised(case, wheel, special_tokens)
    found = []
    for row in rows:
        length = len(row["input_ids"]) - 1
        if length > case["seq_length"]:
            continue
        sequences = dict.fromkeys(range(length + 1), ()) | {length: [row]}
        (pack,) = algorithms.fill_packing_strategy([[length]], sequences, length, eos_id)
        found.append([[int(token) for token in pack["input_ids"]], [int(value) for value in pack["loss_mask"]]])
    return found


def main() -> None:
    """Answer one request."""
    request = json.loads(sys.stdin.read())
    wheel = request["wheel"]
    if wheel is None:
        package = types.ModuleType("skill_run")
        package.__path__ = [request["runtime"]]
        sys.modules["skill_run"] = package
        importlib.import_module("skill_run.worker.inside.bridge_stubs").install()
    else:
        stub(wheel)
    answers = []
    for case in request["cases"]:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            try:
                answers.append(stored(case, wheel, request["special_tokens"]))
            except Exception as error:
                answers.append(f"{type(error).__name__}: {error}")
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
