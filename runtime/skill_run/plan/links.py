"""Which GPUs are joined by NVLink: tensor parallelism and exchanged heads should stay among them."""

from __future__ import annotations

from typing import Final

# GPUs of one NVLink domain; a node holds eight, a Grace Blackwell rack 72.
_DOMAIN: Final = {"gb200": 72, "gb300": 72}
_NODE: Final = 8


def gpu_name(gpu: str) -> str:
    """Return a kind of GPU as the tables name it: lower case, no dashes."""
    return gpu.lower().replace("-", "").replace("_", "").replace(" ", "")


def nvlink_domain(gpu: str) -> int:
    """Return how many GPUs of a kind are joined by NVLink."""
    return _DOMAIN.get(gpu_name(gpu), _NODE)
