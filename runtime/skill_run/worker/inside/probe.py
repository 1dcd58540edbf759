"""Task `probe`: what this environment has and what it can do."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping
from typing import Any, Final

from skill_run.worker.inside.serve import Channel

DISTRIBUTIONS: Final = ("torch", "megatron-core", "megatron-bridge", "transformers", "numpy")


def run(request: Mapping[str, Any], channel: Channel) -> dict[str, Any]:
    """Return {"python": version, "versions": {distribution: version}}."""
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"python": platform.python_version(), "versions": found}
