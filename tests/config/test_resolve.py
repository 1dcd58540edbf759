"""Sources to one Config: states, places, names of other releases, overrides, recipes and full dumps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from skill_run.bridge.recipes import find_recipe
from skill_run.bridge.version import Evidence, choose
from skill_run.config.config import Config
from skill_run.config.model import CONDITION, NOWHERE, Assignment, Location, Plain, Remark, Source, State, Unknown
from skill_run.config.resolve import evidence_names, resolve
from skill_run.errors import InputError
from skill_run.rules.validate import build_config, read_sources

SET, UNSET, UNKNOWN = State.SET, State.UNSET, State.UNKNOWN
NO_EVIDENCE = Evidence((), None, ())


def resolved(source: Any, overrides: Sequence[str] = (), *, bridge: str = "0.6.2", **settings: Any) -> Config:
    sources = read_sources(source, bridge=bridge, overrides=overrides, recipe=settings.get("recipe"))
    return build_config(sources, bridge=bridge, **settings)


def from_code(*assignments: Assignment, recipe: str | None = None, bridge: str = "0.5.1", **extra: Any) -> Config:
    """Resolve what a reader of Python code hands over."""
    source = Source("python", "train.py", assignments=list(assignments), recipe=recipe, **extra)
    choice = choose(bridge, NO_EVIDENCE)
    found = find_recipe(recipe, choice.release) if recipe else None
    return resolve([source], choice, recipe=found, recipe_name=recipe)


def state(config: Config, field: str) -> tuple[State, Plain]:
    found = config.get(field)
    return found.state, found.value


def remark(config: Config) -> Remark:
    assert len(config.remarks) == 1, config.remarks
    return config.remarks[0]


def refusal(source: Any, overrides: Sequence[str] = (), **settings: Any) -> str:
    with pytest.raises(InputError) as caught:
        resolved(source, overrides, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


PYTHON = """from megatron.bridge.recipes.gemma import gemma2_2b_sft_config
cfg = gemma2_2b_sft_config()
cfg.model.context_parallel_size = 2
"""
COMMAND = "torchrun run_recipe.py --recipe gemma2_2b_sft_config model.context_parallel_size=2"


@pytest.mark.parametrize(
    ("source", "form", "place"),
    [
        ("model:\n  context_parallel_size: 2\n", "yaml", "<text>:2:26"),
        ("# note\nmodel: {sequence_parallel: true, context_parallel_size: 2}\n", "yaml", "<text>:2:57"),
        ("train.micro_batch_size: 1\nmodel.context_parallel_size: 2\n", "yaml", "<text>:2:30"),
        ('{"model": {"context_parallel_size": 2}}', "json", "<text>:1:37"),
        ({"model": {"context_parallel_size": 2}}, None, "input"),
        ({"model.context_parallel_size": 2}, None, "input"),
        (PYTHON, "python", "<text>:3:1"),
    ],
    ids=["block", "flow", "dotted", "json", "nested mapping", "dotted mapping", "python"],
)
def test_a_value_is_set_and_knows_its_place(source: Any, form: Any, place: str) -> None:
    config = build_config(read_sources(source, form=form, bridge="0.6.2"), bridge="0.6.2")
    assert state(config, "model.context_parallel_size") == (SET, 2)
    found = config.get("model.context_parallel_size")
    assert str(found.location) == place
    assert found.written == "model.context_parallel_size"


def test_an_override_is_set_at_the_number_of_its_argument() -> None:
    config = resolved(None, ["train.micro_batch_size=1", "model.context_parallel_size=2"])
    assert config.get("model.context_parallel_size").location == Location(column=2)


def test_an_override_of_a_command_line_is_set() -> None:
    config = resolved(COMMAND)
    assert state(config, "model.context_parallel_size") == (SET, 2)
    assert config.get("model.context_parallel_size").location != NOWHERE


def test_dotted_and_nested_spelling_resolve_alike() -> None:
    nested = resolved(
        {"model": {"context_parallel_size": 2}, "dataset": {"offline_packing_specs": {"pad_seq_to_mult": 4}}}
    )
    dotted = resolved({"model.context_parallel_size": 2, "dataset.offline_packing_specs.pad_seq_to_mult": 4})
    assert nested.values == dotted.values
    assert nested.dataset_type == dotted.dataset_type == "GPTSFTDatasetConfig"


@pytest.mark.parametrize(
    ("section", "field", "cls"),
    [
        ("dataset", "dataset.type", "GPTSFTDatasetConfig"),
        ("model", "model.type", "Gemma2ModelProvider"),
        ("peft", "peft.type", "LoRA"),
    ],
)
def test_the_class_of_a_section_is_its_type(section: str, field: str, cls: str) -> None:
    for source in ({section: {"_target_": f"megatron.bridge.some.module.{cls}"}}, {f"{section}.type": cls}):
        assert state(resolved(source), field) == (SET, cls)


def test_the_model_class_tells_the_family() -> None:
    assert resolved({"model": {"_target_": "x.Gemma2ModelProvider"}}).family == "gemma-2"


@pytest.mark.parametrize("target", [3, None, ["x"], ""])
def test_a_class_that_is_no_text_is_not_taken(target: Any) -> None:
    config = resolved({"dataset": {"_target_": target}})
    assert config.dataset_type is None
    assert config.get("dataset.type").state is UNKNOWN


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ({"_call_": False, "_target_": "torch.bfloat16"}, "torch.bfloat16"),
        ({"_args_": [5], "_call_": True, "_name_": "auto", "_target_": "enums.AttnBackend"}, "auto"),
    ],
)
def test_dtypes_and_enums_are_their_names(written: dict[str, Any], value: str) -> None:
    config = resolved({"model": {"params_dtype": written, "attention_backend": written}})
    assert state(config, "model.params_dtype") == (SET, value)
    assert state(config, "model.attention_backend") == (SET, value)


@pytest.mark.parametrize(
    ("given", "cls"),
    [
        ({"dataset.offline_packing_specs.pad_seq_to_mult": 4}, "GPTSFTDatasetConfig"),
        ({"dataset.dataset_root": "/data"}, "GPTSFTDatasetConfig"),
        ({"dataset.blend": ["/data"]}, "GPTDatasetConfig"),
        ({"dataset.task_encoder": None}, "EnergonDatasetConfig"),
        ({"dataset.seed": 1}, None),
        ({"dataset": {"_target_": "x.DirectHFSFTDatasetConfig", "dataset_root": "/data"}}, "DirectHFSFTDatasetConfig"),
    ],
)
def test_a_dataset_without_class_is_told_by_its_fields(given: dict[str, Any], cls: str | None) -> None:
    assert resolved(given).dataset_type == cls


@pytest.mark.parametrize("written", ["a2a", ["a2a"]])
@pytest.mark.parametrize("field", ["model.cp_comm_type", "model.recompute_modules", "model.cuda_graph_modules"])
def test_a_name_and_a_list_of_one_name_are_the_same(field: str, written: Any) -> None:
    assert state(resolved({field: written}), field) == (SET, ["a2a"])


@pytest.mark.parametrize(("written", "as_list"), [("a2a", False), (["a2a"], True), (["a2a", "p2p"], True)])
def test_a_list_is_told_from_one_name_for_those_who_count_it(written: Any, as_list: bool) -> None:
    assert resolved({"model.cp_comm_type": written}).get("model.cp_comm_type").as_list is as_list


def test_a_whole_number_for_a_float_is_a_float() -> None:
    found = resolved({"optimizer.lr": 1}).get("optimizer.lr").value
    assert isinstance(found, float)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (
            "train:\n  micro_batch_size: two\n",
            "<text>:2:21: train.micro_batch_size is 'two', but it must be a whole number",
        ),
        ({"train.micro_batch_size": True}, "train.micro_batch_size is true, but it must be a whole number"),
        (
            "model.context_parallel_size: 0\n",
            "<text>:1:30: model.context_parallel_size is 0, but it must be at least 1",
        ),
        (
            {"model.context_parallel_size": -2, "model.tensor_model_parallel_size": 0, "model.sequence_parallel": 1},
            "model.context_parallel_size is -2, but it must be at least 1 (and 2 more such values)",
        ),
        ({"model": [1]}, "model is [1], but it must be a mapping"),
        ({"model": "gpt"}, "model is 'gpt', but it must be a mapping"),
        ({"train": 3}, "train is 3, but it must be a mapping"),
        ({"dataset": True}, "dataset is true, but it must be a mapping"),
        ({"peft": 3}, "peft is 3, but it must be a name or a mapping"),
        ({"mixed_precision": ["bf16"]}, "mixed_precision is ['bf16'], but it must be a name or a mapping"),
        ({"dataset.offline_packing_specs": 4096}, "dataset.offline_packing_specs is 4096, but it must be a mapping"),
        ({"dataset.dataset_kwargs": "chat"}, "dataset.dataset_kwargs is 'chat', but it must be a mapping"),
        (
            {"dataset.dataset_kwargs.pad_to_max_length": "yes"},
            "dataset.dataset_kwargs.pad_to_max_length is 'yes', but it must be true or false",
        ),
        ({"optimizer.lr": float("nan")}, "optimizer.lr is NaN, which is not a number a run can use"),
        (
            {"train.train_iters": 2**63},
            "train.train_iters is out of range: no count or size in a config needs more than 63 bits",
        ),
        ({"world_size": 0}, "world_size must be a whole number of at least 1 and below 2**63, not 0"),
        ({"world_size": True}, "world_size must be a whole number of at least 1 and below 2**63, not true"),
        ({"gpu_memory_gib": "80"}, "gpu_memory_gib must be a whole number of at least 1 and below 2**63, not '80'"),
        ({"te": 2.1}, "te must be text in quotes, not 2.1"),
        ({"gpu": ["h100"]}, "gpu must be text in quotes, not ['h100']"),
        ({"te": "newest"}, "'newest' is not a Transformer Engine version such as 2.10"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_place_field_and_what_it_must_be(source: Any, sentence: str) -> None:
    assert refusal(source) == sentence


@pytest.mark.parametrize(("bridge", "field"), [("0.5.1", "packed_sequence_specs"), ("0.6.2", "offline_packing_specs")])
def test_a_wrong_type_is_told_in_the_users_own_spelling(bridge: str, field: str) -> None:
    name = f"dataset.{field}.pad_seq_to_mult"
    assert refusal({name: "x"}, bridge=bridge) == f"{name} is 'x', but it must be a whole number"


@pytest.mark.parametrize(
    ("source", "token"),
    [
        ("train.micro_batch_size: 1\n", "+train.micro_batch_size=2"),
        ({"model.sequence_parallel": False}, "+model.context_parallel_size=2"),
        ({"model.sequence_parallel": False}, "+ddp.average_in_collective=true"),
        ("dataset:\n  _target_: x.GPTSFTDatasetConfig\n", "+dataset.seed=1"),
    ],
)
def test_plus_on_a_key_that_has_a_value_fails(source: Any, token: str) -> None:
    told = remark(resolved(source, [token]))
    name = token[1:].partition("=")[0]
    assert told.rule == "override-fails"
    assert told.fields == (name,)
    assert told.location == Location(column=1)
    assert told.message == (
        f"`+{name}=` adds a key, but the config already has it, so Hydra refuses; write `{name}=` or `++{name}=`."
    )


@pytest.mark.parametrize(
    ("source", "token"),
    [
        ({"train.micro_batch_size": 1}, "++train.micro_batch_size=2"),
        ({"train.micro_batch_size": 1}, "train.micro_batch_size=2"),
        ({"train.micro_batch_size": 1}, "+train.global_batch_size=8"),
        ({"train.micro_batch_size": None}, "+train.micro_batch_size=2"),
        ({"train.micro_batch_size": 1}, "+dataset.dataset_kwargs.chat=true"),
        ({"train.micro_batch_size": 1}, "+dataset.seed=1"),
        ({"train.micro_batch_size": 1}, "+comm_overlap.tp_comm_overlap=true"),
        ({"train.micro_batch_size": 1}, "comm_overlap.tp_comm_overlap=true"),
    ],
)
def test_an_override_that_hydra_takes_is_not_remarked_on(source: Any, token: str) -> None:
    assert resolved(source, [token]).remarks == []


@pytest.mark.parametrize(
    ("source", "settings", "token", "parent", "advice"),
    [
        ("comm_overlap: null\n", {}, "comm_overlap.tp_comm_overlap=true", "comm_overlap", "recipe"),
        ("peft:\n", {}, "peft.dim=8", "peft", "recipe"),
        (
            "dataset.offline_packing_specs: null\n",
            {},
            "dataset.offline_packing_specs.pad_seq_to_mult=4",
            "dataset.offline_packing_specs",
            "force",
        ),
        (
            "dataset.packed_sequence_specs: null\n",
            {"bridge": "0.5.1"},
            "dataset.packed_sequence_specs.pad_seq_to_mult=4",
            "dataset.packed_sequence_specs",
            "recipe",
        ),
        (None, {"recipe": "gemma2_2b_sft_config"}, "peft.dim=8", "peft", "recipe"),
    ],
)
def test_an_override_below_a_null_section_fails(
    source: Any, settings: Any, token: str, parent: str, advice: str
) -> None:
    told = remark(resolved(source, [token], **settings))
    name = token.partition("=")[0]
    wanted = {"force": f"Write `++{name}=`.", "recipe": f"Choose a recipe that sets {parent}, or set it in Python."}
    assert told.rule == "override-fails"
    assert told.message == (
        f"{parent} is null in the config that this override is applied to, so Hydra refuses `{name}=`. {wanted[advice]}"
    )


@pytest.mark.parametrize("token", ["++peft.dim=8", "peft={dim:8}"])
def test_a_mapping_forced_below_null_is_no_config_object(token: str) -> None:
    assert remark(resolved("peft: null\n", [token])).rule == "override-makes-plain-dict"


def test_packing_specs_given_as_one_mapping_are_taken_where_the_recipe_has_none() -> None:
    token = "dataset.offline_packing_specs={packed_sequence_size:4096,pad_seq_to_mult:2}"
    config = resolved("dataset.offline_packing_specs: null\n", [token])
    assert config.remarks == []
    assert state(config, "dataset.offline_packing_specs.pad_seq_to_mult") == (State.SET, 2)


def test_an_override_below_a_name_fails() -> None:
    assert (
        remark(resolved(None, ["mixed_precision.fp8=hybrid"], recipe="gemma2_2b_sft_config")).rule == "override-fails"
    )


def test_a_variable_of_the_config_is_unknown_where_the_config_has_no_such_section() -> None:
    assert remark(resolved("train.micro_batch_size: 1\n", ["env_vars.X=1"], bridge="0.5.1")).rule == "unknown-field"
    assert resolved("env_vars.X: 1\n").remarks == []


def test_fields_of_a_recipes_own_provider_are_let_through_and_misspelt_ones_are_not() -> None:
    recipe = "qwen3_vl_8b_sft_config"
    assert resolved(None, ["model.freeze_language_model=true"], recipe=recipe, bridge="0.5.1").remarks == []
    told = remark(resolved(None, ["model.context_paralel_size=2"], recipe=recipe, bridge="0.5.1"))
    assert told.rule == "unknown-field"


def test_overrides_over_an_unknown_recipe_are_not_judged() -> None:
    config = resolved(None, ["peft.dim=8", "+model.context_parallel_size=2"], recipe="my_own_recipe_config")
    assert [told.rule for told in config.remarks] == ["base-config-unknown"]


@pytest.mark.parametrize("token", ["~train.micro_batch_size", "~train", "~dataset.offline_packing_specs", "~xyz"])
def test_deleting_a_key_changes_nothing_and_is_remarked_on(token: str) -> None:
    source = {"train.micro_batch_size": 1, "dataset.offline_packing_specs.pad_seq_to_mult": 4}
    config = resolved(source, [token])
    assert remark(config).rule == "override-has-no-effect"
    assert remark(config).fields == (token[1:],)
    assert state(config, "train.micro_batch_size") == (SET, 1)
    assert state(config, "dataset.offline_packing_specs.pad_seq_to_mult") == (SET, 4)


def test_a_dtype_by_override_stays_text_and_is_remarked_on() -> None:
    told = remark(resolved(None, ["model.params_dtype=torch.bfloat16"]))
    assert (told.rule, told.fields) == ("dtype-given-as-text", ("model.params_dtype",))


def test_a_dtype_in_a_file_is_no_cause_for_a_remark() -> None:
    assert resolved("model.params_dtype: torch.bfloat16\n").remarks == []


def test_later_sources_win() -> None:
    config = resolved("train.micro_batch_size: 1\n", ["train.micro_batch_size=2", "train.global_batch_size=4"])
    assert state(config, "train.micro_batch_size") == (SET, 2)
    assert config.remarks == []


@pytest.mark.parametrize(
    ("source", "overrides"),
    [
        ("train.micro_batch_size: 1\ntrain:\n  micro_batch_size: 2\n", []),
        ({"train.micro_batch_size": 1, "train": {"micro_batch_size": 2}}, []),
        (None, ["train.micro_batch_size=1", "train.micro_batch_size=2"]),
        (None, ["train.micro_batch_size=1", "++train.micro_batch_size=2"]),
    ],
)
def test_two_values_for_one_field_are_remarked_on_and_the_last_wins(source: Any, overrides: list[str]) -> None:
    config = resolved(source, overrides)
    told = remark(config)
    assert told.rule == "duplicate-assignment"
    assert told.message == "train.micro_batch_size is given twice: 1 and then 2; the last one wins."
    assert state(config, "train.micro_batch_size") == (SET, 2)


def test_the_two_spellings_of_one_field_are_two_values_for_it() -> None:
    config = resolved({"model.cuda_graph_scope": "attn", "model.cuda_graph_modules": "mlp"})
    assert remark(config).rule == "duplicate-assignment"


@pytest.mark.parametrize(
    "source",
    [
        "train.micro_batch_size: 1\ntrain:\n  micro_batch_size: 1\n",
        "base: &x {micro_batch_size: 1}\ntrain: *x\nvalidation: {eval_iters: 1}\n",
    ],
)
def test_the_same_value_twice_is_no_cause_for_a_remark(source: str) -> None:
    assert "duplicate-assignment" not in {found.rule for found in resolved(source).remarks}


def test_the_second_name_of_the_length_gives_way_to_the_first_whatever_the_order() -> None:
    for names in (("seq_length", "sequence_length"), ("sequence_length", "seq_length")):
        given = {name: {"seq_length": 4096, "sequence_length": 512}[name] for name in names}
        config = resolved({"dataset": {"_target_": "x.GPTDatasetConfig", **given}})
        assert state(config, "dataset.seq_length") == (SET, 4096)
        assert state(config, "dataset.sequence_length") == (SET, 512)
        assert config.remarks == []


@pytest.mark.parametrize("order", [1, -1])
def test_a_null_second_name_does_not_take_the_value_of_the_first_away(order: int) -> None:
    given = [("model.cuda_graph_modules", ["attn"]), ("model.cuda_graph_scope", None)][::order]
    config = resolved(dict(given))
    assert state(config, "model.cuda_graph_modules") == (SET, ["attn"])
    assert config.remarks == []


def test_code_may_assign_a_field_as_often_as_it_likes() -> None:
    config = from_code(
        Assignment("train.micro_batch_size", 1, Location("train.py", 2, 1)),
        Assignment("train.micro_batch_size", 2, Location("train.py", 9, 1)),
    )
    assert config.remarks == []
    assert state(config, "train.micro_batch_size") == (SET, 2)


def test_a_recipe_gives_the_values_it_sets_and_the_rest_are_defaults() -> None:
    config = resolved(None, recipe="gemma2_27b_sft_config", bridge="0.5.1")
    assert (config.base, config.base_text) == ("recipe", "recipe gemma2_27b_sft_config of 0.5.1")
    assert state(config, "model.tensor_model_parallel_size") == (SET, 8)
    assert config.get("model.tensor_model_parallel_size").reason == "recipe"
    assert state(config, "dataset.type") == (SET, "HFDatasetConfig")
    assert state(config, "train.manual_gc") == (UNSET, False)
    assert config.get("model.num_layers").state is UNKNOWN
    assert config.get("model.use_te_rng_tracker").reason == "may be set by the recipe"
    assert config.family == "gemma-2"
    assert config.model_named


def test_the_input_wins_over_the_recipe() -> None:
    config = resolved("model.tensor_model_parallel_size: 2\n", recipe="gemma2_27b_sft_config", bridge="0.5.1")
    assert state(config, "model.tensor_model_parallel_size") == (SET, 2)
    assert config.get("model.tensor_model_parallel_size").location.line == 1


def test_a_recipe_for_one_layout_brings_its_environment_and_the_users_wins() -> None:
    recipe = "deepseek_v3_pretrain_1024gpu_h100_bf16_config"
    config = resolved(None, recipe=recipe, env={"NVLINK_DOMAIN_SIZE": "72"})
    assert config.env is not None
    assert config.env["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert config.env["NVLINK_DOMAIN_SIZE"] == "72"
    assert config.env_complete


@pytest.mark.parametrize("field", ["model.tensor_model_parallel_size", "train.manual_gc", "dataset.seed", "peft.dim"])
def test_below_a_recipe_of_the_users_own_nothing_is_known(field: str) -> None:
    config = resolved({"model.context_parallel_size": 2}, recipe="my_own_recipe_config")
    assert config.base == "unknown"
    found = config.get(field)
    assert (found.state, found.reason) == (UNKNOWN, "recipe my_own_recipe_config is not in the catalogue of 0.6.2")
    assert state(config, "model.context_parallel_size") == (SET, 2)
    assert config.is_given(field) is None


def test_a_recipe_function_that_fails_upstream_gives_no_values() -> None:
    config = resolved(None, recipe="qwen3_next_80b_a3b_peft_config")
    assert (config.base, config.base_text) == (
        "unknown",
        "what recipe qwen3_next_80b_a3b_peft_config of 0.6.2 sets is not recorded",
    )


@pytest.mark.parametrize(
    ("recipe", "bridge", "message"),
    [
        (
            "gemma2_27b_sft_confg",
            "0.5.1",
            "Megatron-Bridge 0.5.1 has no recipe gemma2_27b_sft_confg; did you mean gemma2_27b_sft_config?",
        ),
        (
            "gemma3_vl_4b_finetune_config",
            "0.5.1",
            "Recipe gemma3_vl_4b_finetune_config exists in Megatron-Bridge 0.3.1, not in 0.5.1.",
        ),
    ],
)
def test_a_fine_tuning_recipe_that_the_release_lacks_is_remarked_on(recipe: str, bridge: str, message: str) -> None:
    told = resolved(None, recipe=recipe, bridge=bridge).remarks
    assert [remark.rule for remark in told] == ["unknown-recipe", "base-config-unknown"]
    assert told[0].message.startswith(message)


@pytest.mark.parametrize("recipe", ["gemma2_27b_pretrain_config", "llama3_8b_pretrain_8gpu_h100_nvfp9_config"])
def test_a_pretraining_recipe_outside_the_catalogue_may_exist(recipe: str) -> None:
    told = remark(resolved(None, recipe=recipe, bridge="0.6.2"))
    assert told.rule == "base-config-unknown"
    assert f"recipe {recipe} is not in the catalogue of 0.6.2" in told.message


REPLACED = Assignment(
    "dataset", {"_target_": "x.FinetuningDatasetConfig", "seq_length": 512}, Location("train.py", 5, 1)
)


def test_a_replaced_dataset_keeps_nothing_of_the_recipe() -> None:
    config = from_code(REPLACED, recipe="gemma2_27b_sft_config")
    assert config.dataset_replaced
    assert config.dataset_type == "FinetuningDatasetConfig"
    assert state(config, "dataset.seq_length") == (SET, 512)
    assert config.is_given("dataset.offline_packing_specs") is False
    assert not [name for name in config.values if name.startswith("dataset.offline_packing_specs")]
    assert state(config, "model.tensor_model_parallel_size") == (SET, 8)


def test_a_replaced_dataset_is_known_even_below_an_unknown_recipe() -> None:
    config = from_code(REPLACED, base_unknown="the config comes from a function of another file")
    assert state(config, "dataset.seed") == (UNSET, 1234)
    found = config.get("model.context_parallel_size")
    assert (found.state, found.reason) == (UNKNOWN, "the config comes from a function of another file")


def test_a_mapping_without_a_class_sets_its_fields_one_by_one() -> None:
    config = from_code(Assignment("train", {"micro_batch_size": 2, "manual_gc": True}, Location("train.py", 4, 1)))
    assert state(config, "train.micro_batch_size") == (SET, 2)
    assert state(config, "train.manual_gc") == (SET, True)
    assert config.get("train.manual_gc").location.line == 4


@pytest.mark.parametrize("field", ["dist.lazy_init", "train.no_such_field"])
def test_a_name_that_only_some_path_of_the_code_assigns_is_let_pass(field: str) -> None:
    some = Assignment(field, Unknown(f"{CONDITION} in line 3"), Location("t.py", 4, 1))
    assert from_code(some, bridge="0.3.1" if field.startswith("train") else "0.6.2").remarks == []


def test_values_set_before_the_dataset_is_replaced_are_lost() -> None:
    early = Assignment("dataset.packed_sequence_specs.pad_seq_to_mult", 8, Location("train.py", 4, 1))
    config = from_code(early, REPLACED)
    assert config.is_given("dataset.offline_packing_specs") is False


def test_values_set_after_the_dataset_is_replaced_count() -> None:
    late = Assignment("dataset.packed_sequence_specs.pad_seq_to_mult", 8, Location("train.py", 6, 1))
    assert state(from_code(REPLACED, late), "dataset.offline_packing_specs.pad_seq_to_mult") == (SET, 8)


def test_packing_specs_assigned_as_an_object_set_their_fields() -> None:
    specs = {"_target_": "x.PackedSequenceSpecs", "packed_sequence_size": 2048}
    config = from_code(Assignment("dataset.packed_sequence_specs", specs, Location("train.py", 4, 1)))
    assert state(config, "dataset.offline_packing_specs.packed_sequence_size") == (SET, 2048)
    assert state(config, "dataset.offline_packing_specs.pad_seq_to_mult") == (UNSET, 1)


def test_a_value_that_code_computes_is_unknown_with_its_reason() -> None:
    config = from_code(
        Assignment("model.context_parallel_size", Unknown("comes from argparse"), Location("t.py", 3, 1))
    )
    found = config.get("model.context_parallel_size")
    assert (found.state, found.reason, found.location.line) == (UNKNOWN, "comes from argparse", 3)
    assert config.is_given("model.context_parallel_size") is None


@pytest.mark.parametrize("section", ["dataset", "comm_overlap", "dataset.packed_sequence_specs"])
def test_a_section_that_code_computes_makes_all_its_fields_unknown(section: str) -> None:
    known = Assignment(f"{section}.{'seed' if section == 'dataset' else 'pad_seq_to_mult'}", 8, Location("t.py", 2, 1))
    config = from_code(known, Assignment(section, Unknown("comes from argparse"), Location("t.py", 3, 1)))
    canonical = "dataset.offline_packing_specs" if "specs" in section else section
    leaf = "seed" if section == "dataset" else "pad_seq_to_mult"
    found = config.get(f"{canonical}.{leaf}")
    assert (found.state, found.reason) == (UNKNOWN, "comes from argparse")
    assert config.is_given(canonical) is None


def test_a_computed_section_that_is_then_replaced_is_known_again() -> None:
    config = from_code(Assignment("dataset", Unknown("comes from argparse"), Location("t.py", 3, 1)), REPLACED)
    assert state(config, "dataset.seed") == (UNSET, 1234)


def test_the_run_is_told_by_the_input_or_by_the_caller() -> None:
    told = {"world_size": 16, "te": "2.10", "gpu": "H100", "gpu_memory_gib": 80}
    config = resolved(told)
    assert (config.world_size, config.te, config.gpu, config.gpu_memory_gib) == (16, "2.10", "h100", 80)
    config = resolved(told, world_size=8, te="2.18", gpu="B200")
    assert (config.world_size, config.te, config.gpu) == (8, "2.18", "b200")


def test_a_run_that_nobody_tells_of_is_unknown() -> None:
    config = resolved({"model.context_parallel_size": 2})
    assert (config.world_size, config.te, config.gpu, config.env, config.env_complete) == (None, None, None, {}, False)


@pytest.mark.parametrize("world_size", [0, -8, True, 2.0, "8", 2**63])
def test_a_world_size_that_is_no_count_is_refused(world_size: Any) -> None:
    sentence = refusal({"model.context_parallel_size": 2}, world_size=world_size)
    assert sentence.startswith("the world size must be a whole number of at least 1 and below 2**63, not ")


def test_a_launch_line_tells_the_ranks_and_the_whole_environment() -> None:
    config = resolved(f"NCCL_DEBUG=INFO {COMMAND.replace('torchrun', 'torchrun --nproc_per_node=8')}")
    assert config.world_size == 8
    assert config.env is not None
    assert config.env["NCCL_DEBUG"] == "INFO"
    assert config.env_complete


@pytest.mark.parametrize("field", ["world_size", "te", "gpu", "mcore_version"])
def test_a_fact_of_the_run_that_is_null_is_not_told(field: str) -> None:
    config = resolved({field: None})
    assert (config.world_size, config.te, config.gpu) == (None, None, None)
    assert config.remarks == []


def test_the_core_version_is_taken_from_the_release_and_not_from_the_input() -> None:
    assert resolved({"mcore_version": "0.16.0"}).release.core == "0.19.2"


def test_the_run_may_be_told_in_other_words() -> None:
    config = resolved({"num_gpus": 16, "te_version": "2.10", "gpu_type": "H100"})
    assert (config.world_size, config.te, config.gpu) == (16, "2.10", "h100")
    assert config.remarks == []


@pytest.mark.parametrize(
    "source", [{"env": {"A": "1", "B": 2, "C": True}}, {"env_vars": {"A": "1", "B": 2, "C": True}}]
)
def test_variables_that_the_config_sets_are_part_of_the_environment(source: dict[str, Any]) -> None:
    config = resolved(source, env={"B": "3"})
    assert config.env == {"A": "1", "B": "3", "C": "true"}
    assert config.remarks == []


def test_facts_of_the_model_stand_until_the_input_says_otherwise() -> None:
    sources = read_sources({"model.num_layers": 4}, bridge="0.6.2")
    facts: dict[str, Plain] = {"model.num_layers": 32, "model.hidden_size": 4096, "model.num_moe_experts": None}
    config = resolve(sources, choose("0.6.2", NO_EVIDENCE), recipe=None, recipe_name=None, model="m", model_facts=facts)
    assert state(config, "model.num_layers") == (SET, 4)
    assert state(config, "model.hidden_size") == (SET, 4096)
    assert config.get("model.hidden_size").reason == "model"
    assert state(config, "model.num_moe_experts") == (SET, None)


def test_evidence_lists_names_and_the_dataset_class() -> None:
    sources = read_sources(
        {"dataset": {"_target_": "x.HFDatasetConfig", "seq_length": 1}, "model": {"_target_": "x.Y", "num_layers": 2}}
    )
    assert evidence_names(sources) == (["dataset.seq_length", "model.num_layers"], "HFDatasetConfig")


def test_evidence_takes_the_class_of_a_replaced_dataset() -> None:
    source = Source("python", "t.py", assignments=[REPLACED])
    assert evidence_names([source]) == ([], "FinetuningDatasetConfig")


def test_names_without_a_section_are_no_evidence() -> None:
    assert evidence_names(read_sources({"world_size": 8, "xyz": 1})) == ([], None)


def test_names_that_only_some_path_of_the_code_assigns_are_no_evidence() -> None:
    some = Assignment("dist.lazy_init", Unknown(f"{CONDITION} in line 3"), Location("t.py", 4, 1))
    always = Assignment("model.num_layers", Unknown("comes from argparse"), Location("t.py", 5, 1))
    source = Source("python", "t.py", assignments=[some, always])
    assert evidence_names([source]) == (["model.num_layers"], None)


def test_an_empty_mapping_in_code_takes_earlier_values_away_and_in_a_file_not() -> None:
    early = Assignment("dataset.dataset_kwargs.chat", True, Location("t.py", 4, 1))
    emptied = Assignment("dataset.dataset_kwargs", {}, Location("t.py", 5, 1))
    assert "dataset.dataset_kwargs.chat" not in from_code(early, emptied).values
    config = resolved("dataset.dataset_kwargs.chat: true\ndataset.dataset_kwargs: {}\n")
    assert state(config, "dataset.dataset_kwargs.chat") == (SET, True)
