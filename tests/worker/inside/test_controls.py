"""Which packs show every fault, and which faults there are."""

from __future__ import annotations

from typing import Any

from skill_run.verify.parity import CONTROLS as ASKED
from skill_run.worker.inside.controls import CONTROLS, MULTIPLE, PACK_SIZE, PACKS, can_show, uneven_lengths


def pack(*sequences: tuple[int, int]) -> list[dict[str, Any]]:
    return [{"length": length, "trained": trained} for length, trained in sequences]


GOOD = [pack((26, 20), (13, 13), (9, 4)), pack((7, 5), (22, 11), (16, 16), (3, 1))]


def test_the_built_in_packs_show_every_fault_and_fit() -> None:
    assert can_show(PACKS, MULTIPLE)
    for each in PACKS:
        assert sum(-(-sequence["length"] // MULTIPLE) * MULTIPLE for sequence in each) <= PACK_SIZE


def test_packs_that_hide_a_fault_are_not_taken() -> None:
    assert can_show(GOOD, 4)
    assert not can_show(GOOD, 1), "nothing is padded"
    assert not can_show(GOOD[:1], 4), "one pack weighs all alike"
    assert not can_show([pack((8, 8), (16, 16)), GOOD[1]], 4), "every length is on the grid"
    assert not can_show([pack((25, 20), (1, 1)), GOOD[1]], 4), "the padding is longer than what follows"
    assert not can_show([GOOD[0], pack((7, 5), (33, 30), (3, 2))], 4), "the packs have as many tokens that count"


def test_lengths_are_uneven_under_context_parallelism_only() -> None:
    assert uneven_lengths([8, 6, 5], 2) == 2
    assert uneven_lengths([8, 6, 5], 1) == 0


def test_the_tool_asks_for_controls_that_exist() -> None:
    assert set(ASKED) <= set(CONTROLS)
