from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skill_run.plan.cp_table import TYPICAL
from skill_run.plan.gpus import gpu_rates
from skill_run.plan.layout import Layout
from skill_run.plan.shape import shape_of
from skill_run.plan.traffic import attention_us, heads_of, products_us, traffic_of

H100 = gpu_rates("h100")
PACK = 32768


def squares(number: int, length: int) -> float:
    return float(number * length**2)


@pytest.mark.parametrize(
    ("number", "length", "compute"), [(1, 32768, 1374), (8, 4096, 172), (64, 512, 21)], ids=lambda value: str(value)
)
def test_a_ring_step_takes_what_was_worked_out_by_hand(number: int, length: int, compute: int) -> None:
    # 32 heads on 8 groups of 128, CP 4: 2 x 32 x 128 x sum l^2 / 16 / 400 TFLOP/s; 8192 tokens x 4 KiB of keys, values.
    layout = Layout(cp=4, cp_comm_type="p2p")

    near = traffic_of(TYPICAL, layout, H100, pack_size=PACK, attention=squares(number, length))
    # TP 4 leaves two CP ranks in a node of eight, so that the ring of four leaves it.
    wide = replace(layout, tp=4)
    far = traffic_of(TYPICAL, wide, H100, pack_size=PACK, attention=squares(number, length))

    assert near.step_attention == pytest.approx(compute, abs=0.5)
    assert near.step_transfer == pytest.approx(96, abs=0.5)
    assert (near.link, far.link) == ("nvlink", "network")
    assert far.step_transfer == pytest.approx(671 / 4, abs=0.5)


def test_one_long_sample_hides_the_ring_and_short_ones_do_not() -> None:
    layout = Layout(cp=4, cp_comm_type="p2p")

    verdicts = [
        traffic_of(TYPICAL, layout, H100, pack_size=PACK, attention=squares(number, length)).verdict
        for number, length in ((1, 32768), (8, 4096), (64, 512))
    ]

    assert verdicts == ["hidden", "hidden", "exposed"]


def test_only_what_attention_is_too_short_for_is_exposed() -> None:
    found = traffic_of(TYPICAL, Layout(cp=4, cp_comm_type="p2p"), H100, pack_size=PACK, attention=squares(64, 512))

    assert found.exposed == pytest.approx(3 * (found.step_transfer - found.step_attention))
    assert found.transfer == pytest.approx(3 * found.step_transfer)
    assert found.wait == pytest.approx(found.exposed / (found.exposed + found.attention + found.products))


def test_gathering_moves_as_much_as_the_ring_but_hides_nothing() -> None:
    ring, gathered = (
        traffic_of(TYPICAL, Layout(cp=4, cp_comm_type=comm), H100, pack_size=PACK, attention=squares(1, 32768))
        for comm in ("p2p", "allgather")
    )

    assert gathered.size == ring.size == 3 * 8192 * 2 * 8 * 128 * 2
    assert gathered.exposed == gathered.transfer > 0 == ring.exposed


def test_exchanged_heads_are_queries_output_keys_and_values() -> None:
    found = traffic_of(TYPICAL, Layout(cp=4, cp_comm_type="a2a"), H100, pack_size=PACK, attention=1.0)

    assert found.size == 3 / 4 * 8192 * (2 * 32 + 2 * 8) * 128 * 2
    assert found.exposed == pytest.approx(1e6 * found.size / 350e9)


def test_both_kinds_of_exchange_add_up_in_hierarchical_cp() -> None:
    layout = Layout(cp=16, cp_comm_type="a2a+p2p", hierarchical_sizes=(8, 2))

    found = traffic_of(TYPICAL, layout, H100, pack_size=PACK, attention=1.0)

    # (c1 - 1)/c1 (s/c) (2a + 2g) d e + (c2 - 1) (s/c2) 2 g / c1 d e
    swapped = 7 / 8 * (PACK / 16) * (2 * 32 + 2 * 8) * 128 * 2
    ring = 1 * (PACK / 2) * 2 * 8 / 8 * 128 * 2
    assert found.size == pytest.approx(swapped + ring)
    assert found.link == "network"


def test_exchange_beyond_a_node_takes_the_slower_of_both_links() -> None:
    # 16 ranks, 8 in each node: 8 of the 15 others are outside.
    found = traffic_of(TYPICAL, Layout(cp=16, cp_comm_type="all_gather"), H100, pack_size=PACK, attention=1.0)

    assert found.transfer == pytest.approx(1e6 * found.size * 8 / 15 / 50e9)


def test_a_rack_of_gpus_joins_what_a_node_does_not() -> None:
    rack = traffic_of(TYPICAL, Layout(cp=16), gpu_rates("gb200"), pack_size=PACK, attention=1.0)

    assert rack.link == "nvlink"


def test_without_context_parallelism_nothing_travels() -> None:
    found = traffic_of(TYPICAL, Layout(), H100, pack_size=PACK, attention=squares(1, 32768))

    assert (found.size, found.exposed, found.verdict, found.link) == (0, 0, "hidden", "none")


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]), st.integers(1, 64))
def test_work_is_shared_by_all_ranks_of_a_layer(tp: int, cp: int, number: int) -> None:
    layout = Layout(tp=tp, cp=cp)
    whole = attention_us(TYPICAL, squares(number, 512), Layout(), H100)

    assert attention_us(TYPICAL, squares(number, 512), layout, H100) == pytest.approx(whole / (tp * cp))
    assert products_us(TYPICAL, PACK, layout, H100) == pytest.approx(
        products_us(TYPICAL, PACK, Layout(), H100) / tp / cp
    )


def test_products_count_the_weights_of_a_layer_twice_for_each_token() -> None:
    weights = 4096 * (2 * 32 + 2 * 8) * 128 + 3 * 4096 * 14336

    assert products_us(TYPICAL, 1000, Layout(), H100) == pytest.approx(1e6 * 2 * weights * 1000 / 600e12)


def test_experts_count_by_those_that_a_token_meets() -> None:
    dense, sparse = shape_of("Qwen/Qwen3-8B"), shape_of("Qwen/Qwen3-30B-A3B")

    assert products_us(sparse, PACK, Layout(), H100) < products_us(dense, PACK, Layout(), H100)


def test_latent_attention_exchanges_the_keys_and_values_of_every_head() -> None:
    shape = shape_of("moonshotai/Moonlight-16B-A3B")
    heads = heads_of(shape)

    assert heads.groups == heads.queries == shape.heads
    assert heads.width == shape.qk_nope + shape.qk_rope + shape.v_head
