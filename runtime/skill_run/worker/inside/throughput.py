"""Task `throughput`: tokens per second of training steps, packed in layouts and unpacked on one rank.

A step is forward, backward, the reduction of gradients and Adam, all Megatron's own but the core attention.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from statistics import median
from typing import Any

from skill_run.worker.inside.backend import open_backend
from skill_run.worker.inside.parallel import Layout
from skill_run.worker.inside.ranks import run_ranks
from skill_run.worker.inside.serve import Channel


def run(request: Mapping[str, Any], channel: Channel) -> dict[str, Any]:
    """Return {"unpacked": {...}, "layouts": [{"layout", "tokens_per_second", "seconds", "tokens"}, ...]}.

    The request is one of parity's, with "repeats": steps to time after one that is not; tokens are real ones, and a
    step's time is the slowest rank's.
    """
    layouts = [Layout.read(values) for values in request["layouts"]]
    dtype = str(request.get("dtype", "float32"))
    backend = open_backend("cpu", dtype, max(layout.size for layout in layouts))
    from skill_run.worker.inside.comparison import Comparison, Data
    from skill_run.worker.inside.gpt_model import read_shape

    comparison = Comparison(backend, dtype, int(request.get("seed", 0)), 1, lambda text: None)
    data = Data(request["packs"], int(request["pack_size"]), int(request.get("pad_seq_to_mult", 1)))
    cases = [comparison.case(read_shape(request["model"]), layout, data) for layout in layouts]
    cases.append(replace(cases[0], layout=Layout(), packed=False))
    told = []
    for number, case in enumerate(cases):
        channel.progress(f"packed on {case.layout}" if case.packed else "unpacked", number, len(cases))
        told.append(_timed(backend, case, int(request.get("repeats", 5))))
    return {"environment": backend.environment(), "unpacked": told[-1], "layouts": told[:-1]}


def _timed(backend: Any, case: Any, repeats: int) -> dict[str, Any]:
    def on_rank(rank: int, tell: Any) -> list[float]:
        from skill_run.worker.inside.training import Run

        backend.start(rank, case.layout.size)
        steps = Run(case, backend.load_attention(), own_index=backend.own_index).steps()
        next(steps)
        seconds = []
        for _ in range(repeats):
            start = time.perf_counter()
            next(steps)
            seconds.append(time.perf_counter() - start)
        return seconds

    each = run_ranks(case.layout.size, on_rank)
    seconds = median(max(ranks) for ranks in zip(*each, strict=True))
    tokens = sum(sample.length for samples in case.samples for sample in samples)
    return {
        "layout": case.layout.to_dict(),
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
    }
