from __future__ import annotations

from skill_run.rehearse.change import Change
from skill_run.rehearse.limits import limits_of


def told(*changes: Change) -> str:
    return "\n".join(limits_of([change.to_dict() for change in changes]))


def test_kernels_memory_and_speed_are_never_shown() -> None:
    assert all(word in told() for word in ("Kernels:", "Memory:", "Speed:"))


def test_a_shorter_length_is_told_with_both_numbers() -> None:
    change = Change("model.seq_length", 32768, 1024, "size", "")
    assert "positions beyond 1024 of 32768" in told(change)


def test_smaller_parallel_groups_are_told() -> None:
    change = Change("model.context_parallel_size", 8, 2, "layout", "")
    assert "Context parallel size: 8 is rehearsed as 2." in told(change)


def test_what_was_not_changed_is_not_told() -> None:
    assert "FP8" not in told()
    assert "FP8" in told(Change("model.fp8", "hybrid", None, "cpu", ""))
