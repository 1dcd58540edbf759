"""`rehearse_config`: one call from any form of config and a data folder to what the real training loop made of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from skill_run.config.model import Form, Source
from skill_run.errors import InputError
from skill_run.rehearse.report import RehearsalReport
from skill_run.rehearse.request import Request, make_request
from skill_run.rehearse.scale import DEFAULT_PACK, Wishes
from skill_run.rules.validate import ConfigSource, judge_sources, read_sources, rule_set
from skill_run.worker.environments import find_worker
from skill_run.worker.session import Event, run_task

if TYPE_CHECKING:
    from skill_run.batch.inspect import InspectionReport

MOST_STEPS: Final = 1000
MOST_PACK: Final = 8192


def rehearse_config(
    source: ConfigSource | None,
    *,
    recipe: str | None = None,
    overrides: Sequence[str] = (),
    data: str | Path | None = None,
    tokenizer: str | Path | None = None,
    model: str | None = None,
    iters: int = 5,
    pack: int = DEFAULT_PACK,
    world_size: int | None = None,
    rules: str | Path | None = None,
    form: Form | None = None,
    worker: str | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> RehearsalReport:
    """Run a config and data, made small, through the real Megatron-Bridge loop of a worker without a GPU.

    source, recipe, overrides, form, rules, world_size: as in validate_config. data: folder with training.jsonl, else
    made-up samples; tokenizer: folder with tokenizer.json; model: folder with config.json of the recipe's model.
    iters: training steps; pack: longest pack in tokens, to which lengths are scaled down.

    Raises InputError for input that cannot be used, MissingError when no worker with Megatron-Bridge is set up,
    WorkerFailure when the worker itself dies. What upstream's code refuses is told in the report.
    """
    sources = read_sources(source, recipe=recipe, overrides=overrides, form=form)
    return rehearse_sources(
        sources,
        original=source if isinstance(source, Mapping) else None,
        recipe=recipe,
        data=data,
        tokenizer=tokenizer,
        model=model,
        iters=iters,
        pack=pack,
        world_size=world_size,
        rules=rules,
        worker=worker,
        on_event=on_event,
    )


def rehearse_sources(
    sources: Sequence[Source],
    *,
    original: Mapping[str, Any] | None = None,
    recipe: str | None = None,
    data: str | Path | None = None,
    tokenizer: str | Path | None = None,
    model: str | None = None,
    iters: int = 5,
    pack: int = DEFAULT_PACK,
    world_size: int | None = None,
    rules: str | Path | None = None,
    worker: str | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> RehearsalReport:
    """Rehearse sources that are read already; see rehearse_config. original: the input, when it was a mapping."""
    _check_numbers(iters, pack)
    began = time.monotonic()
    found = find_worker(worker, bridge=True)
    assert found.bridge is not None
    folder = None if data is None else _data_folder(Path(data))
    judged = judge_sources(
        sources,
        rule_set(_path(sources), rules),
        bridge=found.bridge,
        recipe=recipe,
        model=model,
        world_size=world_size,
    )
    request = make_request(
        sources,
        release=found.bridge,
        recipe=recipe,
        model=model,
        tokenizer=None if tokenizer is None else str(tokenizer),
        original=original,
    )
    asked = {
        "base": request.base,
        "steps": request.steps,
        "models": request.models,
        "tokenizer": request.tokenizer,
        "tokenizer_asked": tokenizer is not None,
        "data": folder,
        "iters": iters,
        "more_iters": Wishes().more_iters,
        "pack": pack,
        "world_size": judged.world_size,
        "gpus": request.gpus,
    }
    # On a machine with GPUs too, a rehearsal is one of the CPU.
    variables = {"WANDB_MODE": "disabled", "CUDA_VISIBLE_DEVICES": ""}
    result = _without_scratch(run_task(found, "rehearse", asked, on_event=on_event, environment=variables))
    return RehearsalReport(
        source=(recipe if sources[0].form == "overrides" else None) or sources[0].name,
        worker=found.name,
        rules=judged,
        result=result,
        batch=_inspected(result, found.bridge),
        notes=_notes(request, result),
        seconds=round(time.monotonic() - began, 1),
        stages=tuple(result["stages"]),
    )


def _without_scratch(result: dict[str, Any]) -> dict[str, Any]:
    """Return the result with "(scratch)" in place of the worker's folder, which is gone."""
    scratch = str(result["scratch"])

    def told(value: Any) -> Any:
        return value.replace(scratch, "(scratch)") if isinstance(value, str) else value

    changes = [{name: told(value) for name, value in change.items()} for change in result["changes"]]
    return {**result, "changes": changes}


def _check_numbers(iters: int, pack: int) -> None:
    if not 1 <= iters <= MOST_STEPS:
        raise InputError(f"the number of steps must be from 1 to {MOST_STEPS}, not {iters}")
    if not 64 <= pack <= MOST_PACK:
        raise InputError(f"the longest pack must have from 64 to {MOST_PACK} tokens, not {pack}")


def _data_folder(path: Path) -> str:
    if not path.is_dir():
        raise InputError(f"{path} is not there: --data takes a folder with training.jsonl")
    if not (path / "training.jsonl").is_file():
        raise InputError(f"{path} has no training.jsonl")
    return str(path.absolute())


def _path(sources: Sequence[Source]) -> Path | None:
    path = Path(sources[0].name)
    try:
        return path if path.is_file() else None
    except (OSError, ValueError):
        return None


def _inspected(result: Mapping[str, Any], bridge: str) -> InspectionReport | None:
    captured, layout = result.get("batch"), result.get("layout")
    if captured is None or layout is None:
        return None
    from skill_run.batch.inspect import inspect_batch

    return inspect_batch(captured, bridge=bridge, cp=layout["cp"], tp=layout["tp"])


def _notes(request: Request, result: Mapping[str, Any]) -> tuple[str, ...]:
    stand_in = (result.get("data") or {}).get("stand_in_tokenizer")
    made_up = (result.get("data") or {}).get("made_up")
    notes = [note for note in request.notes if not note.startswith("the tokenizer ") or (stand_in and not made_up)]
    if made_up:
        notes.append("the samples are made up: --data DIR takes a folder with training.jsonl")
    return (*notes, *result["notes"])
