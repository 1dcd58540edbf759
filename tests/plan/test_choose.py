"""Choosing a layout: what is chosen fits, divides, obeys what the user fixed and our own rules, and is explained."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skill_run import validate_config
from skill_run.bridge.release import index, known_releases
from skill_run.errors import InputError
from skill_run.plan.admitted import release_problems
from skill_run.plan.choose import Choice, choose_layout
from skill_run.plan.layout import Run, problems
from skill_run.plan.links import nvlink_domain
from skill_run.plan.shape import ModelShape, shape_of

MODELS = (
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-30B-A3B",
    "meta-llama/Meta-Llama-3-70B",
    "openai/gpt-oss-20b",
    "moonshotai/Moonlight-16B-A3B",
    "zai-org/GLM-5.2",
    "nvidia/NVIDIA-Nemotron-3-Nano-4B-BF16",
    "Qwen/Qwen3.6-35B-A3B",
    "google/gemma-3-4b-it",
)


def choose(model: str = "Qwen/Qwen3-8B", gpus: int = 16, gpu: str = "h100", fixed: Any = None, **run: Any) -> Choice:
    fields = {"tokens_per_row": 32768, **run}
    return choose_layout(shape_of(model), gpus=gpus, gpu=gpu, run=Run(**fields), fixed=fixed)


def config_of(choice: Choice, shape: ModelShape) -> dict[str, Any]:
    """Return a packed config with the choice in it and what a shape tells of the model."""
    run, layout = choice.run, choice.layout
    rows = layout.data_parallel(1024)
    return {
        **choice.fields,
        "model.seq_length": run.tokens_per_row,
        "dataset.seq_length": run.tokens_per_row,
        "dataset.enable_offline_packing": True,
        "dataset.offline_packing_specs.packed_sequence_size": run.tokens_per_row,
        "dataset.offline_packing_specs.pad_seq_to_mult": 2 * layout.cp * layout.tp if layout.cp > 1 else layout.tp,
        "dataset.dataset_kwargs.pad_to_max_length": True,
        "train.micro_batch_size": run.micro_batch_size,
        "train.global_batch_size": run.global_batch_size or rows,
        "model.calculate_per_token_loss": True,
        "ddp.average_in_collective": False,
        "model.num_layers": shape.layers,
        "model.hidden_size": shape.hidden,
        "model.vocab_size": shape.vocab,
        "model.num_attention_heads": shape.heads,
        "model.num_query_groups": shape.groups,
        "model.num_moe_experts": shape.experts or None,
    }


@given(
    model=st.sampled_from(MODELS),
    gpus=st.sampled_from([1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512]),
    gpu=st.sampled_from(sorted(index()["gpu_memory_gib"])),
    tokens=st.sampled_from([2048, 4096, 8192, 32768, 131072, 200000]),
    bridge=st.sampled_from([None, *known_releases()]),
    packed=st.booleans(),
    peft=st.sampled_from([None, "lora"]),
)
@settings(deadline=None, max_examples=80)
def test_what_is_chosen_fits_divides_and_is_trained_by_the_release(
    model: str, gpus: int, gpu: str, tokens: int, bridge: str | None, packed: bool, peft: str | None
) -> None:
    shape, run = shape_of(model), Run(tokens, packed=packed, peft=peft, bridge=bridge)
    try:
        found = choose_layout(shape, gpus=gpus, gpu=gpu, run=run)
    except InputError:
        return
    assert found.estimate.fits
    assert problems(shape, found.layout, found.run, world_size=gpus) == ()
    assert release_problems(shape, found.layout, found.run) == ()
    assert found.layout.tp <= nvlink_domain(gpu)
    assert (found.run.tokens_per_row, found.run.peft, found.run.packed) == (tokens, peft, packed)
    json.dumps(found.to_dict())


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("gpus", "tokens"), [(512, 32768), (1024, 131072), (768, 8192)])
def test_what_is_chosen_passes_our_own_rules(model: str, gpus: int, tokens: int) -> None:
    shape = shape_of(model)
    rows = 8 * gpus
    found = choose_layout(shape, gpus=gpus, gpu="h100", run=Run(tokens, global_batch_size=rows, bridge="0.6.2"))
    report = validate_config({**config_of(found, shape), "gpu_type": "h100"}, bridge="0.6.2", world_size=gpus)
    severe = [item for item in report.to_dict()["findings"] if item["severity"] in ("error", "corruption")]
    assert severe == []
    memory = [item["rule"] for item in report.to_dict()["findings"] if item["rule"].endswith("memory-fits-gpu")]
    assert memory == []


def test_data_parallelism_comes_first() -> None:
    layout = choose("Qwen/Qwen3-0.6B", gpus=8, tokens_per_row=4096).layout
    assert (layout.tp, layout.pp, layout.cp) == (1, 1, 1)


def test_long_rows_get_context_parallelism_or_tensor_parallelism_inside_a_node() -> None:
    found = choose(gpus=16, tokens_per_row=131072)
    assert found.layout.cp > 1
    assert found.layout.tp <= 8


def test_experts_are_spread_before_tensors_are_split() -> None:
    layout = choose("Qwen/Qwen3-30B-A3B", gpus=16, tokens_per_row=4096).layout
    assert layout.ep > 1
    assert layout.tp == 1


def test_weights_that_no_node_holds_get_pipeline_stages() -> None:
    found = choose("meta-llama/Meta-Llama-3.1-405B", gpus=512, tokens_per_row=8192)
    assert found.layout.pp > 1
    assert found.fields["model.num_layers_in_last_pipeline_stage"] == found.layout.last_stage_layers


def test_adapters_need_fewer_gpus_than_full_finetuning() -> None:
    with pytest.raises(InputError):
        choose("meta-llama/Meta-Llama-3-70B", gpus=8, tokens_per_row=4096)
    assert choose("meta-llama/Meta-Llama-3-70B", gpus=8, tokens_per_row=4096, peft="lora").estimate.fits


def test_attention_sinks_are_exchanged_all_to_all_only() -> None:
    for tokens in (32768, 131072):
        assert choose("openai/gpt-oss-20b", gpus=64, tokens_per_row=tokens).layout.cp_comm_type in (None, "a2a")


def test_sparse_attention_gathers() -> None:
    found = choose("zai-org/GLM-5.2", gpus=1024, tokens_per_row=131072)
    assert found.fields["model.cp_comm_type"] == "allgather"


def test_hierarchical_exchange_is_for_rows_that_are_not_packed() -> None:
    fixed = {"cp": 16, "tp": 4}
    assert choose(gpus=64, tokens_per_row=131072, fixed=fixed).layout.comm == "p2p"
    found = choose(gpus=64, tokens_per_row=131072, packed=False, fixed=fixed).layout
    assert (found.comm, found.hierarchical_sizes) == ("a2a+p2p", (2, 8))


def test_early_releases_train_packs_in_at_most_two_stages() -> None:
    for bridge in ("0.3.1", "0.4.2"):
        assert choose("meta-llama/Meta-Llama-3-70B", gpus=256, tokens_per_row=8192, bridge=bridge).layout.pp <= 2


@pytest.mark.parametrize(
    ("fixed", "tokens"),
    [({"tp": 4}, 32768), ({"cp": 4, "cp_comm_type": "p2p"}, 32768), ({"pp": 2}, 8192), ({"recompute": "full"}, 8192)],
)
def test_what_the_user_fixed_stays(fixed: dict[str, Any], tokens: int) -> None:
    found = choose(fixed=fixed, tokens_per_row=tokens)
    told = {**found.layout.to_dict(), "recompute": found.run.recompute}
    assert {name: told[name] for name in fixed} == fixed
    assert all(text.startswith("You fixed it. ") for name, _, text in found.reasons if name in fixed)


def test_none_is_as_good_as_not_fixed() -> None:
    assert choose(fixed={"tp": None}).layout == choose().layout


def test_no_recompute_can_be_asked_for() -> None:
    assert choose(gpus=64, fixed={"recompute": "none"}).run.recompute is None


@pytest.mark.parametrize(
    ("fixed", "sentence"),
    [
        ({"tensor": 4}, "tensor cannot be fixed; known are tp, pp"),
        ({"tp": 0}, "tp must be a whole number from 1 on, not '0'"),
        ({"tp": True}, "tp must be a whole number from 1 on, not 'True'"),
        ({"recompute": "some"}, "recompute must be one of none, selective, full"),
        ({"cp_comm_type": "ring"}, "cp_comm_type must be one of p2p"),
        ({"sp": 1}, "sp must be true or false"),
        ({"tp": 3}, "no layout of Qwen/Qwen3-8B on 16 GPUs is possible: .*TP"),
        ({"ep": 2}, "EP = 2 needs a model with experts"),
    ],
)
def test_what_cannot_be_fixed_is_said_in_one_sentence(fixed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        choose(fixed=fixed)


@pytest.mark.parametrize("gpus", [0, -1, 10**6])
def test_a_number_of_gpus_that_no_run_has_is_refused(gpus: int) -> None:
    with pytest.raises(InputError, match="cannot be planned for"):
        choose(gpus=gpus)


def test_when_nothing_fits_the_nearest_miss_and_what_would_do_are_named() -> None:
    with pytest.raises(InputError) as caught:
        choose(gpus=1, tokens_per_row=4096)
    sentence = str(caught.value)
    assert "does not fit on 1 H100: the nearest, TP1 with full recompute, needs" in sentence
    assert "2 GPUs would do" in sentence
    assert "optimizer.optimizer_cpu_offload=True" in sentence


def test_the_user_s_own_size_is_blamed_when_it_does_not_fit() -> None:
    with pytest.raises(InputError, match="does not fit on 16 H100: the nearest, TP1 with no recompute"):
        choose(fixed={"tp": 1, "cp": 1, "pp": 1, "recompute": "none"})


def test_every_number_has_one_sentence() -> None:
    found = choose("Qwen/Qwen3-30B-A3B", gpus=16)
    told = {name: value for name, value, _ in found.reasons}
    assert {"tp", "pp", "cp", "ep", "recompute", "dp"} <= set(told)
    assert told["dp"] == found.layout.data_parallel(16)
    for _, _, text in found.reasons:
        assert text.endswith(".")
        assert "\n" not in text
