"""Variables by the kind of GPU and the layout, and those of the CPU worker."""

from __future__ import annotations

import pytest

from skill_run.errors import InputError
from skill_run.launch.variables import generation

from .conftest import CONFIG, PlanOf

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


@pytest.mark.parametrize(
    ("gpu", "overrides", "value"),
    [
        ("h100", (), "1"),
        ("b200", (), "32"),
        (None, (), "1"),
        ("h100", ("model.context_parallel_size=1", "model.tensor_model_parallel_size=1"), "8"),
        ("h100", ("ddp.use_megatron_fsdp=true",), "8"),
    ],
)
def test_connections_follow_the_gpu_the_layout_and_fsdp(
    plan_of: PlanOf, gpu: str | None, overrides: tuple[str, ...], value: str
) -> None:
    assert plan_of(CONFIG, *overrides, gpu=gpu).environment[CONNECTIONS].value == value


def test_a_single_node_needs_no_shared_homes_and_two_do(plan_of: PlanOf) -> None:
    assert "NEMO_HOME" not in plan_of().environment
    assert plan_of(CONFIG, engine="slurm", nodes=2).environment["NEMO_HOME"].value.endswith("/nemo")
    told = plan_of(CONFIG, engine="slurm", nodes=2, packed_data="/shared/packed")
    assert told.environment["NEMO_HOME"].value == "/shared/packed"


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        ("H100", "hopper"),
        ("gh200", "hopper"),
        ("B200", "blackwell"),
        ("gb300", "blackwell"),
        ("a100", "older"),
        (None, "unknown"),
    ],
)
def test_kinds_of_gpus_are_told_apart(gpu: str | None, expected: str) -> None:
    assert generation(gpu) == expected


def test_an_unknown_kind_of_gpu_is_refused() -> None:
    with pytest.raises(InputError, match="not a known kind of GPU"):
        generation("toaster")
