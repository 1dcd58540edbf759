"""Packed against unpacked training in real workers: every layout agrees, and every fault put in is found and named."""

from __future__ import annotations

from typing import Any

import pytest

from skill_run.errors import InputError
from skill_run.worker.environments import Worker
from skill_run.worker.session import Event, run_task

MODEL = {
    "num_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_query_groups": 4,
    "kv_channels": 8,
    "ffn_hidden_size": 64,
    "vocab_size": 64,
    "normalization": "RMSNorm",
    "gated_linear_unit": True,
    "activation": "silu",
    "nothing_that_exists": 1,
}
# Lengths of 1, odd ones, and some on the grid; prompts and answers; packs that are not full.
LENGTHS = [[(1, 1), (21, 19), (8, 6), (11, 7)], [(13, 13), (4, 4), (9, 7), (15, 10), (1, 1)]]
REQUEST: dict[str, Any] = {
    "model": MODEL,
    "packs": [[{"length": length, "trained": trained} for length, trained in pack] for pack in LENGTHS],
    "pack_size": 80,
    "pad_seq_to_mult": 8,
    "dtype": "float64",
    "steps": 2,
    "layouts": [
        {"cp": 2, "cp_comm_type": "all_gather"},
        {"cp": 2, "cp_comm_type": "p2p"},
        {"cp": 2, "cp_comm_type": "a2a"},
        {"cp": 4, "cp_comm_type": "all_gather"},
        {"cp": 4, "cp_comm_type": "p2p"},
        {"cp": 2, "tp": 2},
        {"cp": 2, "tp": 2, "sp": True, "cp_comm_type": "p2p"},
        {"cp": 2, "dp": 2},
        {"pp": 2, "cp": 2},
    ],
    "controls": [
        "contiguous-split",
        "ignored-boundaries",
        "loss-scaling",
        "cp-loss-factor",
        "pad-multiple-1",
        "logical-boundaries",
        "sentinel",
        "dense-zigzag",
        "loss-mask-shift",
        "middle-stage-without-boundaries",
    ],
}


@pytest.fixture(scope="module", params=["core_worker", "bridge_worker"])
def parity(request: pytest.FixtureRequest) -> dict[str, Any]:
    """One run of every layout and control in each kind of worker, with its events."""
    events: list[Event] = []
    result = run_task(request.getfixturevalue(request.param), "parity", REQUEST, on_event=events.append)
    return {**result, "events": events}


def test_every_layout_agrees_with_unpacked_training_to_1e_12(parity: dict[str, Any]) -> None:
    assert len(parity["layouts"]) == len(REQUEST["layouts"])
    for layout in parity["layouts"]:
        assert layout["passed"], layout
        assert max(layout["loss_error"], layout["gradient_error"], layout["worst"]["error"]) < 1e-13
        assert layout["diagnosis"] is None


def test_optimizer_steps_agree(parity: dict[str, Any]) -> None:
    for layout in parity["layouts"]:
        assert layout["steps"]["count"] == 2
        assert layout["steps"]["loss_error"] < 1e-13
        assert layout["steps"]["parameter_error"] < 1e-13


def test_nothing_leaks_and_every_later_token_moves(parity: dict[str, Any]) -> None:
    for layout in parity["layouts"]:
        leak = layout["leak"]
        assert leak["passed"]
        assert (leak["outside"], leak["before"], leak["unmoved"]) == (0.0, 0.0, 0)
        # Stages do not pass gradients by embeddings, so a pipeline does not tell.
        assert leak["gradient_outside"] == (None if layout["layout"]["pp"] > 1 else 0.0)


def test_every_fault_put_in_is_caught_and_named(parity: dict[str, Any]) -> None:
    assert [control["name"] for control in parity["controls"]] == REQUEST["controls"]
    for control in parity["controls"]:
        assert (control["caught"], control["right_diagnosis"]) == (True, True), control


def test_wrong_loss_scaling_changes_the_gradients_alone(parity: dict[str, Any]) -> None:
    by_name = {control["name"]: control for control in parity["controls"]}
    for name in ("loss-scaling", "cp-loss-factor"):
        assert by_name[name]["loss_error"] < 1e-14
        assert by_name[name]["gradient_error"] > 1e-2
    assert abs(by_name["cp-loss-factor"]["norm_ratio"] - 2) < 0.5


def test_a_pad_multiple_of_one_is_refused_when_checked_and_wrong_when_not(parity: dict[str, Any]) -> None:
    control = next(control for control in parity["controls"] if control["name"] == "pad-multiple-1")
    assert "no multiple of 2*CP = 4" in control["refused"]
    assert control["leak"]["lost"] > 0
    assert control["gradient_error"] > 1e-2


def test_ranks_whose_tokens_are_all_masked_stay_finite_and_agree(parity: dict[str, Any]) -> None:
    assert parity["all_masked"]["finite"] is True
    assert parity["all_masked"]["gradient_error"] < 1e-13


def test_the_report_tells_versions_reference_and_what_was_left_out(parity: dict[str, Any]) -> None:
    assert parity["environment"]["device"] == "cpu"
    assert parity["environment"]["versions"]["megatron-core"] in ("0.16.1", "0.19.2")
    assert parity["reference"]["tokens"] == sum(trained for pack in LENGTHS for _, trained in pack)
    assert parity["notes"] == ["model fields that this comparison does not know are left out: nothing_that_exists"]


def test_progress_is_told_for_every_case(parity: dict[str, Any]) -> None:
    told = [event["text"] for event in parity["events"] if event["event"] == "progress"]
    assert told[0] == "loading Megatron"
    assert "packed on CP 2 x TP 2 x SP, p2p" in told
    assert sum(text.startswith("fault put in") for text in told) == len(REQUEST["controls"])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"dtype": "int8"}, "dtype 'int8' is none of float64, float32, bfloat16"),
        ({"controls": ["cosmic-rays"]}, "there is no control 'cosmic-rays'"),
        ({"packs": [[]]}, "there are no sequences to pack"),
        ({"layouts": [{"cp": 2, "ep": 3}]}, "no run can have the parallel sizes"),
        ({"device": "tpu"}, "device 'tpu' is none of cpu, cuda"),
    ],
)
def test_a_request_that_no_run_can_answer_is_refused_in_one_sentence(
    core_worker: Worker, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence.replace("*", r"\*")):
        run_task(core_worker, "parity", {**REQUEST, **changes})


def test_lengths_that_cp_cannot_cut_fail_with_their_diagnosis(core_worker: Worker) -> None:
    request = {**REQUEST, "pad_seq_to_mult": 1, "layouts": [{"cp": 2}], "controls": [], "steps": 0}
    layout = run_task(core_worker, "parity", request)["layouts"][0]
    assert layout["passed"] is False
    assert layout["diagnosis"]["name"] == "pad-multiple-1"
    assert layout["loss_error"] is None
