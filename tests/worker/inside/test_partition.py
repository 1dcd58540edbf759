"""Which tokens each rank holds: both forms of the index agree where it is defined, and differ where it is not."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def partition(numbers: dict[str, Any]) -> dict[str, Any]:
    """What the index functions gave in a worker."""
    found: dict[str, Any] = numbers["partition"]
    return found


def test_each_rank_holds_two_mirrored_chunks_of_every_sequence(partition: dict[str, Any]) -> None:
    first, second = partition["even"]["2"]
    assert first[:4] == [0, 1, 6, 7]
    assert second[:4] == [2, 3, 4, 5]
    assert first[4:12] == [8, 9, 10, 11, 20, 21, 22, 23]


def test_every_token_is_on_one_rank(partition: dict[str, Any]) -> None:
    for ranks in partition["even"].values():
        assert sorted(token for held in ranks for token in held) == list(range(48))


def test_the_kernel_form_agrees_where_lengths_can_be_cut(partition: dict[str, Any]) -> None:
    assert partition["even_kernel"] == partition["even"]


def test_the_kernel_form_loses_tokens_when_boundaries_are_padded_with_minus_one(partition: dict[str, Any]) -> None:
    held = [token for rank in partition["sentinels"] for token in rank]
    assert sorted(held) != list(range(16))


def test_the_kernel_form_loses_tokens_of_lengths_that_cannot_be_cut(partition: dict[str, Any]) -> None:
    held = [token for rank in partition["uneven"] for token in rank]
    assert set(range(44)) - set(held)
    assert len(held) != len(set(held))


def test_the_closed_form_refuses_what_cannot_be_cut(partition: dict[str, Any]) -> None:
    assert partition["refused"] == [
        "sequence 0 has a physical length of 6, which is no multiple of 2*CP = 4; pad_seq_to_mult must be one",
        "the sequence boundaries end at 8, and the pack has 16 tokens",
        "the boundaries of sequence 1 go back, from 8 to 4",
    ]


def test_indices_have_the_type_of_transformer_engines(partition: dict[str, Any]) -> None:
    assert partition["type"] == "torch.int32"


def test_an_installed_index_is_where_megatron_and_old_bridges_look(partition: dict[str, Any]) -> None:
    assert partition["installed"] == [True, True, True]
