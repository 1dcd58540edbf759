"""A model's shape from a folder, a file, the hub's cache or the published tables, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from skill_run.errors import InputError
from skill_run.plan.shape import ModelShape, shape_of

CONFIG = (
    '{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 512, '
    '"intermediate_size": 128, "model_type": "llama"}'
)


def test_a_folder_and_its_file_tell_the_same(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(CONFIG)
    shape = shape_of(tmp_path)
    assert (shape.hidden, shape.layers, shape.groups, shape.head_dim) == (64, 2, 4, 16)
    assert shape.source == str(tmp_path)
    assert shape_of(tmp_path / "config.json").blocks == shape.blocks == ("*-", "*-")


def test_an_id_is_looked_up_in_the_hub_cache_before_the_published_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert shape_of("Qwen/Qwen3-8B").source == "published"
    folder = tmp_path / "models--Qwen--Qwen3-8B" / "snapshots" / "1"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(CONFIG)
    assert shape_of("Qwen/Qwen3-8B").hidden == 64


def test_the_recipes_model_counts_where_none_is_named() -> None:
    assert shape_of(None, "Qwen/Qwen3-8B").name == "Qwen/Qwen3-8B"
    assert shape_of("Qwen/Qwen3-4B", "Qwen/Qwen3-8B").name == "Qwen/Qwen3-4B"


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (None, "no model is named"),
        ("nobody/nothing", "the sizes of nobody/nothing are not known here"),
        ("./missing", "./missing is not there"),
        ("missing/config.json", "missing/config.json is not there"),
    ],
)
def test_what_is_not_there_is_said_in_one_sentence(model: str | None, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        shape_of(model)


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no config\.json"):
        shape_of(tmp_path)


def test_kinds_of_models_are_told_apart() -> None:
    dense, sparse = shape_of("Qwen/Qwen3-8B"), shape_of("zai-org/GLM-5.2")
    hybrid, linear = shape_of("nvidia/NVIDIA-Nemotron-Nano-9B-v2"), shape_of("Qwen/Qwen3.6-35B-A3B")
    assert [dense.hybrid, hybrid.hybrid, linear.hybrid] == [False, True, True]
    assert (sparse.mla, sparse.sparse_attention, dense.sparse_attention) == (True, True, False)
    assert shape_of("openai/gpt-oss-20b").sinks
    assert not dense.sinks
    assert shape_of("google/gemma-3-4b-it").biased_attention
    assert not shape_of("google/gemma-3-1b-it").biased_attention


def test_a_prediction_layer_is_one_attention_and_one_feed_forward_block() -> None:
    assert shape_of("deepseek-ai/DeepSeek-V3").mtp_blocks == ("*E",)
    assert shape_of("Qwen/Qwen3.5-27B").mtp_blocks == ("*-",)


def test_a_model_without_heads_does_not_attend() -> None:
    assert not ModelShape("mamba", ("M",) * 4, 64, 512).has_attention
