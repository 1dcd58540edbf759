"""Where the bundle is found: in the checkout, and inside an installed package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import skill_run
from skill_run.bundle.locate import bundle_root

PACKAGE = Path(skill_run.__file__).parent
TELL = "from skill_run.bundle.locate import bundle_root; print(bundle_root())"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Return a copy of the package as a wheel lays it out, still without its bundle."""
    site = tmp_path / "lib" / "site-packages"
    shutil.copytree(PACKAGE, site / "skill_run", ignore=shutil.ignore_patterns("__pycache__", "_bundle"))
    return site


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=site.parent, capture_output=True, text=True, check=False
    )


def test_the_bundle_of_a_checkout_is_its_root() -> None:
    root = bundle_root()
    assert (root / "card.yaml").is_file()
    assert (root / "skills").is_dir()


def test_the_bundle_of_an_installed_package_is_inside_it(installed: Path) -> None:
    inside = installed / "skill_run" / "_bundle"
    (inside / "skills").mkdir(parents=True)
    (inside / "card.yaml").write_text("kind: bundle\n", "utf-8")
    assert run(installed, "-c", TELL).stdout.strip() == str(inside)


def test_an_installation_without_its_bundle_says_so_in_one_sentence(installed: Path) -> None:
    done = run(installed, "-m", "skill_run.cli", "skills", "list")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("skill-run: ")
    assert "missing from this installation" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("part", ["card.yaml", "skills"])
def test_half_a_bundle_is_none(installed: Path, part: str) -> None:
    inside = installed / "skill_run" / "_bundle"
    inside.mkdir()
    if part == "skills":
        (inside / part).mkdir()
    else:
        (inside / part).write_text("kind: bundle\n", "utf-8")
    assert "missing from this installation" in run(installed, "-c", TELL).stderr
