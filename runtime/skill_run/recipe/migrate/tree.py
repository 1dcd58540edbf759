"""Write a field plan into YAML, JSON or a mapping; comments, order and style of everything else stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skill_run.config.model import Source
from skill_run.config.write import edit_json, edit_mapping, edit_yaml, is_json, rename_fields
from skill_run.recipe.migrate.fields import FieldPlan


def write_tree(source: Source, plan: FieldPlan, original: Mapping[str, Any] | None) -> str | dict[str, Any]:
    """Return the input with the plan carried out, as text or, when it came as a mapping, as a mapping."""
    if not source.text:
        return edit_mapping(rename_fields(original or {}, plan.renames), plan.sets, plan.removes)
    if not (plan.renames or plan.sets or plan.removes):
        return source.text
    if source.form == "json" or is_json(source.text):
        return edit_json(source.text, plan.sets, plan.removes, plan.renames)
    return edit_yaml(source.text, plan.sets, plan.removes, source.name, plan.renames, plan.beside)
