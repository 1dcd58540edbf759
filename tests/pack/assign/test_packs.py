"""The order of sequences in packs: upstream's rows exactly, and ours mixed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skill_run.errors import InputError
from skill_run.pack.assign import arrange, assign_packs, bridge_packs, steps_of_like_work

# Rows that create_hist, create_packing_strategy and fill_packing_strategy of each release's wheel made of samples with
# these lengths, after np.random.seed(seed).
RECORDED = json.loads((Path(__file__).parent / "data" / "bridge_rows.json").read_text("utf-8"))


def rows_of(packs: Any) -> list[list[int]]:
    return [packs.order[start:end].tolist() for start, end in zip(packs.starts, packs.starts[1:], strict=False)]


@pytest.mark.parametrize(
    "recorded", RECORDED, ids=lambda row: f"{row['bridge']}-{row['algorithm']}-{row['seed']}-{len(row['lengths'])}"
)
def test_rows_are_those_of_the_release_with_every_sample_in_its_place(recorded: dict[str, Any]) -> None:
    packs = bridge_packs(
        recorded["lengths"],
        recorded["pack_size"],
        algorithm=recorded["algorithm"],
        seed=recorded["seed"],
    )
    assert rows_of(packs) == recorded["rows"]


@pytest.mark.parametrize(
    "recorded", [row for row in RECORDED if min(row["lengths"]) > 0], ids=lambda row: f"{row['bridge']}-{row['seed']}"
)
def test_assigned_packs_hold_the_lengths_of_the_releases_rows(recorded: dict[str, Any]) -> None:
    lengths = np.asarray(recorded["lengths"])
    ids = assign_packs(lengths, recorded["pack_size"], algorithm=recorded["algorithm"], seed=recorded["seed"])
    ours = [sorted(lengths[ids == pack].tolist()) for pack in range(ids.max() + 1)]
    assert ours == [sorted(lengths[row].tolist()) for row in recorded["rows"]]


def test_an_unknown_algorithm_of_bridge_is_refused() -> None:
    with pytest.raises(InputError, match="no packing algorithm 'histogram'"):
        bridge_packs([1, 2], 8, algorithm="histogram")


def test_arranging_keeps_the_packs_and_mixes_their_order_by_the_seed(log_normal: Any) -> None:
    lengths = log_normal(2000)
    ids = assign_packs(lengths, 8192)
    one, same, other = arrange(ids, seed=1), arrange(ids, seed=1), arrange(ids, seed=2)
    assert rows_of(one) == rows_of(same)
    assert rows_of(one) != rows_of(other)
    expected = sorted(tuple(np.flatnonzero(ids == pack)) for pack in range(ids.max() + 1))
    for packs in (one, other):
        assert sorted(tuple(sorted(row)) for row in rows_of(packs)) == expected
    falling = [row for row in rows_of(one) if lengths[row].tolist() == sorted(lengths[row], reverse=True)]
    assert len(falling) < len(one) / 10


def test_arranging_nothing_gives_no_packs() -> None:
    packs = arrange([], seed=0)
    assert len(packs) == 0
    assert rows_of(packs) == []


def test_packs_of_one_step_get_like_work(log_normal: Any) -> None:
    lengths = log_normal(20_000)
    packs = arrange(assign_packs(lengths, 8192), seed=0)
    ordered = steps_of_like_work(packs, lengths, 16, seed=0)
    assert sorted(map(tuple, rows_of(ordered))) == sorted(map(tuple, rows_of(packs)))

    def waiting(found: Any) -> float:
        work = np.asarray([(lengths[row].astype(float) ** 2).sum() for row in rows_of(found)])
        steps = work[: len(work) // 16 * 16].reshape(-1, 16)
        return float((steps.max(axis=1) - steps.mean(axis=1)).sum())

    assert waiting(ordered) < waiting(packs) / 5


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "a", True])
def test_a_seed_that_numpy_does_not_take_is_refused(seed: Any) -> None:
    for make in (lambda: arrange([0, 1], seed=seed), lambda: bridge_packs([1, 2], 8, seed=seed)):
        with pytest.raises(InputError, match="the seed must be a whole number from 0 to"):
            make()


def test_a_step_without_packs_is_refused() -> None:
    with pytest.raises(InputError, match="a step has at least one pack"):
        steps_of_like_work(arrange([0, 1], seed=0), [1, 2], 0, seed=0)
