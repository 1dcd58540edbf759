"""Pick the recipe that a run starts from: the release's recipe of the model and kind, nearest in GPUs and length."""

from __future__ import annotations

import difflib
import json
import math
import re
from pathlib import Path
from typing import Final

from skill_run.bridge.recipes import Recipe, catalogue, find_recipe, nearest_recipe, releases_with
from skill_run.errors import InputError
from skill_run.recipe.draft import Task

_KIND: Final = re.compile(r"_(?:sft|peft|pretrain|finetune)(?:_|$)")
_DROPPED: Final = re.compile(r"^nvidia|(?:bf16|fp8|hf|instruct|chat|base|it|pt|reasoning)$")
_SHOWN: Final = 4
_TEXT: Final = ("GPTSFTDatasetConfig", "HFDatasetConfig", "FinetuningDatasetConfig")


def pick_recipe(
    model: str,
    task: Task,
    release: str,
    *,
    gpus: int | None,
    gpu: str | None,
    seq_length: int | None,
    classes: tuple[str, ...] = (),
) -> Recipe:
    """Return the recipe of a release that fits a model best.

    model: a Hugging Face id, or a folder with config.json. classes: data set classes that will do; () for any. Of the
    recipes that fit, the one whose GPU type, then GPU count, then sequence length is nearest; a benchmark only where
    nothing else is there. Raises InputError with the recipes that come near when none fits.
    """
    stem = _stem_of(model)
    same = [recipe for recipe in catalogue(release).values() if _is_of(recipe, model, stem)]
    fitting = [recipe for recipe in same if recipe.kind == task]
    found = [r for r in fitting if not classes or r.values.get("dataset.type") in classes]
    if not found and task == "pretrain":
        # A text model's finetuning recipe, whose data set object is replaced then.
        found = [r for r in same if r.kind == "sft" and r.values.get("dataset.type") in _TEXT]
    if not found:
        raise InputError(_none_fits(model, stem, task, release, same, fitting, classes))
    return min(found, key=lambda recipe: _distance(recipe, gpus=gpus, gpu=gpu, seq_length=seq_length))


def named_recipe(name: str, release: str) -> Recipe:
    """Return a recipe by its name; InputError says where it is, or which is near."""
    found = find_recipe(name, release)
    if found is not None:
        return found
    having, near = releases_with(name), nearest_recipe(name, release)
    where = f"; it is in {', '.join(having)}" if having else ""
    raise InputError(
        f"Megatron-Bridge {release} has no recipe {name[:100]!r}{where}{f'; did you mean {near}?' if near else ''}"
    )


def _stem_of(model: str) -> str:
    """Return a model's name in letters and digits only, without what says how it is stored or tuned."""
    name = model
    folder = Path(model)
    try:
        file = folder / "config.json" if folder.is_dir() else folder
        if file.name == "config.json" and file.is_file():
            told = json.loads(file.read_text("utf-8")).get("_name_or_path")
            name = told if isinstance(told, str) and told else str(file.parent.resolve())
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"{model[:200]} cannot be read as a model's config.json") from error
    return _plain(name.rstrip("/").rpartition("/")[2])


def _plain(name: str) -> str:
    words = [word for word in re.split(r"[^a-z0-9.]+", name.lower()) if word]
    return "".join(word for word in words if not _DROPPED.fullmatch(word)).replace(".", "")


def _is_of(recipe: Recipe, model: str, stem: str) -> bool:
    if recipe.hf_model and "/" in recipe.hf_model:
        return recipe.hf_model == model or _plain(recipe.hf_model.rpartition("/")[2]) == stem
    own = _plain(_KIND.split(recipe.name)[0])
    return own == stem or (stem.startswith(own) and re.search(r"\d+b$", own) is not None)


def _distance(recipe: Recipe, *, gpus: int | None, gpu: str | None, seq_length: int | None) -> tuple[object, ...]:
    """Rank a recipe: benchmarks and other GPU types last, then by the ratio of GPUs and of lengths, then by name."""
    types = re.findall(r"_(?:gb|h|b|vr|a)\d{3}_", recipe.name)
    other = bool(gpu and types and f"_{gpu.lower()}_" not in types)
    count = abs(math.log2(gpus / recipe.gpus)) if gpus and recipe.gpus else 0.0 if not gpus else 0.5
    length = recipe.values.get("model.seq_length")
    far = abs(math.log2(seq_length / length)) if seq_length and isinstance(length, int) and length > 0 else 0.0
    return recipe.benchmark, other, count, far, len(recipe.name), recipe.name


def _none_fits(
    model: str,
    stem: str,
    task: Task,
    release: str,
    same: list[Recipe],
    fitting: list[Recipe],
    classes: tuple[str, ...],
) -> str:
    start = f"Megatron-Bridge {release} has no {task} recipe for {model[:100]}"
    if fitting:
        names = ", ".join(recipe.name for recipe in fitting[:_SHOWN])
        return f"{start} with data of {' or '.join(classes)}; it has {names}"
    if same:
        return f"{start}; it has {', '.join(recipe.name for recipe in same[:_SHOWN])}"
    stems = {_plain(_KIND.split(r.name)[0]): r.name for r in catalogue(release).values() if r.kind == task}
    close = [stems[name] for name in difflib.get_close_matches(stem, list(stems), n=_SHOWN, cutoff=0.6)]
    near = f"; near are {', '.join(close)}" if close else ""
    return f"{start}{near}; name one with --recipe and give your weights as the checkpoint"
