"""The bundle installed into real assistants, in a home of their own, without a login."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SKILLS = sorted(path.parent.name for path in ROOT.glob("skills/*/SKILL.md"))
NOT_SHIPPED = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "dist", "tests")
SECONDS = 120

Run = Callable[..., subprocess.CompletedProcess[str]]


def load_installer() -> Any:
    path = Path(__file__).with_name("install_clients.py")
    spec = importlib.util.spec_from_file_location("install_clients", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def commands() -> tuple[Path, Path]:
    installer = load_installer()
    try:
        found: tuple[Path, Path] = installer.install()
    except installer.CannotInstallError as error:
        pytest.skip(f"the clients cannot be installed: {error}")
    return found


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is shipped, since some clients write beside what they read."""
    return Path(shutil.copytree(ROOT, tmp_path_factory.mktemp("bundle") / "skill-run", ignore=NOT_SHIPPED))


@pytest.fixture
def run(commands: tuple[Path, Path], tmp_path: Path) -> Run:
    """Return a function that runs a client's command in a new home and an empty project."""
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    project.mkdir()
    environment = {
        "HOME": str(home),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), str(commands[1]), "/usr/bin", "/bin"]),
        "DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "MCP_TIMEOUT": "60000",
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
    }

    def call(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(commands[0] / name), *arguments],
            cwd=project,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    return call


def test_claude_code_finds_nothing_wrong_with_the_plugin(run: Run, bundle: Path) -> None:
    done = run("claude", "plugin", "validate", "--strict", str(bundle))
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"skills: skill-run:{skill}" in done.stdout for skill in SKILLS)


def test_claude_code_installs_the_plugin_and_connects_to_its_server(run: Run, bundle: Path) -> None:
    added = run("claude", "plugin", "marketplace", "add", str(bundle))
    assert added.returncode == 0, added.stdout + added.stderr
    installed = run("claude", "plugin", "install", "skill-run@skill-run")
    assert installed.returncode == 0, installed.stdout + installed.stderr
    details = run("claude", "plugin", "details", "skill-run").stdout
    assert all(skill in details for skill in SKILLS)
    # Its exit code says nothing.
    assert "plugin:skill-run:skill-run: skill-run mcp - \u2714 Connected" in run("claude", "mcp", "list").stdout


def test_codex_installs_the_plugin_and_shows_its_skills_to_the_model(run: Run, bundle: Path) -> None:
    added = run("codex", "plugin", "marketplace", "add", str(bundle))
    assert added.returncode == 0, added.stdout + added.stderr
    installed = run("codex", "plugin", "add", "skill-run@skill-run")
    assert installed.returncode == 0, installed.stdout + installed.stderr
    listed = json.loads(run("codex", "plugin", "list", "--json").stdout)["installed"]
    assert [(plugin["name"], plugin["enabled"]) for plugin in listed] == [("skill-run", True)]
    prompt = run("codex", "debug", "prompt-input", "hi").stdout
    assert all(f"skill-run:{skill}" in prompt for skill in SKILLS)


def test_gemini_installs_the_extension_and_connects_to_its_server(run: Run, bundle: Path) -> None:
    checked = run("gemini", "extensions", "validate", str(bundle))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    installed = run("gemini", "extensions", "install", "--consent", str(bundle))
    assert installed.returncode == 0, installed.stdout + installed.stderr
    listed = run("gemini", "mcp", "list")
    assert "skill-run mcp (stdio) - Connected" in listed.stdout + listed.stderr


def test_the_skills_installer_copies_every_skill_whole(run: Run, bundle: Path, tmp_path: Path) -> None:
    done = run("skills", "add", str(bundle), "-a", "claude-code", "-a", "codex", "-y")
    assert done.returncode == 0, done.stdout + done.stderr
    for skill in SKILLS:
        copied = tmp_path / "project" / ".agents" / "skills" / skill
        there = {path.relative_to(copied).as_posix() for path in copied.rglob("*") if path.is_file()}
        folder = bundle / "skills" / skill
        assert there == {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        assert (tmp_path / "project" / ".claude" / "skills" / skill / "SKILL.md").is_file()
