"""Runs in the worker: build the config of each script named on the command line and call the real validate() on it."""

from __future__ import annotations

import importlib
import inspect
import json
import runpy
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "runtime"))

from skill_run.worker.inside import bridge_stubs
from skill_run.worker.inside.cuda_on_cpu import refuse_gpu
from skill_run.worker.inside.oracle import _apply_mixed_precision, _as_on_the_cluster

ARGUMENTS = SimpleNamespace(data="/data", checkpoint="/checkpoints/base", iters=20, validate=True, out="/runs")
WORLD_SIZE = 8


def without_hub() -> None:
    """Let recipes make their model from a local Llama config instead of asking the hub."""
    from megatron.bridge import AutoBridge
    from transformers import LlamaConfig

    config = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        tie_word_embeddings=True,
        torch_dtype="bfloat16",
    )
    AutoBridge.from_hf_pretrained = lambda *_args, **_options: AutoBridge.from_hf_config(config)


def told(script: str) -> dict[str, Any]:
    """Return what happened to one script."""
    try:
        with _as_on_the_cluster({"world_size": WORLD_SIZE, "env": {}}):
            build = runpy.run_path(script, run_name="script")["build"]
            container = build(ARGUMENTS) if inspect.signature(build).parameters else build()
            _apply_mixed_precision(container)
            container.validate()
    except Exception:
        return {"outcome": "raises", "message": traceback.format_exc()[-3000:]}
    dataset = container.dataset
    return {
        "outcome": "passes",
        "container": type(container).__name__,
        "dataset": type(dataset).__name__,
        "packs": getattr(dataset, "enable_offline_packing", None),
        "in_batch": getattr(dataset, "enable_in_batch_packing", None),
        "pad": getattr(getattr(dataset, "offline_packing_specs", None), "pad_seq_to_mult", None),
        "eval_iters": container.validation.eval_iters,
        "etp": container.model.expert_tensor_parallel_size,
        "peft": type(container.peft).__name__,
    }


def main() -> None:
    """Print one JSON object: the outcome of each script by its name."""
    refuse_gpu()
    bridge_stubs.install()
    importlib.import_module("megatron.bridge.training.config")
    without_hub()
    found = {Path(script).stem: told(script) for script in sys.argv[1:]}
    print("RESULT " + json.dumps(found))


if __name__ == "__main__":
    main()
