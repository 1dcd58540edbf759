"""Rewrite one Python script for another release, in place, and write down the defaults that changed."""

from __future__ import annotations

from typing import Any

from skill_run.bridge.recipes import Recipe
from skill_run.config.config import Config
from skill_run.config.model import Source
from skill_run.errors import InputError, MissingError
from skill_run.recipe.migrate.fields import ETP, expert_tensor_parallel, recipe_pins
from skill_run.recipe.migrate.model import Notes

_WHY_ETP = "unset it meant TP before 0.6 and means 1 from 0.6 on, where experts are parallel"


def migrate_python(
    source: Source,
    config: Config | None,
    before: str,
    after: str,
    recipes: tuple[Recipe | None, Recipe | None] = (None, None),
) -> tuple[str, Notes]:
    """Return a script rewritten for release `after`, and what was done and left.

    config: what the script builds, None when nobody can tell without running it. recipes: both recipes when defaults
    that changed between them are to be pinned. Raises InputError when the text is not Python, MissingError without
    libcst.
    """
    try:
        import libcst as cst
    except ImportError as error:
        raise MissingError("migrating Python needs the libcst package: pip install 'skill-run[migrate]'") from error
    from skill_run.recipe.migrate.python.transform import rewrite

    try:
        module = cst.parse_module(source.text)
    except cst.ParserSyntaxError as error:
        line = error.raw_line
        raise InputError(f"{source.name}:{line}: not valid Python: {error.message.splitlines()[0]}") from error
    except RecursionError as error:
        raise InputError(f"{source.name}: its expressions are nested too deep to read") from error
    notes = Notes()
    pin, unknown = expert_pin(config, before, after)
    if unknown and "expert_model_parallel_size" in source.text:
        do = f"set {ETP} to what it was: the tensor parallel size before 0.6, 1 from 0.6 on"
        line = source.text[: source.text.index("expert_model_parallel_size")].count("\n") + 1
        notes.by_hand(ETP, f"{_WHY_ETP}, and whether it is set is not known: {unknown}", do, line)
    # Where the size is set to None already, that is the place to change.
    beside = pin if "expert_tensor_parallel_size" not in source.text else None
    try:
        text, placed = rewrite(module, source, config, before, after, notes, beside)
    except RecursionError as error:
        raise InputError(f"{source.name}: its statements are nested too deep to rewrite") from error
    pins: dict[str, Any] = {} if pin is None or placed else {ETP: pin}
    if recipes[0] is not None and recipes[1] is not None and config is not None:
        pins |= recipe_pins(recipes[0], recipes[1], after, config)
    return add_settings(text, source, pins, after, notes), notes


def expert_pin(config: Config | None, before: str, after: str) -> tuple[int | None, str]:
    """Return the expert tensor parallel size to write down, and why it is not known whether one is needed."""
    from skill_run.bridge.release import matches

    if matches(">=0.6.dev0", before) == matches(">=0.6.dev0", after):
        return None, ""
    if config is None:
        return None, "the script could not be followed"
    return expert_tensor_parallel(config, before)


def add_settings(text: str, source: Source, pins: dict[str, Any], after: str, notes: Notes) -> str:
    """Return the script with further settings behind its last one; what has no place there is listed."""
    from skill_run.config.read import read_config_text
    from skill_run.config.write import write_back

    for path, value in pins.items():
        why = _WHY_ETP if path == ETP else f"the recipe's own default is another one in {after}"
        try:
            made = read_config_text(text, name=source.name, form="python")
            given = {assignment.path for assignment in made.assignments}
            if path in given and path != ETP:
                continue
            text = str(write_back(made, {path: value}, []))
            notes.changed(f"{path} = {value!r}", why)
        except InputError as error:
            notes.by_hand(path, why, f"set {path} to {value!r} ({error})")
    return text
