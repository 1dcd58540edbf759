from __future__ import annotations

import pytest

from skill_run.plan.cp_table import TYPICAL, comm_layouts, cp_table, degrees
from skill_run.plan.gpus import gpu_rates
from skill_run.plan.layout import CP_COMM_TYPES, Layout, Run
from skill_run.plan.shape import shape_of

H100 = gpu_rates("h100")


def run(tokens: int, bridge: str = "0.6.2") -> Run:
    return Run(tokens_per_row=tokens, bridge=bridge)


@pytest.mark.parametrize(
    ("layout", "pack", "gpus", "expected"),
    [
        (Layout(), 32768, None, (2, 4, 8, 16)),
        (Layout(tp=4), 32768, 16, (2, 4)),
        (Layout(tp=2, pp=2), 32768, 16, (2, 4)),
        (Layout(cp=3), 32768, 8, (2, 3, 4, 8)),
        (Layout(), 4096, 64, (2, 4)),
        (Layout(), 1024, 64, ()),
    ],
)
def test_degrees_are_those_that_the_gpus_and_the_pack_leave(
    layout: Layout, pack: int, gpus: int | None, expected: tuple[int, ...]
) -> None:
    assert degrees(layout, pack, gpus) == expected


def test_heads_are_exchanged_inside_a_node_and_keys_go_round_between_nodes() -> None:
    found = {each.comm: each for each in comm_layouts(TYPICAL, Layout(), 16, "h100")}

    assert tuple(found) == CP_COMM_TYPES
    assert found["a2a+p2p"].hierarchical_sizes == (8, 2)


def test_without_heads_to_divide_there_is_no_hierarchy() -> None:
    found = {each.comm for each in comm_layouts(TYPICAL, Layout(tp=8), 4, "h100")}

    assert "a2a+p2p" not in found


def test_a2a_is_impossible_where_heads_do_not_divide_and_says_which() -> None:
    rows = cp_table(TYPICAL, Layout(tp=2, sp=True), run(65536), H100, gpus=32, attention=1e8)

    (row,) = [row for row in rows if row.layout.cp == 8 and row.layout.comm == "a2a"]
    assert row.verdict == "impossible"
    assert row.why == "8 key-value groups over TP 2 cannot be divided by 8 for a2a"


def test_types_that_need_a_newer_transformer_engine_say_so() -> None:
    rows = cp_table(TYPICAL, Layout(), run(32768), H100, gpus=16, attention=1e8)

    told = {row.layout.comm: row.why for row in rows if row.layout.cp == 4}
    assert "2.18" in str(told["all_gather"])
    assert "after 2.18" in str(told["a2a+p2p"])
    assert told["p2p"] is told["a2a"] is None


@pytest.mark.parametrize(("model", "possible"), [("openai/gpt-oss-20b", {"a2a"}), ("zai-org/GLM-5.2", {"all_gather"})])
def test_models_with_one_kind_of_exchange_have_no_other(model: str, possible: set[str]) -> None:
    rows = cp_table(shape_of(model), Layout(), run(32768), H100, gpus=8, attention=1e8)

    assert {row.layout.comm for row in rows if row.verdict != "impossible"} == possible


def test_a_release_without_cp_for_a_model_says_so() -> None:
    rows = cp_table(shape_of("zai-org/GLM-5.2"), Layout(), run(32768, "0.5.1"), H100, gpus=8, attention=1e8)

    assert {row.verdict for row in rows} == {"impossible"}


def test_rows_are_json_ready_and_have_no_figures_where_nothing_is_possible() -> None:
    rows = cp_table(TYPICAL, Layout(tp=8), run(32768), H100, gpus=16, attention=1e8)

    for row in rows:
        told = row.to_dict()
        assert (told["transfer_us"] is None) == (row.verdict == "impossible")
        assert set(told) == set(rows[0].to_dict())
