"""Layouts of a parity run: sizes that make sense, brought down to what a CPU can fork."""

from __future__ import annotations

import pytest

from skill_run.errors import InputError
from skill_run.verify.layouts import MAX_RANKS, Layout, check, fitted


@pytest.mark.parametrize(
    ("layout", "multiple"),
    [
        (Layout(), 1),
        (Layout(cp=2), 4),
        (Layout(cp=4), 8),
        (Layout(tp=2), 1),
        (Layout(tp=2, sp=True), 2),
        (Layout(cp=2, tp=2, sp=True), 4),
        (Layout(cp=1, tp=3, sp=True), 3),
    ],
)
def test_sequences_are_padded_for_context_and_sequence_parallelism(layout: Layout, multiple: int) -> None:
    assert layout.pad_multiple == multiple


@pytest.mark.parametrize(
    ("layout", "told"),
    [
        (Layout(cp=0), "--cp must be at least 1"),
        (Layout(tp=-2), "--tp must be at least 1"),
        (Layout(cp=4, tp=2), "8 ranks"),
        (Layout(cp=2, ep=3), "EP 3 does not divide the 2 ranks"),
        (Layout(cp=2, sp=True), "--sp needs --tp"),
        (Layout(cp=2, cp_comm_type="a2a+p2p"), "--cp 4"),
    ],
)
def test_a_layout_that_no_run_can_have_is_refused_in_one_sentence(layout: Layout, told: str) -> None:
    with pytest.raises(InputError, match=told):
        check(layout)


def test_a_layout_that_fits_is_kept() -> None:
    layout = Layout(cp=2, tp=2, sp=True, cp_comm_type="a2a")
    assert fitted(layout) == (layout, [])


@pytest.mark.parametrize(
    "layout",
    [
        Layout(cp=8, tp=4, pp=2, ep=8, sp=True, cp_comm_type="a2a+p2p"),
        Layout(tp=8, pp=4, sp=True),
        Layout(pp=16),
        Layout(ep=64),
        Layout(cp=16, cp_comm_type="a2a"),
    ],
)
def test_a_large_layout_keeps_what_it_uses_and_says_what_is_smaller(layout: Layout) -> None:
    small, changes = fitted(layout)
    check(small)
    assert small.ranks <= MAX_RANKS
    assert small.cp == min(layout.cp, 2)
    for name in ("cp", "tp", "pp", "ep"):
        told = any(change.startswith(f"{name.upper()} ") for change in changes)
        assert told == (getattr(small, name) != getattr(layout, name))


def test_experts_alone_are_spread_over_data_parallel_ranks() -> None:
    assert fitted(Layout(ep=16)) == (Layout(ep=2, dp=2), ["EP 16 -> 2"])


def test_a_layout_is_told_by_the_sizes_above_one() -> None:
    assert str(Layout()) == "one rank"
    assert str(Layout(cp=2, tp=2, sp=True, cp_comm_type="p2p")) == "CP 2 x TP 2 x SP, p2p"
    assert str(Layout(pp=2, vpp=2)) == "PP 2 x VPP 2"
