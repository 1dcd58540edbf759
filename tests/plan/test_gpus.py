from __future__ import annotations

import pytest

from skill_run.bridge.release import index
from skill_run.errors import InputError
from skill_run.plan.gpus import gpu_rates


def test_every_kind_of_gpu_with_a_memory_size_has_rates_and_their_source() -> None:
    for name in index()["gpu_memory_gib"]:
        rates = gpu_rates(name)
        assert rates.matmul > rates.attention > rates.nvlink > rates.network > 0
        assert rates.source


def test_names_are_read_as_people_write_them() -> None:
    assert gpu_rates("H100").name == gpu_rates("h-100").name == "h100"


def test_an_unknown_kind_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(InputError, match="'tpu' is not a known kind of GPU; known are a100, h100"):
        gpu_rates("tpu")
