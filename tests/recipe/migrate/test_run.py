"""`migrate_config`: which release an input is for, what it says of the result, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from skill_run.bridge.recipes import catalogue
from skill_run.errors import InputError
from skill_run.recipe.migrate import migrate_config

HUB = """\
# data
dataset:
  _target_: megatron.bridge.data.builders.hf_dataset.HFDatasetConfig
  dataset_name: rajpurkar/squad
  process_example_fn: {_target_: megatron.bridge.data.hf_processors.squad.process_squad_example, _call_: false}
  seq_length: 4096  # tokens
  # packing
  packed_sequence_specs:   # one pack per step
    packed_sequence_size: 4096
    pad_seq_to_mult: 4 # for CP 2
  val_proportion: 0.1
  do_test: false
"""


def test_yaml_keeps_comments_order_and_layout() -> None:
    result = migrate_config(HUB, to="0.6.2", form="yaml")
    assert isinstance(result.text, str)
    assert (
        result.text
        == """\
# data
dataset:
  _target_: megatron.bridge.data.builders.gpt_sft.GPTSFTDatasetConfig
  hf_dataset: {_target_: megatron.bridge.data.sources.hf.HFDatasetSourceConfig, dataset_name: squad}
  preprocessing: {_target_: megatron.bridge.data.sft_processing.PromptCompletionSFTPreprocessingConfig, \
prompt_column: input, completion_column: output, separator: " "}
  seq_length: 4096  # tokens
  # packing
  offline_packing_specs:   # one pack per step
    packed_sequence_size: 4096
    pad_seq_to_mult: 4 # for CP 2
  enable_offline_packing: true
  hf_validation_proportion: 0.1
  do_test: false
