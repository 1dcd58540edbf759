"""Packed datasets: reading, checking and making them, and the packing algorithms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skill_run.pack.assign import assign_packs

__all__ = ["assign_packs"]


def __getattr__(name: str) -> Any:
    if name == "assign_packs":
        from skill_run.pack.assign import assign_packs

        return assign_packs
    raise AttributeError(f"module 'skill_run.pack' has no attribute '{name}'")
