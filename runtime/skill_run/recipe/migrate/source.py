"""Hugging Face sources of a dataset: a process function or a maker before 0.6, a declared source from 0.6 on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from skill_run.config.model import Plain
from skill_run.recipe.migrate.dataset import Drop, Edit, Plan, Put, Stop, is_set
from skill_run.recipe.migrate.model import Build, Held, Opaque, Symbol
from skill_run.recipe.migrate.steps import ClassMove, data

_SOURCE: Final = "HFDatasetSourceConfig"
_DECLARED: Final = "from 0.6 on the source of a Hugging Face dataset is declared instead of coded"
_JSONL: Final = (
    "write the examples as JSONL (training.jsonl, validation.jsonl) with that function and point dataset_root at them, "
    "or declare HFDatasetSourceConfig(path_or_dataset=..., schema_adapter=...)"
)
# Fields of the old class that only loading the raw data reads.
_LOADING: Final = ("dataset_dict", "download_mode", "delete_raw", "hf_filter_lambda", "hf_filter_lambda_kwargs")


def plan_source(plan: Plan, move: ClassMove, held: Mapping[str, Held], whole: bool) -> None:
    """Add the edits that move the source of a hub or conversation dataset."""
    if move.kind == "hub":
        (_hub_forward if move.forward else _hub_back)(plan, held, whole)
    elif move.kind == "conversation":
        (_conversation_forward if move.forward else _conversation_back)(plan, held, whole)
    elif move.kind == "local" and not move.forward:
        _preprocessing_back(plan, held, None)


def _named(value: Held) -> str | None:
    """Return the last part of a function's or class's name."""
    if isinstance(value, Symbol):
        return value.name
    if isinstance(value, Mapping):
        value = value.get("_target_")
    return value.rpartition(".")[2] if isinstance(value, str) else None


def _values(value: Held) -> Mapping[str, Held]:
    if isinstance(value, Build):
        return value.values
    if isinstance(value, Mapping):
        return {key: item for key, item in value.items() if not key.startswith("_")}
    return {}


def _preset(key: str, name: str | None) -> dict[str, Any] | None:
    return next((row for row in data()["presets"] if name is not None and name in row.get(key, ())), None)


def _hub_forward(plan: Plan, held: Mapping[str, Held], whole: bool) -> None:
    name, process = held.get("dataset_name"), held.get("process_example_fn")
    if name is None and process is None:
        if whole:
            reason = "neither dataset_name nor process_example_fn is given, so the source is not known"
            plan.stops.append(Stop("dataset_name", reason, "set hf_dataset=HFDatasetSourceConfig(...)", blocks=True))
        return
    if isinstance(name, Opaque):
        _stop(plan, "dataset_name", "it is computed, so which source it names is not known", _JSONL)
        return
    preset = _preset("process", _named(process)) if process is not None else _preset("datasets", _text(name))
    if preset is None:
        told = _named(process) or "its value"
        reason = (
            f"{told} is code, and no schema adapter of 0.6 is known to do the same"
            if process is not None
            else (f"the dataset {_text(name)} needs a process function, which is not given")
        )
        _stop(plan, "process_example_fn" if process is not None else "dataset_name", reason, _JSONL)
        return
    for field in _LOADING:
        if is_set(held.get(field)):
            _stop(plan, field, "0.6 declares its sources and has nothing in its place", _JSONL)
    if held.get("split_val_from_train") is False:
        reason = "validation was cut from the validation split, which 0.6 does not do"
        _stop(plan, "split_val_from_train", reason, "set hf_validation_dataset and hf_test_dataset")
    if plan.blocked:
        return
    source = _hub_source(held, preset, whole)
    gone = ("dataset_name", "process_example_fn", "dataset_subset", "split", "hf_kwargs", "split_val_from_train")
    plan.edits.append(Put("hf_dataset", Build(_SOURCE, source), _DECLARED, "dataset_name"))
    plan.edits += [Drop(field, _DECLARED) for field in (*gone, *_LOADING) if field in held]
    _hub_preprocessing(plan, held, preset)
    _hub_splits(plan, held, preset, source, whole)


def _text(value: Held) -> str | None:
    return value if isinstance(value, str) else None


def _stop(plan: Plan, field: str, reason: str, do: str) -> None:
    plan.stops.append(Stop(field, reason, do, blocks=True))


def _hub_source(held: Mapping[str, Held], preset: Mapping[str, Any], whole: bool) -> dict[str, Plain | Build]:
    name, subset, split = held.get("dataset_name"), held.get("dataset_subset"), held.get("split")
    named = (name is None or name in preset["datasets"]) and subset in (None, preset.get("subset"))
    source: dict[str, Any] = {"dataset_name": preset["name"]}
    if not named:
        source = {"path_or_dataset": name, "schema_adapter": preset["name"]}
        if subset is not None:
            source["subset"] = subset
    default = preset["split"] if named else "train"
    asked = split if split is not None else "train" if whole else default
    if asked != default:
        source["split"] = asked
    if is_set(held.get("hf_kwargs")):
        source["load_kwargs"] = held["hf_kwargs"]
    return source


def _hub_preprocessing(plan: Plan, held: Mapping[str, Held], preset: Mapping[str, Any]) -> None:
    kind = preset["preprocessing"]
    kwargs = held.get("dataset_kwargs")
    semantic = sorted(set(data()["semantic_kwargs"]) & set(kwargs)) if isinstance(kwargs, Mapping) else []
    if semantic and kind.startswith("Chat"):
        # Without preprocessing a hub source is read as chat, and these keys are passed on.
        return
    if semantic:
        reason = f"it sets {', '.join(semantic)}, which 0.6 does not take beside the preprocessing of this source"
        _stop(plan, "dataset_kwargs", reason, f"say the same in {kind}(...) and leave these keys out")
        return
    value = Build(kind, data()["preprocessing"][kind])
    plan.edits.append(Put("preprocessing", value, "the text of a sample is put together as before", "dataset_name"))


def _hub_splits(
    plan: Plan, held: Mapping[str, Held], preset: Mapping[str, Any], source: Mapping[str, Any], whole: bool
) -> None:
    """Keep which samples train, validate and test: 0.6 takes each split only where it is declared."""
    share = held.get("val_proportion", 0.05 if whole else None)
    if share in (None, 0) and ("val_proportion" in held):
        why = "without val_proportion 0.5 neither validated nor tested"
        plan.edits += [Drop("val_proportion", why), Put("do_validation", False, why), Put("do_test", False, why)]
        return
    if held.get("do_validation", True) is False:
        if "val_proportion" in held:
            plan.edits.append(Drop("val_proportion", "0.6 refuses it without validation"))
        if whole or "val_proportion" in held:
            reason = (
                f"0.5 left {share} of the training split out although do_validation is false; 0.6 trains on all of it"
            )
            plan.stops.append(Stop("do_validation", reason, "decide whether those samples are to be trained on"))
    elif whole and "val_proportion" not in held:
        plan.edits.append(Put("hf_validation_proportion", 0.05, "the old class held back 5 percent for validation"))
    if not whole and "do_test" not in held:
        return
    tested = held.get("do_test", True)
    if tested is False:
        return
    rest = preset.get("rest")
    if rest is None:
        plan.edits.append(Put("do_test", False, "the source has no test split, which 0.6 refuses"))
        return
    value = Build(_SOURCE, {**{k: v for k, v in source.items() if k != "split"}, "split": rest})
    plan.edits.append(Put("hf_test_dataset", value, f"0.5 tested on the {rest} split of this dataset"))


def _hub_back(plan: Plan, held: Mapping[str, Held], whole: bool) -> None:
    source = held.get("hf_dataset")
    values = _values(source)
    preset = next((row for row in data()["presets"] if row["name"] == values.get("dataset_name")), None)
    extra = set(values) - {"dataset_name", "split", "load_kwargs"}
    if preset is None or "process" not in preset or any(is_set(values[key]) for key in extra):
        do = "write a process_example_fn for HFDatasetConfig, or JSONL files for FinetuningDatasetConfig"
        _stop(plan, "hf_dataset", "only built-in presets have a process function before 0.6", do)
        return
    why = "before 0.6 a Hugging Face dataset is named with the function that reads it"
    process = preset["process"][0]
    found: list[Edit] = [
        Put("dataset_name", preset["datasets"][0], why, "hf_dataset"),
        Put("process_example_fn", Symbol(data()["processors"][process], process), why, "hf_dataset"),
    ]
    if preset.get("subset"):
        found.append(Put("dataset_subset", preset["subset"], why, "hf_dataset"))
    split = values.get("split") or preset["split"]
    if split != "train":
        found.append(Put("split", split, why, "hf_dataset"))
    if is_set(values.get("load_kwargs")):
        found.append(Put("hf_kwargs", values["load_kwargs"], why, "hf_dataset"))
    _test_back(plan, held, preset)
    if is_set(held.get("hf_validation_dataset")):
        _stop(
            plan, "hf_validation_dataset", "before 0.6 validation is cut from the training split", "set val_proportion"
        )
    _preprocessing_back(plan, held, preset["preprocessing"])
    if whole and "hf_rewrite" not in held:
        found.append(Put("rewrite", False, "the old class writes the files anew by default"))
    if whole and "hf_validation_proportion" not in held:
        found.append(Put("val_proportion", None, "the old class holds back 5 percent by default"))
    plan.edits += [*found, Drop("hf_dataset", why)]
    plan.edits += [Drop(name, why) for name in ("hf_validation_dataset", "hf_test_dataset") if name in held]


def _test_back(plan: Plan, held: Mapping[str, Held], preset: Mapping[str, Any]) -> None:
    test = held.get("hf_test_dataset")
    if not is_set(test):
        return
    values = _values(test)
    if values.get("dataset_name") != preset["name"] or values.get("split") != preset.get("rest"):
        reason = "before 0.6 the test split is the one that the dataset itself has left"
        _stop(plan, "hf_test_dataset", reason, "write JSONL files with the split you want")


def _preprocessing_back(plan: Plan, held: Mapping[str, Held], expected: str | None) -> None:
    """Drop a preprocessing that the old release does anyway; a local dataset was read as prompt and completion."""
    if "preprocessing" not in held:
        return
    value = held["preprocessing"]
    kind = value.cls if isinstance(value, Build) else _named(value)
    usual = expected or "PromptCompletionSFTPreprocessingConfig"
    defaults = data()["preprocessing"].get(usual, {})
    if value is None or (kind == usual and {**_values(value)} == {**defaults}):
        plan.edits.append(Drop("preprocessing", "the old release reads the samples in this way by itself"))
        return
    do = "say it with dataset_kwargs (prompt_template, label_key, chat, use_hf_tokenizer_chat_template)"
    plan.stops.append(Stop("preprocessing", "before 0.6 there is no such object", do))


def _conversation_forward(plan: Plan, held: Mapping[str, Held], whole: bool) -> None:
    maker = held.get("maker_name")
    if maker is None and not whole:
        return
    preset = _preset("makers", _text(maker))
    do = "declare DirectHFSFTDatasetConfig(source=HFDatasetSourceConfig(path_or_dataset=..., schema_adapter=...))"
    if preset is None:
        _stop(plan, "maker_name", f"no preset of 0.6 is known for {maker!r}" if maker else "it is not known", do)
        return
    sources = {}
    for field, new in (
        ("maker_kwargs", "source"),
        ("val_maker_kwargs", "validation_source"),
        ("test_maker_kwargs", "test_source"),
    ):
        value = held.get(field)
        source = _maker_source(value, preset)
        if source is None:
            _stop(plan, field, "it holds arguments that a preset of 0.6 does not take", do)
            return
        if new == "source" or is_set(value):
            sources[new] = source
    if is_set(held.get("collate_impl")):
        _stop(
            plan, "collate_impl", "0.6 chooses the collate function by the processor", "leave it out, or use a builder"
        )
        return
    for new, values in sources.items():
        plan.edits.append(Put(new, Build(_SOURCE, values), _DECLARED, "maker_name"))
    if held.get("skip_test") is True:
        plan.edits.append(Put("do_test", False, "0.6 calls it do_test", "skip_test"))
    gone = ("maker_name", "maker_kwargs", "val_maker_kwargs", "test_maker_kwargs", "collate_impl", "skip_test")
    plan.edits += [Drop(name, _DECLARED) for name in gone if name in held]


def _maker_source(value: Held, preset: Mapping[str, Any]) -> dict[str, Plain | Build] | None:
    """Return the declared source of a maker's arguments, None when a preset cannot say the same."""
    if value is not None and not isinstance(value, Mapping):
        return None
    given = dict(value or {})
    if given.pop("path_or_dataset", preset["datasets"][0]) not in preset["datasets"]:
        return None
    source: dict[str, Any] = {"dataset_name": preset["name"]}
    if given.get("split") is not None:
        source["split"] = given["split"]
    given.pop("split", None)
    if set(given) - {"prompt", *preset.get("adapter", ())}:
        return None
    if given:
        source["adapter_kwargs"] = given
    return source


