"""Speed is told in real tokens, for the unpacked run and for each packed layout."""

from __future__ import annotations

from skill_run.verify.layouts import Layout
from skill_run.verify.parity import ParityOptions, requested
from skill_run.worker.environments import Worker
from skill_run.worker.session import run_task


def test_the_same_real_tokens_are_timed_unpacked_and_in_each_layout(core_worker: Worker) -> None:
    request = {**requested(ParityOptions(dtype="float32")), "repeats": 1}
    told = run_task(core_worker, "throughput", request)
    lengths = [sequence["length"] for pack in request["packs"] for sequence in pack]
    runs = [told["unpacked"], *told["layouts"]]
    assert [run["tokens"] for run in runs] == [sum(lengths)] * 3
    assert all(abs(run["tokens_per_second"] * run["seconds"] / run["tokens"] - 1) < 1e-9 for run in runs)
    assert [run["layout"] for run in runs] == [Layout().to_dict(), *request["layouts"]]
