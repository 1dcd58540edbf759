"""A worker's task that asks the real Megatron-Bridge for its own estimate of memory, for tests to compare with ours.

Started as `python upstream_task.py ... BOOT TASK`, like any worker, by an interpreter that has Megatron-Bridge.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def run(request: Mapping[str, Any], _emit: Any) -> dict[str, Any]:
    """Return upstream's parameters, and bytes of model state and activations on one GPU, for each case."""
    from skill_run.worker.inside.bridge_on_cpu import install

    install()
    import torch.nn.functional as functional
    from megatron.bridge.training.utils.theoretical_memory_utils import estimate_training_memory

    found = {}
    for name, case in request["cases"].items():
        model = SimpleNamespace(
            **case["model"],
            gated_linear_unit=True,
            activation_func=functional.silu,
            make_vocab_size_divisible_by=128,
            should_pad_vocab=True,
            sequence_parallel=True,
            recompute_granularity="selective",
            multi_latent_attention=False,
            qk_layernorm=False,
        )
        config = SimpleNamespace(
            model=model,
            train=SimpleNamespace(micro_batch_size=1),
            optimizer=SimpleNamespace(use_distributed_optimizer=True),
            data_parallel_size=case["data_parallel_size"],
        )
        estimate = estimate_training_memory(config, case["num_microbatches"])
        found[name] = {
            "parameters": estimate.total_parameters,
            "states": estimate.weight_and_optimizer_bytes,
            "activations": estimate.activation.memory_bytes,
        }
    return found


def main() -> int:
    """Run the task that the command line names."""
    package = types.ModuleType("skill_run")
    package.__path__ = [str(Path(sys.argv[-2]).parents[2])]
    sys.modules["skill_run"] = package
    sys.modules["upstream_task"] = sys.modules["__main__"]
    from skill_run.worker.inside import serve

    serve.TASKS["estimate"] = "upstream_task"  # type: ignore[index]
    return serve.serve(sys.argv[-1])


if __name__ == "__main__":
    sys.exit(main())
