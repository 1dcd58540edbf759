"""Migrate override tokens one by one, each with its own operation and place."""

from __future__ import annotations

from collections.abc import Sequence

from skill_run.config.model import Unknown
from skill_run.config.overrides import read_overrides, render_override
from skill_run.config.write import edit_mapping, edit_overrides, rename_fields
from skill_run.errors import InputError
from skill_run.recipe.migrate.fields import FieldPlan


def migrate_tokens(tokens: Sequence[str], plan: FieldPlan) -> list[str]:
    """Return the tokens with the plan carried out; values that are added follow as `++` tokens."""
    renamed = [migrated_token(token, plan) for token in tokens]
    return edit_overrides(renamed, plan.sets, plan.removes)


def migrated_token(token: str, plan: FieldPlan) -> str:
    """Return one token under its new name; a mapping value is written anew where names inside it change."""
    operation = token[: len(token) - len(token.lstrip("+~"))]
    key, equal, value = token[len(operation) :].partition("=")
    for old, new in plan.renames.items():
        if key == old or key.startswith(old + "."):
            return f"{operation}{new}{key[len(old) :]}{equal}{value}"
    inside = {old: new for old, new in plan.renames.items() if old.startswith(key + ".")}
    if not inside:
        return token
    parsed = read_overrides([token]).assignments
    if any(isinstance(assignment.value, Unknown) for assignment in parsed):
        raise InputError(f"the value of {key} must be changed by hand: a part of it is not known")
    data = edit_mapping({}, {a.path[len(key) + 1 :]: a.value for a in parsed}, ())  # type: ignore[misc]
    cut = {old[len(key) + 1 :]: new[len(key) + 1 :] for old, new in inside.items() if new.startswith(key + ".")}
    if len(cut) < len(inside):
        raise InputError(f"the value of {key} must be changed by hand: {', '.join(inside)} moved out of it")
    return operation + render_override(key, rename_fields(data, cut), "set")
