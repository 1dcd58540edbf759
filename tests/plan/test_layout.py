"""Divisibility of layouts, one sentence for each size that does not divide."""

from __future__ import annotations

import pytest

from skill_run.plan.layout import Layout, Run, heads_exchanged, problems
from skill_run.plan.shape import shape_of


@pytest.mark.parametrize(
    ("model", "layout", "world", "sentence"),
    [
        ("Qwen/Qwen3-8B", Layout(tp=4, cp=2, sp=True), 12, "12 GPUs cannot be divided by TP x PP x CP = 8"),
        ("Qwen/Qwen3-8B", Layout(tp=3, sp=True), 3, "32 attention heads cannot be divided by TP = 3"),
        ("Qwen/Qwen3-8B", Layout(pp=5), 5, "36 layers cannot be divided by PP x VPP = 5"),
        ("Qwen/Qwen3-8B", Layout(vpp=2), 1, "virtual pipeline stages need PP > 1"),
        ("Qwen/Qwen3-8B", Layout(ep=2), 2, "EP = 2 needs a model with experts"),
        ("Qwen/Qwen3-8B", Layout(sp=True), 1, "sequence parallelism needs TP > 1"),
        ("Qwen/Qwen3-8B", Layout(cp=3), 3, "rows of 8192 tokens cannot be divided by 2 x CP = 6"),
        (
            "Qwen/Qwen3-8B",
            Layout(cp=16, cp_comm_type="a2a"),
            16,
            "8 key-value groups over TP 1 cannot be divided by 16",
        ),
        ("Qwen/Qwen3-8B", Layout(cp=4, cp_comm_type="a2a+p2p"), 4, "a2a+p2p needs two hierarchical sizes"),
        ("Qwen/Qwen3-8B", Layout(pp=5, last_stage_layers=6), 5, "36 layers cannot be spread over PP = 5 with 6"),
        ("Qwen/Qwen3-30B-A3B", Layout(ep=24), 24, "128 experts cannot be divided by EP = 24"),
        ("Qwen/Qwen3-30B-A3B", Layout(ep=16), 8, "8 GPUs cannot be divided by EP x ETP x PP = 16"),
        ("Qwen/Qwen3-30B-A3B", Layout(tp=2, ep=2), 4, "experts with TP > 1 need sequence parallelism"),
        (
            "nvidia/NVIDIA-Nemotron-3-Nano-4B-BF16",
            Layout(cp=64),
            64,
            "96 Mamba heads cannot be divided by TP x CP = 64",
        ),
        ("nvidia/NVIDIA-Nemotron-3-Nano-4B-BF16", Layout(cp=12), 12, "8 Mamba groups do not fit TP = 1 and CP = 12"),
        ("Qwen/Qwen3.6-35B-A3B", Layout(cp=32), 32, "16 linear attention key heads cannot be divided by TP x CP = 32"),
    ],
)
def test_a_size_that_does_not_divide_is_named(model: str, layout: Layout, world: int, sentence: str) -> None:
    found = problems(shape_of(model), layout, Run(8192), world_size=world)
    assert any(sentence in text for text in found), found


@pytest.mark.parametrize(
    ("model", "layout", "world"),
    [
        ("Qwen/Qwen3-8B", Layout(tp=4, cp=2, sp=True, cp_comm_type="a2a"), 8),
        ("Qwen/Qwen3-30B-A3B", Layout(tp=8, cp=2, ep=8, sp=True), 16),
        ("meta-llama/Meta-Llama-3.1-405B", Layout(tp=8, pp=8, sp=True, last_stage_layers=14), 128),
        ("zai-org/GLM-5.2", Layout(pp=6, cp=32, ep=32, cp_comm_type="allgather"), 192),
        ("nvidia/NVIDIA-Nemotron-3-Nano-4B-BF16", Layout(tp=2, cp=2, sp=True, cp_comm_type="a2a"), 8),
        ("Qwen/Qwen3-8B", Layout(cp=16, cp_comm_type="a2a+p2p", hierarchical_sizes=(8, 2)), 16),
    ],
)
def test_layouts_that_upstream_runs_divide(model: str, layout: Layout, world: int) -> None:
    assert problems(shape_of(model), layout, Run(131072), world_size=world) == ()


def test_a_global_batch_must_divide_by_the_rows_at_once() -> None:
    found = problems(shape_of("Qwen/Qwen3-8B"), Layout(), Run(8192, global_batch_size=12), world_size=8)
    assert found == ("a global batch of 12 cannot be divided by MBS x DP = 8",)


def test_sizes_of_the_groups_follow_from_the_world() -> None:
    layout = Layout(tp=2, pp=2, cp=2, ep=8, sp=True)
    assert (layout.data_parallel(64), layout.expert_data_parallel(64), layout.ranks) == (8, 4, 16)


def test_heads_are_exchanged_over_all_or_the_first_level() -> None:
    assert heads_exchanged(Layout(cp=4)) == 1
    assert heads_exchanged(Layout(cp=4, cp_comm_type="a2a")) == 4
    assert heads_exchanged(Layout(cp=8, cp_comm_type="a2a+p2p", hierarchical_sizes=(4, 2))) == 4


def test_a_layout_is_written_as_people_write_it() -> None:
    layout = Layout(tp=4, pp=2, vpp=5, cp=2, ep=8, sp=True, cp_comm_type="a2a")
    assert str(layout) == "TP4 PP2 VPP5 CP2 a2a EP8 SP"
    assert str(Layout()) == "TP1"


def test_the_spelling_of_sparse_attention_is_understood() -> None:
    assert Layout(cp=2, cp_comm_type="allgather").comm == "all_gather"
    assert Layout(cp=2).comm == "p2p"
