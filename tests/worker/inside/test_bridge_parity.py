"""The own training loop of Bridge 0.6.2: packed computes what unpacked does, with ragged rows and four stages too."""

from __future__ import annotations

from typing import Any

import pytest

from skill_run.errors import InputError
from skill_run.worker.environments import Worker
from skill_run.worker.session import run_task

LAYOUTS = ("cp2-ragged", "pp4")
ROUNDING = 1e-5


@pytest.fixture(scope="module")
def report(bridge_worker: Worker) -> dict[str, Any]:
    return run_task(bridge_worker, "bridge-parity", {"layouts": LAYOUTS})


def test_the_workers_own_release_is_the_one_that_ran(report: dict[str, Any], bridge_worker: Worker) -> None:
    assert (report["bridge"], report["core"]) == (bridge_worker.bridge, bridge_worker.core)
    assert "allow_start_without_cuda" in report["patches"]


@pytest.mark.parametrize("number", range(len(LAYOUTS)), ids=LAYOUTS)
def test_loss_and_every_gradient_are_those_of_unpacked_training(report: dict[str, Any], number: int) -> None:
    layout = report["layouts"][number]
    assert layout["layout"] == LAYOUTS[number]
    assert layout["passed"]
    assert layout["loss_error"] <= ROUNDING
    assert 0 < layout["gradient_error"] <= layout["worst"]["error"] <= ROUNDING


def test_the_partition_index_gets_no_sentinels(report: dict[str, Any]) -> None:
    assert [layout["sentinels"] for layout in report["layouts"]] == [0, 0]


def test_an_unknown_layout_is_refused_before_anything_is_imported(bridge_worker: Worker) -> None:
    with pytest.raises(InputError, match="there is no layout 'cp3'"):
        run_task(bridge_worker, "bridge-parity", {"layouts": ["cp3"]})