"""
    )
    assert result.clean
    assert result.from_version == "0.5.1"
    assert [change.line for change in result.changes if "packed_sequence_specs" in change.what] == [9]


def test_the_result_is_the_same_data_for_json_tools() -> None:
    told = migrate_config(HUB, to="0.6.2", form="yaml").to_dict()
    assert json.loads(json.dumps(told)) == told
    assert list(told) == [
        *("source", "form", "from_version", "to_version", "because", "clean", "changes", "manual", "differences"),
        *("note", "report", "text"),
    ]


@pytest.mark.parametrize("to", ["0.6.2", "0.6.9", "v0.6.0"])
def test_an_input_for_the_target_has_nothing_to_do(to: str) -> None:
    source = {"dataset": {"type": "GPTSFTDatasetConfig", "enable_offline_packing": False}}
    result = migrate_config(source, to=to)
    assert result.text == source
    assert result.note.startswith("nothing to do: ")
    assert result.clean


def test_an_input_that_fits_every_release_asks_for_the_one_it_was_written_for() -> None:
    result = migrate_config({"model": {"expert_model_parallel_size": 4, "tensor_model_parallel_size": 2}}, to="0.6.2")
    assert "say which release it was written for" in result.note
    told = migrate_config(result.text, to="0.6.2", bridge="0.5.1")
    assert isinstance(told.text, dict)
    assert told.text["model"]["expert_tensor_parallel_size"] == 2


@pytest.mark.parametrize(
    ("bridge", "to", "pinned"), [("0.5.1", "0.6.2", 8), ("0.6.2", "0.5.1", 1), ("0.3.1", "0.5.1", None)]
)
def test_expert_tensor_parallelism_is_pinned_where_its_default_differs(
    bridge: str, to: str, pinned: int | None
) -> None:
    tree = {"model": {"expert_model_parallel_size": 4, "tensor_model_parallel_size": 8}}
    result = migrate_config(tree, to=to, bridge=bridge)
    assert isinstance(result.text, dict)
    assert result.text["model"].get("expert_tensor_parallel_size") == pinned


@pytest.mark.parametrize("tensor", [1, None])
def test_expert_tensor_parallelism_is_left_where_it_plays_no_part(tensor: int | None) -> None:
    model = {"expert_model_parallel_size": 4, **({"tensor_model_parallel_size": tensor} if tensor else {})}
    assert migrate_config({"model": model}, to="0.6.2", bridge="0.5.1").text == {"model": model}


def test_names_of_both_releases_in_one_file_become_one() -> None:
    tree = {
        "dataset": {
            "packed_sequence_specs": {"packed_sequence_size": 64},
            "enable_offline_packing": True,
            "offline_packing_specs": {"packed_sequence_size": 64},
        }
    }
    result = migrate_config(tree, to="0.6.2", bridge="0.5.1")
    assert result.text == {
        "dataset": {"enable_offline_packing": True, "offline_packing_specs": {"packed_sequence_size": 64}}
    }


def test_two_spellings_with_two_values_are_listed() -> None:
    tree = {
        "dataset": {
            "packed_sequence_specs": {"packed_sequence_size": 64},
            "offline_packing_specs": {"packed_sequence_size": 128},
        }
    }
    result = migrate_config(tree, to="0.6.2", bridge="0.5.1")
    assert "both set, to different values" in result.manual[0].reason
    assert not result.clean


def test_switching_packing_off_takes_both_fields_from_0_6_on() -> None:
    result = migrate_config({"dataset": {"packed_sequence_specs": None}}, to="0.6.2", bridge="0.5.1")
    assert result.text == {"dataset": {"offline_packing_specs": None, "enable_offline_packing": False}}
    back = migrate_config(result.text, to="0.5.1", bridge="0.6.2")
    assert back.text == {"dataset": {"packed_sequence_specs": None}}


def test_a_field_without_a_successor_stays_and_is_listed() -> None:
    tree = {"dataset": {"dataset_root": "/d", "seq_length": 8}, "train": {"num_epochs": 2.0}}
    result = migrate_config(tree, to="0.5.1", bridge="0.6.2")
    assert result.text == tree
    assert [item.what for item in result.manual] == ["train.num_epochs"]


def test_a_class_without_a_successor_is_listed_with_what_to_use() -> None:
    tree = {"dataset": {"type": "PreloadedVLMConversationProvider", "seq_length": 8}}
    result = migrate_config(tree, to="0.6.2", bridge="0.5.1")
    assert "local-vlm" in result.manual[0].do


def test_a_data_set_with_a_function_of_its_own_is_left_as_it_is() -> None:
    text = HUB.replace("megatron.bridge.data.hf_processors.squad.process_squad_example", "team.data.process")
    result = migrate_config(text, to="0.6.2", form="yaml")
    assert result.text == text
    assert [item.line for item in result.manual] == [5]
    assert not result.clean


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"do_test": True}, {"dataset_name": "squad", "split": "validation"}),
        ({"dataset_name": "mine/squad-like"}, {"path_or_dataset": "mine/squad-like", "schema_adapter": "squad"}),
    ],
)
def test_the_samples_of_a_hub_dataset_stay_the_same(old: dict[str, Any], new: dict[str, Any]) -> None:
    tree = yaml.safe_load(HUB)
    tree["dataset"].update(old)
    result = migrate_config(tree, to="0.6.2")
    assert isinstance(result.text, dict)
    key = "hf_test_dataset" if "do_test" in old else "hf_dataset"
    source = {name: value for name, value in result.text["dataset"][key].items() if name != "_target_"}
    assert source == new


def test_samples_that_0_5_held_back_without_validating_are_listed() -> None:
    tree = yaml.safe_load(HUB)
    tree["dataset"]["do_validation"] = False
    result = migrate_config(tree, to="0.6.2")
    assert "left 0.1 of the training split out" in result.manual[0].reason


def test_recipe_defaults_that_changed_are_told_and_pinned_on_demand() -> None:
    name, field = "qwen3_30b_a3b_sft_config", "model.expert_model_parallel_size"
    old, new = (catalogue(version)[name].values[field] for version in ("0.5.1", "0.6.2"))
    assert old != new
    tokens = ["train.eval_iters=3", "dataset.packed_sequence_specs.pad_seq_to_mult=2"]
    told = migrate_config(None, overrides=tokens, to="0.6.2", bridge="0.5.1", recipe=name)
    assert any(d.field == field and "--pin-recipe" in d.why for d in told.differences)
    pinned = migrate_config(None, overrides=tokens, to="0.6.2", bridge="0.5.1", recipe=name, pin_recipe=True)
    assert f"++{field}={old}" in str(pinned.text)
    assert not any(d.field == field for d in pinned.differences)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"source": "a: 1\n", "to": "1.x"}, "'1.x' is not a Megatron-Bridge version"),
        ({"source": "a: 1\n", "to": "0.6.2", "bridge": "soon"}, "'soon' is not a Megatron-Bridge version"),
        ({"source": "\n", "to": "0.6.2"}, "<text> is empty"),
        ({"source": "a: [1\n", "to": "0.6.2"}, "<text>:2:1: not valid YAML"),
        ({"source": "- 1\n- 2\n", "to": "0.6.2"}, "the top level must be a mapping"),
        ({"source": "nowhere.yaml", "to": "0.6.2"}, "nowhere.yaml is not there"),
        ({"source": {"a": 1}, "overrides": ["a.b=1"], "to": "0.6.2"}, "give either a config or overrides"),
        ({"source": None, "overrides": ["a.b"], "to": "0.6.2"}, "override 'a.b' has no '='"),
        ({"source": None, "to": "0.6.2"}, "nothing to migrate"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        migrate_config(**arguments)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(b"\xff\xfe\x00a", "is not UTF-8 text"), (b"a: 1\n" * 2_000_000, "larger than 4096 KiB")],
    ids=["utf-16", "huge"],
)
def test_files_that_are_no_text_or_too_large_are_refused(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        migrate_config(path, to="0.6.2")
