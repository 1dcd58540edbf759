"""A config to launch, and options that give the same plan everywhere."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skill_run.jobs.model import Plan
from skill_run.launch.options import LaunchOptions
from skill_run.launch.plan import Inputs, make_preview
from skill_run.rules.validate import read_sources

RECIPE = "llama32_1b_sft_1gpu_h100_bf16_config"
CONFIG = textwrap.dedent("""\
    model:
      tensor_model_parallel_size: 2
      sequence_parallel: true
      context_parallel_size: 2
      seq_length: 4096
      calculate_per_token_loss: true
    ddp: {average_in_collective: false}
    dataset:
      seq_length: 4096
      enable_offline_packing: true
      dataset_kwargs: {pad_to_max_length: true}
      offline_packing_specs: {packed_sequence_size: 4096, pad_seq_to_mult: 4}
    train: {micro_batch_size: 1, global_batch_size: 8}
    checkpoint: {pretrained_checkpoint: /ckpt/llama32-1b}
    """)
JOB = "20260101-000000-abcdef"
CREATED = "2026-01-01T00:00:00.000+00:00"

PlanOf = Callable[..., Plan]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the state folder of one test."""
    folder = tmp_path / "state"
    monkeypatch.setenv("SKILL_RUN_STATE", str(folder))
    return folder


@pytest.fixture
def plan_of(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlanOf:
    """Return a function that plans CONFIG, or another text, on 8 GPUs of a node unless told otherwise."""
    monkeypatch.setenv("SKILL_RUN_WORKERS", str(tmp_path / "workers"))

    def plan(text: str = CONFIG, *overrides: str, recipe: str | None = RECIPE, **options: Any) -> Plan:
        sources = read_sources(text, bridge="0.6.2", recipe=recipe, overrides=overrides)
        given = LaunchOptions(**{"ranks_per_node": 8, "gpu": "h100", **options})
        return make_preview(Inputs(sources, bridge="0.6.2", recipe=recipe), given, job_id=JOB, created=CREATED).plan

    return plan
