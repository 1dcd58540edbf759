"""Architecture facts from the config.json of a Hugging Face model."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from skill_run.bridge.names import canonical_field
from skill_run.config.hf import MAX_BYTES, MODEL_FIELDS, facts_from, read_model
from skill_run.errors import InputError

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    return folder


def write(folder: Path, text: str | bytes) -> str:
    data = text if isinstance(text, bytes) else text.encode()
    (folder / "config.json").write_bytes(data)
    return str(folder)


@pytest.mark.parametrize("part", ["", "config.json"])
def test_a_folder_or_its_file_gives_the_same_facts(model: Path, part: str) -> None:
    facts = read_model(str(model / part))
    assert facts["model.num_layers"] == 32
    assert facts == read_model(str(model))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model.num_layers", 32),
        ("model.hidden_size", 4096),
        ("model.ffn_hidden_size", 14336),
        ("model.num_attention_heads", 32),
        ("model.num_query_groups", 8),
        ("model.vocab_size", 128256),
        ("hf.max_position_embeddings", 131072),
        ("hf.num_key_value_heads", 8),
        ("hf.rope_scaling.rope_type", "llama3"),
        ("hf.rope_scaling.factor", 8.0),
        ("hf.rope_scaling.original_max_position_embeddings", 8192),
        ("hf.model_type", "llama"),
        ("model.num_moe_experts", None),
        ("model.is_hybrid_model", False),
        ("model.softmax_type", "vanilla"),
    ],
)
def test_the_facts_have_canonical_names(field: str, value: object) -> None:
    assert facts_from(LLAMA)[field] == value


def test_every_fact_is_a_field_that_rules_can_ask_for() -> None:
    extra = {"index_topk": 1, "sliding_window": 512, "model_type": "mistral", "mamba_num_heads": 2}
    names = {*facts_from(LLAMA), *facts_from(extra), *MODEL_FIELDS} - {"hf.rope_scaling", "hf.model_type"}
    assert [name for name in names if canonical_field(name) is None] == []


@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("n_layer", "model.num_layers"),
        ("n_embd", "model.hidden_size"),
        ("n_head", "model.num_attention_heads"),
        ("num_experts", "model.num_moe_experts"),
        ("num_local_experts", "model.num_moe_experts"),
        ("n_routed_experts", "model.num_moe_experts"),
        ("head_dim", "model.kv_channels"),
        ("mamba_num_heads", "model.mamba_num_heads"),
        ("n_groups", "model.mamba_num_groups"),
        ("linear_num_key_heads", "model.linear_num_key_heads"),
    ],
)
def test_a_fact_is_found_under_each_name_that_models_use(key: str, field: str) -> None:
    assert facts_from({key: 16})[field] == 16


@pytest.mark.parametrize(
    "name", ["model.num_layers", "model.hidden_size", "model.num_attention_heads", "model.vocab_size"]
)
def test_a_count_that_every_model_has_stays_unknown_when_the_file_lacks_it(name: str) -> None:
    assert name not in facts_from({})


@pytest.mark.parametrize("name", ["model.num_moe_experts", "model.num_query_groups", "hf.sliding_window"])
def test_a_part_that_the_file_lacks_is_null(name: str) -> None:
    assert facts_from({})[name] is None


@pytest.mark.parametrize(
    "data",
    [
        {"text_config": {"num_hidden_layers": 3}},
        {"text_config": {"num_hidden_layers": 3}, "num_hidden_layers": 99},
        {"llm_config": {"num_hidden_layers": 3}},
        {"thinker_config": {"num_hidden_layers": 3}},
        {"thinker_config": {"text_config": {"num_hidden_layers": 3}, "vision_config": {"num_hidden_layers": 7}}},
        {"vision_config": {"num_hidden_layers": 7}, "num_hidden_layers": 3},
        {"text_config": None, "num_hidden_layers": 3},
        {"text_config": [1], "num_hidden_layers": 3},
        {"text_config": {}, "num_hidden_layers": 3},
    ],
)
def test_a_multimodal_model_is_described_by_its_text_part(data: dict[str, Any]) -> None:
    assert facts_from(data)["model.num_layers"] == 3


def test_the_experts_of_a_nested_text_part_are_found() -> None:
    data = {"model_type": "qwen3_omni_moe", "thinker_config": {"text_config": {"num_experts": 128}}}
    facts = facts_from(data)
    assert facts["model.num_moe_experts"] == 128
    assert facts["hf.model_type"] == "qwen3_omni_moe"


@pytest.mark.parametrize("value", ["32", 32.0, [32], True, None])
def test_a_count_of_another_type_is_no_fact(value: object) -> None:
    assert "model.num_layers" not in facts_from({"num_hidden_layers": value})


@pytest.mark.parametrize(
    ("rope", "facts"),
    [
        (None, {"hf.rope_scaling": None}),
        ("linear", {"hf.rope_scaling": None}),
        ({}, {"hf.rope_scaling": None}),
        (
            {"type": "yarn", "factor": 4},
            {
                "hf.rope_scaling.rope_type": "yarn",
                "hf.rope_scaling.factor": 4,
                "hf.rope_scaling.original_max_position_embeddings": None,
            },
        ),
        (
            {"type": ["yarn"], "factor": "4", "original_max_position_embeddings": True},
            {
                "hf.rope_scaling.rope_type": None,
                "hf.rope_scaling.factor": None,
                "hf.rope_scaling.original_max_position_embeddings": None,
            },
        ),
    ],
    ids=["none", "text", "empty", "yarn", "wrong types"],
)
def test_rope_scaling_is_read_or_null(rope: object, facts: dict[str, object]) -> None:
    found = facts_from({"rope_scaling": rope})
    assert {name: value for name, value in found.items() if name.startswith("hf.rope_scaling")} == facts


def test_newer_files_call_rope_scaling_rope_parameters() -> None:
    assert facts_from({"rope_parameters": {"rope_type": "yarn"}})["hf.rope_scaling.rope_type"] == "yarn"


@pytest.mark.parametrize(
    ("data", "field", "value"),
    [
        ({"index_topk": 2048}, "model.experimental_attention_variant", "dsa"),
        ({"linear_num_key_heads": 16}, "model.experimental_attention_variant", "gated_delta_net"),
        ({}, "model.experimental_attention_variant", None),
        ({"hybrid_override_pattern": "M-M*"}, "model.is_hybrid_model", True),
        ({"mamba_num_heads": 64}, "model.is_hybrid_model", True),
        ({"model_type": "gpt_oss"}, "model.softmax_type", "learnable"),
        ({"sliding_window": 4096, "model_type": "mistral"}, "model.window_size", [4095, 0]),
        ({"sliding_window": None}, "model.window_size", None),
        ({"sliding_window": 4096, "use_sliding_window": False}, "model.window_size", None),
    ],
)
def test_the_attention_variant_is_told_by_the_keys_of_the_file(data: dict[str, Any], field: str, value: object) -> None:
    assert facts_from(data)[field] == value


def test_a_window_whose_use_is_not_known_is_no_fact() -> None:
    assert "model.window_size" not in facts_from({"sliding_window": 4096, "model_type": "gemma2"})


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-8B", "gpt2", "a\0b", "x" * 5000, "a\nb"])
def test_an_id_gives_no_facts(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_model(name) == {}


@pytest.mark.parametrize("name", ["./missing", "/missing/model", "~/model", "../m", "missing/config.json"])
def test_a_path_that_is_not_there_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        InputError, match=r"is not there; --model takes a folder with config\.json, that file, or a model"
    ):
        read_model(name)


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no config\.json$"):
        read_model(str(tmp_path))


def test_a_pipe_in_place_of_the_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(InputError, match=r"has no config\.json$"):
        read_model(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", ":1:1: not valid JSON: Expecting value"),
        ("{", ":1:2: not valid JSON: Expecting property name enclosed in double quotes"),
        ("[1]", " does not hold a model config"),
        ("null", " does not hold a model config"),
        (b"\xff\xfe{}", " is not UTF-8 text (byte 0)"),
        ('{"a":' * 100_000, ": the JSON is nested too deep"),
        ('{"num_hidden_layers": ' + "9" * 5000 + "}", ": the JSON holds a number with too many digits"),
        (
            json.dumps({"num_hidden_layers": 10**300}),
            " gives a number of more than 60 digits for model.num_layers, which no model has",
        ),
        (
            json.dumps({"num_attention_heads": 0}),
            " gives 0 for model.num_attention_heads, which no model has",
        ),
        (json.dumps({"vocab_size": -1}), " gives -1 for model.vocab_size, which no model has"),
        (" " * (MAX_BYTES + 1), " is larger than 1024 KiB, which no config is"),
    ],
    ids=["empty", "open", "list", "null", "utf-16", "deep", "digits", "huge", "zero", "negative", "large"],
)
def test_a_file_that_describes_no_model_is_refused_with_its_name(model: Path, text: str | bytes, reason: str) -> None:
    with pytest.raises(InputError) as caught:
        read_model(write(model, text))
    assert str(caught.value) == f"{model / 'config.json'}{reason}"


def test_a_byte_order_mark_is_no_fault(model: Path) -> None:
    assert read_model(write(model, b"\xef\xbb\xbf" + json.dumps(LLAMA).encode())) == facts_from(LLAMA)
