"""A generated setup as YAML to be merged over its recipe."""

from __future__ import annotations

from skill_run.config.yaml_text import block_lines
from skill_run.recipe.draft import Draft
from skill_run.recipe.forms.overrides import refuse_objects
from skill_run.recipe.forms.written import nested_settings


def render_yaml(draft: Draft) -> str:
    """Return YAML in sections, with the recipe and release in a comment. Raises InputError for objects."""
    refuse_objects(draft, "yaml")
    head = f"# Megatron-Bridge {draft.bridge}, over {draft.recipe.name}, on {draft.world_size} GPUs."
    return "\n".join([head, *block_lines(nested_settings(draft)), ""])
