"""Task `launch_preview`: build a job's config as its entry script will, and plan what a CPU has to change in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skill_run.worker.inside.errors import RefusedError
from skill_run.worker.inside.launch_files import entry_modules
from skill_run.worker.inside.rehearse import Rehearsal, import_megatron
from skill_run.worker.inside.rehearse_build import fill_hub_cache
from skill_run.worker.inside.rehearse_data import scratch
from skill_run.worker.inside.rehearse_fields import plain
from skill_run.worker.inside.rehearse_stages import StageFailure
from skill_run.worker.inside.serve import Channel

_STEPS = 4


def run(request: Mapping[str, Any], channel: Channel) -> dict[str, Any]:
    """Return {"changes", "layout", "data", "notes", "own_layer_spec"}: what a run of this job on CPUs is.

    request: files (name -> text of the job's folder), models, module, tokenizer, tokenizer_asked, data, iters, pack,
    world_size. Paths in the changes lie in this task's scratch folder. Raises RefusedError("input") with upstream's own
    words where the config cannot be built, or where the real validate() refuses it.
    """
    channel.progress("importing Megatron", 0, _STEPS)
    try:
        import_megatron()
        folder = scratch("job")
        for name, text in request["files"].items():
            (folder / name).write_text(text, encoding="utf-8")
        fill_hub_cache(request["models"], [request["module"]] if request["module"] else [])
        rehearsal = Rehearsal({**request, "more_iters": 0}, channel)
        channel.progress("building the config", 1, _STEPS)
        rehearsal.config = _built(folder)
        channel.progress("validating the config", 2, _STEPS)
        rehearsal.validate()
        channel.progress("making the config small", 3, _STEPS)
        held = {name: getattr(rehearsal.config.dataset, name, None) for name in _OBJECTS}
        rehearsal.prepare_data()
        made = _made_objects(rehearsal.config.dataset, held)
        rehearsal.scale()
    except StageFailure as failure:
        place = f" ({failure.place})" if failure.place else ""
        raise RefusedError(f"{_SAYING.get(failure.stage, failure.stage)}: {failure}{place}", "input") from failure
    found = rehearsal.result
    return {
        "scratch": str(scratch(".").resolve()),
        "changes": [*made, *found["changes"]],
        "layout": found["layout"],
        "data": found["data"],
        "notes": found["notes"],
        "own_layer_spec": found["own_layer_spec"],
        "peft": rehearsal.config.peft is not None,
        "pretrained": rehearsal.config.checkpoint.pretrained_checkpoint,
        "packs": bool(getattr(rehearsal.config.dataset, "enable_offline_packing", False)),
        "vocab_size": rehearsal.vocab_size,
    }


# Fields that hold objects, which the rehearsal makes itself where the user's own source is out of reach.
_OBJECTS = ("preprocessing", "source", "validation_source", "test_source")


def _made_objects(dataset: Any, held: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the objects that took the place of others, as changes that an entry script can make again."""
    found = []
    for name, old in held.items():
        new = getattr(dataset, name, None)
        if new is not old:
            told = {"field": f"dataset.{name}", "old": plain(old), "new": _described(new), "kind": "offline"}
            found.append({**told, "why": "local JSONL"})
    return found


def _described(value: Any) -> Any:
    """Return a config object as a mapping with `_target_`, other values as they are."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    given = {
        field.name: _described(getattr(value, field.name))
        for field in dataclasses.fields(value)
        if field.init and not callable(getattr(value, field.name))
    }
    return {"_target_": f"{type(value).__module__}.{type(value).__qualname__}", **given}


_SAYING = {
    "build": "Megatron-Bridge cannot build the config",
    "validate": "the real validate() refuses the config",
    "setup": "the config cannot run on a CPU",
    "data": "the data cannot be read",
}


def _built(folder: Path) -> Any:
    config, _ = entry_modules(folder)
    try:
        return config.build(config.read_run(folder), folder)
    except Exception as error:
        raise StageFailure.from_error("build", error) from error
