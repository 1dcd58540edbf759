"""What the numeric tests share: each worker computes once, and all tests of a kind look at the same answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skill_run.worker.environments import Worker
from skill_run.worker.session import run_task


def numbers_of(worker: Worker) -> dict[str, Any]:
    """Return what numeric_tasks.py computes in a worker's interpreter."""
    script = str(Path(__file__).with_name("numeric_tasks.py"))
    return run_task(Worker(worker.name, (*worker.command, script)), "numeric", {})


@pytest.fixture(scope="session", params=["core_worker", "bridge_worker"])
def numbers(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Attention errors and partition indices, computed in each kind of worker."""
    return numbers_of(request.getfixturevalue(request.param))
