"""config.json of the models that recipes start from: the user's own, the hub's cache, else the published shape.

`models.json` holds published shapes by architecture. They matter for ratios and kinds of layers only, as a rehearsal
makes everything small.
"""

from __future__ import annotations

import json
import os
from importlib.resources import files
from pathlib import Path
from typing import Any

from skill_run.config.text import parse_json, read_text
from skill_run.errors import InputError

_MOST_BYTES = 2**20


def model_config(model_id: str, given: str | None) -> dict[str, Any]:
    """Return the content of config.json for a model.

    given: the user's --model: a folder with config.json, or that file. Raises InputError when it is not there, or when
    nothing is known of the model.
    """
    if given is not None and (found := _read(Path(given))) is not None:
        return found
    if given is not None and given.startswith((".", "/", "~")):
        raise InputError(f"{given[:200]} has no config.json; --model takes a folder with it, or the file")
    snapshot = hub_snapshot(model_id, "config.json")
    if snapshot is not None and (found := _read(snapshot)) is not None:
        return found
    published = published_config(model_id)
    if published is None:
        raise InputError(
            f"the recipe starts from {model_id}, whose config.json is not on this machine; "
            "give its folder with --model DIR (config.json is enough)"
        )
    return published


def published_config(model_id: str) -> dict[str, Any] | None:
    """Return what `models.json` knows of a model, as its config.json says it; None when it is not in there."""
    return _published("models.json", model_id)


def published_sizes(model_id: str) -> dict[str, Any] | None:
    """Return a published model's sizes in config.json's names, None when none are known.

    `shapes.json` holds models of which only the sizes are told: enough for counting, not for building the model.
    """
    return published_config(model_id) or _published("shapes.json", model_id)


def _published(table: str, model_id: str) -> dict[str, Any] | None:
    for architecture in json.loads((files("skill_run.bridge") / "data" / table).read_text("utf-8")).values():
        found = architecture["models"].get(model_id)
        if found is not None:
            sizes, own = found
            return {**architecture["common"], **dict(zip(architecture["columns"], sizes, strict=True)), **own}
    return None


def hub_snapshot(model_id: str, file: str) -> Path | None:
    """Return the newest snapshot of a model in the user's Hugging Face hub cache that has this file, or None."""
    parts = model_id.split("/")
    if not 1 <= len(parts) <= 2 or any(part in ("", ".", "..") for part in parts):
        return None
    folder = _hub_cache() / f"models--{'--'.join(parts)}" / "snapshots"
    try:
        found = [path for path in folder.iterdir() if (path / file).is_file()]
        return max(found, key=lambda path: path.stat().st_mtime, default=None)
    except (OSError, ValueError):
        return None


def _hub_cache() -> Path:
    given = os.environ.get("HF_HUB_CACHE")
    if given:
        return Path(given)
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    return Path(home).expanduser() / "hub"


def _read(path: Path) -> dict[str, Any] | None:
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        return None
    data = parse_json(read_text(file, _MOST_BYTES), str(file))
    if not isinstance(data, dict):
        raise InputError(f"{file} does not hold a model config")
    return data
