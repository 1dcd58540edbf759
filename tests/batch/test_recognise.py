from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from strategies import Made, dp_rank_dicts, offline_batches, part_of, valid_batches

from skill_run.batch.arrays import check_mapping
from skill_run.batch.recognise import recognise
from skill_run.errors import InputError

EXAMPLES = settings(
    derandomize=True, deadline=None, database=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)

CASES: list[tuple[dict[str, Any], str, str, str]] = [
    # What a batch holds; its path and generation; what its boundary array means.
    (
        {"tokens_len": 8, "cu_seqlens": [[0, 4, 8, -1]]},
        "offline_packed",
        "<=0.5",
        "cu_seqlens: physical (padded)",
    ),
    (
        {"tokens_len": 8, "cu_seqlens": [[0, 4, 8]], "cu_seqlens_argmin": [[3]], "cu_seqlens_unpadded": [[0, 3, 7]]},
        "offline_packed",
        "<=0.5",
        "cu_seqlens: physical (padded), cu_seqlens_unpadded: logical (real tokens)",
    ),
    (
        {"tokens_len": 8, "cu_seqlens": [0, 4, 8], "cu_seqlens_argmin": 3},
        "in_batch_packed",
        "<=0.5",
        "cu_seqlens: physical (padded)",
    ),
    (
        {"tokens_len": 8, "cu_seqlens": [0, 4, 8], "visual_inputs": None},
        "in_batch_packed",
        "<=0.5",
        "cu_seqlens: physical (padded)",
    ),
    (
        {"tokens_len": 8, "cu_seqlens_q": [[0, 4, 8]]},
        "offline_packed",
        ">=0.6",
        "cu_seqlens_q: logical and physical at once (no alignment padding)",
    ),
    (
        {"tokens_len": 8, "cu_seqlens_q": [[0, 3, 7]], "cu_seqlens_q_padded": [[0, 4, 8]]},
        "offline_packed",
        ">=0.6",
        "cu_seqlens_q: logical (real tokens), cu_seqlens_q_padded: physical (padded)",
    ),
    (
        {"cu_seqlens_q": [[0, 4, 8]], "padding_mask": [[0] * 8]},
        "offline_packed",
        "main",
        "cu_seqlens_q: logical and physical at once (no alignment padding)",
    ),
    (
        {"cu_seqlens_q": [0, 4, 8], "total_tokens": 8},
        "in_batch_packed",
        ">=0.6",
        "cu_seqlens_q: logical and physical at once (no alignment padding)",
    ),
    (
        {"tokens_len": 8, "cu_seqlens_q": [0, 4, 8]},
        "packed",
        ">=0.6",
        "cu_seqlens_q: logical and physical at once (no alignment padding)",
    ),
    (
        {"qkv_format": "thd", "cu_seqlens_q": [0, 4, 8]},
        "packed_seq_params",
        "unknown",
        "cu_seqlens_q: logical and physical at once (no alignment padding)",
    ),
    (
        {"tokens": [5, 6, 7, 8], "cu_seqlens": [0, 4, 4, 4, 4]},
        "megatron_lm_sft",
        "megatron-lm",
        "cu_seqlens: physical, which Megatron-LM also uses as logical",
    ),
    (
        {"tokens": [5, 6, 7, 8], "cu_seqlens": [0, 3], "cu_seqlens_padded": [0, 4]},
        "megatron_lm_sft",
        "megatron-lm",
        "cu_seqlens: logical (real tokens), cu_seqlens_padded: physical (padded)",
    ),
    ({"tokens": [5, 6, 7, 8], "seq_offsets": [0, 4]}, "packed", "unknown", "seq_offsets: physical"),
    ({"tokens": [[5, 6], [7, 8]]}, "padded", "unknown", "rows are not packed"),
]


@pytest.mark.parametrize(("batch", "path", "generation", "meaning"), CASES)
def test_path_generation_and_meaning_follow_from_the_keys(
    batch: dict[str, Any], path: str, generation: str, meaning: str
) -> None:
    found = recognise(check_mapping(batch))
    assert (found.path, found.generation, found.meaning) == (path, generation, meaning)
    assert found.because


