"""A job on CPUs: ask the worker what has to change in the config for it, and how the worker starts the entry script."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from skill_run.config.model import Source
from skill_run.errors import InputError
from skill_run.launch.files import ConfigFiles, data_files, entry_files, package_folder
from skill_run.launch.options import LaunchOptions
from skill_run.rehearse.request import make_request
from skill_run.worker.environments import Worker
from skill_run.worker.session import Event, run_task


@dataclass(frozen=True, slots=True)
class CpuRun:
    """What a CPU run of a config is: settings for the entry script, number of ranks, and what its start prepares.

    settings: {"field", "value", "old", "why"}; prepared: `cpu` of run.json.
    """

    settings: tuple[dict[str, Any], ...]
    ranks: int
    layout: Mapping[str, int]
    prepared: Mapping[str, Any]
    packs: bool
    notes: tuple[str, ...]


def plan_cpu_run(
    sources: Sequence[Source],
    config: ConfigFiles,
    options: LaunchOptions,
    worker: Worker,
    *,
    settings: Sequence[Mapping[str, Any]],
    folder: str,
    world_size: int | None,
    recipe: str | None = None,
    original: Mapping[str, Any] | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> CpuRun:
    """Build the config in the worker as the entry script will, and return what the CPU needs changed.

    settings: what the plan sets for other reasons. Raises InputError in upstream's own words where the config cannot be
    built or the real validate() refuses it.
    """
    assert worker.bridge is not None
    request = make_request(
        sources,
        release=worker.bridge,
        recipe=recipe,
        model=options.model,
        tokenizer=options.tokenizer,
        original=original,
    )
    data = None if options.data is None else _data_folder(Path(options.data))
    run = {"base": config.base, "settings": list(settings)}
    asked = {
        "files": {**data_files(config, run), **entry_files(worker.bridge)},
        "models": request.models,
        "module": config.base.get("module"),
        "tokenizer": request.tokenizer,
        "tokenizer_asked": options.tokenizer is not None,
        "data": data,
        "iters": options.iters,
        "pack": options.pack,
        "world_size": world_size or request.gpus,
    }
    with TemporaryDirectory(prefix="skill-run-hub-", ignore_cleanup_errors=True) as hub:
        variables = {"HF_HOME": hub, "HF_HUB_CACHE": str(Path(hub) / "hub"), "WANDB_MODE": "disabled"}
        found = run_task(worker, "launch_preview", asked, on_event=on_event, environment=variables)
    return _read(found, request.models, data, folder, tuple(request.notes))


def _read(
    found: Mapping[str, Any], models: Mapping[str, Any], data: str | None, folder: str, notes: tuple[str, ...]
) -> CpuRun:
    here, there = str(found["scratch"]), f"{folder}/prepared"
    held = found["data"] or {}
    prepared = {
        "models": dict(models),
        "peft": bool(found["peft"]),
        "make_tokenizer": bool(held.get("stand_in_tokenizer", True)),
        "data": {"source": None if held.get("made_up", True) else data, "columns": held.get("columns") or []},
    }
    settings = [
        {"field": each["field"], "value": _moved(each["new"], here, there), "old": each["old"], "why": each["why"]}
        for each in found["changes"]
    ]
    base = f"{there}/base" if found["peft"] else None
    why = "a small model made before the ranks start" if base else "the small model starts from random weights"
    settings.append(
        {"field": "checkpoint.pretrained_checkpoint", "value": base, "old": found["pretrained"], "why": why}
    )
    ranks = int(found["layout"]["ranks"])
    return CpuRun(tuple(settings), ranks, dict(found["layout"]), prepared, bool(found["packs"]), notes)


def _moved(value: Any, here: str, there: str) -> Any:
    """Return plain data with the preview's folder replaced by the job's."""
    if isinstance(value, str):
        return value.replace(here, there)
    if isinstance(value, list):
        return [_moved(item, here, there) for item in value]
    if isinstance(value, dict):
        return {key: _moved(item, here, there) for key, item in value.items()}
    return value


def worker_command(worker: Worker, folder: str, mode: str, *rest: str) -> tuple[str, ...]:
    """Return the argument list that starts launch_cpu.py in the worker."""
    starter = package_folder() / "worker" / "inside" / "launch_cpu.py"
    return (*worker.command, "-s", "-P", str(starter), folder, mode, *rest)


def _data_folder(path: Path) -> str:
    if not (path / "training.jsonl").is_file():
        raise InputError(f"{path} has no training.jsonl: --data takes a folder with it")
    return str(path.absolute())
