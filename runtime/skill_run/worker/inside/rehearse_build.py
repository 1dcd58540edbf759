"""The user's ConfigContainer, made by Megatron-Bridge's own recipes, loader and override code."""

from __future__ import annotations

import dataclasses
import importlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from skill_run.worker.inside.rehearse_fields import with_dtype
from skill_run.worker.inside.rehearse_stages import StageFailure
from skill_run.worker.inside.rehearse_targets import check_targets, find_class

_NAMELESS: Final = "0" * 40
_DROPPED: Final = (
    re.compile(r"Dropping unexpected config keys for target '(?P<owner>[^']+)': (?P<keys>\[.*?\])"),
    re.compile(r"Key '(?P<keys>[^']+)' in overrides not found in config object (?P<owner>\w+)"),
)


def build_config(request: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the config that the request describes, and what it started from, in words.

    request["base"]: {"recipe": name, "module": path}, {"container": mapping} or {}; request["steps"]: what is laid over
    it, in order, each {"kind": "yaml" | "overrides" | "code", ...}.
    Raises StageFailure("build") with upstream's own words, also for what upstream drops without an error.
    """
    base = request["base"]
    with _dropping() as dropped:
        if "recipe" in base:
            config, text = _from_recipe(base), f"recipe {base['recipe']}"
        elif "container" in base:
            config, text = _from_container(base["container"]), "the file's own ConfigContainer"
        else:
            config, text = _from_defaults(), "a plain GPT, since the config names neither a recipe nor all sections"
        for step in request["steps"]:
            _STEPS[step["kind"]](config, step["values"])
    if dropped:
        raise StageFailure(
            "build",
            f"Megatron-Bridge drops {'; '.join(dropped)} without an error: the run would do without it",
        )
    return config, text


@contextmanager
def _dropping() -> Iterator[list[str]]:
    """Collect what Bridge's loaders say they leave out; they say it in the log only."""
    found: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            for pattern in _DROPPED:
                match = pattern.search(record.getMessage())
                if match is not None:
                    keys = match["keys"].strip("[]").replace("'", "")
                    found.append(f"{keys} of {match['owner'].rpartition('.')[2]}")

    listener = Listener(logging.WARNING)
    logging.getLogger().addHandler(listener)
    try:
        yield found
    finally:
        logging.getLogger().removeHandler(listener)


def _from_recipe(base: Mapping[str, Any]) -> Any:
    name = str(base["recipe"]).rpartition(".")[2]
    try:
        module = importlib.import_module(base["module"])
    except ImportError as error:
        raise StageFailure("build", f"the recipe's module {base['module']} cannot be imported: {error}") from error
    recipe = getattr(module, name, None)
    if not callable(recipe):
        raise StageFailure("build", f"Megatron-Bridge has no recipe {name} in {base['module']}")
    try:
        return recipe()
    except Exception as error:
        raise StageFailure.from_error("build", error) from error


def fill_hub_cache(models: Mapping[str, Mapping[str, Any]], modules: Sequence[str]) -> None:
    """Write config.json of each model (id -> content) into $HF_HOME as the hub's cache, which recipes read.

    modules: recipe modules, which name the revisions that they ask for.
    """
    root = Path(os.environ["HF_HUB_CACHE"])
    revisions = _revisions(modules)
    for name, content in models.items():
        folder = root / f"models--{name.replace('/', '--')}"
        for revision in {revisions.get(name, _NAMELESS), _NAMELESS}:
            snapshot = folder / "snapshots" / revision
            snapshot.mkdir(parents=True, exist_ok=True)
            (snapshot / "config.json").write_text(json.dumps(content), encoding="utf-8")
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text(revisions.get(name, _NAMELESS), encoding="ascii")


def _revisions(modules: Sequence[str]) -> dict[str, str]:
    """Return model id -> revision, from pairs of constants such as _QWEN3_8B_MODEL_ID and _QWEN3_8B_MODEL_REVISION."""
    found = {}
    for name in modules:
        with _importable(name) as module:
            constants = vars(module) if module is not None else {}
            for constant, value in constants.items():
                revision = constants.get(constant.replace("_ID", "_REVISION"))
                if constant.endswith("_MODEL_ID") and isinstance(revision, str):
                    found[value] = revision
    return found


@contextmanager
def _importable(name: str) -> Iterator[Any]:
    try:
        module = importlib.import_module(name)
    except ImportError:
        # The recipe stage tells it.
        module = None
    yield module


def _from_container(mapping: Mapping[str, Any]) -> Any:
    from megatron.bridge.training.config import ConfigContainer
    from megatron.bridge.utils.instantiate_utils import InstantiationMode

    check_targets(mapping)
    known = {field.name for field in dataclasses.fields(ConfigContainer)} | {"_target_"}
    extra = sorted(set(mapping) - known)
    if extra:
        raise StageFailure("build", f"Megatron-Bridge's ConfigContainer has no section {', '.join(extra)}")
    try:
        return ConfigContainer.from_dict(dict(mapping), mode=InstantiationMode.LENIENT)
    except Exception as error:
        raise StageFailure.from_error("build", error) from error


def _from_defaults() -> Any:
    """Return a small config of the library's own defaults, for a script or file that sets only parts."""
    from megatron.bridge.models.gpt_provider import GPTModelProvider
    from megatron.bridge.recipes.common import _sft_common

    config = _sft_common()
    config.model = GPTModelProvider(
        num_layers=2,
        hidden_size=128,
        num_attention_heads=8,
        num_query_groups=2,
        ffn_hidden_size=512,
        seq_length=config.dataset.seq_length,
        normalization="RMSNorm",
        gated_linear_unit=True,
        add_bias_linear=False,
        position_embedding_type="rope",
        share_embeddings_and_output_weights=False,
    )
    return config


def _merge_yaml(config: Any, values: Mapping[str, Any]) -> None:
    """Lay a partial YAML file over the config, as run_recipe.py does."""
    import yaml
    from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

    check_targets(values)
    path = Path(os.environ["SKILL_RUN_SCRATCH"]) / "given.yaml"
    path.write_text(yaml.safe_dump(dict(values)), encoding="utf-8")
    _told(lambda: process_config_with_overrides(config, config_filepath=str(path)))


def _apply_overrides(config: Any, values: Sequence[str]) -> None:
    """Apply Hydra overrides (values: the tokens) by Bridge's own code."""
    from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

    if any("_target_" in token for token in values):
        raise StageFailure(
            "build", "an override that makes an object (`_target_`) cannot be rehearsed; set it in a file"
        )
    _told(lambda: process_config_with_overrides(config, cli_overrides=list(values)))


def _told(call: Any) -> None:
    try:
        call()
    except Exception as error:
        raise StageFailure.from_error("build", error) from error


def _assign_code(config: Any, values: Mapping[str, Any]) -> None:
    """Set what a Python file sets (values: nested mapping); a mapping with `_target_` makes that config object."""
    check_targets(values)
    for name, value in values.items():
        _set(config, name, value, name)


def _set(owner: Any, name: str, value: Any, path: str) -> None:
    if not _has(owner, name):
        raise StageFailure(
            "build",
            f"{path} is set, but {type(owner).__name__} of Megatron-Bridge has no field {name}: nothing reads it",
        )
    held = getattr(owner, name, None)
    if isinstance(value, Mapping) and "_target_" in value:
        setattr(owner, name, _made(value, path))
    elif isinstance(value, Mapping) and dataclasses.is_dataclass(held):
        for key, inner in value.items():
            _set(held, key, inner, f"{path}.{key}")
    elif isinstance(value, Mapping) and name == "offline_packing_specs":
        setattr(owner, name, _made({"_target_": _PACKING_SPECS, **value}, path))
    elif isinstance(value, Mapping) and isinstance(held, dict):
        setattr(owner, name, {**held, **value})
    else:
        setattr(owner, name, with_dtype(value))


_PACKING_SPECS: Final = "megatron.bridge.data.packing.PackedSequenceSpecs"


def _has(owner: Any, name: str) -> bool:
    if dataclasses.is_dataclass(owner):
        return any(field.name == name for field in dataclasses.fields(owner)) or hasattr(owner, name)
    return hasattr(owner, name)


def _made(value: Mapping[str, Any], path: str) -> Any:
    cls = find_class(value["_target_"])
    if cls is None:
        raise StageFailure("build", f"{path}: Megatron-Bridge has no {value['_target_']}")
    given = {
        key: _made(inner, f"{path}.{key}") if isinstance(inner, Mapping) and "_target_" in inner else with_dtype(inner)
        for key, inner in value.items()
        if key != "_target_"
    }
    try:
        return cls(**given)
    except Exception as error:
        raise StageFailure.from_error("build", error) from error


_STEPS: Final[dict[str, Callable[[Any, Any], None]]] = {
    "yaml": _merge_yaml,
    "overrides": _apply_overrides,
    "code": _assign_code,
}
