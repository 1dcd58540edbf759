"""Write what each client reads to install the bundle: plugin manifests, MCP settings and the registry's entry.

All of it says what card.yaml and the skills' own frontmatter say already, in the words of each client, so it is written
from there. `python scripts/package_clients.py` writes; `--check` names what is stale and exits 1 if anything is.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[1]
# The command is on PATH once the package is installed: no client needs to know where the bundle lies.
SERVER: Final = {"command": "skill-run", "args": ["mcp"]}
# Some clients give a server five seconds to start unless told otherwise; a cold disk may need more.
START_MILLISECONDS: Final = 60_000
REGISTRY: Final = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
REGISTRY_NAME: Final = "io.github.skill-run/skill-run"
REGISTRY_LIMIT: Final = 100
AUTHOR: Final = {"name": "skill-run developers"}
KEYWORDS: Final = ("megatron-bridge", "sequence-packing", "context-parallelism", "long-context", "mcp")
SHORT: Final = "Check, plan, prove and launch sequence packing and long context on NVIDIA Megatron-Bridge."


def files() -> dict[str, str]:
    """Return every file: path from the repository's root -> text."""
    card = yaml.safe_load((ROOT / "card.yaml").read_text("utf-8"))
    common = {"name": card["name"], "version": card["version"], "description": SHORT}
    plugin = {**common, "author": AUTHOR, "license": card["license"], "keywords": list(KEYWORDS)}
    found: dict[str, Any] = {
        ".claude-plugin/plugin.json": plugin,
        ".claude-plugin/marketplace.json": _marketplace(common, {"source": "./"}),
        ".mcp.json": {"mcpServers": {card["name"]: SERVER}},
        # Codex starts the server of .mcp.json in the user's project; one that a manifest of its own names would start
        # in the plugin's folder, from where the project cannot be read.
        ".codex-plugin/plugin.json": {**plugin, "skills": "./skills/"},
        ".agents/plugins/marketplace.json": _marketplace(common, {"source": {"source": "local", "path": "./"}}),
        "gemini-extension.json": {
            **common,
            "mcpServers": {card["name"]: {**SERVER, "timeout": START_MILLISECONDS}},
        },
        "server.json": _registry_entry(common),
    }
    texts = {name: json.dumps(data, indent=2) + "\n" for name, data in found.items()}
    texts.update({f"skills/{skill}/agents/openai.yaml": _openai(skill) for skill in card["skills"]})
    return texts


def _marketplace(common: Mapping[str, str], source: Mapping[str, Any]) -> dict[str, Any]:
    entry = {"name": common["name"], **source, "description": common["description"], "version": common["version"]}
    return {
        "name": common["name"],
        "owner": AUTHOR,
        "metadata": {"description": common["description"], "version": common["version"]},
        "plugins": [entry],
    }


def _registry_entry(common: Mapping[str, str]) -> dict[str, Any]:
    assert len(common["description"]) <= REGISTRY_LIMIT
    package = {
        "registryType": "pypi",
        "identifier": common["name"],
        "version": common["version"],
        "transport": {"type": "stdio"},
        "runtimeHint": "uvx",
        "packageArguments": [{"type": "positional", "value": "mcp"}],
    }
    return {
        "$schema": REGISTRY,
        "name": REGISTRY_NAME,
        "title": common["name"],
        "description": common["description"],
        "version": common["version"],
        "packages": [package],
    }


def _openai(skill: str) -> str:
    """Return what Codex shows of a skill, and the server that the skill works with."""
    card = yaml.safe_load((ROOT / "skills" / skill / "card.yaml").read_text("utf-8"))
    data = {
        "interface": {"display_name": card["title"], "short_description": _sentence(card["summary"])},
        "policy": {"allow_implicit_invocation": True},
        "dependencies": {
            "tools": [
                {
                    "type": "mcp",
                    "value": "skill-run",
                    "description": "Validates, plans, inspects and launches Megatron-Bridge training.",
                    "transport": "stdio",
                    "command": "skill-run mcp",
                }
            ]
        },
    }
    return yaml.safe_dump(data, sort_keys=False, width=120)


def _sentence(text: str) -> str:
    first = " ".join(text.split()).partition(". ")[0].partition(": ")[0]
    return first.rstrip(".") + "."


def stale() -> list[str]:
    """Return the files that are missing or say something else than the cards."""
    return [name for name, text in files().items() if not _is(ROOT / name, text)]


def _is(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()


def main(arguments: Sequence[str]) -> int:
    """Write or check; return the exit code."""
    old = stale()
    if list(arguments) == ["--check"]:
        for name in old:
            print(f"{name} is stale; run scripts/package_clients.py")
        return 1 if old else 0
    texts = files()
    for name in old:
        path = ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(texts[name].encode())
    print(f"{len(texts)} files, {len(old)} changed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
