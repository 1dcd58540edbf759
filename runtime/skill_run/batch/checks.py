"""The invariants of a batch, computed with numpy; each names a rule of the flagship card.

A check takes the batch and yields faults: the rule's id, a sentence about these numbers, and the keys at fault. It
must stay silent on conventions that look wrong but are right: offline packs drop one token of every sequence, the tail
filler has position 0 throughout, boundaries repeat their last value, labels end in -100.
"""

from __future__ import annotations

from skill_run.batch import boundary_checks, content_checks, parallel_checks
from skill_run.batch.faults import CHECKS, Fault, Settings
from skill_run.batch.model import Batch

__all__ = ["Fault", "Settings", "run_checks"]

# Importing a module registers its checks.
_MODULES = (boundary_checks, content_checks, parallel_checks)


def run_checks(batch: Batch, settings: Settings) -> list[Fault]:
    """Return the faults of a batch, each rule at most once per row."""
    return [fault for function in CHECKS for fault in function(batch, settings)]
