"""The core attention on the CPU against attention over the whole pack, token by token."""

from __future__ import annotations

from typing import Any

TOLERANCES = {"float32": 1e-6, "bfloat16": 1e-2}


def test_output_and_gradients_agree_for_every_way_of_travelling(numbers: dict[str, Any]) -> None:
    exact = {name: error for name, error in numbers["errors"].items() if name not in TOLERANCES}
    assert len(exact) == 19
    assert {name: error for name, error in exact.items() if not error < 1e-14} == {}


def test_shorter_types_agree_within_their_rounding(numbers: dict[str, Any]) -> None:
    for dtype, tolerance in TOLERANCES.items():
        assert 0 < numbers["errors"][dtype] < tolerance


def test_segments_for_torchs_varlen_attention_give_the_same_attention(numbers: dict[str, Any]) -> None:
    # The kernel needs a GPU, so a stand-in computes what torch documents of it.
    assert len(numbers["varlen"]) == 6
    assert {name: error for name, error in numbers["varlen"].items() if not error < 1e-14} == {}


def test_a_sequence_that_cannot_be_cut_is_refused_with_its_length(numbers: dict[str, Any]) -> None:
    assert numbers["refused"] == (
        "sequence 0 has a physical length of 10, which is no multiple of 2*CP = 4; pad_seq_to_mult must be one"
    )


def test_the_shim_is_installed_once(numbers: dict[str, Any]) -> None:
    assert numbers["installed_twice"] is True