def _conversation_back(plan: Plan, held: Mapping[str, Held], whole: bool) -> None:
    source = held.get("source")
    if source is None and not whole:
        return
    why = "before 0.6 a maker function reads the dataset"
    found: list[Edit] = []
    for new, old in (
        ("source", "maker_kwargs"),
        ("validation_source", "val_maker_kwargs"),
        ("test_source", "test_maker_kwargs"),
    ):
        if new != "source" and not is_set(held.get(new)):
            found += [Drop(new, why)] if new in held else []
            continue
        values = _values(held.get(new))
        preset = next((row for row in data()["presets"] if row["name"] == values.get("dataset_name")), None)
        if preset is None or "makers" not in preset or set(values) - {"dataset_name", "split", "adapter_kwargs"}:
            do = "use PreloadedVLMConversationProvider, or a maker of your own"
            _stop(plan, new, "only built-in presets have a maker before 0.6", do)
            return
        arguments: dict[str, Any] = dict(_values(values.get("adapter_kwargs")))
        if values.get("split") is not None:
            arguments["split"] = values["split"]
        if new == "source":
            found.append(Put("maker_name", preset["makers"][1], why, "source"))
        if arguments:
            found.append(Put(old, arguments, why, new))
        found.append(Drop(new, why))
    if held.get("do_validation") is False:
        plan.stops.append(Stop("do_validation", "before 0.6 the split is always built", "set eval_iters to 0"))
    if held.get("do_test") is False:
        found.append(Put("skip_test", True, "before 0.6 it is called skip_test", "do_test"))
    found += [Drop("do_test", "before 0.6 it is called skip_test")] if "do_test" in held else []
    plan.edits += found
    _preprocessing_back(plan, held, "ChatSFTPreprocessingConfig")