@EXAMPLES
@given(valid_batches())
def test_every_made_batch_is_recognised_as_what_it_is(made: Made) -> None:
    found = recognise(check_mapping(made.batch), cp=made.options.get("cp"))
    assert (found.path, found.generation) == (made.path, made.generation)


@pytest.mark.parametrize("rows", [[0, 4, 8], [[0, 4, 8]]])
def test_an_unmarked_array_is_one_of_bridge_when_a_bridge_release_is_named(rows: list[Any]) -> None:
    batch = check_mapping({"tokens_len": 8, "cu_seqlens": rows})
    assert recognise(batch).path == "megatron_lm_sft"
    found = recognise(batch, bridge="0.4.2")
    assert found.path == ("in_batch_packed" if rows == [0, 4, 8] else "offline_packed")
    assert "0.4.2" in found.because


@EXAMPLES
@given(dp_rank_dicts("0.5.1"))
def test_a_missing_attention_mask_tells_0_5_from_the_releases_before(made: Made) -> None:
    assert recognise(check_mapping(made.batch)).release == "0.5.1"
    older = made.copy(attention_mask=np.ones(len(made.batch["token_count"]), np.int64))
    assert recognise(check_mapping(older)).release is None


@EXAMPLES
@given(dp_rank_dicts())
def test_rows_before_the_split_are_told_from_a_micro_batch(made: Made) -> None:
    batch = check_mapping(made.batch)
    rows = len(made.batch["token_count"])
    found = recognise(batch)
    assert len(found.rows) == rows
    assert found.before_split == (rows > 1)
    assert not recognise(batch, micro_batch=True).before_split


@EXAMPLES
@given(offline_batches(context_parallel=True))
def test_one_ranks_part_is_told_from_the_whole_row(made: Made) -> None:
    size = made.options["cp"]
    whole = recognise(check_mapping(made.batch))
    assert not whole.per_rank
    for rank in range(size):
        found = recognise(check_mapping(part_of(made, rank).batch))
        assert found.per_rank
        assert found.cp == size
        assert found.rows[0].total == whole.rows[0].total
        assert "one rank's part" in found.because


def test_a_part_of_another_group_size_is_no_part() -> None:
    batch = check_mapping({"tokens": [5, 6, 7, 8], "cu_seqlens_q": [[0, 8]]})
    assert recognise(batch).cp == 2
    assert not recognise(batch, cp=4).per_rank


def test_tokens_tell_the_row_length_when_the_streams_differ() -> None:
    batch = check_mapping({"labels": [6, 7], "tokens": [5, 6, 7, 8], "cu_seqlens_q": [0, 4]})
    assert recognise(batch).rows[0].total == 4


@pytest.mark.parametrize(
    "claim", [{"tokens_len": 8}, {"tokens_shape": [1, 8]}, {"total_tokens": 8}, {"tokens_len": None, "total_tokens": 8}]
)
def test_a_batch_without_tokens_may_claim_their_number(claim: dict[str, Any]) -> None:
    assert recognise(check_mapping({"cu_seqlens_q": [0, 8], **claim})).rows[0].total == 8


@pytest.mark.parametrize("claim", [{"tokens_len": -8}, {"tokens_len": True}, {"tokens_shape": []}, {"tokens_len": "8"}])
def test_a_claim_that_is_no_number_of_tokens_is_not_used(claim: dict[str, Any]) -> None:
    assert recognise(check_mapping({"cu_seqlens_q": [0, 8], **claim})).rows[0].total is None


def test_that_no_release_writes_seq_offsets_is_said() -> None:
    found = recognise(check_mapping({"cu_seqlens_q": [0, 8], "tokens_len": 8}))
    assert any("seq_offsets" in note for note in found.notes)
    assert not recognise(check_mapping({"seq_offsets": [0, 8], "tokens_len": 8})).notes


def test_three_axis_position_ids_are_left_alone() -> None:
    batch = check_mapping({"tokens": [[5, 6, 7, 8]], "position_ids": np.zeros((3, 1, 4)), "cu_seqlens_q": [[0, 4]]})
    assert recognise(batch).rows[0].position_ids is None


@pytest.mark.parametrize(("batch", "said"), [({}, "nothing"), ({"a": 1, "b": 2}, "a, b")])
def test_what_is_no_batch_is_refused_with_its_keys(batch: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=f"no training batch.*{said}"):
        recognise(batch)
