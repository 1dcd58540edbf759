"""The files of a job's folder: the config as data, and the entry script with what it imports."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import yaml
from packaging.version import Version

from skill_run.bridge import recipes
from skill_run.bridge.release import index
from skill_run.config.model import Assignment, Source, Unknown
from skill_run.config.resolve import PSEUDO_FIELDS
from skill_run.config.tree import parse_tree, to_plain
from skill_run.errors import InputError
from skill_run.rehearse.request import nested

_ABOUT_THE_RUN: Final = frozenset({"recipe", "env", "bridge", *PSEUDO_FIELDS})
# What the launch decides itself; a config's own values for these are shown, not used.
_DECIDED: Final = ("checkpoint.load", "checkpoint.save")
_MODULES: Final = ("entry_job.py", "entry_config.py", "entry_hooks.py", "start.py")


@dataclass(slots=True)
class ConfigFiles:
    """A config as the entry script reads it: base, values, overrides; and what of it the launch decides itself."""

    base: dict[str, Any]
    values: dict[str, Any]
    overrides: list[str] = field(default_factory=list)
    decided: dict[str, Any] = field(default_factory=dict)


def config_files(
    sources: Sequence[Source], release: str, recipe: str | None, original: Mapping[str, Any] | None = None
) -> ConfigFiles:
    """Return the files' data for sources that are read already.

    original: the input, when it was a mapping. Raises InputError for a config without a base, with a recipe that the
    release lacks, or with values that only running the user's code would tell.
    """
    name = recipe or next((source.recipe for source in sources if source.recipe), None)
    found = _recipe(name, release) if name is not None else None
    tokens = [token for source in sources for token in source.override_tokens]
    overridden = {a.path for source in sources for a in source.assignments if a.operation != "set"}
    kept, decided = [], {}
    for source in sources:
        for assignment in source.assignments:
            if assignment.path in _DECIDED and not isinstance(assignment.value, Unknown):
                decided[assignment.path] = (assignment.value, source.form)
            if assignment.operation == "set" and source.form != "container" and not _about_the_run(assignment):
                kept.append(assignment)
    _refuse_unknown(kept, overridden)
    if found is None:
        container = next((source for source in sources if source.form == "container"), None)
        if container is None:
            raise InputError("the config is neither a whole ConfigContainer nor laid over a recipe; --recipe names one")
        held = to_plain(parse_tree(container.text, container.name)) if container.text else original
        values = dict(held) if isinstance(held, Mapping) else {}
        return ConfigFiles({"container": True}, values, tokens, decided)
    values = nested([a for a in kept if not isinstance(a.value, Unknown)], release)
    return ConfigFiles({"recipe": found.name, "module": found.module}, values, tokens, decided)


def _recipe(name: str, release: str) -> recipes.Recipe:
    found = recipes.find_recipe(name, release)
    if found is None:
        near = recipes.nearest_recipe(name, release)
        raise InputError(
            f"Megatron-Bridge {release} has no recipe {name[:200]}{f'; the nearest is {near}' if near else ''}"
        )
    return found


def _refuse_unknown(assignments: Sequence[Assignment], overridden: set[str]) -> None:
    last = {assignment.path: assignment for assignment in assignments}
    for path, assignment in last.items():
        if isinstance(assignment.value, Unknown) and path not in overridden and path not in _DECIDED:
            raise InputError(
                f"{path} {assignment.value.reason}, and the config's code is read, never run; give its value as an "
                f"override: {path}=..."
            )


def _about_the_run(assignment: Assignment) -> bool:
    head = assignment.path.partition(".")[0]
    return head in _ABOUT_THE_RUN or head in index()["run_input_names"]


def entry_files(release: str) -> dict[str, str]:
    """Return the entry script for a release as train.py, and what it imports, by name."""
    generation = "train_0_6.py" if Version(release) >= Version("0.6.dev0") else "train_0_3_to_0_5.py"
    folder = files("skill_run.launch") / "entry"
    found = {"train.py": (folder / generation).read_text("utf-8")}
    found |= {name: (folder / name).read_text("utf-8") for name in _MODULES}
    return {**found, "capture.py": (files("skill_run") / "capture.py").read_text("utf-8")}


def data_files(config: ConfigFiles, run: Mapping[str, Any]) -> dict[str, str]:
    """Return run.json, config.yaml and overrides.json."""
    return {
        "run.json": json.dumps(run, indent=1) + "\n",
        "config.yaml": yaml.safe_dump(config.values, sort_keys=False),
        "overrides.json": json.dumps(config.overrides, indent=1) + "\n",
    }


def package_folder() -> Path:
    """Return the folder of this package."""
    return Path(__file__).resolve().parents[1]
