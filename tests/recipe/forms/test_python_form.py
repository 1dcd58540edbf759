"""What the forms write is read back by our own reader as exactly the settings of the draft."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from form_drafts import RELEASES, drafts, named_drafts
from hypothesis import HealthCheck, given, settings

from skill_run.bridge import names
from skill_run.bridge.names import canonical_field
from skill_run.config.read import read_source
from skill_run.config.typing import check_value
from skill_run.recipe.draft import Draft
from skill_run.recipe.forms.assignments import dataset_type
from skill_run.recipe.forms.python_form import render_python
from skill_run.recipe.forms.script import render_script
from skill_run.rules.validate import build_config, validate_config

RENDERERS = (render_python, render_script)
# A function is not plain data, and a second name is kept beside the field that it stands for.
UNREAD = ("dataset.process_example_fn", "dataset.sequence_length")
NAMED = [(bridge, kind) for bridge in RELEASES for kind in named_drafts(bridge)]


def read_back(made: str, bridge: str) -> tuple[str | None, dict[str, Any]]:
    """Return the recipe of a script and what it sets, by canonical field."""
    source = read_source(made, bridge=bridge, form="python")
    config = build_config([source], bridge=bridge)
    found = {name: held.value for name, held in config.values.items() if held.written is not None}
    return source.recipe, {name: value for name, value in found.items() if name not in UNREAD}


def expected(draft: Draft) -> dict[str, Any]:
    """Return the settings in the form that the reader gives them."""
    found = {}
    for name, value in draft.settings.items():
        spec = canonical_field(name)
        found[name] = check_value(name, value, spec)[0] if spec is not None else value
    if not names.exists("dataset.enable_offline_packing", draft.bridge, dataset_type(draft)):
        found.pop("dataset.enable_offline_packing", None)
    return {name: value for name, value in found.items() if name not in UNREAD}


def without_implied(settings: dict[str, Any], draft: Draft) -> dict[str, Any]:
    """Leave out the classes that the form chose by itself."""
    return {name: value for name, value in settings.items() if not name.endswith(".type") or name in draft.settings}


@pytest.mark.parametrize("render", RENDERERS)
@pytest.mark.parametrize(("bridge", "kind"), NAMED)
def test_each_kind_of_draft_is_read_back_as_it_was(bridge: str, kind: str, render: Callable[[Draft], str]) -> None:
    draft = named_drafts(bridge)[kind]
    recipe, found = read_back(render(draft), bridge)
    assert recipe == draft.recipe.name
    assert without_implied(found, draft) == expected(draft)


@pytest.mark.parametrize(("bridge", "kind"), NAMED)
def test_no_field_or_import_of_a_draft_is_unknown_to_its_release(bridge: str, kind: str) -> None:
    report = validate_config(render_script(named_drafts(bridge)[kind]), bridge=bridge, form="python")
    named = {finding.rule for finding in report.findings}
    assert not {rule for rule in named if rule.startswith(("unknown-", "renamed-", "wrong-"))}


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(drafts())
def test_any_drawn_draft_is_read_back_as_it_was(draft: Draft) -> None:
    for render in RENDERERS:
        made = render(draft)
        recipe, found = read_back(made, draft.bridge)
        assert recipe == draft.recipe.name
        assert without_implied(found, draft) == expected(draft)
