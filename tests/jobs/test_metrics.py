from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest

from skill_run.jobs.metrics import last_metrics, metrics_series, padding_share


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines))
    return path


def test_the_newest_whole_line_counts(tmp_path: Path) -> None:
    path = written(
        tmp_path / "m", '{"step": 1, "loss": 3.0}', '{"step": 2, "loss": 2.0, "other": [1]}', '{"step": 3, "lo'
    )
    assert last_metrics(path) == {"step": 2, "loss": 2.0}
    assert last_metrics(tmp_path / "nothing") is None


@pytest.mark.parametrize(
    "line",
    ["", "[]", "null", "nonsense", '{"loss": 1}', '{"step": "1"}', '{"step": 1.5}', "[" * 10**4, "\0" * 100],
    ids=range(9),
)
def test_a_line_without_figures_is_passed_over(tmp_path: Path, line: str) -> None:
    path = written(tmp_path / "m", '{"step": 1}', line)
    assert last_metrics(path) == {"step": 1}
    assert metrics_series(path) == [{"step": 1}]


def test_values_that_are_no_figures_are_left_out_and_a_loss_that_is_not_finite_stays(tmp_path: Path) -> None:
    figures = '{"step": 1, "loss": NaN, "tokens": Infinity, "memory_bytes": "much", "grad_norm": true, "time": 1e400}'
    found = last_metrics(written(tmp_path / "m", figures))
    assert found is not None
    assert math.isnan(found.pop("loss"))
    assert found == {"step": 1}


def test_a_long_run_is_thinned_out_evenly_and_keeps_its_last_step(tmp_path: Path) -> None:
    lines = [json.dumps({"step": step, "loss": 1.0}) for step in range(1, 10_001)]
    steps = [each["step"] for each in metrics_series(written(tmp_path / "m", *lines), points=100)]
    assert 100 <= len(steps) <= 201
    assert steps[-1] == 10_000
    assert steps == sorted(set(steps))
    gaps = {after - before for before, after in pairwise(steps[:-1])}
    assert len(gaps) == 1


def test_padding_is_the_part_of_the_tokens_that_is_not_real() -> None:
    assert padding_share({"tokens": 75, "padded_tokens": 100}) == 0.25
    for untold in ({}, {"tokens": 1}, {"tokens": 0, "padded_tokens": 0}, {"tokens": 5, "padded_tokens": 4}):
        assert padding_share(untold) is None
