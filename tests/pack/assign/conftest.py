"""Lengths to pack."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="session")
def log_normal() -> Any:
    """Return a maker of lengths like those of instruction data: median 400, sigma 1, clipped to 8..longest."""

    def make(count: int, longest: int = 8192, seed: int = 0) -> Any:
        drawn = np.exp(np.random.default_rng(seed).normal(np.log(400), 1.0, count))
        return np.clip(drawn.astype(np.int64), 8, longest)

    return make
