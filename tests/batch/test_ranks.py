from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import Made, offline_batches, part_of

from skill_run import inspect_batch
from skill_run.errors import InputError

EXAMPLES = settings(
    derandomize=True, deadline=None, database=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
AGREE = "batch-ranks-agree"
STAGE = "batch-metadata-on-every-stage"


def _options(made: Made) -> dict[str, Any]:
    bridge = made.options.get("bridge") or ("0.5.1" if "cu_seqlens" in made.batch else None)
    return {"cp": made.options["cp"], "bridge": bridge}


def _parts(made: Made) -> dict[str, dict[str, Any]]:
    return {f"rank{rank}": part_of(made, rank).batch for rank in range(made.options["cp"])}


def _captured(batch: dict[str, Any], **info: int) -> dict[str, Any]:
    return {"batch": batch, "info": {"form": "micro_batch", **info}}


@EXAMPLES
@given(offline_batches(context_parallel=True))
def test_the_parts_of_a_valid_batch_agree_with_and_without_the_whole_row(made: Made) -> None:
    parts = _parts(made)
    for ranks in (parts, {**parts, "whole": made.batch}):
        report = inspect_batch(ranks, **_options(made))
        assert report.path == "ranks"
        assert [item for item in report.findings if item.severity != "info"] == []
        assert report.cp is not None
        assert report.cp.whole


@EXAMPLES
@given(offline_batches(context_parallel=True), st.integers(0, 2**16))
def test_parts_with_two_tokens_exchanged_do_not_give_the_row_back(made: Made, seed: int) -> None:
    parts = _parts(made)
    first, second = parts["rank0"]["tokens"].copy(), parts["rank1"]["tokens"].copy()
    differing = np.argwhere(first[0][:, None] != second[0][None, :])
    here, there = differing[seed % len(differing)]
    first[0, here], second[0, there] = second[0, there], first[0, here]
    parts["rank0"] = {**parts["rank0"], "tokens": first}
    parts["rank1"] = {**parts["rank1"], "tokens": second}
    report = inspect_batch({**parts, "whole": made.batch}, **_options(made))
    assert {(item.rule, item.fields) for item in report.at_least("warning")} == {(AGREE, ("tokens",))}


@EXAMPLES
@given(offline_batches(context_parallel=True, least=2))
def test_parts_of_exchanged_ranks_are_found_by_their_positions(made: Made) -> None:
    parts = _parts(made)
    swapped = {"rank0": parts["rank1"], "rank1": parts["rank0"], **dict(list(parts.items())[2:])}
    report = inspect_batch(swapped, **_options(made))
    assert {(item.rule, item.fields) for item in report.at_least("warning")} == {(AGREE, ("position_ids",))}


@EXAMPLES
@given(offline_batches(context_parallel=True))
def test_a_rank_with_other_boundaries_is_named(made: Made) -> None:
    parts = _parts(made)
    key = next(name for name in ("cu_seqlens_q_padded", "cu_seqlens_q", "cu_seqlens") if name in made.batch)
    table = parts["rank1"][key].copy()
    table[0, 1] = 0
    parts["rank1"] = {**parts["rank1"], key: table}
    fields = {item.fields for item in inspect_batch(parts, **_options(made)).findings if item.rule == AGREE}
    assert (f"rank1.{key}",) in fields


def test_captured_ranks_are_told_apart_by_their_own_numbers() -> None:
    boundaries = {"cu_seqlens_q": [[0, 8]]}
    parts = {
        "b.pt": _captured({"tokens": [1, 2, 7, 8], "position_ids": [0, 1, 6, 7], **boundaries}, cp_rank=0, cp_size=2),
        "a.pt": _captured({"tokens": [3, 4, 5, 6], "position_ids": [2, 3, 4, 5], **boundaries}, cp_rank=1, cp_size=2),
    }
    report = inspect_batch(parts)
    assert report.findings == ()
    assert report.cp is not None
    assert report.cp.size == 2


def test_tensor_and_pipeline_ranks_hold_the_same_part() -> None:
    boundaries = {"cu_seqlens_q": [[0, 8]]}
    tokens = [[11, 12, 17, 18], [13, 14, 15, 16]]
    positions = [[0, 1, 6, 7], [2, 3, 4, 5]]
    ranks = {
        f"tp{tp}_cp{cp}": {"tokens": tokens[cp], "position_ids": positions[cp], **boundaries}
        for tp in (0, 1)
        for cp in (0, 1)
    }
    assert inspect_batch(ranks).findings == ()
    ranks["tp1_cp1"] = {**ranks["tp1_cp1"], "tokens": [13, 14, 15, 99]}
    (finding,) = inspect_batch(ranks).findings
    assert (finding.rule, finding.fields) == (AGREE, ("tp1_cp1.tokens",))


def test_streams_are_taken_from_the_stage_that_has_them() -> None:
    boundaries = {"cu_seqlens_q": [[0, 8]]}
    ranks: dict[str, dict[str, Any]] = {
        "pp0_cp0": {"tokens": [11, 12, 17, 18], "position_ids": [0, 1, 6, 7], **boundaries},
        "pp0_cp1": {"tokens": [13, 14, 15, 16], "position_ids": [2, 3, 4, 5], **boundaries},
        "pp1_cp0": {"labels": [12, 13, 18, 2], "loss_mask": [0, 1, 1, 1], **boundaries},
        "pp1_cp1": {"labels": [14, 15, 16, 17], "loss_mask": [0, 1, 1, 1], **boundaries},
    }
    whole = {
        "tokens": [[11, 12, 13, 14, 15, 16, 17, 18]],
        "labels": [[12, 13, 14, 15, 16, 17, 18, 2]],
        "loss_mask": [[0, 1, 0, 1, 1, 1, 1, 1]],
        "position_ids": [[0, 1, 2, 3, 4, 5, 6, 7]],
        **boundaries,
    }
    assert inspect_batch({**ranks, "whole": whole}).findings == ()
    ranks["pp1_cp1"]["labels"] = [14, 15, 16, 2]
    (finding,) = inspect_batch({**ranks, "whole": whole}).findings
    assert (finding.rule, finding.fields) == (AGREE, ("labels",))


def test_data_parallel_ranks_hold_different_batches() -> None:
    ranks = {
        "dp0.pt": _captured({"tokens": [[1, 2, 3, 4]], "cu_seqlens_q": [[0, 4]]}, dp_rank=0),
        "dp1.pt": _captured({"tokens": [[5, 6, 7, 8]], "cu_seqlens_q": [[0, 2, 4]]}, dp_rank=1),
    }
    assert inspect_batch(ranks).findings == ()


def test_batches_of_different_steps_are_not_compared() -> None:
    ranks = {
        "first": _captured({"tokens": [[1, 2, 3, 4]], "cu_seqlens_q": [[0, 4]]}, number=0),
        "second": _captured({"tokens": [[5, 6, 7, 8]], "cu_seqlens_q": [[0, 2, 4]]}, number=1),
    }
    assert inspect_batch(ranks).findings == ()


def test_ranks_that_hold_the_whole_row_hold_the_same_one() -> None:
    ranks = {
        f"rank{rank}": {"tokens": [[5, 6, 7, word]], "cu_seqlens_q": [[0, 4]]} for rank, word in enumerate([8, 8, 9])
    }
    (finding,) = inspect_batch(ranks).findings
    assert (finding.rule, finding.fields) == (AGREE, ("rank2.tokens",))


def test_the_release_that_a_capture_names_is_the_one_to_judge_by() -> None:
    batch = {
        "tokens": np.zeros((1, 128), int),
        "cu_seqlens": [[0, 36, 84, 120, 128, -1, -1]],
        "cu_seqlens_argmin": [[5]],
    }
    for release, named in (("0.4.2", True), ("0.5.1", False), ("no version", True)):
        captured = {"batch": batch, "info": {"bridge": release, "cp_size": 2}}
        for source in (captured, {"rank0": captured, "rank1": captured}):
            rules = {item.rule for item in inspect_batch(source).findings}
            assert ("batch-sentinels-reach-the-cut" in rules) == named
    assert inspect_batch({"batch": batch, "info": {"bridge": "0.4.2", "cp_size": 2}}, bridge="0.5.1").findings == ()


def test_some_parts_only_are_not_put_together() -> None:
    part = {"tokens": [11, 12], "position_ids": [0, 7], "cu_seqlens_q": [[0, 8]]}
    other = {"tokens": [13, 14], "position_ids": [1, 6], "cu_seqlens_q": [[0, 8]]}
    report = inspect_batch({"rank0": part, "rank1": other})
    assert report.findings == ()
    assert report.cp is not None
    assert report.cp.size == 4
    assert "2 parts of context parallel size 4 are given: they are not put together" in report.notes


@pytest.mark.parametrize("empty", [{}, {"cu_seqlens_q": None}, {"tokens": None, "labels": None}])
def test_a_stage_without_boundaries_is_named(empty: dict[str, Any]) -> None:
    full = {"cu_seqlens_q": [0, 4, 8]}
    report = inspect_batch({"pp0": full, "pp1": empty, "pp2": full})
    assert {(item.rule, item.fields) for item in report.findings} == {(STAGE, ("pp1.cu_seqlens_q",))}


def test_a_stage_with_tokens_but_no_boundaries_is_named() -> None:
    full = {"tokens": [[5, 6, 7, 8]], "cu_seqlens_q": [[0, 4]]}
    report = inspect_batch({"pp0": full, "pp1": {"tokens": [[5, 6, 7, 8]]}})
    assert {(item.rule, item.fields) for item in report.findings} == {(STAGE, ("pp1.cu_seqlens_q",))}


def test_batches_by_rank_may_stand_in_a_note_of_the_run() -> None:
    full = {"cu_seqlens_q": [0, 4, 8]}
    report = inspect_batch(
        {"parallel": {"TP": 2, "PP": 2}, "batches_by_rank": {"a": full, "b": {"cu_seqlens_q": None}}}
    )
    assert {item.fields for item in report.findings} == {("b.cu_seqlens_q",)}


def test_ordinary_rows_by_rank_are_judged_one_by_one() -> None:
    ranks = {"a": {"tokens": [[5, 6, 7, 8]]}, "b": {"tokens": [[5, 6, 7, 8]], "loss_mask": [[0, 0, 0, 0]]}}
    assert {item.rule for item in inspect_batch(ranks).findings} == {"batch-no-supervision"}


def test_ranks_that_all_hold_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="none of the 2 ranks holds a batch"):
        inspect_batch({"a": {}, "b": {}})
