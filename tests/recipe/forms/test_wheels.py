"""Every import and keyword that the forms write is in the real packages of its release."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest
from tests.conftest import load_installer
from tests.recipe.forms.drafts import named_drafts
from tests.recipe.forms.wheel import Wheel, wheel_at

from skill_run.bridge.recipes import catalogue
from skill_run.errors import MissingError
from skill_run.recipe.draft import Draft
from skill_run.recipe.forms.script import render_script
from skill_run.worker.environments import FOLDER_ENVIRONMENT, Worker
from skill_run.worker.releases import prepare_release

PUBLISHED = ("0.3.1", "0.4.2", "0.5.1", "0.6.2")


@pytest.fixture(scope="session")
def site_packages(bridge_worker: Worker) -> Path:
    code = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    done = subprocess.run([*bridge_worker.command, "-I", "-c", code], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


@pytest.fixture(scope="session", params=PUBLISHED)
def release(request: pytest.FixtureRequest, bridge_worker: Worker, site_packages: Path) -> tuple[str, Wheel]:
    """A release with its packages: the worker's own, or wheels that are fetched into the tests' cache folder."""
    bridge: str = request.param
    if bridge == bridge_worker.bridge:
        return bridge, wheel_at(site_packages)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_ENVIRONMENT, str(load_installer().cache_folder() / "workers"))
        try:
            return bridge, wheel_at(prepare_release(bridge_worker, bridge))
        except MissingError as error:
            pytest.skip(f"the wheels of Megatron-Bridge {bridge} cannot be had, so its names are not checked: {error}")


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
