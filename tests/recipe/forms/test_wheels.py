"""Every import and keyword that the forms write is in the real packages of its release."""

from __future__ import annotations

import ast

from form_drafts import named_drafts
from release_syntax import Wheel

from skill_run.bridge.recipes import catalogue
from skill_run.recipe.draft import Draft
from skill_run.recipe.forms.script import render_script


def missing_imports(tree: ast.Module, wheel: Wheel) -> list[str]:
    """Return the imports of a script that the packages do not have."""
    return [
        f"{node.module}.{alias.name}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
        if wheel.find(node.module, alias.name) is None
    ]


def test_every_import_of_each_kind_of_draft_is_there(release: tuple[str, Wheel]) -> None:
    bridge, wheel = release
    found = {kind: ast.parse(render_script(draft)) for kind, draft in named_drafts(bridge).items()}
    assert {kind: missing_imports(tree, wheel) for kind, tree in found.items()} == {kind: [] for kind in found}


def test_every_keyword_of_each_kind_of_draft_is_a_field_of_the_class(release: tuple[str, Wheel]) -> None:
    bridge, wheel = release
    unknown, calls = [], 0
    for draft in named_drafts(bridge).values():
        tree = ast.parse(render_script(draft))
        homes = {a.name: n.module for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id[0].isupper():
                known = wheel.keywords(str(homes[node.func.id]), node.func.id)
                unknown += [f"{node.func.id}.{key.arg}" for key in node.keywords if key.arg not in known]
                calls += len(node.keywords)
    assert unknown == []
    assert calls > 30


def test_the_recipe_and_the_forward_step_of_every_recipe_are_there(release: tuple[str, Wheel]) -> None:
    bridge, wheel = release
    drafts = [Draft(bridge, "w", "A run", "sft", recipe, {}) for recipe in catalogue(bridge).values()]
    missing = {draft.recipe.name: missing_imports(ast.parse(render_script(draft)), wheel) for draft in drafts}
    assert {name: found for name, found in missing.items() if found} == {}
