"""What test_capture.py lets a child with torch do: dump batches of toy steps and tell, as JSON, what came of it.

`capture_under_test` is the module under test, under a name of its own. The first argument is the folder to write to.
"""

from __future__ import annotations

import enum
import inspect
import io
import json
import os
import sys
import types
from contextlib import redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from capture_under_test import dumping

OUT = Path(sys.argv[1])
TOLD: dict[str, Any] = {}
MODEL = torch.nn.Linear(1, 1)
PLACES = {"tensor_model_parallel": (1, 2), "pipeline_model_parallel": (0, 1), "data_parallel": (3, 4)}


class Colour(enum.IntEnum):
    RED = 3


class Pictures:
    pass


def load(folder: str, name: str = "rank0_batch0.pt") -> dict[str, Any]:
    found: dict[str, Any] = torch.load(OUT / folder / name, weights_only=True)
    return found


def batch(number: int) -> dict[str, Any]:
    boundaries = torch.tensor([[0, 4, 8]], dtype=torch.int32)
    tokens = torch.arange(8)[None] + 10 * number
    return {
        "tokens": tokens,
        "input_ids": tokens,
        "labels": tokens + 1,
        "loss_mask": torch.ones(1, 8),
        "position_ids": torch.arange(4).repeat(2)[None],
        "cu_seqlens_q": boundaries,
        "cu_seqlens_kv": boundaries,
        "max_seqlen_q": torch.tensor([[4]], dtype=torch.int32),
        "token_count": [8],
        "attention_mask": None,
        "visual_inputs": Pictures(),
        "colour": Colour.RED,
        "numbers": (1, 2.5, True, "text"),
        "half": torch.ones(2, dtype=torch.bfloat16),
        "inner": {"deep": torch.zeros(1)},
        "huge": torch.zeros(1).expand(2**25),
        "nowhere": torch.zeros(2, device="meta"),
        "parameter": torch.nn.Parameter(torch.ones(1)),
        **arrays(),
    }


def arrays() -> dict[str, Any]:
    """Return numpy arrays where torch has numpy, which it does not need."""
    if find_spec("numpy") is None:
        return {}
    import numpy as np

    return {"numpy": np.array([1, 2]), "words": np.array(["a"])}


class Batches:
    """A data iterator with something of its own that steps may ask for."""

    def __init__(self, count: int) -> None:
        self.marker = "mine"
        self._items = iter([batch(number) for number in range(count)])

    def __next__(self) -> dict[str, Any]:
        return next(self._items)


def forward_step(state: Any, data_iterator: Any, model: Any, return_schedule_plan: bool = False) -> Any:
    assert data_iterator.marker == "mine"
    item = next(data_iterator)
    total = int(item["tokens"].sum())
    item["tokens"].zero_()
    item.clear()
    return state, total, return_schedule_plan


def megatron_step(data_iterator: Any, model: Any, return_schedule_plan: bool = False) -> int:
    return int(next(data_iterator)["tokens"].sum())


class Functor:
    def __call__(self, state: Any, data_iterator: Any, model: Any) -> Any:
        return list(next(data_iterator)["tokens"].shape)


def pass_on(state: Any, data_iterator: Any, model: Any) -> Any:
    return data_iterator


def bridge_step() -> None:
    step = dumping(forward_step, directory=OUT / "run", batches=2)
    data = Batches(4)
    TOLD["first parameter"] = next(iter(inspect.signature(step).parameters))
    TOLD["name"] = step.__name__
    TOLD["results"] = [
        step("state", data, MODEL),
        step("state", data, MODEL, return_schedule_plan=True),
        step("state", data, MODEL, True),
        step("state", data, MODEL),
    ]
    TOLD["files"] = sorted(os.listdir(OUT / "run"))
    found = load("run")
    TOLD["info"] = found["info"]
    held = found["batch"]
    TOLD["keys"] = list(held)
    TOLD["tokens"] = [load("run", name)["batch"]["tokens"].tolist() for name in TOLD["files"]]
    TOLD["shared"] = held["cu_seqlens_q"].data_ptr() == held["cu_seqlens_kv"].data_ptr()
    TOLD["dtypes"] = {key: str(value.dtype) for key, value in held.items() if torch.is_tensor(value)}
    TOLD["kinds"] = {key: type(value).__name__ for key, value in held.items()}
    TOLD["plain"] = {key: value for key, value in held.items() if not torch.is_tensor(value) and key != "inner"}


def other_steps() -> None:
    step, data = dumping(megatron_step, directory=OUT / "megatron", batches=1, skip=1), Batches(3)
    TOLD["megatron"] = [step(data, MODEL) for _ in range(3)]
    TOLD["megatron files"] = os.listdir(OUT / "megatron")
    TOLD["functor"] = dumping(Functor(), directory=OUT / "functor")("state", Batches(1), MODEL)
    TOLD["none"] = dumping(pass_on, directory=OUT)("state", None, MODEL)
    dumping(megatron_step, directory=OUT / "others", ranks=[1])(Batches(1), MODEL)
    TOLD["other ranks"] = (OUT / "others").exists()


def failures() -> None:
    (OUT / "file").touch()
    said = io.StringIO()
    with redirect_stderr(said):
        step, data = dumping(megatron_step, directory=OUT / "file", batches=4), Batches(3)
        TOLD["after a failure"] = [step(data, MODEL) for _ in range(3)]
    TOLD["said"] = said.getvalue().splitlines()
    try:
        dumping(megatron_step, directory=OUT / "end")(Batches(0), MODEL)
    except StopIteration:
        TOLD["end"] = "StopIteration"


class Group:
    def rank(self) -> int:
        return 1

    def size(self) -> int:
        return 2


def not_set_up() -> int:
    raise AssertionError("context parallel group is not initialized")


def places() -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{OUT / 'store'}", rank=0, world_size=1)
    state: Any = types.ModuleType("megatron.core.parallel_state")
    for name, (rank, size) in PLACES.items():
        setattr(state, f"get_{name}_rank", lambda rank=rank: rank)
        setattr(state, f"get_{name}_world_size", lambda size=size: size)
    state.get_context_parallel_rank = state.get_context_parallel_world_size = not_set_up
    sys.modules["megatron.core.parallel_state"] = state
    dumping(megatron_step, directory=OUT / "placed", batches=1)(Batches(1), MODEL)
    TOLD["placed"] = load("placed")["info"]
    inner = types.SimpleNamespace(pg_collection=types.SimpleNamespace(cp=Group(), tp=None))
    wrapper = types.SimpleNamespace(module=inner, training=False)
    dumping(megatron_step, directory=OUT / "own", batches=1)(Batches(1), wrapper)
    TOLD["own groups"] = load("own")["info"]


if __name__ == "__main__":
    bridge_step()
    other_steps()
    failures()
    places()
    TOLD["modules"] = sorted(name for name in sys.modules if name.startswith("skill_run"))
    print(json.dumps(TOLD))
