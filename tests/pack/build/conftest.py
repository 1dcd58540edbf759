"""Small data to pack."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def tokens(tmp_path: Path) -> Callable[..., Path]:
    """Return a maker of a JSONL file of token ids: as many samples as asked for, of 2 to `longest` stored tokens."""

    def make(count: int = 200, longest: int = 60, name: str = "training.jsonl") -> Path:
        draw = random.Random(count)
        path = tmp_path / "data" / name
        path.parent.mkdir(exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            for _ in range(count):
                ids = [draw.randrange(3, 1000) for _ in range(draw.randrange(2, longest + 1))]
                file.write(json.dumps({"input_ids": ids, "loss_mask": [draw.randrange(2) for _ in ids]}) + "\n")
        return path

    return make
