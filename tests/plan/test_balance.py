from __future__ import annotations

import numpy as np
import pytest

from skill_run.plan.balance import spread_of


def test_the_spread_is_that_of_the_packs() -> None:
    found = spread_of(np.array([1.0] * 98 + [3.0, 5.0]))

    assert (found.packs, found.p50, found.most) == (100, 1.0, 5.0)
    assert found.ratio == pytest.approx(np.quantile([1.0] * 98 + [3.0, 5.0], 0.99))


def test_ranks_with_equal_work_never_wait() -> None:
    assert spread_of(np.full(64, 7.0), data_parallel=4, rows_per_step=8).wait == 0


def test_one_rank_never_waits() -> None:
    assert spread_of(np.arange(1.0, 65), data_parallel=1, rows_per_step=8).wait == pytest.approx(0)


def test_the_wait_is_what_the_slowest_rank_has_more_than_the_mean() -> None:
    # One step of two ranks with a pack each: whatever the order, 3 against a mean of 2.
    assert spread_of(np.array([1.0, 3.0]), data_parallel=2, rows_per_step=2).wait == pytest.approx(1 / 3)


def test_data_that_fill_no_step_tell_no_wait() -> None:
    assert spread_of(np.ones(3), data_parallel=2, rows_per_step=4).wait is None


def test_a_seed_gives_the_same_wait_again() -> None:
    squares = np.random.default_rng(0).lognormal(size=512)

    first, again, other = (spread_of(squares, data_parallel=4, rows_per_step=8, seed=seed).wait for seed in (1, 1, 2))

    assert first == again != other
