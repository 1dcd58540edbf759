"""Which core attention a GPU gets, and what is said where there is none. Kernels themselves need a GPU."""

from __future__ import annotations

import pytest

from skill_run.errors import MissingError
from skill_run.worker.environments import Worker
from skill_run.worker.inside.gpu import choose_attention
from skill_run.worker.session import run_task


def test_transformer_engine_comes_first_and_cuts_the_packs_itself() -> None:
    choice = choose_attention("bfloat16", transformer_engine=True, varlen=True)
    assert (choice.name, choice.own_index) == ("TEDotProductAttention", False)


def test_without_transformer_engine_torchs_varlen_attention_is_taken_and_told() -> None:
    choice = choose_attention("bfloat16", transformer_engine=False, varlen=True)
    assert (choice.name, choice.own_index) == ("VarlenAttention", True)
    assert "Transformer Engine is not installed" in choice.words


def test_without_either_our_own_attention_runs_and_is_told() -> None:
    choice = choose_attention("bfloat16", transformer_engine=False, varlen=False)
    assert choice.name == "CPUAttention"
    assert "neither" in choice.words


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_types_without_flash_kernels_run_through_our_own_attention(dtype: str) -> None:
    choice = choose_attention(dtype, transformer_engine=True, varlen=True)
    assert choice.name == "CPUAttention"
    assert f"do not compute in {dtype}" in choice.words
    # Packs are still cut by Transformer Engine's own index.
    assert choice.own_index is False


def test_a_worker_without_a_gpu_refuses_the_device_cuda_in_one_sentence(core_worker: Worker) -> None:
    request = {"model": {}, "packs": [[{"length": 4, "trained": 4}]], "pack_size": 4, "layouts": [], "device": "cuda"}
    with pytest.raises(MissingError, match="torch sees no GPU in this worker; the device cpu needs none"):
        run_task(core_worker, "parity", request)
