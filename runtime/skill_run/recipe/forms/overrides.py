"""A generated setup as Hydra overrides over its recipe, one a line."""

from __future__ import annotations

from skill_run.config.overrides import render_override
from skill_run.errors import InputError
from skill_run.recipe.draft import Draft
from skill_run.recipe.forms.written import written_settings


def render_overrides(draft: Draft) -> str:
    """Return one override a line; `++` where the recipe may not have the parent. Raises InputError for objects."""
    refuse_objects(draft, "overrides")
    lines = []
    for name, value in written_settings(draft).items():
        lines.append(render_override(name, value, "force" if name.count(".") > 1 else "override"))
    return "".join(f"{line}\n" for line in lines)


def refuse_objects(draft: Draft, form: str) -> None:
    """Raise InputError when an object of the config must be replaced, which only code can do."""
    for name, what in (("dataset.type", "data set"), ("peft.type", "adapter")):
        if name in draft.settings and draft.settings[name] != draft.recipe.values.get(name):
            raise InputError(
                f"{form} cannot replace the {what} of {draft.recipe.name} by {draft.settings[name]}; "
                "ask for the form script or python"
            )
    for section in ("comm_overlap", "dataset.offline_packing_specs"):
        if _made(draft, section):
            raise InputError(
                f"{form} cannot make the {section} that {draft.recipe.name} leaves out; "
                "ask for the form script or python"
            )


def _made(draft: Draft, section: str) -> bool:
    inside = section + "."
    return any(name.startswith(inside) for name in draft.settings) and not any(
        name.startswith(inside) for name in draft.recipe.values
    )
