"""The bundle installed into real assistants, in a home of their own, without a login."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

Run = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).parents[2]
SKILLS = sorted(path.parent.name for path in ROOT.glob("skills/*/SKILL.md"))


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


def test_the_skills_installer_copies_every_skill_whole(run: Run, bundle: Path, project: Path) -> None:
    done = run("skills", "add", str(bundle), "-a", "claude-code", "-a", "codex", "-y")
    assert done.returncode == 0, done.stdout + done.stderr
    for skill in SKILLS:
        copied = project / ".agents" / "skills" / skill
        there = {path.relative_to(copied).as_posix() for path in copied.rglob("*") if path.is_file()}
        folder = bundle / "skills" / skill
        assert there == {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        assert (project / ".claude" / "skills" / skill / "SKILL.md").is_file()
