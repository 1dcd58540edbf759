"""Read any form of config: tell the form, and hand it to the reader of that form."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skill_run.config.flatten import flatten
from skill_run.config.model import Form, Source
from skill_run.config.text import parse_json, read_text
from skill_run.config.tree import MAX_BYTES, Leaf, Node, from_plain, parse_tree
from skill_run.config.tree import Mapping as TreeMapping
from skill_run.errors import InputError

_SUFFIXES: dict[str, Form] = {
    ".yaml": "yaml",
    ".yml": "yaml",
    ".json": "json",
    ".py": "python",
    ".sh": "sbatch",
    ".bash": "sbatch",
    ".sbatch": "sbatch",
    ".slurm": "sbatch",
}
_STARTERS = re.compile(r"srun|torchrun|uv|python[\d.]*|accelerate")
_TRAINERS = ("run_recipe.py", "train.sh", "setup_experiment.py")
_VARIABLE = re.compile(r"[A-Za-z_]\w*=")
_HEAD = 65536
_PYTHON_LINE = re.compile(r"^(?:from\s+[\w.]+\s+import\s|import\s+[\w.]+|def\s+\w+\s*\(|\w+\s*=\s*\w+\()", re.MULTILINE)
_CONTAINER_TARGET = "ConfigContainer"


def read_source(
    source: str | Path | Mapping[str, Any], *, bridge: str | None = None, form: Form | None = None
) -> Source:
    """Return the Source of a path, of config text, or of a mapping (nested or dotted).

    bridge: the version asked for, which decides what launcher flags mean. Raises InputError.
    """
    if isinstance(source, Mapping):
        return read_mapping(source)
    if isinstance(source, str) and ("\n" in source or form is not None):
        return read_config_text(source, name="<text>", form=form or form_of_text(source), bridge=bridge)
    if not isinstance(source, str | Path):
        raise InputError(f"a config is a path, text or a mapping, not a value of type {type(source).__name__}")
    path = Path(source)
    try:
        there = path.exists()
    except (OSError, ValueError):
        there = False
    if there:
        text = read_text(path, MAX_BYTES)
        return read_config_text(text, name=str(source), form=form_of_file(path, text), bridge=bridge)
    if isinstance(source, str) and is_launch(source):
        return read_config_text(source, name="<command>", form="command", bridge=bridge)
    if isinstance(source, str) and source.lstrip().startswith("{"):
        return read_config_text(source, name="<text>", form="json", bridge=bridge)
    shown = str(source)
    raise InputError(f"{shown if len(shown) <= 200 else shown[:197] + '...'} is not there: no such config file")


def form_of_file(path: Path, text: str) -> Form:
    """Return the form of a file, by its suffix or else by its text."""
    known = _SUFFIXES.get(path.suffix.lower())
    if known is not None:
        return known
    return form_of_text(text)


def is_launch(text: str) -> bool:
    """Tell whether a text begins with a program that starts training, after variables set for it."""
    words = text[:_HEAD].split()
    first = next((index for index, word in enumerate(words) if not _VARIABLE.match(word)), len(words))
    program, argument = (*words[first : first + 2], "", "")[:2]
    if program in ("bash", "sh"):
        return argument.endswith(_TRAINERS)
    return _STARTERS.fullmatch(program.rpartition("/")[2]) is not None or program.endswith(_TRAINERS)


def form_of_text(text: str) -> Form:
    """Return the form of text by what it looks like; YAML when nothing else fits."""
    head = text.lstrip("\ufeff \t\r\n")
    if head.startswith(("#!", "#SBATCH")) or "\n#SBATCH" in text:
        return "python" if "python" in head.split("\n", 1)[0] else "sbatch"
    if head.startswith("{"):
        return "json"
    if is_launch(head):
        return "command"
    if _PYTHON_LINE.search(text):
        return "python"
    return "yaml"


def read_config_text(text: str, *, name: str, form: Form, bridge: str | None = None) -> Source:
    """Return the Source of text whose form is known."""
    if form == "python":
        from skill_run.bridge.recipes import releases_with
        from skill_run.config.python.reader import read_python

        return read_python(text, name=name, known_recipes=lambda recipe: bool(releases_with(recipe)))
    if form in ("sbatch", "command"):
        from skill_run.bridge.version import normalise, recorded_for
        from skill_run.config.command_line import load_flags, read_command, read_sbatch

        version = recorded_for(normalise(bridge))[0] if bridge is not None else None
        reader = read_sbatch if form == "sbatch" else read_command
        return reader(text, name=name, flags_by_version=load_flags(), version=version)
    return _read_tree(text, name, form)


def _read_tree(text: str, name: str, form: Form) -> Source:
    root = _parse_json_tree(text, name) if form == "json" else parse_tree(text, name)
    if root is None:
        raise InputError(f"{name} is empty: it holds no config")
    if not isinstance(root, TreeMapping):
        raise InputError(f"{name} does not hold a config: the top level must be a mapping of sections")
    return _source_of(root, form, name, text)


def _parse_json_tree(text: str, name: str) -> Node | None:
    data = parse_json(text, name)
    try:
        return parse_tree(text, name)
    except InputError as error:
        # JSON that YAML does not take, such as a character written as two escapes: its values have no places then.
        repeated: list[str] = []
        json.loads(text, object_pairs_hook=lambda pairs: repeated.extend(_repeated(pairs)))
        if repeated:
            raise error
        return from_plain(data, name)


def _repeated(pairs: list[tuple[str, Any]]) -> list[str]:
    return [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]


def read_mapping(data: Mapping[str, Any], name: str = "<mapping>") -> Source:
    """Return the Source of a mapping, nested or dotted, with or without `_target_`."""
    root = from_plain(dict(data), name)
    assert isinstance(root, TreeMapping)
    return _source_of(root, "mapping", None, "")


def _source_of(root: TreeMapping, form: Form, name: str | None, text: str) -> Source:
    target = root.items.get("_target_")
    if isinstance(target, Leaf) and isinstance(target.value, str) and target.value.endswith(_CONTAINER_TARGET):
        form = "container"
    return Source(form=form, name=name or "<mapping>", text=text, assignments=flatten(root, name))


def read_started_script(launch: Source, folder: Path | None) -> Source | None:
    """Return the Source of the training script that a launch line starts, when it is found; None otherwise.

    folder: where the launch file lies; None when nothing may be followed. Upstream's own launcher builds its config
    from flags, so there is nothing to follow then. A link is not followed.
    """
    if launch.form not in ("sbatch", "command") or launch.script is None or launch.base_unknown is None:
        return None
    if folder is None or not launch.script.endswith(".py"):
        return None
    for candidate in (folder / launch.script, folder / Path(launch.script).name, Path(launch.script)):
        try:
            if candidate.is_file() and not candidate.is_symlink():
                return read_source(candidate)
        except (OSError, ValueError):
            continue
    return None
