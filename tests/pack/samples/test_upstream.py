"""Every id and every mask is what Bridge's own data set classes make of the same lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sample_cases import (
    Stored,
    ask_upstream,
    chat_cases,
    explicit_cases,
    ours,
    prompt_cases,
    read_record,
    recorded_cases,
)

from skill_run.errors import InputError
from skill_run.worker.environments import Worker

BRIDGE = "0.6.2"
LINES = 40


@pytest.fixture(scope="module")
def answers(
    bridge_worker: Worker, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[dict[str, Any], Stored | str]]:
    folder = tmp_path_factory.mktemp("upstream")
    cases = [*prompt_cases(folder, LINES), *explicit_cases(folder, LINES), *chat_cases(folder, LINES, BRIDGE)]
    return list(zip(cases, ask_upstream(bridge_worker.command, cases, bridge=BRIDGE), strict=True))


def test_ids_and_masks_equal_those_of_the_real_data_sets(answers: list[tuple[dict[str, Any], Stored | str]]) -> None:
    for case, theirs in answers:
        if not isinstance(theirs, str):
            assert ours(case, BRIDGE) == theirs, case


def test_what_the_real_data_sets_refuse_is_refused(answers: list[tuple[dict[str, Any], Stored | str]]) -> None:
    refused = [(case, theirs) for case, theirs in answers if isinstance(theirs, str)]
    assert len(refused) == 2
    for case, theirs in refused:
        assert theirs.startswith("ValueError: ")
        with pytest.raises(InputError):
            ours(case, BRIDGE)


@pytest.mark.parametrize("bridge", ["0.3.1", "0.4.2", "0.5.1"])
def test_ids_and_masks_equal_what_older_releases_made(bridge: str, tmp_path: Path) -> None:
    cases = recorded_cases(tmp_path, bridge)
    for case, theirs in zip(cases, read_record(bridge), strict=True):
        assert ours(case, bridge) == theirs, case


def test_the_development_branch_reads_as_the_release_before_it(tmp_path: Path) -> None:
    (case, *_) = chat_cases(tmp_path, 6, BRIDGE)
    assert ours(case, "main") == ours(case, BRIDGE)
