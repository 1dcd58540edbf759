"""scripts/package_clients.py: what clients read is fresh, and each file is what its client expects."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "package_clients.py"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("package_clients", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


package = _load()


def test_what_clients_read_is_fresh() -> None:
    assert package.stale() == []


def test_every_manifest_says_the_bundles_version_and_starts_the_same_command() -> None:
    card = yaml.safe_load((ROOT / "card.yaml").read_text("utf-8"))
    for name, text in package.files().items():
        if not name.endswith(".json"):
            continue
        data = json.loads(text)
        assert data.get("version", card["version"]) == card["version"], name
        servers = data.get("mcpServers")
        for server in servers.values() if isinstance(servers, dict) else ():
            assert [server["command"], *server["args"]] == ["skill-run", "mcp"], name


def test_the_registry_entry_fits_the_registrys_limits_and_the_readme_claims_it() -> None:
    entry = json.loads(package.files()["server.json"])
    assert len(entry["description"]) <= 100
    assert f"mcp-name: {entry['name']}" in (ROOT / "README.md").read_text("utf-8")


def test_a_stale_file_fails_the_check_and_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("card.yaml", "skills"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)  # type: ignore[operator]
    monkeypatch.setattr(package, "ROOT", tmp_path)
    assert package.main(["--check"]) == 1
    assert ".claude-plugin/plugin.json is stale" in capsys.readouterr().out
    assert package.main([]) == 0
    assert package.main(["--check"]) == 0
