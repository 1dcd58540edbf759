from __future__ import annotations

from dataclasses import replace

import pytest

from skill_run.plan.cutting import Cut, cut_for
from skill_run.plan.lengths import from_values


def upstream(bridge: str, stored: int, chat: bool, limit: int, multiple: int) -> tuple[int, int] | str:
    """One sample as `tokenize_dataset` and `create_hist` take it: (physical, logical) length at run time, or its end.

    The statements follow the release's own, on a list of as many tokens.
    """
    data = list(range(stored))
    if bridge in ("0.6.2", "main"):
        cap = limit // multiple * multiple if multiple > 1 else None
        if not chat:
            data = data[: limit + 1 if cap is not None else limit]
        logical = len(data) - 1
        if cap is not None:
            target = min(cap, (max(len(data) - 1, 0) + multiple - 1) // multiple * multiple) + 1
            data = data + [0] * (target - len(data)) if len(data) <= target else data[:target]
            logical = min(logical, len(data) - 1)
        return "dropped" if len(data) - 1 > limit else (len(data) - 1, logical)
    if chat and multiple > 1:
        return "stops"
    if not chat:
        data = data[:limit]
    logical = len(data) - 1
    if multiple > 1:
        target = min(limit, (len(data) + multiple - 1) // multiple * multiple)
        data = data + [0] * (target - len(data) + 1)
    return "stops" if len(data) - 1 > limit else (len(data) - 1, logical)


@pytest.mark.parametrize("bridge", ["0.3.1", "0.4.2", "0.5.1", "0.6.2", "main"])
@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("multiple", [1, 4, 6])
@pytest.mark.parametrize("limit", [16, 18, 30])
def test_each_length_becomes_what_the_release_makes_of_it(bridge: str, chat: bool, multiple: int, limit: int) -> None:
    for stored in range(1, 2 * limit):
        lengths = replace(from_values([stored], "it"), chat=chat)

        found = cut_for(
            lengths,
            bridge="0.7.0.dev0" if bridge == "main" else bridge,
            pack_size=limit,
            seq_length=limit,
            pad_seq_to_mult=multiple,
        )

        expected = upstream(bridge, stored, chat, limit, multiple)
        if expected == "stops":
            assert found.stops is not None
        elif expected == "dropped":
            assert (found.samples, found.dropped_samples, found.dropped_tokens) == (0, 1, stored - 1)
        else:
            physical, logical = expected
            assert found.stops is None
            if logical < 1:
                assert (found.samples, found.empty) == (0, 1)
            else:
                assert (found.physical.tolist(), found.logical.tolist()) == ([physical], [logical])
                assert found.truncated_tokens == stored - 1 - logical
                assert found.truncated_samples == (logical < stored - 1)


@pytest.mark.parametrize("bridge", ["0.3.1", "0.6.2"])
def test_every_token_is_packed_cut_or_dropped(bridge: str) -> None:
    lengths = from_values([1, 5, 20, 40, 40, 100], "it")

    found = cut_for(lengths, bridge=bridge, pack_size=32, seq_length=48, pad_seq_to_mult=4)

    assert found.tokens + found.truncated_tokens + found.dropped_tokens == lengths.tokens - lengths.samples
    assert found.samples + found.dropped_samples + found.empty == lengths.samples
    assert found.alignment >= 0


@pytest.mark.parametrize("bridge", ["0.3.1", "0.5.1", "0.6.2"])
@pytest.mark.parametrize(("multiple", "dropped", "physical"), [(1, 1, [19]), (4, 0, [20, 32])])
def test_tokens_are_dropped_or_cut_on_the_grid_and_stop_nothing(
    bridge: str, multiple: int, dropped: int, physical: list[int]
) -> None:
    lengths = replace(from_values([20, 40], "it"), kind="tokens")

    found = cut_for(lengths, bridge=bridge, pack_size=34, seq_length=34, pad_seq_to_mult=multiple)

    assert (found.stops, found.dropped_samples, found.physical.tolist()) == (None, dropped, physical)


def test_a_limit_above_the_pack_size_stops_upstream_when_a_sample_needs_it() -> None:
    def cut(longest: int) -> Cut:
        lengths = from_values([5, longest], "it")
        return cut_for(lengths, bridge="0.6.2", pack_size=32, seq_length=64, pad_seq_to_mult=1)

    assert cut(33).stops is None
    assert "KeyError" in str(cut(34).stops)


def test_a_limit_below_the_alignment_stops_the_packing() -> None:
    found = cut_for(from_values([5], "it"), bridge="0.6.2", pack_size=64, seq_length=4, pad_seq_to_mult=8)

    assert "below the alignment" in str(found.stops)
