"""A generated setup as JSON sections to be merged over its recipe."""

from __future__ import annotations

import json

from skill_run.recipe.draft import Draft
from skill_run.recipe.forms.overrides import refuse_objects
from skill_run.recipe.forms.written import nested_settings


def render_json(draft: Draft) -> str:
    """Return JSON in sections. Raises InputError for objects."""
    refuse_objects(draft, "json")
    return json.dumps(nested_settings(draft), indent=2) + "\n"
